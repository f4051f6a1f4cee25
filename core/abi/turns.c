/* Turns on a context: what uses its queue does so in the order of the calls. Each call takes a number, and the numbers
 * are served one after the other. So no call is overtaken by a later one, which a mutex does not guarantee. */
#include "turns.h"

void clg_turns_init(clg_turns *t) {
    *t = (clg_turns){0};
    pthread_mutex_init(&t->mutex, NULL);
    pthread_cond_init(&t->changed, NULL);
}

void clg_turns_destroy(clg_turns *t) {
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->mutex);
}

uint64_t clg_turn_take(clg_turns *t) {
    pthread_mutex_lock(&t->mutex);
    uint64_t turn = t->next++;
    pthread_mutex_unlock(&t->mutex);
    return turn;
}

bool clg_turn_begin_if_free(clg_turns *t) {
    pthread_mutex_lock(&t->mutex);
    bool is_free = t->next == t->served;
    if (is_free) t->next++;
    pthread_mutex_unlock(&t->mutex);
    return is_free;
}

/* With the mutex locked. */
static void await_locked(clg_turns *t, uint64_t turn) {
    t->waiting++;
    while (t->served != turn) pthread_cond_wait(&t->changed, &t->mutex);
    t->waiting--;
}

void clg_turn_await(clg_turns *t, uint64_t turn) {
    pthread_mutex_lock(&t->mutex);
    await_locked(t, turn);
    pthread_mutex_unlock(&t->mutex);
}

void clg_turn_begin(clg_turns *t) {
    pthread_mutex_lock(&t->mutex);
    await_locked(t, t->next++);
    pthread_mutex_unlock(&t->mutex);
}

void clg_turn_end(clg_turns *t) {
    pthread_mutex_lock(&t->mutex);
    t->served++;
    if (t->waiting) pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->mutex);
}
