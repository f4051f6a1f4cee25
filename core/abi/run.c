/* Running a plan: check the buffers, bind them, enqueue, wait. Allocates nothing on the host and decides nothing. */
#include "internal.h"

static clg_status check_buffer(const struct clg_plan_s *p, uint32_t i, const clg_buffer *b) {
    const clg_argument *a = &p->arguments[i];
    if (b->size != sizeof *b)
        return clg_fail(CLG_INVALID_ARGUMENT, "[run] got size %u for %s, expected sizeof(clg_buffer) = %zu", b->size, a->name, sizeof *b);
    if (b->mode > CLG_SKIP || (b->mode != CLG_OVERWRITE && a->role != CLG_OUT))
        return clg_fail(CLG_INVALID_ARGUMENT, "[run] got mode %u for %s, expected CLG_OVERWRITE%s", b->mode, a->name,
                        a->role == CLG_OUT ? ", CLG_ACCUMULATE or CLG_SKIP" : " (it is no plain output)");
    if (b->mode == CLG_SKIP) return CLG_OK;
    if (b->dtype != a->dtype)
        return clg_fail(CLG_WRONG_DTYPE, "[run] got dtype %u for %s, expected %u", b->dtype, a->name, a->dtype);
    if (b->kind != CLG_HOST && b->kind != CLG_DEVICE)
        return clg_fail(CLG_INVALID_ARGUMENT, "[run] got kind %u for %s, expected CLG_HOST or CLG_DEVICE", b->kind, a->name);
    if (b->bytes < a->bytes)
        return clg_fail(CLG_BUFFER_TOO_SMALL, "[run] got %llu bytes for %s, expected %llu", (unsigned long long)b->bytes, a->name,
                        (unsigned long long)a->bytes);
    if (!b->handle && a->bytes)
        return clg_fail(CLG_INVALID_ARGUMENT, "[run] got NULL for %s, expected %llu bytes", a->name, (unsigned long long)a->bytes);
    uint64_t start = b->kind == CLG_HOST ? (uint64_t)(uintptr_t)b->handle + b->offset : b->offset;
    if (start % clg_dtype_bytes(a->dtype))
        return clg_fail(CLG_INVALID_ARGUMENT, "[run] got %s at an address or offset of %llu, expected a multiple of %u", a->name,
                        (unsigned long long)start, clg_dtype_bytes(a->dtype));
    return CLG_OK;
}

static clg_status check_device_buffer(const struct clg_context_s *c, const clg_argument *a, const clg_buffer *b) {
    cl_object context = NULL;
    size_t bytes = 0;
    int32_t code = cl_mem_info(b->handle, CL_MEM_CONTEXT_, sizeof context, &context);
    if (!code) code = cl_mem_info(b->handle, CL_MEM_SIZE_, sizeof bytes, &bytes);
    if (code) return clg_cl_fail("clGetMemObjectInfo", code);
    if (context != c->context)
        return clg_fail(CLG_INVALID_ARGUMENT, "[run] got %s from another cl_context, expected one of the plan's", a->name);
    if (b->offset > bytes || bytes - b->offset < a->bytes)
        return clg_fail(CLG_BUFFER_TOO_SMALL, "[run] got a cl_mem of %zu bytes and offset %llu for %s, expected %llu bytes", bytes,
                        (unsigned long long)b->offset, a->name, (unsigned long long)a->bytes);
    return CLG_OK;
}

