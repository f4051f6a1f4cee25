/* Turns on a context. A turn is taken by its number and awaited, or begun at once; who has begun one ends it. */
#ifndef CLGRAFT_TURNS_H
#define CLGRAFT_TURNS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct clg_turns {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t next, served;
    uint32_t waiting;
} clg_turns;
void clg_turns_init(clg_turns *turns);
void clg_turns_destroy(clg_turns *turns); /* in the process that made them; not in a child of it */
uint64_t clg_turn_take(clg_turns *turns);
void clg_turn_await(clg_turns *turns, uint64_t turn);
void clg_turn_begin(clg_turns *turns);
bool clg_turn_begin_if_free(clg_turns *turns); /* false: others run or wait */
void clg_turn_end(clg_turns *turns);

#endif
