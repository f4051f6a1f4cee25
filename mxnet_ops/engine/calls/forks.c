/* Waits for MXNet's operators before the process forks.
 *
 * MXNet joins its engine's threads in front of a fork. A thread that runs an operator for the first time asks
 * Python for plans, one that ends an operator lets Python free what it holds; both need the interpreter's lock,
 * which a Python that forks has: all would wait for ever. Handlers run in the opposite order of their registration,
 * so this one, which lets the lock go while it waits, runs before MXNet's. Operators that end between the two
 * handlers are freed after the fork. */
#include <pthread.h>

#include "forks.h"
#include "questions.h"
#include "threads.h"

__thread int clg_mx_running;
static __thread bool holding; /* whether this thread made others wait */
static int watching;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static int ending, forks;
static clg_mx_execution *waiting;

bool clg_mx_may_end(clg_mx_execution *execution) {
    pthread_mutex_lock(&mutex);
    bool may = !forks;
    if (may) {
        ending++;
    } else {
        execution->next = waiting;
        waiting = execution;
    }
    pthread_mutex_unlock(&mutex);
    return may;
}

void clg_mx_has_ended(void) {
    pthread_mutex_lock(&mutex);
    ending--;
    pthread_cond_broadcast(&ended);
    pthread_mutex_unlock(&mutex);
}

void clg_mx_hold_ends(void) {
    if (holding) return;
    holding = true;
    pthread_mutex_lock(&mutex);
    forks++;
    while (ending) pthread_cond_wait(&ended, &mutex);
    pthread_mutex_unlock(&mutex);
}

static void before_fork(void) {
    if (__atomic_load_n(&watching, __ATOMIC_ACQUIRE) && !clg_mx_running) clg_mx_py_before_fork();
}

static void after_fork(void) {
    if (!holding) return;
    holding = false;
    pthread_mutex_lock(&mutex);
    clg_mx_execution *late = --forks ? NULL : waiting;
    if (late) waiting = NULL;
    pthread_mutex_unlock(&mutex);
    while (late) {
        clg_mx_execution *execution = late;
        late = execution->next;
        clg_mx_end(execution);
    }
}

/* What waits is the parent's to free. */
static void after_fork_in_child(void) {
    pthread_mutex_init(&mutex, NULL);
    pthread_cond_init(&ended, NULL);
    holding = false;
    ending = forks = 0;
    waiting = NULL;
    clg_mx_forget_threads();
}

int32_t clg_mx_watch_forks(int32_t on) {
    static int registered;
    int32_t failed = 0;
    if (on && !registered) failed = pthread_atfork(before_fork, after_fork, after_fork_in_child);
    registered = registered || (on && !failed);
    __atomic_store_n(&watching, on && !failed, __ATOMIC_RELEASE);
    return failed;
}
