/* Waits for MXNet's operators before the process forks.
 *
 * MXNet joins its engine's threads in front of a fork. A thread that runs an operator for the first time asks Python for
 * plans and needs the interpreter's lock, which a Python that forks holds: both would wait for ever. Handlers run in the
 * opposite order of their registration, so this one, which lets the lock go while it waits, runs before MXNet's. */
#include <pthread.h>

#include "internal.h"

__thread int clg_mx_running;
static int watching;

static void before_fork(void) {
    if (__atomic_load_n(&watching, __ATOMIC_ACQUIRE) && !clg_mx_running) clg_mx_py_before_fork();
}

int32_t clg_mx_watch_forks(int32_t on) {
    static int registered;
    int32_t failed = 0;
    if (on && !registered) failed = pthread_atfork(before_fork, NULL, NULL);
    registered = registered || (on && !failed);
    __atomic_store_n(&watching, on && !failed, __ATOMIC_RELEASE);
    return failed;
}
