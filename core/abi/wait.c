/* Waiting, where the driver's own way is not the best.
 *
 * Drivers of graphics cards wait by asking without a break, which keeps a processor busy for as long as the device
 * computes. So the state of an event is asked for here: without a break at first, then after sleeps that are a small
 * part of the time waited so far.
 *
 * Some drivers of processors put the caller to sleep at once. When its core has nothing else to do, the core sleeps
 * too, and takes tens of microseconds to wake up, which a short launch does not. So the caller yields its core, to the
 * driver's threads above all, and asks again when it has it back. Where another program computes on that core, the
 * scheduler gives it a whole slice of time first. Such a loss is answered by waits asleep, twice as many each time. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "wait.h"

#include <sched.h>
#include <time.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "clgraft.h"

#define BUSY 50e-6  /* seconds without a sleep */
#define SHARE 24    /* of the time waited so far that a sleep takes */
#define LEAST 20e-6 /* seconds of a sleep: to go to sleep and wake up takes half of that in processor time */
#define MOST 200e-6
#define PATIENCE 10.0 /* seconds after which the driver waits */

#define SHORT 0.5e-3 /* seconds of a run after which the next one of its plan waits awake */
#define LOST 1e-3    /* seconds of a run after which another program has had the core */
#define FEWEST 32    /* waits asleep after a first loss */
#define FULL 1024    /* the most; so many awake without a loss halve what the next loss is answered by */

double clg_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void clg_wait_asleep(cl_object event) {
    int32_t state = CL_COMPLETE_ + 1;
    const double began = clg_seconds();
    double passed = 0;
    while (passed < BUSY) {
        if (cl_event_status(event, &state) || state <= CL_COMPLETE_) return;
        passed = clg_seconds() - began;
    }
#ifdef __linux__
    int slack = prctl(PR_GET_TIMERSLACK); /* of this thread: by default sleeps take 50 us longer */
    if (slack > 0) prctl(PR_SET_TIMERSLACK, 1UL);
#endif
    while (passed < PATIENCE && !cl_event_status(event, &state) && state > CL_COMPLETE_) {
        double sleep = passed / SHARE;
        sleep = sleep < LEAST ? LEAST : sleep > MOST ? MOST : sleep;
        struct timespec t = {0, (long)(1e9 * sleep)};
        nanosleep(&t, NULL);
        passed = clg_seconds() - began;
    }
#ifdef __linux__
    if (slack > 0) prctl(PR_SET_TIMERSLACK, (unsigned long)slack);
#endif
}

int32_t clg_wait_event(struct clg_context_s *c, cl_object queue, cl_object event) {
    if (c->host_access == CLG_STAGED) {
        cl_flush(c->queue);
        if (queue && queue != c->queue) cl_flush(queue);
        clg_wait_asleep(event);
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

int32_t clg_wait_launch(struct clg_context_s *c, cl_object event, double began, bool *was_short) {
    if (c->waits_asleep) {
        c->waits_asleep--;
    } else if (*was_short) {
        int32_t state = CL_COMPLETE_ + 1;
        double passed = clg_seconds() - began;
        while (passed < LOST && !cl_event_status(event, &state) && state > CL_COMPLETE_) {
            sched_yield();
            passed = clg_seconds() - began;
        }
        if (passed >= LOST) {
            c->loss = c->loss < FEWEST / 2 ? FEWEST : c->loss < FULL / 2 ? 2 * c->loss : FULL;
            c->waits_asleep = c->loss;
            c->waits_awake = 0;
        } else if (++c->waits_awake == FULL) {
            c->loss /= 2;
            c->waits_awake = 0;
        }
    }
    int32_t code = cl_finish(c->queue); /* what has failed, too */
    *was_short = clg_seconds() - began < SHORT;
    return code;
}
