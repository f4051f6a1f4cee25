/* Passes at work: one call of the runtime each, with the pass that Python made for these write requests. */
#include <stdlib.h>
#include <string.h>

#include "averages.h"
#include "failures.h"
#include "mxnet.h"
#include "pass.h"
#include "questions.h"

enum { ATTEMPTS = 4 };

static uint64_t versions;

void clg_mx_set_region(clg_mx_execution *execution, const clg_mx_region *region, const clg_mx_memory *own) {
    execution->region = region;
    execution->own = own;
}

/* Operators look at the same time, and others may add passes. */
void clg_mx_add_pass(clg_mx_region *region, clg_mx_pass *pass) {
    pass->next = __atomic_load_n(&region->passes, __ATOMIC_ACQUIRE);
    while (!__atomic_compare_exchange_n(&region->passes, &pass->next, pass, false, __ATOMIC_RELEASE, __ATOMIC_ACQUIRE));
}

static void *placed(char **room, const void *from, size_t bytes) {
    void *to = *room;
    if (bytes) memcpy(to, from, bytes);
    *room += bytes;
    return to;
}

/* One block, in which what needs the larger alignment comes first. */
int32_t clg_mx_copy_pass(clg_mx_execution *execution, const clg_mx_pass *pass) {
    const clg_mx_step *step = &pass->step;
    size_t arguments = step->argument_count * sizeof *step->arguments;
    size_t scalars = step->scalar_count * sizeof *step->scalars;
    size_t zeros = pass->zero_count * sizeof *pass->zeros;
    size_t requests = (pass->request_count + 1) * sizeof *pass->requests;
    size_t averages = pass->average_count * sizeof *pass->averages;
    size_t text = strlen(step->problem) + 1;
    clg_mx_pass *made = malloc(sizeof *made + arguments + scalars + averages + zeros + requests + text);
    if (!made) return clg_mx_fail(execution->call->text, "got no memory for a pass");
    char *room = (char *)(made + 1);
    *made = *pass;
    made->step.arguments = placed(&room, step->arguments, arguments);
    made->step.scalars = placed(&room, step->scalars, scalars);
    made->averages = placed(&room, pass->averages, averages);
    made->zeros = placed(&room, pass->zeros, zeros);
    made->requests = placed(&room, pass->requests, requests);
    made->step.problem = placed(&room, step->problem, text);
    made->fixed = NULL;
    made->copies = NULL;
    made->mark = NULL;
    clg_mx_add_pass(&execution->known->region, made);
    return 1;
}

static const clg_mx_pass *find(const clg_mx_region *region, int which, const int32_t *modes, uint32_t count) {
    const clg_mx_pass *pass = __atomic_load_n(&region->passes, __ATOMIC_ACQUIRE);
    while (pass && (pass->which != which || pass->request_count != count ||
                    memcmp(pass->requests, modes, (count + 1) * sizeof *modes)))
        pass = pass->next;
    return pass;
}

static const clg_mx_pass *make(clg_mx_execution *execution, int which, const int32_t *modes, uint32_t count) {
    const clg_mx_call *call = execution->call;
    const known_work *known = execution->known;
    int made = execution->work->is_region
                   ? clg_mx_py_make_region_pass(execution, which, modes, count + 1)
                   : clg_mx_py_make_pass(execution, execution->work->number, call->text, call->attribute_count,
                                         call->attributes, known->key, known->key_count, which, modes, count + 1);
    if (!made) return NULL;
    const clg_mx_pass *pass = find(execution->region, which, modes, count);
    if (!pass) clg_mx_fail(call->text, "got no pass for the write requests at hand");
    return pass;
}

static bool make_room(clg_mx_execution *execution, uint32_t count) {
    if (count <= execution->room) return true;
    clg_buffer *more = malloc(count * sizeof *more);
    if (!more) return clg_mx_fail(execution->call->text, "got no memory for the arguments of a pass");
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
    else if (a->group >= 0)
        memory.handle = clg_mx_address(given, a);
    return (clg_buffer){
        .size = sizeof(clg_buffer),
        .kind = memory.kind,
        .dtype = a->dtype,
        .mode = a->group < 0                   ? CLG_SKIP
                : a->requested == CLG_MX_ADDED ? CLG_ACCUMULATE
                : a->requested                 ? (uint32_t)pass->requests[a->place]
                                               : CLG_OVERWRITE,
        .handle = memory.handle,
        .offset = memory.offset,
        .bytes = memory.handle ? a->bytes : 0};
}

