/* Copies between ordinary and pinned memory by several threads: one reaches a sixth of what the bus moves.
 * CLGRAFT_COPY_THREADS sets their number, the caller's thread included; by default half of the cores, at most 8. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "copy.h"
#include "handles.h"

enum { MOST_THREADS = 16, DEFAULT_THREADS = 8, PART = 256 << 10 }; /* PART: bytes of one task */

typedef struct task {
    char *to;
    const char *from;
    size_t bytes;
    uint32_t *pending;
} task;

struct clg_copier {
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    task tasks[1024]; /* a ring */
    uint32_t first, count, thread_count;
    bool stopping;
    unsigned fork_count;
    pthread_t threads[MOST_THREADS];
};

/* Past the caches: what goes to the bus is not read again here, and a result is more than a cache holds. */
static void copy_past_caches(char *to, const char *from, size_t bytes) {
#if defined(__x86_64__) && !defined(CLG_PLAIN_COPIES) /* sanitizers of threads do not see stores past caches */
    size_t head = -(uintptr_t)to & 15;
    if (bytes < 4096) head = bytes;
    memcpy(to, from, head);
    size_t at = head;
    for (; at + 64 <= bytes; at += 64) {
        __m128i a = _mm_loadu_si128((const __m128i *)(from + at)),
                b = _mm_loadu_si128((const __m128i *)(from + at + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(from + at + 32)),
                d = _mm_loadu_si128((const __m128i *)(from + at + 48));
        _mm_stream_si128((__m128i *)(to + at), a);
        _mm_stream_si128((__m128i *)(to + at + 16), b);
        _mm_stream_si128((__m128i *)(to + at + 32), c);
        _mm_stream_si128((__m128i *)(to + at + 48), d);
    }
    memcpy(to + at, from + at, bytes - at);
    _mm_sfence();
#else
    memcpy(to, from, bytes);
#endif
}

static void perform(const task *t) {
    copy_past_caches(t->to, t->from, t->bytes);
    __atomic_fetch_sub(t->pending, 1, __ATOMIC_RELEASE);
}

static task part_of(void *to, const void *from, size_t bytes, size_t at, uint32_t *pending) {
    return (task){(char *)to + at, (const char *)from + at, bytes - at < PART ? bytes - at : PART, pending};
}

/* Mutex held; false if there is nothing to do. */
static bool take(struct clg_copier *c, task *t) {
    if (!c->count) return false;
    *t = c->tasks[c->first];
    c->first = (c->first + 1) % (sizeof c->tasks / sizeof *c->tasks);
    c->count--;
    return true;
}

static void *work(void *copier) {
    struct clg_copier *c = copier;
    task t;
    pthread_mutex_lock(&c->mutex);
    while (!c->stopping) {
        if (take(c, &t)) {
            pthread_mutex_unlock(&c->mutex);
            perform(&t);
            pthread_mutex_lock(&c->mutex);
        } else {
            pthread_cond_wait(&c->wake, &c->mutex);
        }
    }
    pthread_mutex_unlock(&c->mutex);
    return NULL;
}

static long wanted_threads(void) {
    const char *text = getenv("CLGRAFT_COPY_THREADS");
    long count = text ? strtol(text, NULL, 10) : 0;
    if (count < 1) {
        count = sysconf(_SC_NPROCESSORS_ONLN) / 2;
        if (count > DEFAULT_THREADS) count = DEFAULT_THREADS;
    }
    return count > MOST_THREADS ? MOST_THREADS : count;
}

struct clg_copier *clg_copier_new(void) {
    struct clg_copier *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    pthread_mutex_init(&c->mutex, NULL);
    pthread_cond_init(&c->wake, NULL);
    c->fork_count = clg_fork_count();
    sigset_t all, before; /* the host's signals are not for these threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (long i = wanted_threads(); i > 1; i--) /* the caller is one of them; fewer serve as well */
        if (!pthread_create(&c->threads[c->thread_count], NULL, work, c)) c->thread_count++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return c;
}

void clg_copier_free(struct clg_copier *c) {
    if (!c) return;
    if (c->fork_count == clg_fork_count()) { /* a child has none of the threads */
        pthread_mutex_lock(&c->mutex);
        c->stopping = true;
        pthread_cond_broadcast(&c->wake);
        pthread_mutex_unlock(&c->mutex);
        for (uint32_t i = 0; i < c->thread_count; i++) pthread_join(c->threads[i], NULL);
        pthread_cond_destroy(&c->wake);
        pthread_mutex_destroy(&c->mutex);
    }
    free(c);
}

/* All parts are queued with the mutex locked once: threads that wait for it would send each other to sleep. */
void clg_copy_start(struct clg_copier *c, void *to, const void *from, size_t bytes, uint32_t *pending) {
    const uint32_t room = sizeof c->tasks / sizeof *c->tasks;
    size_t at = 0;
    if (c->thread_count) {
        pthread_mutex_lock(&c->mutex);
        for (; at < bytes && c->count < room; at += PART) {
            __atomic_fetch_add(pending, 1, __ATOMIC_RELAXED);
            c->tasks[(c->first + c->count++) % room] = part_of(to, from, bytes, at, pending);
        }
        if (at > PART)
            pthread_cond_broadcast(&c->wake);
        else
            pthread_cond_signal(&c->wake);
        pthread_mutex_unlock(&c->mutex);
    }
    for (; at < bytes; at += PART) {
        task t = part_of(to, from, bytes, at, pending);
        __atomic_fetch_add(pending, 1, __ATOMIC_RELAXED);
        perform(&t);
    }
}

bool clg_copy_done(const uint32_t *pending) { return !__atomic_load_n(pending, __ATOMIC_ACQUIRE); }

void clg_copy_wait(struct clg_copier *c, uint32_t *pending) {
    while (__atomic_load_n(pending, __ATOMIC_ACQUIRE)) {
        task t;
        pthread_mutex_lock(&c->mutex);
        bool found = take(c, &t);
        pthread_mutex_unlock(&c->mutex);
        if (found)
            perform(&t);
        else
            sched_yield();
    }
}
