/* Sessions: models of files. Python loads and runs them; here are their handles, and checks of what callers pass. */
#include <stdlib.h>
#include <string.h>

#include "errors.h"
#include "handles.h"
#include "planner.h"

enum { MOST_AXES = 8 };

struct clg_session_s {
    clg_session_ports *answer; /* with the ports and their names after it */
    clg_port *ports;           /* the inputs, then the outputs */
    unsigned fork_count;
};

/* The answer to a question: a copy of its bytes, and the session's number where there is no memory for one. */
typedef struct answered {
    clg_session_ports *bytes;
    uint64_t number;
} answered;

static void take(void *with, const void *answer, uint64_t bytes) {
    answered *to = with;
    if (bytes < sizeof *to->bytes) return;
    memcpy(&to->number, answer, sizeof to->number);
    to->bytes = malloc(bytes);
    if (to->bytes) memcpy(to->bytes, answer, bytes);
}

static clg_status ask(const clg_session_question *question, answered *answer) {
    return clg_ask(CLG_SESSIONS, question, sizeof *question, take, answer);
}

static void end(uint64_t number) {
    clg_session_question question = {.what = CLG_ASK_DESTROY, .number = number};
    answered answer = {NULL, 0};
    ask(&question, &answer);
    free(answer.bytes);
}

static void session_free(void *object) {
    struct clg_session_s *s = object;
    if (s->fork_count == clg_fork_count()) end(s->answer->number);
    free(s->answer);
    free(s);
}

/* Acquired; NULL, with a message and the status, if it cannot be used. */
static struct clg_session_s *acquire(clg_session session, clg_status *status) {
    struct clg_session_s *s = clg_handle_acquire(session, CLG_KIND_SESSION);
    *status = s ? CLG_OK : CLG_INVALID_HANDLE;
    if (s && s->fork_count != clg_fork_count()) {
        clg_handle_return(session);
        *status = clg_fail(CLG_FORKED, "[session] got a session from before fork(), expected one made in this process");
        return NULL;
    }
    return s;
}

clg_status clg_session_create(const char *path, const char *weights, const clg_session_options *options,
                              clg_session *session) {
    if (!session) return clg_fail(CLG_INVALID_ARGUMENT, "[session] got session NULL, expected a place for the handle");
    *session = NULL;
    if (!path) return clg_fail(CLG_INVALID_ARGUMENT, "[session] got path NULL, expected a model's file");
    if (options && options->size != sizeof *options)
        return clg_fail(CLG_INVALID_ARGUMENT, "[session] got size %u, expected sizeof(clg_session_options) = %zu",
                        options->size, sizeof *options);
    struct clg_session_s *s = calloc(1, sizeof *s);
    if (!s) return clg_fail(CLG_OUT_OF_MEMORY, "[session] no memory for a session");
    clg_session_question question = {.what = CLG_ASK_CREATE, .path = path, .weights = weights};
    if (options) question.device = options->device, question.precision = options->precision;
    answered answer = {NULL, 0};
    clg_status status = ask(&question, &answer);
    if (!status && !answer.bytes) {
        end(answer.number);
        status = clg_fail(CLG_OUT_OF_MEMORY, "[session] no memory for the names of inputs and outputs");
    }
    if (status) {
        free(s);
        return status;
    }
    s->answer = answer.bytes;
    s->ports = (clg_port *)(answer.bytes + 1);
    s->fork_count = clg_fork_count();
    const uint32_t count = s->answer->input_count + s->answer->output_count;
    const char *name = (const char *)(s->ports + count);
    for (uint32_t i = 0; i < count; name += strlen(name) + 1) s->ports[i++].name = name;
    *session = clg_handle_new(CLG_KIND_SESSION, s, session_free);
    if (*session) return CLG_OK;
    session_free(s);
    return clg_fail(CLG_OUT_OF_MEMORY, "[session] no memory for a handle");
}

clg_status clg_session_destroy(clg_session session) { return clg_handle_destroy(session, CLG_KIND_SESSION); }

clg_status clg_session_counts(clg_session session, uint32_t *inputs, uint32_t *outputs) {
    clg_status status;
    struct clg_session_s *s = acquire(session, &status);
    if (!s) return status;
    if (inputs) *inputs = s->answer->input_count;
    if (outputs) *outputs = s->answer->output_count;
    clg_handle_return(session);
    return CLG_OK;
}

static clg_status describe(clg_session session, uint32_t index, clg_port *port, bool is_input) {
    clg_status status;
    struct clg_session_s *s = acquire(session, &status);
    if (!s) return status;
    const uint32_t count = is_input ? s->answer->input_count : s->answer->output_count;
    if (!port || port->size != sizeof *port)
        status = clg_fail(CLG_INVALID_ARGUMENT, "[session] got port size %u, expected sizeof(clg_port) = %zu",
                          port ? port->size : 0, sizeof *port);
    else if (index >= count)
        status = clg_fail(CLG_INVALID_ARGUMENT, "[session] got %s index %u, expected below %u",
                          is_input ? "input" : "output", index, count);
    else
        *port = s->ports[is_input ? index : s->answer->input_count + index];
    clg_handle_return(session);
    return status;
}

