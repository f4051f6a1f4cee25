/* Plans: what the planner assembled, checked once and kept. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "errors.h"
#include "handles.h"
#include "plan.h"

uint32_t clg_dtype_bytes(uint32_t dtype) {
    switch (dtype) {
    case CLG_FLOAT32:
    case CLG_INT32: return 4;
    case CLG_FLOAT16:
    case CLG_BFLOAT16: return 2;
    case CLG_FLOAT64: return 8;
    case CLG_UINT8: return 1;
    default: return 0;
    }
}

static void plan_free(void *object) {
    struct clg_plan_s *p = object;
    for (uint32_t i = 0; p->launches && i < p->launch_count; i++)
        if (p->launches[i].kernel) cl_release_kernel(p->launches[i].kernel);
    struct clg_context_s *context = p->context;
    free(p->description);
    free(p->label);
    free(p->arguments);
    free(p->launches);
    free(p->bindings);
    free(p->writes);
    for (uint32_t i = 0; p->names && i < p->argument_count; i++) free(p->names[i]);
    free(p->names);
    free(p->modes);
    free(p->first_use);
    free(p->last_use);
    free(p->by_first);
    free(p->by_last);
    free(p->resolved);
    free(p->bound);
    free(p->pieces);
    free(p->marks);
    free(p->awaited);
    free(p->events);
    free(p);
    if (context) clg_handle_drop(context);
}

static void *copy(const void *from, size_t count, size_t size) {
    void *to = malloc(count * size + 1);
    if (to && count) memcpy(to, from, count * size);
    return to;
}

void *clg_kernel_create(void *cl_program, const char *name) {
    int32_t code = 0;
    cl_object kernel = cl_create_kernel(cl_program, name, &code);
    return code ? NULL : kernel;
}

void clg_kernel_release(void *cl_kernel) { cl_release_kernel(cl_kernel); }

/* What never changes between runs is set here, once. */
static clg_status set_constants(struct clg_plan_s *p, const uint8_t *constants) {
    for (uint32_t l = 0; l < p->launch_count; l++) {
        const clg_launch *launch = &p->launches[l];
        uint32_t position = 0;
        for (uint32_t b = 0; b < launch->binding_count; b++) {
            const clg_binding *binding = &p->bindings[launch->first_binding + b];
            int32_t code = 0;
            if (binding->kind == CLG_BIND_CONSTANT)
                code = cl_set_arg(launch->kernel, position, binding->bytes, &binding->value);
            if (binding->kind == CLG_BIND_STRUCT)
                code = cl_set_arg(launch->kernel, position, binding->bytes, constants + binding->value);
            if (binding->kind == CLG_BIND_LOCAL) code = cl_set_arg(launch->kernel, position, binding->value, NULL);
            if (binding->kind == CLG_BIND_TICKETS)
                code = cl_set_arg(launch->kernel, position, sizeof(cl_object), &p->context->tickets[launch->lane]);
            if (code) return clg_cl_fail("clSetKernelArg of a constant", code);
            position += binding->kind == CLG_BIND_BUFFER || binding->kind == CLG_BIND_WORKSPACE ? 2 : 1;
        }
    }
    return CLG_OK;
}

