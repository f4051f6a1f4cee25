/* An operator at work: MXNet's arrays in, a pass that runs on them. */
#include <stdlib.h>
#include <string.h>

#include "execution.h"
#include "failures.h"
#include "forks.h"
#include "operator.h"
#include "pass.h"
#include "questions.h"

/* Frees MXNet's handles, which were made for this call. Arrays that are absent hold nothing: asking for their
 * memory ends the process. */
static bool take(const clg_mx_execution *execution, int count, void **handles, const int *tags, int absent,
                 uint64_t unread, arrays *found) {
    int counts[CLG_MX_GROUPS] = {0}, next[CLG_MX_GROUPS];
    for (int i = 0; i < count; i++) counts[tags[i]]++;
    found->first[0] = 0;
    for (int t = 0; t < CLG_MX_GROUPS; t++) {
        next[t] = found->first[t];
        found->first[t + 1] = found->first[t] + counts[t];
    }
    bool whole = true;
    for (int i = 0; i < count; i++) {
        int place = next[tags[i]] - found->first[tags[i]];
        void **address = &found->addresses[next[tags[i]]++];
        *address = NULL;
        bool empty = (absent >> tags[i] & 1) || (tags[i] == CLG_MX_OUT_GRAD && place < 64 && (unread >> place & 1));
        if (!empty && mx.get_data(handles[i], address)) whole = false;
        mx.free_array(handles[i]);
    }
    return whole || clg_mx_fail(execution->call->text, mx.last_failure());
}

static bool overlapping(const arrays *given) {
    for (int i = given->first[CLG_MX_IN]; i < given->first[CLG_MX_IN + 1]; i++)
        for (int o = given->first[CLG_MX_OUT]; o < given->first[CLG_MX_OUT + 1]; o++)
            if (given->addresses[i] == given->addresses[o]) return true;
    return false;
}

/* For an operator that cannot run in place and was given outputs that are inputs: computes into copies first. */
static bool run_through_copies(clg_mx_execution *execution, int which, arrays *given, const int *requests) {
    const clg_mx_work *work = execution->work;
    int count = given->first[CLG_MX_OUT + 1] - given->first[CLG_MX_OUT];
    void **outputs = given->addresses + given->first[CLG_MX_OUT], *wanted[count + 1];
    int written[count + 1];
    written[count] = SKIPPED;
    bool good = true;
    for (int i = 0; i < count; i++) {
        wanted[i] = outputs[i];
        written[i] = requests[i] == IN_PLACE ? WRITTEN : requests[i];
        outputs[i] = NULL;
        if (i < (int)work->out_count && posix_memalign(&outputs[i], ALIGNMENT, work->out_bytes[i] + 1)) {
            outputs[i] = NULL;
            good = clg_mx_fail(execution->call->text, "got no memory for a copy of an output that lies on an input");
        }
        if (outputs[i] && written[i] == ADDED) memcpy(outputs[i], wanted[i], work->out_bytes[i]);
    }
    good = good && clg_mx_run_pass(execution, which, given, written);
    for (int i = 0; i < count; i++) {
        if (good && written[i] && outputs[i]) memcpy(wanted[i], outputs[i], work->out_bytes[i]);
        free(outputs[i]);
    }
    return good;
}

static int run_forward(int count, void **handles, const int *tags, const int *requests, int train,
                       clg_mx_execution *execution) {
    void *addresses[count + 1];
    arrays given = {.addresses = addresses};
    if (!take(execution, count, handles, tags, 0, 0, &given)) return 0;
    execution->train = train != 0;
    if (execution->work->draws && !clg_mx_py_draw(execution, train)) return 0;
    if (execution->work->in_place || !overlapping(&given))
        return clg_mx_run_pass(execution, execution->train, &given, requests);
    return run_through_copies(execution, execution->train, &given, requests);
}

static int forward(int count, void **handles, const int *tags, const int *requests, int train,
                   clg_mx_execution *execution) {
    clg_mx_running++;
    int good = run_forward(count, handles, tags, requests, train, execution);
    clg_mx_running--;
    return good;
}

static int run_backward(int count, void **handles, const int *tags, const int *requests, clg_mx_execution *execution) {
    void *addresses[count + 1];
    arrays given = {.addresses = addresses};
    const clg_mx_work *work = execution->work;
    if (!take(execution, count, handles, tags, work->absent, work->unread_gradients, &given)) return 0;
    return clg_mx_run_pass(execution, 2 + execution->train, &given, requests);
}

static int backward(int count, void **handles, const int *tags, const int *requests, int train,
                    clg_mx_execution *execution) {
    (void)train;
    clg_mx_running++;
    int good = run_backward(count, handles, tags, requests, execution);
    clg_mx_running--;
    return good;
}

static int delete_execution(void *state) {
    clg_mx_execution *execution = state;
    bool asks = execution->work->draws || execution->work->is_region;
    if (asks && !clg_mx_may_end(execution)) return 1;
    clg_mx_end(execution);
    if (asks) clg_mx_has_ended();
    return 1;
}

static int (*const RUNNING[3])(void) = {
    (int (*)(void))delete_execution, (int (*)(void))forward, (int (*)(void))backward};

/* The dtype of the data, or that they are float16 and the parameters float32. */
static int32_t dtype_of(const int *types, const clg_mx_call *call) {
    int32_t code = types[0];
    for (int i = 0; i < call->argument_count; i++)
        if (!call->single[i]) {
            code = types[i];
            break;
        }
    for (int i = 0; i < call->argument_count; i++)
        if (call->single[i] && types[i] != code) return CLG_MX_MIXED;
    return code;
}

int clg_mx_create_operator(const char *where, int count, unsigned **shapes, const int *ndims, const int *types,
                           callback_list *made, clg_mx_call *call) {
    (void)count;
    if (!clg_mx_describe(call)) return 0;
    const char *device = getenv("CLGRAFT_DEVICE");
    if (!device) device = "";
    size_t room = 1;
    for (int i = 0; i < call->argument_count; i++) room += 1 + (size_t)ndims[i];
    int32_t key[room];
    uint32_t length = 0;
    key[length++] = dtype_of(types, call);
    for (int i = 0; i < call->argument_count; i++) {
        key[length++] = ndims[i];
        for (int j = 0; j < ndims[i]; j++) key[length++] = (int32_t)shapes[i][j];
    }
    known_work *found = strncmp(where, "cpu", 3) ? NULL : clg_mx_find_work(call, key, length, device);
    if (!found) {
        if (!clg_mx_py_work(call, call->text, call->attribute_count, call->attributes, where, device, key, length))
            return 0;
        found = clg_mx_find_work(call, key, length, device);
        if (!found) return clg_mx_fail(call->text, "got no memory for an operator");
    }
    clg_mx_execution *execution = clg_mx_make(call, found);
    if (!execution) return clg_mx_fail(call->text, "got no memory for an operator");
    clg_mx_retain(call);
    if (found->work.is_region
            ? !clg_mx_py_start_region(execution, found->work.number)
            : found->work.draws && !clg_mx_py_start_numbers(
                                       execution, call->text, call->attribute_count, call->attributes, key, length)) {
        delete_execution(execution);
        return 0;
    }
    *made = (callback_list){3, (int (**)(void))RUNNING, execution->contexts};
    return 1;
}
