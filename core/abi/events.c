/* Runs that were started (clg_plan_start). A thread of each context, the runner, makes those that move host
 * arrays, each in its turn. Runs on device memory alone need no thread while the context is idle: the
 * driver's queue holds them. */
#include <signal.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "errors.h"
#include "events.h"
#include "handles.h"
#include "wait.h"

struct clg_event_s {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool ran;
    clg_status status;
    char message[1024];
    cl_object marker; /* done when the device is; NULL: it is done */
    bool staged;      /* of a device with memory of its own */
    unsigned fork_count;
};

typedef struct started {
    clg_job job;
    void *handle; /* the event's, acquired */
    struct clg_event_s *event;
    uint64_t turn;
    struct started *next;
} started;

struct clg_runner {
    pthread_mutex_t mutex;
    pthread_cond_t wake, idle;
    started *first, **last;
    bool busy, stopping, orphan;
    unsigned fork_count;
    pthread_t thread;
};

static void event_free(void *object) {
    struct clg_event_s *e = object;
    if (e->fork_count == clg_fork_count()) {
        if (e->marker) cl_release_event(e->marker);
        pthread_cond_destroy(&e->changed);
        pthread_mutex_destroy(&e->mutex);
    }
    free(e);
}

static void finish_event(struct clg_event_s *e, clg_status status, cl_object marker) {
    pthread_mutex_lock(&e->mutex);
    e->ran = true;
    e->status = status;
    e->marker = marker;
    if (status) snprintf(e->message, sizeof e->message, "%s", clg_last_error());
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->mutex);
}

/* Makes a marker after all that is queued. */
static clg_status mark(struct clg_context_s *c, cl_object *marker) {
    pthread_mutex_lock(&c->mutex);
    int32_t code = cl_marker(c->queue, marker);
    if (code) {
        *marker = NULL;
        cl_finish(c->queue);
    } else {
        cl_flush(c->queue);
    }
    pthread_mutex_unlock(&c->mutex);
    return code ? clg_cl_fail("clEnqueueMarker", code) : CLG_OK;
}

/* Runs a job in a turn of the caller's; `marker` is set where the device may not be done with it. */
static clg_status perform(const clg_job *job, cl_object *marker) {
    *marker = NULL;
    clg_status status = clg_job_run(job);
    return status || clg_job_waits(job) ? status : mark(job->plan->context, marker);
}

static void *work(void *runner) {
    struct clg_runner *r = runner;
    pthread_mutex_lock(&r->mutex);
    for (;;) {
        while (!r->first && !r->stopping) pthread_cond_wait(&r->wake, &r->mutex);
        started *s = r->first;
        if (!s) break;
        r->first = s->next;
        if (!r->first) r->last = &r->first;
        r->busy = true;
        pthread_mutex_unlock(&r->mutex);
        clg_turns *turns = &s->job.plan->context->turns;
        clg_turn_await(turns, s->turn);
        cl_object marker = NULL;
        clg_status status = perform(&s->job, &marker);
        finish_event(s->event, status, marker);
        clg_turn_end(turns);
        clg_handle_return(s->handle);
        clg_job_drop(&s->job); /* the last reference to the context may go here */
        free(s);
        pthread_mutex_lock(&r->mutex);
        r->busy = false;
        pthread_cond_broadcast(&r->idle);
    }
    bool orphan = r->orphan;
    pthread_mutex_unlock(&r->mutex);
    if (orphan) free(r);
    return NULL;
}

static struct clg_runner *runner_of(struct clg_context_s *c) { return __atomic_load_n(&c->runner, __ATOMIC_ACQUIRE); }