static clg_status check_spec(const clg_plan_spec *spec) {
    for (uint32_t w = 0; w < spec->write_count; w++)
        if (spec->writes[w] >= spec->argument_count)
            return clg_fail(CLG_INVALID_ARGUMENT, "[plan] got a write to buffer %u, expected below %u", spec->writes[w],
                            spec->argument_count);
    bool ordered = false; /* the second queue has waited for the first one */
    for (uint32_t l = 0; l < spec->launch_count; l++) {
        const clg_launch *launch = &spec->launches[l];
        const clg_launch *before = launch->after && launch->after <= l ? &spec->launches[launch->after - 1] : NULL;
        if (launch->lane > 1 || (launch->after && (!before || before->lane == launch->lane)) ||
            (launch->lane && !ordered && !before) || (launch->lane && spec->write_count))
            return clg_fail(
                CLG_INVALID_ARGUMENT,
                "[plan] got launch %u on queue %u after launch %u of %u writes, expected it to wait for an earlier "
                "one of the other queue, the first one on queue 1 in any case, and no launch that may be left out",
                l, launch->lane, launch->after, spec->write_count);
        ordered |= launch->lane;
        if (!launch->kernel || launch->dims < 1 || launch->dims > 3 ||
            (uint64_t)launch->first_binding + launch->binding_count > spec->binding_count ||
            (uint64_t)launch->first_write + launch->write_count > spec->write_count)
            return clg_fail(CLG_INVALID_ARGUMENT, "[plan] got launch %u malformed", l);
        for (uint32_t b = 0; b < launch->binding_count; b++) {
            const clg_binding *binding = &spec->bindings[launch->first_binding + b];
            uint32_t limit =
                binding->kind == CLG_BIND_BUFFER || binding->kind == CLG_BIND_ACCUMULATE ? spec->argument_count
                : binding->kind == CLG_BIND_SCALAR                                       ? spec->scalar_count
                                                                                         : UINT32_MAX;
            if (binding->kind < CLG_BIND_BUFFER || binding->kind > CLG_BIND_TICKETS || binding->index >= limit ||
                (binding->kind == CLG_BIND_BUFFER && binding->value > spec->arguments[binding->index].bytes) ||
                (binding->kind == CLG_BIND_CONSTANT && binding->bytes > sizeof binding->value) ||
                (binding->kind == CLG_BIND_STRUCT && (binding->value > spec->constant_bytes || !binding->bytes ||
                                                      binding->bytes > spec->constant_bytes - binding->value)))
                return clg_fail(CLG_INVALID_ARGUMENT, "[plan] got binding %u of launch %u malformed", b, l);
        }
    }
    return CLG_OK;
}

static bool made_before_fork(const struct clg_context_s *c) {
    if (c->fork_count == clg_fork_count()) return false;
    clg_fail(
        CLG_FORKED,
        "[plan] got a context from before fork(), expected one made in this process: OpenCL does not survive fork()");
    return true;
}

/* Stable, and short enough lists or nearly sorted ones: graphs name their arguments in the order of their use. */
static void sort_by(uint32_t *order, uint32_t count, const uint32_t *key) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = i;
        for (; at && key[order[at - 1]] > key[i]; at--) order[at] = order[at - 1];
        order[at] = i;
    }
}

static void find_uses(struct clg_plan_s *p) {
    for (uint32_t i = 0; i < p->argument_count; i++) p->first_use[i] = p->last_use[i] = p->launch_count;
    for (uint32_t l = 0; l < p->launch_count; l++) {
        const clg_launch *launch = &p->launches[l];
        for (uint32_t b = 0; b < launch->binding_count; b++) {
            const clg_binding *binding = &p->bindings[launch->first_binding + b];
            if (binding->kind != CLG_BIND_BUFFER) continue;
            if (p->first_use[binding->index] == p->launch_count) p->first_use[binding->index] = l;
            p->last_use[binding->index] = l;
        }
    }
    sort_by(p->by_first, p->argument_count, p->first_use);
    sort_by(p->by_last, p->argument_count, p->last_use);
}

static void find_awaited(struct clg_plan_s *p) {
    uint32_t joined = 0;
    for (uint32_t l = 0; l < p->launch_count; l++) {
        const clg_launch *launch = &p->launches[l];
        if (launch->after) p->awaited[launch->after - 1] = true;
        if (launch->after > joined && !launch->lane) joined = launch->after;
        if (launch->lane) p->unjoined = l + 1;
    }
    p->split = p->unjoined != 0;
    if (p->unjoined <= joined) p->unjoined = 0;
    if (p->unjoined) p->awaited[p->unjoined - 1] = true; /* the end of a run waits for it */
}

/* Planners give each plan kernels of its own, so the caller's reference is the only one;
 * searches plan launches again. */
static bool has_shared_kernels(const struct clg_plan_s *p) {
    for (uint32_t l = 0; l < p->launch_count; l++) {
        uint32_t references = 0;
        if (cl_kernel_references(p->launches[l].kernel, &references) || references != 1) return true;
    }
    return false;
}

