/* Threads that make random calls on the same handles, for a thread sanitizer: race_runtime SEED ROUNDS. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "calls.h"

enum { THREADS = 4, BYTES = 20000 };
static unsigned seed;

static void *play(void *number) {
    uint8_t *bytes = malloc(BYTES);
    uint64_t state = seed * 1000003ull + (uintptr_t)number * 7919 + 1;
    for (int i = 0; i < BYTES; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        bytes[i] = (uint8_t)(state >> 32);
    }
    input in = {bytes, BYTES};
    calls_play(&in);
    free(bytes);
    return NULL;
}

int main(int count, char **words) {
    seed = count > 1 ? (unsigned)atoi(words[1]) : 1;
    for (int round = count > 2 ? atoi(words[2]) : 1; round > 0; round--, seed++) {
        pthread_t threads[THREADS];
        calls_begin();
        for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, play, (void *)i);
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
        calls_end();
    }
    puts("done");
    return 0;
}