static clg_status resolve(struct clg_context_s *c, const clg_argument *a, const clg_buffer *b, clg_resolved *r) {
    *r = (clg_resolved){0};
    if (b->mode == CLG_SKIP || !a->bytes) return CLG_OK;
    uint32_t item = clg_dtype_bytes(a->dtype);
    if (b->kind == CLG_DEVICE) {
        r->mem = b->handle;
        r->offset = b->offset / item;
        return check_device_buffer(c, a, b);
    }
    void *host = (char *)b->handle + b->offset;
    int32_t code = 0;
    if (c->host_access == CLG_RAW_POINTER) {
        r->pointer = host;
    } else if (c->host_access == CLG_USE_HOST_PTR) {
        r->mem = cl_create_buffer(c->context, CL_MEM_READ_WRITE_ | CL_MEM_USE_HOST_PTR_, a->bytes, host, &code);
        if (!r->mem) return clg_cl_fail("clCreateBuffer on host memory", code);
        r->owner = CLG_OWN_WRAPPED;
    } else {
        r->mem = clg_pool_take(c, a->bytes, &code);
        if (!r->mem)
            return code && code != -4 && code != -6 && code != -61
                       ? clg_cl_fail("clCreateBuffer", code)
                       : clg_fail(CLG_OUT_OF_MEMORY, "[run] got no device memory for %s (%llu bytes)", a->name,
                                  (unsigned long long)a->bytes);
        r->owner = CLG_OWN_POOLED;
        if (a->role != CLG_OUT || b->mode == CLG_ACCUMULATE) {
            code = cl_write(c->queue, r->mem, 0, a->bytes, host);
            if (code) return clg_cl_fail("clEnqueueWriteBuffer", code);
            c->counters.bytes_to_device += a->bytes;
        }
    }
    return CLG_OK;
}

static int32_t bind_pair(cl_object kernel, uint32_t position, void *pointer, cl_object mem, uint64_t offset) {
    int32_t code = mem ? cl_set_arg(kernel, position, sizeof mem, &mem) : cl_set_arg_pointer(kernel, position, pointer);
    return code ? code : cl_set_arg(kernel, position + 1, sizeof offset, &offset);
}

