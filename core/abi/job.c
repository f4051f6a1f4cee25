/* Running a plan: check the buffers, bind them, enqueue, wait. Allocates nothing on the host and decides nothing. */
#include <string.h>

#include "affinity.h"
#include "arrays.h"
#include "errors.h"
#include "handles.h"
#include "job.h"
#include "overlap.h"
#include "transfer.h"
#include "verbose.h"
#include "wait.h"

static clg_status check_buffer(const struct clg_plan_s *p, uint32_t i, const clg_buffer *b) {
    const clg_argument *a = &p->arguments[i];
    const char *name = p->names[i];
    if (b->size != sizeof *b)
        return clg_fail(CLG_INVALID_ARGUMENT, "[run] got size %u for %s, expected sizeof(clg_buffer) = %zu", b->size,
                        name, sizeof *b);
    if (b->mode > CLG_SKIP || (b->mode != CLG_OVERWRITE && a->role != CLG_OUT))
        return clg_fail(CLG_INVALID_ARGUMENT, "[run] got mode %u for %s, expected CLG_OVERWRITE%s", b->mode, name,
                        a->role == CLG_OUT ? ", CLG_ACCUMULATE or CLG_SKIP" : " (it is no plain output)");
    if (p->modes && !(p->modes[i] >> b->mode & 1))
        return clg_fail(CLG_INVALID_ARGUMENT, "[run] got mode %u for %s, expected %s: the plan was made for that",
                        b->mode, name, p->modes[i] & 1 ? "CLG_OVERWRITE" : "CLG_ACCUMULATE");
    if (b->mode == CLG_SKIP) return CLG_OK;
    if (b->dtype != a->dtype)
        return clg_fail(CLG_WRONG_DTYPE, "[run] got dtype %u for %s, expected %u", b->dtype, name, a->dtype);
    if (b->kind != CLG_HOST && b->kind != CLG_DEVICE && b->kind != CLG_ARRAY)
        return clg_fail(CLG_INVALID_ARGUMENT, "[run] got kind %u for %s, expected CLG_HOST, CLG_DEVICE or CLG_ARRAY",
                        b->kind, name);
    if (b->bytes < a->bytes)
        return clg_fail(CLG_BUFFER_TOO_SMALL, "[run] got %llu bytes for %s, expected %llu",
                        (unsigned long long)b->bytes, name, (unsigned long long)a->bytes);
    if (!b->handle && a->bytes)
        return clg_fail(
            CLG_INVALID_ARGUMENT, "[run] got NULL for %s, expected %llu bytes", name, (unsigned long long)a->bytes);
    uint64_t start = b->kind == CLG_HOST ? (uint64_t)(uintptr_t)b->handle + b->offset : b->offset;
    if (start % clg_dtype_bytes(a->dtype))
        return clg_fail(CLG_INVALID_ARGUMENT, "[run] got %s at an address or offset of %llu, expected a multiple of %u",
                        name, (unsigned long long)start, clg_dtype_bytes(a->dtype));
    return CLG_OK;
}

static clg_status check_device_buffer(const struct clg_context_s *c, const char *name, const clg_argument *a,
                                      const clg_buffer *b) {
    cl_object context = NULL;
    size_t bytes = 0;
    int32_t code = cl_mem_info(b->handle, CL_MEM_CONTEXT_, sizeof context, &context);
    if (!code) code = cl_mem_info(b->handle, CL_MEM_SIZE_, sizeof bytes, &bytes);
    if (code) return clg_cl_fail("clGetMemObjectInfo", code);
    if (context != c->context)
        return clg_fail(CLG_INVALID_ARGUMENT, "[run] got %s from another cl_context, expected one of the plan's", name);
    if (b->offset > bytes || bytes - b->offset < a->bytes)
        return clg_fail(
            CLG_BUFFER_TOO_SMALL, "[run] got a cl_mem of %zu bytes and offset %llu for %s, expected %llu bytes", bytes,
            (unsigned long long)b->offset, name, (unsigned long long)a->bytes);
    return CLG_OK;
}

static bool uses_array(const clg_argument *a, const clg_buffer *b) {
    return b->kind == CLG_ARRAY && b->mode != CLG_SKIP && a->bytes;
}

