/* Waiting for a device with memory of its own. Drivers of graphics cards wait by asking without a break, which keeps a
 * processor busy for as long as the device computes. So the state of an event is asked for here: without a break at
 * first, then after sleeps that are a small part of the time waited so far; where it is known how long a
 * run waits, after one sleep of most of that. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "wait.h"

#include <time.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "clgraft.h"

#define BUSY 50e-6  /* seconds without a sleep */
#define SHARE 24    /* of the time waited so far that a sleep takes */
#define LEAST 20e-6 /* seconds of a sleep: to go to sleep and wake up takes half of that in processor time */
#define MOST 200e-6
#define KNOWN 0.9 /* of the shorter one of the last two waits that a sleep takes */
#define PATIENCE 10.0 /* seconds after which the driver waits */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void sleep_for(double seconds) {
    const long whole = (long)seconds;
    const struct timespec t = {whole, (long)(1e9 * (seconds - (double)whole))};
    nanosleep(&t, NULL);
}

static bool has_ended(cl_object event) {
    int32_t state = CL_COMPLETE_ + 1;
    return cl_event_status(event, &state) || state <= CL_COMPLETE_;
}

/* Waits after a sleep of `known` seconds and returns how long it took, or the half of them if that was too long. */
static double wait_after(cl_object event, double known) {
    const double began = now();
    double passed = 0;
    while (passed < BUSY) {
        if (has_ended(event)) return passed;
        passed = now() - began;
    }
#ifdef __linux__
    int slack = prctl(PR_GET_TIMERSLACK); /* of this thread: by default sleeps take 50 us longer */
    if (slack > 0) prctl(PR_SET_TIMERSLACK, 1UL);
#endif
    const bool sleeps = known > passed;
    if (sleeps) sleep_for(known - passed);
    bool ended = has_ended(event);
    if (ended && sleeps) passed = known / 2;
    while (!ended && passed < PATIENCE) {
        const double sleep = (passed - known) / SHARE;
        sleep_for(sleep < LEAST ? LEAST : sleep > MOST ? MOST : sleep);
        passed = now() - began;
        ended = has_ended(event);
    }
#ifdef __linux__
    if (slack > 0) prctl(PR_SET_TIMERSLACK, (unsigned long)slack);
#endif
    return passed;
}

void clg_wait_asleep(cl_object event, double *last) {
    double known = 0;
    if (last) known = KNOWN * (last[0] < last[1] ? last[0] : last[1]);
    const double passed = wait_after(event, known < PATIENCE ? known : 0);
    if (!last) return;
    last[1] = last[0];
    last[0] = passed;
}

int32_t clg_wait_event(struct clg_context_s *c, cl_object queue, cl_object event) {
    if (c->host_access == CLG_STAGED) {
        cl_flush(c->queue);
        if (queue && queue != c->queue) cl_flush(queue);
        double *last = c->last_waits;
        c->last_waits = NULL; /* they are of a run's first wait, which is for its launches */
        clg_wait_asleep(event, last);
    }
    return cl_wait(&event);
}

int32_t clg_wait_queue(struct clg_context_s *c) {
    cl_object marker = NULL;
    if (c->host_access == CLG_STAGED && !cl_marker(c->queue, &marker)) {
        clg_wait_event(c, NULL, marker);
        cl_release_event(marker);
    }
    return cl_finish(c->queue);
}