/* The context's runner, made on first use; NULL if there is no memory for one. */
static struct clg_runner *runner(struct clg_context_s *c) {
    pthread_mutex_lock(&c->mutex);
    struct clg_runner *r = runner_of(c);
    if (!r && (r = calloc(1, sizeof *r))) {
        pthread_mutex_init(&r->mutex, NULL);
        pthread_cond_init(&r->wake, NULL);
        pthread_cond_init(&r->idle, NULL);
        r->last = &r->first;
        r->fork_count = clg_fork_count();
        sigset_t all, before; /* the host's signals are not for this thread */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        if (pthread_create(&r->thread, NULL, work, r)) {
            free(r);
            r = NULL;
        }
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        __atomic_store_n(&c->runner, r, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&c->mutex);
    return r;
}

void clg_runner_free(struct clg_context_s *c) {
    struct clg_runner *r = runner_of(c);
    if (!r) return;
    if (r->fork_count != clg_fork_count()) { /* a child has no such thread */
        free(r);
        return;
    }
    bool own = pthread_equal(r->thread, pthread_self());
    pthread_mutex_lock(&r->mutex);
    r->stopping = true;
    r->orphan = own;
    pthread_cond_broadcast(&r->wake);
    pthread_mutex_unlock(&r->mutex);
    if (own) {
        pthread_detach(r->thread);
        return;
    }
    pthread_join(r->thread, NULL);
    free(r);
}

void clg_runner_drain(struct clg_context_s *c) {
    struct clg_runner *r = runner_of(c);
    if (!r) return;
    pthread_mutex_lock(&r->mutex);
    while (r->first || r->busy) pthread_cond_wait(&r->idle, &r->mutex);
    pthread_mutex_unlock(&r->mutex);
}

/* A job with copies of the caller's lists, after it in the same memory. */
static started *keep(const clg_job *job) {
    const size_t count = job->plan->argument_count, scalars = job->plan->scalar_count;
    started *s =
        calloc(1, sizeof *s + count * (sizeof *job->buffers + sizeof *job->copies) + scalars * sizeof *job->scalars);
    if (!s) return NULL;
    s->job = *job;
    clg_buffer *buffers = (clg_buffer *)(s + 1);
    clg_copy *copies = (clg_copy *)(buffers + count);
    double *numbers = (double *)(copies + count);
    if (count) memcpy(buffers, job->buffers, count * sizeof *buffers);
    if (count && job->copies) memcpy(copies, job->copies, count * sizeof *copies);
    if (scalars) memcpy(numbers, job->scalars, scalars * sizeof *numbers);
    s->job.buffers = buffers;
    s->job.copies = job->copies ? copies : NULL;
    s->job.scalars = numbers;
    return s;
}

static clg_event new_event(struct clg_event_s **made, bool staged) {
    struct clg_event_s *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    pthread_mutex_init(&e->mutex, NULL);
    pthread_cond_init(&e->changed, NULL);
    e->fork_count = clg_fork_count();
    e->staged = staged;
    clg_event handle = clg_handle_new(CLG_KIND_EVENT, e, event_free);
    if (!handle) event_free(e);
    *made = e;
    return handle;
}

clg_status clg_runner_start(const clg_job *job, bool host, clg_event *event) {
    struct clg_event_s *e = NULL;
    clg_event handle = new_event(&e, job->plan->context->host_access == CLG_STAGED);
    clg_status status = handle ? CLG_OK : clg_fail(CLG_OUT_OF_MEMORY, "[run] no memory for an event");
    clg_turns *turns = &job->plan->context->turns;
    if (!status && !host && clg_turn_begin_if_free(turns)) {
        cl_object marker = NULL;
        status = perform(job, &marker);
        if (!status) finish_event(e, CLG_OK, marker);
        clg_turn_end(turns);
    } else if (!status) {
        started *s = keep(job);
        struct clg_runner *r = s ? runner(job->plan->context) : NULL;
        if (r) {
            s->event = clg_handle_acquire(handle, CLG_KIND_EVENT);
            s->handle = handle;
            *event = handle;
            pthread_mutex_lock(&r->mutex);
            s->turn = clg_turn_take(turns); /* with the mutex: the runner's list has the order of the turns */
            *r->last = s;
            r->last = &s->next;
            pthread_cond_signal(&r->wake);
            pthread_mutex_unlock(&r->mutex);
            return CLG_OK;
        }
        free(s);
        status = clg_fail(CLG_OUT_OF_MEMORY, "[run] no memory for a run, or for the thread that makes it");
    }
    clg_job_drop(job);
    if (status && handle)
        clg_handle_destroy(handle, CLG_KIND_EVENT);
    else
        *event = handle;
    return status;
}

clg_status clg_plan_mark(clg_plan plan, clg_event *event) {
    *event = NULL;
    struct clg_plan_s *p = clg_handle_acquire(plan, CLG_KIND_PLAN);
    if (!p) return CLG_INVALID_HANDLE;
    struct clg_event_s *e = NULL;
    cl_object marker = NULL;
    clg_event handle = new_event(&e, p->context->host_access == CLG_STAGED);
    clg_status status =
        handle ? mark(p->context, &marker) : clg_fail(CLG_OUT_OF_MEMORY, "[run] no memory for an event");
    if (!status)
        finish_event(e, CLG_OK, marker);
    else if (handle)
        clg_handle_destroy(handle, CLG_KIND_EVENT);
    *event = status ? NULL : handle;
    clg_handle_return(plan);
    return status;
}

static clg_status refuse_after_fork(const struct clg_event_s *e) {
    if (e->fork_count == clg_fork_count()) return CLG_OK;
    return clg_fail(CLG_FORKED, "[event] got an event from before fork(), expected one made in this process");
}

clg_status clg_event_wait(clg_event event) {
    struct clg_event_s *e = clg_handle_acquire(event, CLG_KIND_EVENT);
    if (!e) return CLG_INVALID_HANDLE;
    clg_status status = refuse_after_fork(e);
    if (!status) {
        pthread_mutex_lock(&e->mutex);
        while (!e->ran) pthread_cond_wait(&e->changed, &e->mutex);
        pthread_mutex_unlock(&e->mutex);
        if (e->marker && e->staged) clg_wait_asleep(e->marker);
        int32_t code = e->marker ? cl_wait(&e->marker) : 0;
        status = e->status ? clg_fail(e->status, "%s", e->message)
                 : code    ? clg_cl_fail("clWaitForEvents", code)
                           : CLG_OK;
    }
    clg_handle_return(event);
    return status;
}

clg_status clg_event_done(clg_event event, uint32_t *done) {
    struct clg_event_s *e = clg_handle_acquire(event, CLG_KIND_EVENT);
    if (!e) return CLG_INVALID_HANDLE;
    clg_status status = refuse_after_fork(e);
    if (!status && !done) status = clg_fail(CLG_INVALID_ARGUMENT, "[event] got done NULL, expected a place for 0 or 1");
    if (!status) {
        pthread_mutex_lock(&e->mutex);
        bool ran = e->ran;
        pthread_mutex_unlock(&e->mutex);
        int32_t state = CL_COMPLETE_;
        int32_t code = ran && e->marker ? cl_event_status(e->marker, &state) : 0;
        *done = ran && state <= CL_COMPLETE_;
        if (code) status = clg_cl_fail("clGetEventInfo", code);
    }
    clg_handle_return(event);
    return status;
}

clg_status clg_event_destroy(clg_event event) { return clg_handle_destroy(event, CLG_KIND_EVENT); }