/* False if there is no memory. */
static bool name_arguments(struct clg_plan_s *p, const char *const *names) {
    for (uint32_t i = 0; i < p->argument_count; i++) {
        const char *name = names && names[i] ? names[i] : p->arguments[i].name;
        p->names[i] = copy(name, strlen(name) + 1, 1);
        if (!p->names[i]) return false;
    }
    return true;
}

clg_status clg_plan_assemble(clg_context context, const clg_plan_spec *spec, clg_plan *plan) {
    if (!spec || !plan)
        return clg_fail(CLG_INVALID_ARGUMENT, "[plan] got NULL, expected a spec and a place for the handle");
    *plan = NULL;
    clg_status status = check_spec(spec);
    if (status) return status;
    struct clg_context_s *c = clg_handle_acquire(context, CLG_KIND_CONTEXT);
    if (!c) return CLG_INVALID_HANDLE;
    if (made_before_fork(c)) {
        clg_handle_drop(c);
        return CLG_FORKED;
    }
    struct clg_plan_s *p = calloc(1, sizeof *p);
    if (!p) {
        clg_handle_drop(c);
        return clg_fail(CLG_OUT_OF_MEMORY, "[plan] no memory for a plan");
    }
    p->context = c;
    p->argument_count = spec->argument_count;
    p->binding_count = spec->binding_count;
    p->scalar_count = spec->scalar_count;
    p->workspace_bytes = spec->workspace_bytes;
    p->apart = spec->apart != 0;
    p->description =
        copy(spec->description ? spec->description : "", strlen(spec->description ? spec->description : "") + 1, 1);
    p->label = copy(spec->label ? spec->label : ",", strlen(spec->label ? spec->label : ",") + 1, 1);
    p->arguments = copy(spec->arguments, spec->argument_count, sizeof *spec->arguments);
    p->bindings = copy(spec->bindings, spec->binding_count, sizeof *spec->bindings);
    p->launches = copy(spec->launches, spec->launch_count, sizeof *spec->launches);
    p->writes = copy(spec->writes, spec->write_count, sizeof *spec->writes);
    const size_t count = (size_t)spec->argument_count + 1;
    p->names = calloc(count, sizeof *p->names);
    if (spec->modes) p->modes = copy(spec->modes, spec->argument_count, 1);
    p->first_use = malloc(count * sizeof *p->first_use);
    p->last_use = malloc(count * sizeof *p->last_use);
    p->by_first = malloc(count * sizeof *p->by_first);
    p->by_last = malloc(count * sizeof *p->by_last);
    p->resolved = calloc(count, sizeof *p->resolved);
    for (uint32_t l = 0; l < spec->launch_count; l++) p->bound_count += spec->launches[l].binding_count;
    p->bound = calloc(p->bound_count + 1, sizeof *p->bound);
    p->pieces = calloc(2 * count, sizeof *p->pieces);
    p->marks = calloc(count, sizeof *p->marks);
    p->awaited = calloc((size_t)spec->launch_count + 1, sizeof *p->awaited);
    p->events = calloc((size_t)spec->launch_count + 1, sizeof *p->events);
    if (!p->description || !p->label || !p->arguments || !p->bindings || !p->launches || !p->writes || !p->names ||
        (spec->modes && !p->modes) || !p->first_use || !p->last_use || !p->by_first || !p->by_last || !p->resolved ||
        !p->bound || !p->pieces || !p->marks || !p->awaited || !p->events || !name_arguments(p, spec->names)) {
        p->launch_count = 0;
        plan_free(p);
        return clg_fail(CLG_OUT_OF_MEMORY, "[plan] no memory for a plan");
    }
    p->launch_count = spec->launch_count;
    bool shared = has_shared_kernels(p);
    for (uint32_t l = 0; l < p->launch_count; l++) cl_retain_kernel(p->launches[l].kernel);
    find_uses(p);
    find_awaited(p);
    p->is_watched = c->stays_awake && p->launch_count == 1 && !p->split;
    pthread_mutex_lock(&c->mutex);
    c->shared_kernels |= shared;
    status = clg_context_reserve(c, p->workspace_bytes);
    pthread_mutex_unlock(&c->mutex);
    if (!status) status = set_constants(p, spec->constants);
    if (!status && !(*plan = clg_handle_new(CLG_KIND_PLAN, p, plan_free)))
        status = clg_fail(CLG_OUT_OF_MEMORY, "[plan] no memory for a handle");
    if (status) plan_free(p);
    return status;
}