clg_status clg_session_input(clg_session session, uint32_t index, clg_port *port) {
    return describe(session, index, port, true);
}

clg_status clg_session_output(clg_session session, uint32_t index, clg_port *port) {
    return describe(session, index, port, false);
}

static uint64_t bytes_of(uint32_t dtype) {
    static const uint8_t sizes[] = {0, 4, 2, 8, 4, 1, 2, 8, 2, 1, 8, 4, 2, 1};
    return dtype < sizeof sizes ? sizes[dtype] : 0;
}

/* How many bytes a tensor has; false if that is no number. */
static bool measure(const clg_tensor *tensor, uint64_t *bytes) {
    bool empty = false;
    *bytes = bytes_of(tensor->dtype);
    for (uint32_t axis = 0; axis < tensor->ndim; axis++) empty |= !tensor->shape[axis];
    for (uint32_t axis = 0; axis < tensor->ndim && !empty; axis++)
        if (__builtin_mul_overflow(*bytes, tensor->shape[axis], bytes)) return false;
    if (empty) *bytes = 0;
    return true;
}

static clg_status check_input(const clg_tensor *tensor, const char *name, bool with_data) {
    uint64_t bytes = 0;
    if (!bytes_of(tensor->dtype))
        return clg_fail(CLG_WRONG_DTYPE, "[session] got dtype %u for input %s, expected CLG_FLOAT32 or another one",
                        tensor->dtype, name);
    if (tensor->ndim > MOST_AXES)
        return clg_fail(CLG_INVALID_ARGUMENT, "[session] got ndim %u for input %s, expected at most %d", tensor->ndim,
                        name, MOST_AXES);
    if (!measure(tensor, &bytes))
        return clg_fail(CLG_INVALID_ARGUMENT, "[session] got a shape of more than 2^64 bytes for input %s", name);
    if (with_data && bytes && !tensor->data)
        return clg_fail(CLG_INVALID_ARGUMENT, "[session] got data NULL for input %s, expected %llu bytes", name,
                        (unsigned long long)bytes);
    if (with_data && tensor->bytes < bytes)
        return clg_fail(CLG_BUFFER_TOO_SMALL, "[session] got %llu bytes for input %s, expected %llu",
                        (unsigned long long)tensor->bytes, name, (unsigned long long)bytes);
    return CLG_OK;
}

static clg_status check_list(const clg_tensor *tensors, uint32_t count, uint32_t expected, const char *what) {
    if (count != expected || (!tensors && expected))
        return clg_fail(CLG_INVALID_ARGUMENT, "[session] got %u %s%s, expected %u", count, what,
                        tensors ? "" : " at NULL", expected);
    for (uint32_t i = 0; i < count; i++)
        if (tensors[i].size != sizeof *tensors)
            return clg_fail(CLG_INVALID_ARGUMENT,
                            "[session] got size %u for number %u of the %s, expected sizeof(clg_tensor) = %zu",
                            tensors[i].size, i, what, sizeof *tensors);
    return CLG_OK;
}

static clg_status run(uint32_t what, clg_session session, const clg_tensor *inputs, uint32_t input_count,
                      clg_tensor *outputs, uint32_t output_count) {
    clg_status status;
    struct clg_session_s *s = acquire(session, &status);
    if (!s) return status;
    status = check_list(inputs, input_count, s->answer->input_count, "inputs");
    if (!status) status = check_list(outputs, output_count, s->answer->output_count, "outputs");
    for (uint32_t i = 0; i < input_count && !status; i++)
        status = check_input(&inputs[i], s->ports[i].name, what == CLG_ASK_RUN);
    if (!status) {
        clg_session_question question = {
            .what = what,
            .input_count = input_count,
            .output_count = output_count,
            .number = s->answer->number,
            .inputs = inputs,
            .outputs = outputs};
        answered answer = {NULL, 0};
        status = ask(&question, &answer);
        free(answer.bytes);
    }
    clg_handle_return(session);
    return status;
}

clg_status clg_session_shapes(clg_session session, const clg_tensor *inputs, uint32_t input_count, clg_tensor *outputs,
                              uint32_t output_count) {
    return run(CLG_ASK_SHAPES, session, inputs, input_count, outputs, output_count);
}

clg_status clg_session_run(clg_session session, const clg_tensor *inputs, uint32_t input_count, clg_tensor *outputs,
                           uint32_t output_count) {
    return run(CLG_ASK_RUN, session, inputs, input_count, outputs, output_count);
}