/* Takes a reference, which the job keeps. */
static clg_status acquire_array(const struct clg_plan_s *p, const char *name, const clg_argument *a, void *handle,
                                uint64_t offset) {
    struct clg_array_s *array = clg_handle_acquire(handle, CLG_KIND_ARRAY);
    if (!array) return CLG_INVALID_HANDLE;
    clg_status status = CLG_OK;
    if (array->context != p->context)
        status = clg_fail(CLG_INVALID_ARGUMENT, "[run] got %s from another context, expected one of the plan's", name);
    else if (offset > array->bytes || array->bytes - offset < a->bytes)
        status = clg_fail(
            CLG_BUFFER_TOO_SMALL, "[run] got an array of %llu bytes and offset %llu for %s, expected %llu bytes",
            (unsigned long long)array->bytes, (unsigned long long)offset, name, (unsigned long long)a->bytes);
    if (status) clg_handle_return(handle);
    return status;
}

/* Takes references to the arrays of a run: all of them, or none. */
static clg_status acquire_arrays(const clg_job *job) {
    const struct clg_plan_s *p = job->plan;
    clg_status status = CLG_OK;
    uint32_t i = 0;
    for (; i < p->argument_count && !status; i++) {
        const clg_argument *a = &p->arguments[i];
        const clg_buffer *b = &job->buffers[i];
        const clg_copy *copy = job->copies && job->copies[i].array ? &job->copies[i] : NULL;
        if (copy && (a->role != CLG_IN || b->kind != CLG_HOST))
            status = clg_fail(CLG_INVALID_ARGUMENT,
                              "[run] got a copy for %s, expected none: it is no input in host memory", p->names[i]);
        else if (copy)
            status = acquire_array(p, p->names[i], a, copy->array, 0);
        else if (uses_array(a, b))
            status = acquire_array(p, p->names[i], a, b->handle, b->offset);
    }
    if (!status) return CLG_OK;
    for (i--; i > 0; i--) { /* without the one that failed */
        const clg_copy *copy = job->copies && job->copies[i - 1].array ? &job->copies[i - 1] : NULL;
        if (copy)
            clg_handle_return(copy->array);
        else if (uses_array(&p->arguments[i - 1], &job->buffers[i - 1]))
            clg_handle_return(job->buffers[i - 1].handle);
    }
    return status;
}

void clg_job_drop(const clg_job *job) {
    const struct clg_plan_s *p = job->plan;
    for (uint32_t i = 0; i < p->argument_count; i++) {
        if (job->copies && job->copies[i].array) clg_handle_return(job->copies[i].array);
        if (uses_array(&p->arguments[i], &job->buffers[i])) clg_handle_return(job->buffers[i].handle);
    }
    clg_handle_return(job->handle);
}

static clg_status resolve(const clg_job *job, uint32_t i) {
    struct clg_plan_s *p = job->plan;
    struct clg_context_s *c = p->context;
    const clg_argument *a = &p->arguments[i];
    const clg_buffer *b = &job->buffers[i];
    clg_resolved *r = &p->resolved[i];
    if (b->mode == CLG_SKIP || !a->bytes) return CLG_OK;
    r->item = clg_dtype_bytes(a->dtype);
    if (b->kind == CLG_DEVICE) {
        r->mem = b->handle;
        r->offset = b->offset / r->item;
        r->foreign = true;
        return check_device_buffer(c, p->names[i], a, b);
    }
    if (b->kind == CLG_ARRAY) {
        struct clg_array_s *array = clg_handle_object(b->handle);
        if (a->role != CLG_IN) array->version = 0;
        r->mem = array->mem;
        r->pointer = array->memory ? (char *)array->memory + b->offset : NULL;
        r->offset = array->memory ? 0 : b->offset / r->item;
        return CLG_OK;
    }
    void *host = (char *)b->handle + b->offset;
    int32_t code = 0;
    if (c->host_access == CLG_RAW_POINTER) {
        r->pointer = host;
    } else if (c->host_access == CLG_USE_HOST_PTR) {
        r->mem = cl_create_buffer(c->context, CL_MEM_READ_WRITE_ | CL_MEM_USE_HOST_PTR_, a->bytes, host, &code);
        if (!r->mem) return clg_cl_fail("clCreateBuffer on host memory", code);
        r->wrapped = r->foreign = true;
    } else if (job->copies && job->copies[i].array) { /* the others get their places from clg_transfers_begin */
        struct clg_array_s *array = clg_handle_object(job->copies[i].array);
        r->copy = array;
        r->mem = array->mem;
        r->current = array->version && array->version == job->copies[i].version;
        if (!r->current) array->version = 0; /* until the run has succeeded */
    }
    return CLG_OK;
}

