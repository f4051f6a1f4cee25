/* Threads that share the parts of a loop. One thread does not reach what the memory moves.
 * CLGRAFT_UPDATE_THREADS sets their number, the caller's thread included; by default the cores, at most 12. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>

#include "threads.h"

enum { MOST_THREADS = 64, DEFAULT_THREADS = 12 };

typedef struct loop {
    void (*body)(void *with, uint32_t part);
    void *with;
    uint32_t parts, next;
} loop;

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;  /* held by the caller whose loop the threads run */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER, left = PTHREAD_COND_INITIALIZER;
static loop *current;
static uint32_t wanted, inside; /* threads that are to join the current loop, and those that have */
static uint32_t thread_count;
static bool started;

static void run_parts(loop *l) {
    for (uint32_t part; (part = __atomic_fetch_add(&l->next, 1, __ATOMIC_RELAXED)) < l->parts;) l->body(l->with, part);
}

static void *work(void *nothing) {
    pthread_mutex_lock(&mutex);
    for (;;) {
        while (!wanted) pthread_cond_wait(&wake, &mutex);
        wanted--;
        inside++;
        loop *l = current;
        pthread_mutex_unlock(&mutex);
        run_parts(l);
        pthread_mutex_lock(&mutex);
        if (!--inside) pthread_cond_signal(&left);
    }
    return nothing;
}

static long wanted_threads(void) {
    const char *text = getenv("CLGRAFT_UPDATE_THREADS");
    long count = text ? strtol(text, NULL, 10) : 0;
    if (count > 0) return count < MOST_THREADS ? count : MOST_THREADS;
    cpu_set_t cores;
    count = sched_getaffinity(0, sizeof cores, &cores) ? 1 : CPU_COUNT(&cores);
    return count < DEFAULT_THREADS ? count : DEFAULT_THREADS;
}

/* The caller has its turn. The threads wait for work until the process ends. */
static void start(void) {
    sigset_t all, before; /* the host's signals are not for these threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (long i = wanted_threads(); i > 1; i--) { /* the caller is one of them; fewer serve as well */
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, NULL)) break;
        pthread_detach(thread);
        thread_count++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    started = true;
}

void clg_mx_parallel(void (*body)(void *with, uint32_t part), void *with, uint32_t parts) {
    loop l = {body, with, parts, 0};
    if (parts < 2 || pthread_mutex_trylock(&turn)) { /* a second loop at the same time gets no threads */
        run_parts(&l);
        return;
    }
    if (!started) start();
    pthread_mutex_lock(&mutex);
    current = &l;
    wanted = parts - 1 < thread_count ? parts - 1 : thread_count;
    for (uint32_t i = 0; i < wanted; i++) pthread_cond_signal(&wake);
    pthread_mutex_unlock(&mutex);
    run_parts(&l);
    pthread_mutex_lock(&mutex);
    wanted = 0; /* threads that have not joined by now are not needed */
    while (inside) pthread_cond_wait(&left, &mutex);
    pthread_mutex_unlock(&mutex);
    pthread_mutex_unlock(&turn);
}

void clg_mx_forget_threads(void) {
    pthread_mutex_init(&turn, NULL);
    pthread_mutex_init(&mutex, NULL);
    pthread_cond_init(&wake, NULL);
    pthread_cond_init(&left, NULL);
    wanted = inside = thread_count = 0;
    started = false;
}