static clg_status run_plan(const clg_mx_execution *execution, const clg_mx_pass *pass) {
    const clg_mx_step *step = &pass->step;
    const clg_buffer *buffers = execution->buffers;
    uint32_t count = step->argument_count;
    if (!step->plan) return CLG_OK;
    if (!pass->copies) return mx.plan_run(step->plan, buffers, count, step->scalars, step->scalar_count);
    clg_copy copies[count + 1];
    for (uint32_t i = 0; i < count; i++) {
        int32_t place = pass->copies[i];
        copies[i] = place < 0 ? (clg_copy){NULL, 0} : (clg_copy){execution->own[place].handle, execution->version};
    }
    return mx.plan_start(step->plan, buffers, count, step->scalars, step->scalar_count, copies, NULL);
}

/* Puts an event in the place of that of the last pass that left outputs in the same memory. */
static clg_status mark_end(const clg_mx_pass *pass) {
    clg_event event = NULL;
    clg_status status = mx.plan_mark(pass->step.plan, &event);
    if (!status && *pass->mark) mx.event_destroy(*pass->mark);
    if (!status) *pass->mark = event;
    return status;
}

/* Binds what a pass reads and writes, and runs it; false if it could not be bound. */
static bool run_found(clg_mx_execution *execution, const clg_mx_pass *pass, const arrays *given, clg_status *status) {
    if (pass->keeps && !execution->keeps) {
        if (!clg_mx_py_keep(execution)) return false;
        execution->keeps = true;
    }
    if (!make_room(execution, pass->step.argument_count)) return false;
    for (uint32_t i = 0; i < pass->step.argument_count; i++)
        execution->buffers[i] = bind(execution, pass, given, &pass->step.arguments[i]);
    bool good = true;
    clg_mx_share *shares = clg_mx_set_aside(execution, pass, &good);
    if (!good) return false;
    *status = run_plan(execution, pass);
    if (!*status && pass->mark) *status = mark_end(pass);
    clg_mx_leave_aside(shares, !*status);
    return true;
}

/* modes: those of `count` outputs or gradients, then the pattern of the residents, or of what is left of outputs. */
static bool run_pass(clg_mx_execution *execution, int which, const arrays *given, const int32_t *modes,
                     uint32_t count) {
    int group = which < 2 ? CLG_MX_OUT : CLG_MX_IN_GRAD;
    const clg_mx_pass *pass = find(execution->region, which, modes, count);
    if (which == 1) execution->version = __atomic_add_fetch(&versions, 1, __ATOMIC_RELAXED);
    /* plans of single operators are destroyed when many others are made: Python is asked again */
    for (int attempt = 0;; attempt++) {
        clg_status status = CLG_OK;
        if (!pass) pass = make(execution, which, modes, count);
        if (!pass || !run_found(execution, pass, given, &status)) return false;
        if (!status) break;
        if (status != CLG_INVALID_HANDLE || execution->work->is_region || attempt == ATTEMPTS)
            return clg_mx_fail_step(&pass->step);
        pass = NULL;
    }
    for (uint32_t i = 0; i < pass->zero_count; i++) {
        const clg_mx_zero *zero = &pass->zeros[i];
        if (modes[zero->place] == CLG_OVERWRITE)
            memset(given->addresses[given->first[group] + zero->place], 0, zero->bytes);
    }
    return true;
}

bool clg_mx_run_pass(clg_mx_execution *execution, int which, const arrays *given, const int *requests) {
    int group = which < 2 ? CLG_MX_OUT : CLG_MX_IN_GRAD;
    uint32_t count = (uint32_t)(given->first[group + 1] - given->first[group]);
    int32_t modes[count + 1];
    for (uint32_t i = 0; i < count; i++) modes[i] = (int32_t)MODES[requests[i] & 3];
    modes[count] = which == 1 && execution->region->forward ? *execution->region->forward : 0;
    if (which < 2 || !execution->region->resident) return run_pass(execution, which, given, modes, count);
    int first = given->first[CLG_MX_IN], inputs = given->first[CLG_MX_IN + 1] - first;
    if (!clg_mx_py_begin_backward(execution, inputs, given->addresses + first, (int)count, modes)) return false;
    bool good = run_pass(execution, which, given, modes, count);
    return clg_mx_py_end_backward(execution, good) && good;
}