/* Sets a pair of arguments, base and offset in elements, unless they have these values from an earlier run. */
static int32_t bind_pair(clg_bound *bound, cl_object kernel, uint32_t position, const clg_resolved *r) {
    const void *object = r->mem ? r->mem : r->pointer;
    if (bound->object == object && bound->offset == r->offset && object && !r->foreign) return 0;
    bound->object = NULL;
    uint64_t offset = r->offset;
    /* a cl_mem of NULL is legal everywhere; an SVM pointer of NULL is not */
    int32_t code = !object  ? cl_set_arg(kernel, position, sizeof(cl_object), NULL)
                   : r->mem ? cl_set_arg(kernel, position, sizeof r->mem, &r->mem)
                            : cl_set_arg_pointer(kernel, position, r->pointer);
    if (!code) code = cl_set_arg(kernel, position + 1, sizeof offset, &offset);
    if (!code && !r->foreign) *bound = (clg_bound){object, r->offset};
    return code;
}

static int32_t bind_launch(const struct clg_plan_s *p, const clg_launch *launch, clg_bound *bound,
                           const clg_buffer *buffers, const double *scalars) {
    const struct clg_context_s *c = p->context;
    const bool raw = c->host_access == CLG_RAW_POINTER;
    uint32_t position = 0;
    int32_t code = 0;
    for (uint32_t b = 0; b < launch->binding_count && !code; b++, bound++) {
        const clg_binding *binding = &p->bindings[launch->first_binding + b];
        if (binding->kind == CLG_BIND_BUFFER) {
            clg_resolved r = p->resolved[binding->index];
            if (binding->value && r.item) r.offset += binding->value / r.item; /* a part of the buffer */
            code = bind_pair(bound, launch->kernel, position, &r);
            position += 2;
        } else if (binding->kind == CLG_BIND_WORKSPACE) {
            const clg_resolved r = {.pointer = raw ? c->workspace : NULL,
                                    .mem = raw ? NULL : c->workspace,
                                    .offset = binding->value / (binding->index ? binding->index : 1)};
            code = bind_pair(bound, launch->kernel, position, &r);
            position += 2;
        } else {
            if (binding->kind == CLG_BIND_SCALAR) {
                double wide = scalars[binding->index];
                float narrow = (float)wide;
                code = cl_set_arg(
                    launch->kernel, position, binding->bytes, binding->bytes == 8 ? (void *)&wide : (void *)&narrow);
            } else if (binding->kind == CLG_BIND_ACCUMULATE) {
                int32_t accumulate = buffers[binding->index].mode == CLG_ACCUMULATE;
                if (bound->object != bound || bound->offset != (uint64_t)accumulate) {
                    code = cl_set_arg(launch->kernel, position, sizeof accumulate, &accumulate);
                    *bound = (clg_bound){code ? NULL : bound, (uint64_t)accumulate};
                }
            }
            position++;
        }
    }
    return code;
}

static bool wanted(const struct clg_plan_s *p, const clg_launch *launch, const clg_buffer *buffers) {
    if (!launch->write_count) return true;
    for (uint32_t w = 0; w < launch->write_count; w++)
        if (buffers[p->writes[launch->first_write + w]].mode != CLG_SKIP) return true;
    return false;
}

/* The queue of a launch; without memory for a second one the first has them all, in an order that serves as well. */
static cl_object queue_of(struct clg_context_s *c, const clg_launch *launch) {
    if (launch->lane && !c->second) {
        cl_object device = NULL;
        int32_t code = cl_queue_device(c->queue, &device);
        if (!code) c->second = cl_create_queue(c->context, device, &code);
    }
    return launch->lane && c->second ? c->second : c->queue;
}