static int32_t bind_launch(const struct clg_plan_s *p, const clg_launch *launch, const clg_buffer *buffers, const double *scalars) {
    const struct clg_context_s *c = p->context;
    uint32_t position = 0;
    int32_t code = 0;
    for (uint32_t b = 0; b < launch->binding_count && !code; b++) {
        const clg_binding *binding = &p->bindings[launch->first_binding + b];
        if (binding->kind == CLG_BIND_BUFFER) {
            const clg_resolved *r = &p->resolved[binding->index];
            /* a cl_mem argument of NULL is legal everywhere; an SVM pointer of NULL is not */
            if (!r->mem && !r->pointer) {
                uint64_t zero = 0;
                code = cl_set_arg(launch->kernel, position, sizeof(cl_object), NULL);
                if (!code) code = cl_set_arg(launch->kernel, position + 1, sizeof zero, &zero);
            } else {
                code = bind_pair(launch->kernel, position, r->pointer, r->mem, r->offset);
            }
            position += 2;
        } else if (binding->kind == CLG_BIND_WORKSPACE) {
            bool raw = c->host_access == CLG_RAW_POINTER;
            code = bind_pair(launch->kernel, position, raw ? c->workspace : NULL, raw ? NULL : c->workspace,
                             binding->value / (binding->index ? binding->index : 1));
            position += 2;
        } else {
            if (binding->kind == CLG_BIND_SCALAR) {
                double wide = scalars[binding->index];
                float narrow = (float)wide;
                code = cl_set_arg(launch->kernel, position, binding->bytes, binding->bytes == 8 ? (void *)&wide : (void *)&narrow);
            } else if (binding->kind == CLG_BIND_ACCUMULATE) {
                int32_t accumulate = buffers[binding->index].mode == CLG_ACCUMULATE;
                code = cl_set_arg(launch->kernel, position, sizeof accumulate, &accumulate);
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

static clg_status launch_all(struct clg_plan_s *p, const clg_buffer *buffers, const double *scalars) {
    struct clg_context_s *c = p->context;
    for (uint32_t l = 0; l < p->launch_count; l++) {
        const clg_launch *launch = &p->launches[l];
        if (!wanted(p, launch, buffers)) continue;
        int32_t code = bind_launch(p, launch, buffers, scalars);
        if (code) return clg_cl_fail("clSetKernelArg", code);
        size_t global[3], local[3];
        for (uint32_t d = 0; d < launch->dims; d++) {
            global[d] = launch->global_size[d];
            local[d] = launch->local_size[d];
        }
        code = cl_launch(c->queue, launch->kernel, launch->dims, global, launch->has_local ? local : NULL);
        if (code) return clg_cl_fail("clEnqueueNDRangeKernel", code);
        c->counters.launches++;
    }
    return CLG_OK;
}

static clg_status bring_back(struct clg_plan_s *p, const clg_buffer *buffers) {
    struct clg_context_s *c = p->context;
    for (uint32_t i = 0; i < p->argument_count; i++) {
        const clg_resolved *r = &p->resolved[i];
        const clg_argument *a = &p->arguments[i];
        if (!r->owner || a->role == CLG_IN) continue;
        int32_t code = 0;
        if (r->owner == CLG_OWN_POOLED) {
            code = cl_read(c->queue, r->mem, 0, a->bytes, (char *)buffers[i].handle + buffers[i].offset);
            c->counters.bytes_to_host += a->bytes;
        } else {
            void *mapped = cl_map(c->queue, r->mem, a->bytes, &code);
            if (!code) code = cl_unmap(c->queue, r->mem, mapped);
        }
        if (code) return clg_cl_fail("reading a result", code);
    }
    return CLG_OK;
}

static void give_back(struct clg_plan_s *p) {
    for (uint32_t i = 0; i < p->argument_count; i++) {
        clg_resolved *r = &p->resolved[i];
        if (r->owner == CLG_OWN_POOLED) clg_pool_give(p->context, r->mem);
        if (r->owner == CLG_OWN_WRAPPED) cl_release_mem(r->mem);
        *r = (clg_resolved){0};
    }
}

static clg_status run_locked(struct clg_plan_s *p, const clg_buffer *buffers, const double *scalars) {
    struct clg_context_s *c = p->context;
    bool host = false;
    clg_status status = CLG_OK;
    for (uint32_t i = 0; i < p->argument_count; i++) p->resolved[i] = (clg_resolved){0};
    status = clg_context_reserve(c, p->workspace_bytes); /* present, unless growing it failed earlier */
    for (uint32_t i = 0; i < p->argument_count && !status; i++) {
        host |= buffers[i].kind == CLG_HOST && buffers[i].mode != CLG_SKIP;
        status = resolve(c, &p->arguments[i], &buffers[i], &p->resolved[i]);
    }
    if (!status) status = launch_all(p, buffers, scalars);
    if (!status) status = bring_back(p, buffers);
    if (host || status || clg_verbose_flags & CLG_VERBOSE_RUN) { /* a verbose line counts the device's work too */
        /* also after an error: nothing may still use the caller's memory when this returns */
        int32_t code = cl_finish(c->queue);
        if (code && !status) status = clg_cl_fail("clFinish", code);
    } else {
        cl_flush(c->queue);
    }
    give_back(p);
    return status;
}

clg_status clg_plan_run(clg_plan plan, const clg_buffer *buffers, uint32_t buffer_count, const double *scalars,
                        uint32_t scalar_count) {
    struct clg_plan_s *p = clg_handle_acquire(plan, CLG_KIND_PLAN);
    if (!p) return CLG_INVALID_HANDLE;
    clg_status status = CLG_OK;
    if (p->context->fork_count != clg_fork_count())
        status = clg_fail(CLG_FORKED, "[run] got a plan from before fork(), expected one made in this process: OpenCL does not survive fork()");
    else if (buffer_count != p->argument_count || (!buffers && buffer_count))
        status = clg_fail(CLG_INVALID_ARGUMENT, "[run] got %u buffers at %p, expected %u", buffer_count, (const void *)buffers,
                          p->argument_count);
    else if (scalar_count != p->scalar_count || (!scalars && scalar_count))
        status = clg_fail(CLG_INVALID_ARGUMENT, "[run] got %u scalars at %p, expected %u", scalar_count, (const void *)scalars,
                          p->scalar_count);
    for (uint32_t i = 0; i < buffer_count && !status; i++) status = check_buffer(p, i, &buffers[i]);
    if (!status) status = clg_check_apart(p, buffers);
    if (!status) {
        clg_affinity affinity;
        clg_affinity_keep(&affinity);
        pthread_mutex_lock(&p->context->mutex);
        double begin = clg_verbose_flags ? clg_verbose_begin(CLG_VERBOSE_RUN) : 0;
        status = run_locked(p, buffers, scalars);
        if (begin != 0 && !status) clg_verbose_end(CLG_VERBOSE_RUN, p->label, begin);
        pthread_mutex_unlock(&p->context->mutex);
        clg_affinity_restore(&affinity);
    }
    clg_handle_drop(p);
    return status;
}