clg_status clg_plan_create(clg_context context, const char *problem, clg_plan *plan) {
    if (!plan) return clg_fail(CLG_INVALID_ARGUMENT, "[plan] got plan NULL, expected a place for the handle");
    *plan = NULL;
    if (!problem) return clg_fail(CLG_INVALID_ARGUMENT, "[plan] got problem NULL, expected a line of text");
    struct clg_context_s *c = clg_handle_acquire(context, CLG_KIND_CONTEXT);
    if (!c) return CLG_INVALID_HANDLE;
    clg_status status = made_before_fork(c) ? CLG_FORKED : clg_py_plan_create(context, problem, plan);
    if (status == CLG_OK && !*plan) status = clg_fail(CLG_PLANNER_ERROR, "[plan] the planner could not be started");
    clg_handle_drop(c);
    return status;
}

clg_status clg_plan_create_conv(clg_context context, const clg_conv *d, clg_plan *plan) {
    static const char *const directions[] = {"forward", "backward_data", "backward_filter", "backward_bias"};
    static const char *const dtypes[] = {"f32", "f16", "f64", "", "", "bf16"};
    if (!d || d->size != sizeof *d)
        return clg_fail(
            CLG_INVALID_ARGUMENT, "[conv] got size %u, expected sizeof(clg_conv) = %zu", d ? d->size : 0, sizeof *d);
    if (d->direction < CLG_FORWARD || d->direction > CLG_BACKWARD_BIAS)
        return clg_fail(
            CLG_INVALID_PROBLEM, "[conv] got direction %u, expected CLG_FORWARD to CLG_BACKWARD_BIAS", d->direction);
    if (d->dtype != CLG_BFLOAT16 && (d->dtype < CLG_FLOAT32 || d->dtype > CLG_FLOAT64))
        return clg_fail(
            CLG_WRONG_DTYPE, "[conv] got dtype %u, expected CLG_FLOAT32, CLG_FLOAT16, CLG_BFLOAT16 or CLG_FLOAT64",
            d->dtype);
    if (d->ndim < 1 || d->ndim > 3)
        return clg_fail(CLG_INVALID_PROBLEM, "[conv] got ndim %u, expected 1 to 3", d->ndim);
    char text[1024];
    int n = snprintf(text, sizeof text, "conv %s %s n%llu ic%llu oc%llu g%llu", directions[d->direction - 1],
                     dtypes[d->dtype - 1], (unsigned long long)d->batch, (unsigned long long)d->in_channels,
                     (unsigned long long)d->out_channels, (unsigned long long)d->groups);
    for (uint32_t i = 0; i < d->ndim; i++) {
        char a = "dhw"[3 - d->ndim + i];
        n += snprintf(text + n, sizeof text - n, " i%c%llu k%c%llu s%c%llu p%c%llu q%c%llu d%c%llu", a,
                      (unsigned long long)d->in[i], a, (unsigned long long)d->kernel[i], a,
                      (unsigned long long)d->stride[i], a, (unsigned long long)d->pad_begin[i], a,
                      (unsigned long long)d->pad_end[i], a, (unsigned long long)d->dilate[i]);
    }
    if (d->bias) snprintf(text + n, sizeof text - n, " b1");
    return clg_plan_create(context, text, plan);
}

clg_status clg_plan_destroy(clg_plan plan) { return clg_handle_destroy(plan, CLG_KIND_PLAN); }

