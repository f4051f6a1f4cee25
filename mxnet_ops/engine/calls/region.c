/* A region at work: one call of the runtime per pass, with the pass that Python made for these write requests. */
#include <stdlib.h>
#include <string.h>

#include "failures.h"
#include "mxnet.h"
#include "questions.h"
#include "region.h"

static uint64_t versions;

void clg_mx_set_region(clg_mx_execution *execution, const clg_mx_region *region, const clg_mx_memory *own) {
    execution->region = region;
    execution->own = own;
}

/* Python adds passes one after another; operators look at the same time. */
void clg_mx_add_pass(clg_mx_region *region, clg_mx_pass *pass) {
    pass->next = region->passes;
    __atomic_store_n(&region->passes, pass, __ATOMIC_RELEASE);
}

static const clg_mx_pass *find(const clg_mx_region *region, int which, const int32_t *modes, uint32_t count) {
    const clg_mx_pass *pass = __atomic_load_n(&region->passes, __ATOMIC_ACQUIRE);
    while (pass && (pass->which != which || pass->request_count != count ||
                    memcmp(pass->requests, modes, (count + 1) * sizeof *modes)))
        pass = pass->next;
    return pass;
}

static bool make_room(clg_mx_execution *execution, uint32_t count) {
    if (count <= execution->room) return true;
    clg_buffer *more = malloc(count * sizeof *more);
    if (!more) return clg_mx_fail(execution->call->text, "got no memory for the arguments of a region");
    free(execution->buffers);
    execution->buffers = more;
    execution->room = count;
    return true;
}

static clg_buffer bind(const clg_mx_execution *execution, const clg_mx_pass *pass, const arrays *given,
                       const clg_mx_argument *a) {
    clg_mx_memory memory = {.kind = CLG_HOST};
    if (a->group == CLG_MX_STATE)
        memory = execution->own[a->place];
    else if (a->group == CLG_MX_FIXED)
        memory = pass->fixed[a->place];
    else
        memory.handle = clg_mx_address(execution, given, a);
    return (clg_buffer){
        .size = sizeof(clg_buffer),
        .kind = memory.kind,
        .dtype = a->dtype,
        .mode = a->requested == CLG_MX_ADDED ? CLG_ACCUMULATE
                : a->requested               ? (uint32_t)pass->requests[a->place]
                                             : CLG_OVERWRITE,
        .handle = memory.handle,
        .bytes = memory.handle ? a->bytes : 0};
}

/* Runs a pass whose buffers are set, with copies for them or NULL. */
static bool run_plan(const clg_mx_execution *execution, const clg_mx_step *step, const clg_copy *copies) {
    const clg_buffer *buffers = execution->buffers;
    clg_status status =
        copies
            ? mx.plan_start(step->plan, buffers, step->argument_count, step->scalars, step->scalar_count, copies, NULL)
            : mx.plan_run(step->plan, buffers, step->argument_count, step->scalars, step->scalar_count);
    return !status || clg_mx_fail_step(step);
}

static bool run_with_copies(const clg_mx_execution *execution, const clg_mx_pass *pass) {
    uint32_t count = pass->step.argument_count;
    clg_copy copies[count + 1];
    for (uint32_t i = 0; i < count; i++) {
        int32_t place = pass->copies[i];
        copies[i] = place < 0 ? (clg_copy){NULL, 0} : (clg_copy){execution->own[place].handle, execution->version};
    }
    return run_plan(execution, &pass->step, copies);
}

/* modes: those of `count` outputs or gradients, then the pattern of the residents. */
static bool run_pass(clg_mx_execution *execution, int which, const arrays *given, int32_t *modes, uint32_t count) {
    int group = which < 2 ? CLG_MX_OUT : CLG_MX_IN_GRAD;
    const clg_mx_pass *pass = find(execution->region, which, modes, count);
    if (!pass) {
        if (!clg_mx_py_make_pass(execution, which, modes, count + 1)) return false;
        pass = find(execution->region, which, modes, count);
        if (!pass) return clg_mx_fail(execution->call->text, "got no pass for the write requests at hand");
    }
    if (pass->keeps && !execution->keeps) {
        if (!clg_mx_py_keep(execution)) return false;
        execution->keeps = true;
    }
    const clg_mx_step *step = &pass->step;
    if (!make_room(execution, step->argument_count)) return false;
    for (uint32_t i = 0; i < step->argument_count; i++)
        execution->buffers[i] = bind(execution, pass, given, &step->arguments[i]);
    if (which == 1) execution->version = __atomic_add_fetch(&versions, 1, __ATOMIC_RELAXED);
    if (step->plan && !(pass->copies ? run_with_copies(execution, pass) : run_plan(execution, step, NULL)))
        return false;
    for (uint32_t i = 0; i < pass->zero_count; i++) {
        const clg_mx_zero *zero = &pass->zeros[i];
        if (modes[zero->place] == CLG_OVERWRITE)
            memset(given->addresses[given->first[group] + zero->place], 0, zero->bytes);
    }
    return true;
}

bool clg_mx_run_region(clg_mx_execution *execution, int which, const arrays *given, const int *requests) {
    int group = which < 2 ? CLG_MX_OUT : CLG_MX_IN_GRAD;
    uint32_t count = (uint32_t)(given->first[group + 1] - given->first[group]);
    int32_t modes[count + 1];
    for (uint32_t i = 0; i < count; i++) modes[i] = (int32_t)MODES[requests[i] & 3];
    modes[count] = 0;
    if (which < 2 || !execution->region->resident) return run_pass(execution, which, given, modes, count);
    if (!clg_mx_py_begin_backward(execution, &modes[count])) return false;
    bool good = run_pass(execution, which, given, modes, count);
    return clg_mx_py_end_backward(execution, good) && good;
}