/* Queues a launch after an event or NULL, and after what it waits for of the other queue. */
static int32_t enqueue(struct clg_plan_s *p, uint32_t l, cl_object event) {
    const clg_launch *launch = &p->launches[l];
    cl_object queue = queue_of(p->context, launch), list[2];
    size_t global[3], local[3];
    uint32_t waits = 0;
    for (uint32_t d = 0; d < launch->dims; d++) {
        global[d] = launch->global_size[d];
        local[d] = launch->local_size[d];
    }
    if (event) list[waits++] = event;
    if (launch->after) list[waits++] = p->events[launch->after - 1];
    int32_t code = cl_launch(queue, launch->kernel, launch->dims, global, launch->has_local ? local : NULL, waits, list,
                             p->awaited[l] || p->is_watched ? &p->events[l] : NULL);
    if (!code && p->awaited[l]) cl_flush(queue); /* else the other queue may wait for ever */
    return code;
}

/* Lets what is queued from now on wait for the second queue; after an error the caller does. */
static clg_status join_queues(struct clg_plan_s *p, clg_status status) {
    struct clg_context_s *c = p->context;
    int32_t code = 0;
    if (!status && p->unjoined) code = cl_wait_in_queue(c->queue, &p->events[p->unjoined - 1]);
    if ((status || code) && c->second) cl_finish(c->second);
    for (uint32_t l = 0; p->split && l < p->launch_count; l++) {
        if (p->events[l]) cl_release_event(p->events[l]);
        p->events[l] = NULL;
    }
    return code ? clg_cl_fail("clEnqueueBarrierWithWaitList", code) : status;
}

static clg_status launch_all(struct clg_plan_s *p, const clg_buffer *buffers, const double *scalars) {
    struct clg_context_s *c = p->context;
    /* memory that arguments may be bound to is gone, and others may have its address; or another plan has set them */
    if (p->generation != c->generation || c->shared_kernels) {
        memset(p->bound, 0, p->bound_count * sizeof *p->bound);
        p->generation = c->generation;
    }
    clg_status status = CLG_OK;
    clg_bound *bound = p->bound, *next = bound;
    for (uint32_t l = 0; l < p->launch_count && !status; l++) {
        const clg_launch *launch = &p->launches[l];
        bound = next;
        next += launch->binding_count;
        if (!wanted(p, launch, buffers)) continue;
        cl_object event = NULL;
        status = clg_transfers_before(p, l, &event);
        if (status) break;
        int32_t code = bind_launch(p, launch, bound, buffers, scalars);
        if (code) return clg_cl_fail("clSetKernelArg", code);
        code = enqueue(p, l, event);
        if (code) return clg_cl_fail("clEnqueueNDRangeKernel", code);
        c->counters.launches++;
        status = clg_transfers_after(p, l, false);
    }
    return status;
}

/* On devices that use host memory in place through buffers made for the run. */
static clg_status map_results(struct clg_plan_s *p) {
    struct clg_context_s *c = p->context;
    for (uint32_t i = 0; i < p->argument_count; i++) {
        const clg_resolved *r = &p->resolved[i];
        const clg_argument *a = &p->arguments[i];
        if (!r->wrapped || a->role == CLG_IN) continue;
        int32_t code = 0;
        void *mapped = cl_map(c->queue, r->mem, CL_MAP_READ_, a->bytes, &code);
        if (!code) code = cl_unmap(c->queue, r->mem, mapped);
        if (code) return clg_cl_fail("reading a result", code);
    }
    return CLG_OK;
}