clg_status clg_plan_describe(clg_plan plan, char *text, size_t bytes) {
    struct clg_plan_s *p = clg_handle_acquire(plan, CLG_KIND_PLAN);
    if (!p) return CLG_INVALID_HANDLE;
    clg_status status = CLG_OK;
    if (!text || !bytes)
        status = clg_fail(
            CLG_INVALID_ARGUMENT, "[plan] got text %p of %zu bytes, expected room for text", (void *)text, bytes);
    else
        snprintf(text, bytes, "%s", p->description);
    clg_handle_drop(p);
    return status;
}

uint64_t clg_plan_runs(clg_plan plan) {
    struct clg_plan_s *p = clg_handle_acquire(plan, CLG_KIND_PLAN);
    if (!p) return 0;
    pthread_mutex_lock(&p->context->mutex);
    uint64_t runs = p->runs;
    pthread_mutex_unlock(&p->context->mutex);
    clg_handle_drop(p);
    return runs;
}

clg_status clg_plan_counts(clg_plan plan, uint32_t *buffers, uint32_t *scalars) {
    struct clg_plan_s *p = clg_handle_acquire(plan, CLG_KIND_PLAN);
    if (!p) return CLG_INVALID_HANDLE;
    if (buffers) *buffers = p->argument_count;
    if (scalars) *scalars = p->scalar_count;
    clg_handle_drop(p);
    return CLG_OK;
}

clg_status clg_plan_argument(clg_plan plan, uint32_t index, clg_argument *argument) {
    struct clg_plan_s *p = clg_handle_acquire(plan, CLG_KIND_PLAN);
    if (!p) return CLG_INVALID_HANDLE;
    clg_status status = CLG_OK;
    if (!argument || argument->size != sizeof *argument)
        status = clg_fail(CLG_INVALID_ARGUMENT, "[plan] got argument size %u, expected sizeof(clg_argument) = %zu",
                          argument ? argument->size : 0, sizeof *argument);
    else if (index >= p->argument_count)
        status =
            clg_fail(CLG_INVALID_ARGUMENT, "[plan] got argument index %u, expected below %u", index, p->argument_count);
    else
        *argument = p->arguments[index];
    clg_handle_drop(p);
    return status;
}

clg_status clg_plan_argument_name(clg_plan plan, uint32_t index, char *text, size_t bytes) {
    struct clg_plan_s *p = clg_handle_acquire(plan, CLG_KIND_PLAN);
    if (!p) return CLG_INVALID_HANDLE;
    clg_status status = CLG_OK;
    if (!text || !bytes)
        status = clg_fail(
            CLG_INVALID_ARGUMENT, "[plan] got text %p of %zu bytes, expected room for text", (void *)text, bytes);
    else if (index >= p->argument_count)
        status =
            clg_fail(CLG_INVALID_ARGUMENT, "[plan] got argument index %u, expected below %u", index, p->argument_count);
    else
        snprintf(text, bytes, "%s", p->names[index]);
    clg_handle_drop(p);
    return status;
}

clg_status clg_graph_create(clg_context context, const char *text, const clg_graph_options *options, clg_plan *plan) {
    if (!plan) return clg_fail(CLG_INVALID_ARGUMENT, "[graph] got plan NULL, expected a place for the handle");
    *plan = NULL;
    if (!text) return clg_fail(CLG_INVALID_ARGUMENT, "[graph] got text NULL, expected the lines of a graph");
    clg_graph_options whole = {0};
    if (options && options->size != sizeof whole && options->size != offsetof(clg_graph_options, precision))
        return clg_fail(CLG_INVALID_ARGUMENT, "[graph] got size %u, expected sizeof(clg_graph_options) = %zu",
                        options->size, sizeof whole);
    if (options) memcpy(&whole, options, options->size); /* members that an older caller does not have are NULL */
    struct clg_context_s *c = clg_handle_acquire(context, CLG_KIND_CONTEXT);
    if (!c) return CLG_INVALID_HANDLE;
    clg_status status =
        made_before_fork(c) ? CLG_FORKED : clg_py_graph_create(context, text, options ? &whole : NULL, plan);
    if (status == CLG_OK && !*plan) status = clg_fail(CLG_PLANNER_ERROR, "[graph] the planner could not be started");
    clg_handle_drop(c);
    return status;
}
