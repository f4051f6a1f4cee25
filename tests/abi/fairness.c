/* A run waits for the runs that were called before it, not for those that other threads call while it
 * waits: four threads keep runs on host memory started, the main thread calls clg_plan_run, reads an array
 * and finishes the context. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "clgraft.h"

enum { STARTERS = 4, IN_FLIGHT = 16, CALLS = 20, SECONDS = 20, COUNT = 1 << 16 };

static clg_context context;
static clg_plan plan;
static clg_array array;
static unsigned long done; /* runs that other threads started, and that are done */
static int stopping, failures;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void expect(clg_status status) {
    if (!status) return;
    fprintf(stderr, "%s\n", clg_last_error());
    __atomic_store_n(&failures, 1, __ATOMIC_RELAXED);
}

static clg_buffer buffer(float *data) {
    return (clg_buffer){
        .size = sizeof(clg_buffer), .kind = CLG_HOST, .dtype = CLG_FLOAT32, .handle = data, .bytes = 4 * COUNT};
}

static void *start(void *unused) {
    (void)unused;
    float *x = calloc(COUNT, 4), *y[IN_FLIGHT];
    clg_event events[IN_FLIGHT] = {NULL};
    for (int i = 0; i < IN_FLIGHT; i++) y[i] = calloc(COUNT, 4);
    const double end = now() + SECONDS;
    for (unsigned i = 0; !__atomic_load_n(&stopping, __ATOMIC_ACQUIRE) && now() < end; i = (i + 1) % IN_FLIGHT) {
        if (events[i]) {
            expect(clg_event_wait(events[i]));
            expect(clg_event_destroy(events[i]));
            __atomic_add_fetch(&done, 1, __ATOMIC_ACQ_REL);
        }
        clg_buffer buffers[2] = {buffer(x), buffer(y[i])};
        expect(clg_plan_start(plan, buffers, 2, NULL, 0, NULL, &events[i]));
    }
    for (int i = 0; i < IN_FLIGHT; i++) {
        if (events[i]) expect(clg_event_wait(events[i]));
        if (events[i]) expect(clg_event_destroy(events[i]));
        free(y[i]);
    }
    free(x);
    return NULL;
}

static void call(int what, float *x, float *y) {
    clg_buffer buffers[2] = {buffer(x), buffer(y)};
    if (what == 0) expect(clg_plan_run(plan, buffers, 2, NULL, 0));
    if (what == 1) expect(clg_array_read(array, 0, y, 4 * COUNT));
    if (what == 2) expect(clg_context_finish(context));
}

int main(void) {
    static const char *const names[] = {"run", "read", "finish"};
    char text[64];
    snprintf(text, sizeof text, "pointwise x0[%d] : y0 = exp(sin(x0))", COUNT);
    float *x = calloc(COUNT, 4), *y = calloc(COUNT, 4);
    if (clg_context_create(NULL, &context) || clg_plan_create(context, text, &plan) ||
        clg_array_create(context, 4 * COUNT, &array)) {
        fprintf(stderr, "%s\n", clg_last_error());
        return 1;
    }
    call(0, x, y);
    pthread_t threads[STARTERS];
    for (int i = 0; i < STARTERS; i++) pthread_create(&threads[i], NULL, start, NULL);
    while (__atomic_load_n(&done, __ATOMIC_ACQUIRE) < STARTERS * IN_FLIGHT) sched_yield();
    for (int what = 0; what < 3; what++) {
        unsigned long most = 0; /* runs of others that were done while a call waited */
        for (int i = 0; i < CALLS; i++) {
            unsigned long begin = __atomic_load_n(&done, __ATOMIC_ACQUIRE);
            call(what, x, y);
            unsigned long passed = __atomic_load_n(&done, __ATOMIC_ACQUIRE) - begin;
            if (passed > most) most = passed;
        }
        printf("%s: %lu\n", names[what], most);
    }
    __atomic_store_n(&stopping, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < STARTERS; i++) pthread_join(threads[i], NULL);
    expect(clg_context_destroy(context));
    free(x);
    free(y);
    return failures;
}
