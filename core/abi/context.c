/* Contexts as callers know them: made, finished, destroyed with all that belongs to them. */
#include <stdlib.h>

#include "affinity.h"
#include "arrays.h"
#include "errors.h"
#include "events.h"
#include "handles.h"
#include "plan.h"
#include "transfer.h"
#include "wait.h"

enum { TICKETS_BYTES = 32 << 10 };

uint32_t clg_version(void) { return CLG_VERSION; }

static void context_free(void *object) {
    struct clg_context_s *c = object;
    clg_runner_free(c);
    clg_transfers_free(c);
    const bool ours = c->fork_count == clg_fork_count(); /* a child of the process must not touch OpenCL objects */
    if (ours) cl_finish(c->queue);
    clg_memory_free(c);
    if (ours) {
        if (c->second) cl_release_queue(c->second);
        for (int lane = 0; lane < 2; lane++)
            if (c->tickets[lane]) cl_release_mem(c->tickets[lane]);
        cl_release_queue(c->queue);
        cl_release_context(c->context);
        clg_turns_destroy(&c->turns);
    }
    pthread_mutex_destroy(&c->mutex);
    free(c);
}

clg_status clg_context_adopt(void *cl_context, void *cl_device, void *cl_queue, uint32_t host_access,
                             uint32_t stays_awake, clg_context *context) {
    (void)cl_device;
    if (!context) return clg_fail(CLG_INVALID_ARGUMENT, "[context] got context NULL, expected a place for the handle");
    *context = NULL;
    if (!cl_context || !cl_queue)
        return clg_fail(
            CLG_INVALID_ARGUMENT, "[context] got cl_context %p and cl_queue %p, expected both", cl_context, cl_queue);
    if (host_access < CLG_RAW_POINTER || host_access > CLG_STAGED)
        return clg_fail(CLG_INVALID_ARGUMENT, "[context] got host_access %u, expected 1 to 3", host_access);
    struct clg_context_s *c = calloc(1, sizeof *c);
    if (!c) return clg_fail(CLG_OUT_OF_MEMORY, "[context] no memory for a context");
    c->context = cl_context;
    c->queue = cl_queue;
    c->host_access = host_access;
    c->stays_awake = stays_awake;
    c->fork_count = clg_fork_count();
    clg_turns_init(&c->turns);
    pthread_mutex_init(&c->mutex, NULL);
    cl_retain_context(cl_context);
    cl_retain_queue(cl_queue);
    char zeros[TICKETS_BYTES] = {0};
    int32_t code = 0;
    const uint64_t flags = CL_MEM_READ_WRITE_ | CL_MEM_COPY_HOST_PTR_;
    for (int lane = 0; lane < 2 && !code; lane++)
        c->tickets[lane] = cl_create_buffer(c->context, flags, sizeof zeros, zeros, &code);
    if (code) {
        context_free(c);
        return clg_cl_fail("clCreateBuffer of a counter", code);
    }
    *context = clg_handle_new(CLG_KIND_CONTEXT, c, context_free);
    if (!*context) {
        context_free(c);
        return clg_fail(CLG_OUT_OF_MEMORY, "[context] no memory for a handle");
    }
    return CLG_OK;
}

/* The planner answers these two; it runs in Python and ends in clg_context_adopt. */
static clg_status planned_context(clg_status status, clg_context *context) {
    if (status == CLG_OK && !*context)
        return clg_fail(CLG_PLANNER_ERROR,
                        "[context] the planner could not be started, expected a Python with clgraft and what it"
                        " needs (CLGRAFT_PYTHON names one); stderr has the reason");
    return status;
}

clg_status clg_context_create(const char *selector, clg_context *context) {
    if (!context) return clg_fail(CLG_INVALID_ARGUMENT, "[context] got context NULL, expected a place for the handle");
    *context = NULL;
    return planned_context(clg_py_context_create(selector, NULL, NULL, NULL, context), context);
}

clg_status clg_context_create_from_cl(void *cl_context, void *cl_device, void *cl_queue, clg_context *context) {
    if (!context) return clg_fail(CLG_INVALID_ARGUMENT, "[context] got context NULL, expected a place for the handle");
    *context = NULL;
    if (!cl_context || !cl_device || !cl_queue)
        return clg_fail(
            CLG_INVALID_ARGUMENT, "[context] got cl_context %p, cl_device %p, cl_queue %p, expected all three",
            cl_context, cl_device, cl_queue);
    return planned_context(clg_py_context_create(NULL, cl_context, cl_device, cl_queue, context), context);
}

static bool plan_of(void *plan, void *context) { return ((struct clg_plan_s *)plan)->context == context; }
static bool array_of(void *array, void *context) { return ((struct clg_array_s *)array)->context == context; }

clg_status clg_context_destroy(clg_context context) {
    struct clg_context_s *c = clg_handle_acquire(context, CLG_KIND_CONTEXT);
    if (!c) return CLG_INVALID_HANDLE;
    if (c->fork_count == clg_fork_count()) clg_runner_drain(c);
    clg_handle_destroy_if(CLG_KIND_PLAN, plan_of, c);
    clg_handle_destroy_if(CLG_KIND_ARRAY, array_of, c);
    clg_status status = clg_handle_destroy(context, CLG_KIND_CONTEXT);
    clg_handle_drop(c);
    return status;
}

clg_status clg_context_finish(clg_context context) {
    struct clg_context_s *c = clg_handle_acquire(context, CLG_KIND_CONTEXT);
    if (!c) return CLG_INVALID_HANDLE;
    clg_status status = CLG_OK;
    if (c->fork_count != clg_fork_count())
        status = clg_fail(CLG_FORKED, "[context] got a context from before fork(), expected one made in this process");
    else {
        clg_affinity affinity;
        clg_affinity_keep(&affinity);
        clg_turn_begin(&c->turns); /* after all that was called before, and before what others call meanwhile */
        int32_t code = clg_wait_queue(c);
        clg_turn_end(&c->turns);
        clg_affinity_restore(&affinity);
        if (code) status = clg_cl_fail("clFinish", code);
    }
    clg_handle_drop(c);
    return status;
}

clg_status clg_context_counters(clg_context context, clg_counters *counters) {
    struct clg_context_s *c = clg_handle_acquire(context, CLG_KIND_CONTEXT);
    if (!c) return CLG_INVALID_HANDLE;
    if (counters) {
        pthread_mutex_lock(&c->mutex);
        *counters = c->counters;
        pthread_mutex_unlock(&c->mutex);
    }
    clg_handle_drop(c);
    return counters ? CLG_OK : clg_fail(CLG_INVALID_ARGUMENT, "[context] got counters NULL, expected a place for them");
}