static clg_status run_locked(const clg_job *job, bool host, bool waits) {
    struct clg_plan_s *p = job->plan;
    struct clg_context_s *c = p->context;
    const double began = p->is_watched ? clg_seconds() : 0;
    memset(p->resolved, 0, p->argument_count * sizeof *p->resolved);
    clg_status status = clg_context_reserve(c, p->workspace_bytes); /* present, unless growing it failed earlier */
    for (uint32_t i = 0; i < p->argument_count && !status; i++) status = resolve(job, i);
    const bool staged = host && c->host_access == CLG_STAGED && !status;
    if (staged) status = clg_transfers_begin(p, job->buffers);
    if (!status) status = join_queues(p, launch_all(p, job->buffers, job->scalars));
    if (staged) status = clg_transfers_end(p, status, waits);
    if (!status) status = map_results(p);
    cl_object watched = p->is_watched ? p->events[0] : NULL;
    if (watched) p->events[0] = NULL;
    if (waits || status || clg_verbose_flags & CLG_VERBOSE_RUN) { /* a verbose line counts the device's work too */
        /* also after an error: nothing may still use the caller's memory when this returns */
        c->counters.waits++;
        int32_t code = watched ? clg_wait_launch(c, watched, began, &p->was_short) : clg_wait_queue(c);
        if (code && !status) status = clg_cl_fail("clFinish", code);
        c->queued = false;
    } else {
        cl_flush(c->queue);
        c->queued = true;
    }
    if (watched) cl_release_event(watched);
    for (uint32_t i = 0; i < p->argument_count; i++) {
        const clg_resolved *r = &p->resolved[i];
        if (r->wrapped) cl_release_mem(r->mem);
        if (r->copy && !status) r->copy->version = job->copies[i].version;
    }
    return status;
}

bool clg_job_uses_host(const clg_job *job) {
    for (uint32_t i = 0; i < job->plan->argument_count; i++)
        if (job->buffers[i].kind == CLG_HOST && job->buffers[i].mode != CLG_SKIP) return true;
    return false;
}

/* On a device with memory of its own what a run reads of the host's is in pinned memory by its end. */
bool clg_job_waits(const clg_job *job) {
    const struct clg_plan_s *p = job->plan;
    if (p->context->host_access != CLG_STAGED) return clg_job_uses_host(job);
    for (uint32_t i = 0; i < p->argument_count; i++)
        if (job->buffers[i].kind == CLG_HOST && job->buffers[i].mode != CLG_SKIP && p->arguments[i].role != CLG_IN)
            return true;
    return false;
}

clg_status clg_job_run(const clg_job *job) {
    struct clg_context_s *c = job->plan->context;
    clg_affinity affinity;
    clg_affinity_keep(&affinity);
    pthread_mutex_lock(&c->mutex);
    double begin = clg_verbose_flags ? clg_verbose_begin(CLG_VERBOSE_RUN) : 0;
    clg_status status = run_locked(job, clg_job_uses_host(job), clg_job_waits(job));
    if (begin != 0 && !status) clg_verbose_end(CLG_VERBOSE_RUN, job->plan->label, begin);
    if (!status) job->plan->runs++;
    pthread_mutex_unlock(&c->mutex);
    clg_affinity_restore(&affinity);
    return status;
}

clg_status clg_job_check(clg_job *job, uint32_t buffer_count, uint32_t scalar_count) {
    struct clg_plan_s *p = job->plan = clg_handle_acquire(job->handle, CLG_KIND_PLAN);
    if (!p) return CLG_INVALID_HANDLE;
    clg_status status = CLG_OK;
    if (p->context->fork_count != clg_fork_count())
        status = clg_fail(
            CLG_FORKED,
            "[run] got a plan from before fork(), expected one made in this process: OpenCL does not survive fork()");
    else if (buffer_count != p->argument_count || (!job->buffers && buffer_count))
        status = clg_fail(CLG_INVALID_ARGUMENT, "[run] got %u buffers at %p, expected %u", buffer_count,
                          (const void *)job->buffers, p->argument_count);
    else if (scalar_count != p->scalar_count || (!job->scalars && scalar_count))
        status = clg_fail(CLG_INVALID_ARGUMENT, "[run] got %u scalars at %p, expected %u", scalar_count,
                          (const void *)job->scalars, p->scalar_count);
    for (uint32_t i = 0; i < buffer_count && !status; i++) status = check_buffer(p, i, &job->buffers[i]);
    if (!status) status = clg_check_apart(p, job->buffers);
    if (!status) status = acquire_arrays(job);
    if (status) clg_handle_return(job->handle);
    return status;
}
