/* See calls.h. The planner's answers are here too: plans of any text, without Python. */
#include "calls.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_opencl.h"
#include "planner.h"

#define HANDLES 64

static void *cl_context, *cl_other, *cl_device, *cl_queue, *cl_kernel;
static void *handles[HANDLES]; /* of every kind, dead ones too */
static unsigned handle_count;
static const uint64_t AWKWARD[] = {
    0, 1, 2, 3, 4, 7, 8, 63, 64, 4096, 4097, 65536, 1u << 20, (1u << 20) + 1, UINT32_MAX, UINT64_MAX};

static uint8_t byte(input *in) {
    if (!in->left) return 0;
    in->left--;
    return *in->bytes++;
}

static uint64_t number(input *in) {
    uint8_t b = byte(in);
    return b < 128 ? b % 16 : AWKWARD[b % 16];
}

static void *pick(input *in) {
    uint8_t b = byte(in);
    if (b < 200) {
        unsigned count = __atomic_load_n(&handle_count, __ATOMIC_ACQUIRE);
        return count ? __atomic_load_n(&handles[b % (count < HANDLES ? count : HANDLES)], __ATOMIC_ACQUIRE) : NULL;
    }
    return b < 220 ? NULL : b < 240 ? (void *)(uintptr_t)(b * 0x10001u) : cl_kernel;
}

static void keep(void *handle) {
    if (!handle) return;
    unsigned place = __atomic_fetch_add(&handle_count, 1, __ATOMIC_ACQ_REL) % HANDLES;
    void *before = __atomic_exchange_n(&handles[place], handle, __ATOMIC_ACQ_REL);
    if (before) { /* of whichever kind */
        clg_plan_destroy(before);
        clg_event_destroy(before);
        clg_array_destroy(before);
        clg_session_destroy(before);
        clg_context_destroy(before);
    }
}

/* Every failure has words; a success may. */
static void judge(clg_status status) {
    if (status < CLG_OK || status > CLG_INVALID_MODEL) abort();
    if (status != CLG_OK && !*clg_last_error()) abort();
}

static clg_status assemble(clg_context context, input *in, clg_plan *plan) {
    enum { ARGUMENTS = 6, LAUNCHES = 3, BINDINGS = 8 };
    clg_argument arguments[ARGUMENTS];
    memset(arguments, 0, sizeof arguments);
    uint32_t count = byte(in) % ARGUMENTS;
    for (uint32_t i = 0; i < count; i++) {
        clg_argument *a = &arguments[i];
        a->size = sizeof *a;
        a->role = 1 + byte(in) % 3;
        a->dtype = 1 + byte(in) % 5;
        a->ndim = 1;
        a->shape[0] = byte(in);
        a->bytes = a->shape[0] * (a->dtype == CLG_FLOAT64   ? 8
                                  : a->dtype == CLG_FLOAT16 ? 2
                                  : a->dtype == CLG_UINT8   ? 1
                                                            : 4);
        snprintf(a->name, sizeof a->name, "argument%u", i);
    }
    clg_binding bindings[BINDINGS];
    memset(bindings, 0, sizeof bindings);
    uint32_t scalars = byte(in) % 3, binding_count = byte(in) % (BINDINGS + 1);
    uint64_t workspace = number(in);
    if (workspace == UINT32_MAX) workspace = UINT64_MAX / 4; /* what a machine might have, or never has */
    for (uint32_t i = 0; i < binding_count; i++) {
        clg_binding *b = &bindings[i];
        b->kind = byte(in) % 8;
        b->index = byte(in) % 8;
        b->bytes = b->kind == CLG_BIND_SCALAR ? 4u << (byte(in) & 1) : 4;
        b->value = b->kind == CLG_BIND_LOCAL ? number(in) : 0;
        if (b->kind == CLG_BIND_WORKSPACE && !workspace) workspace = 64; /* planners reserve what they bind */
    }
    uint32_t list[LAUNCHES * 8] = {0};
    clg_launch launches[LAUNCHES];
    memset(launches, 0, sizeof launches);
    void *kernels[LAUNCHES] = {0}; /* each used by one plan alone, as planners have it */
    uint32_t launch_count = byte(in) % (LAUNCHES + 1);
    for (uint32_t i = 0; i < launch_count; i++) {
        clg_launch *l = &launches[i];
        l->kernel = byte(in) < 250 ? (kernels[i] = fake_new(FAKE_KERNEL, cl_context)) : NULL;
        l->dims = byte(in) < 240 ? 1 + byte(in) % 3 : byte(in);
        l->first_binding = byte(in) % (BINDINGS + 1);
        l->binding_count = byte(in) < 250 ? byte(in) % (BINDINGS + 1) : UINT32_MAX;
        for (int d = 0; d < 3; d++) l->global_size[d] = byte(in) % 4;
        uint8_t writes = byte(in); /* bit i: buffer i; the highest makes the launch malformed */
        l->first_write = i * 8;
        for (uint32_t a = 0; a < 6; a++)
            if (writes >> a & 1 && a < count) list[l->first_write + l->write_count++] = a;
        if (writes == 255) l->write_count = UINT32_MAX;
    }
    if (byte(in) > 250) list[0] = count; /* a buffer that does not exist */
    clg_plan_spec spec = {
        .description = "a plan",
        .arguments = arguments,
        .launches = launches,
        .bindings = bindings,
        .writes = list,
        .argument_count = count,
        .launch_count = launch_count,
        .binding_count = binding_count,
        .scalar_count = scalars,
        .write_count = LAUNCHES * 8,
        .workspace_bytes = workspace};
    static const char *const names[ARGUMENTS] = {"a name that is longer than what an argument's struct can hold"};
    uint8_t modes[ARGUMENTS];
    for (uint32_t i = 0; i < ARGUMENTS; i++) modes[i] = byte(in) < 200 ? 7 : 1 << byte(in) % 3;
    if (byte(in) < 64) spec.modes = modes;
    if (byte(in) < 64) spec.names = names;
    clg_status status = clg_plan_assemble(context, byte(in) < 253 ? &spec : NULL, plan);
    for (uint32_t i = 0; i < LAUNCHES; i++)
        if (kernels[i]) fake_release(kernels[i]);
    return status;
}

/* A run that is waited for, or one that is started, with copies of inputs that stay. */
static void run(input *in, bool started) {
    clg_plan plan = pick(in);
    uint32_t count = 0, scalars = 0;
    judge(clg_plan_counts(plan, &count, &scalars));
    clg_buffer buffers[8];
    memset(buffers, 0, sizeof buffers);
    void *owned[8] = {0}, *mems[8] = {0};
    for (uint32_t i = 0; i < count && i < 8; i++) {
        clg_argument a = {.size = sizeof a};
        if (clg_plan_argument(plan, i, &a))
            a.bytes = 64, a.dtype = CLG_FLOAT32; /* another thread may have destroyed it */
        clg_buffer *b = &buffers[i];
        b->size = byte(in) < 250 ? sizeof *b : byte(in);
        b->dtype = byte(in) < 250 ? a.dtype : byte(in);
        b->mode = a.role == CLG_OUT ? byte(in) % 3 : byte(in) > 250;
        b->kind = byte(in) < 250 ? CLG_HOST : byte(in);
        uint64_t lead = byte(in) < 200 ? 0 : (uint64_t)(byte(in) % 4) * 8 + (byte(in) > 250);
        b->offset = lead;
        b->bytes = byte(in) < 245 ? a.bytes : number(in);
        uint64_t real = a.bytes + lead;
        if (byte(in) < 64) {
            int32_t code = 0;
            void **cl_table = *(void ***)cl_context;
            fake_fail_after(0, 0);
            void *(*create)(void *, uint64_t, size_t, void *, int32_t *) = cl_table[14];
            b->handle = mems[i] = create(byte(in) < 200 ? cl_context : cl_other, 1, real + 8, NULL, &code);
            b->kind = CLG_DEVICE;
        } else if (started && byte(in) < 64) {
            b->handle = pick(in);
            b->kind = CLG_ARRAY;
        } else if (byte(in) < 250) {
            b->handle = owned[i] = aligned_alloc(64, (real + 64) / 64 * 64);
            memset(owned[i], 0, (real + 64) / 64 * 64);
            b->kind = b->kind == CLG_DEVICE || b->kind == CLG_ARRAY ? CLG_HOST : b->kind;
        } else if (b->kind == CLG_DEVICE) {
            b->kind = CLG_HOST;
        }
        /* the caller's promise that bytes may be used is kept: the runtime cannot check it */
        if (b->handle && b->kind == CLG_HOST && b->bytes > real - lead && b->bytes < a.bytes) b->bytes = a.bytes;
    }
    double values[3] = {0.5, 1e300, -1};
    uint32_t given = byte(in) < 245 ? count : byte(in), given_scalars = byte(in) < 245 ? scalars : byte(in);
    fake_fail_after(byte(in) % 16, byte(in) < 100 ? -(int32_t)(byte(in) % 64) : 0);
    const clg_buffer *list = given > 8 && given == count ? NULL : buffers;
    const double *numbers = given_scalars > 3 ? NULL : values;
    given = given > 8 ? count : given;
    if (started) {
        clg_copy copies[256];
        memset(copies, 0, sizeof copies);
        for (uint32_t i = 0; i < count && i < 8; i++)
            if (byte(in) < 100) copies[i] = (clg_copy){pick(in), byte(in) % 3};
        clg_event event = NULL;
        judge(clg_plan_start(
            plan, list, given, numbers, given_scalars, byte(in) < 200 ? copies : NULL, byte(in) < 200 ? &event : NULL));
        uint32_t done = 0;
        if (byte(in) < 100) judge(clg_event_done(event, &done));
        clg_status status = event ? clg_event_wait(event) : CLG_OK; /* another thread may destroy what the list keeps */
        judge(status);
        keep(event);
    } else {
        judge(clg_plan_run(plan, list, given, numbers, given_scalars));
    }
    fake_fail_after(0, 0);
    for (int i = 0; i < 8; i++) {
        free(owned[i]);
        if (mems[i]) fake_release(mems[i]);
    }
}

static void create(input *in) {
    char text[16];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)byte(in);
    text[sizeof text - 1] = 0;
    clg_plan plan = NULL;
    judge(clg_plan_create(pick(in), byte(in) < 250 ? text : NULL, byte(in) < 250 ? &plan : NULL));
    keep(plan);
}

static void create_conv(input *in) {
    clg_conv conv;
    uint8_t *raw = (uint8_t *)&conv;
    for (size_t i = 0; i < sizeof conv; i++) raw[i] = byte(in);
    if (byte(in) < 200) conv.size = sizeof conv;
    if (byte(in) < 200) conv.ndim = 1 + conv.ndim % 3;
    if (byte(in) < 200) conv.direction = 1 + conv.direction % 4;
    if (byte(in) < 200) conv.dtype = 1 + conv.dtype % 3;
    clg_plan plan = NULL;
    judge(clg_plan_create_conv(pick(in), byte(in) < 250 ? &conv : NULL, &plan));
    keep(plan);
}

static void ask(input *in) {
    char text[24];
    clg_argument a = {.size = byte(in) < 200 ? sizeof a : byte(in)};
    clg_counters counters;
    judge(clg_plan_describe(pick(in), byte(in) < 250 ? text : NULL, byte(in) % (sizeof text + 1)));
    judge(clg_plan_argument(pick(in), (uint32_t)number(in), byte(in) < 250 ? &a : NULL));
    judge(clg_plan_counts(pick(in), NULL, NULL));
    judge(clg_plan_argument_name(
        pick(in), (uint32_t)number(in), byte(in) < 250 ? text : NULL, byte(in) % (sizeof text + 1)));
    judge(clg_context_counters(pick(in), byte(in) < 250 ? &counters : NULL));
    judge(clg_context_finish(pick(in)));
}

static void arrays(input *in) {
    clg_array array = NULL;
    uint8_t data[64] = {0};
    uint64_t bytes = number(in), at = byte(in) % 80, count = byte(in) % 65;
    switch (byte(in) % 8) {
    case 0: judge(clg_array_destroy(pick(in))); break;
    case 1:
        judge(clg_array_write(pick(in), byte(in) < 240 ? at : number(in), byte(in) < 250 ? data : NULL, count));
        break;
    case 2:
        judge(clg_array_read(pick(in), byte(in) < 240 ? at : number(in), byte(in) < 250 ? data : NULL, count));
        break;
    default:
        if (bytes >= UINT32_MAX) bytes = UINT64_MAX / 4; /* what no machine has */
        judge(clg_array_create(pick(in), byte(in) < 200 ? 2048 : bytes, byte(in) < 250 ? &array : NULL));
        keep(array);
    }
}

static void events(input *in) {
    uint32_t done;
    clg_event event = pick(in);
    judge(clg_event_done(event, byte(in) < 250 ? &done : NULL));
    judge(byte(in) < 128 ? clg_event_wait(event) : clg_event_destroy(event));
}

static void graph(input *in) {
    char text[16], word[4] = {0};
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)byte(in);
    text[sizeof text - 1] = 0;
    clg_graph_options options = {.size = byte(in) < 200 ? sizeof options : byte(in), .outputs = word};
    clg_plan plan = NULL;
    judge(clg_graph_create(
        pick(in), byte(in) < 250 ? text : NULL, byte(in) < 128 ? &options : NULL, byte(in) < 250 ? &plan : NULL));
    keep(plan);
}

/* The question is what arrives, once; nothing does where the call is refused. */
typedef struct {
    char text[16];
    uint64_t bytes;
    int times;
} asked;

static void receive(void *with, const void *answer, uint64_t bytes) {
    asked *one = with;
    one->times++;
    if (bytes != one->bytes || (bytes && memcmp(answer, one->text, bytes))) abort();
}

static void question(input *in) {
    asked one = {.bytes = byte(in) % 16};
    for (size_t i = 0; i < one.bytes; i++) one.text[i] = (char)byte(in);
    char module[4] = {(char)byte(in), 0};
    clg_status status = clg_ask(byte(in) < 240 ? module : NULL, byte(in) < 240 ? one.text : NULL, one.bytes,
                                byte(in) < 240 ? receive : NULL, &one);
    judge(status);
    if (one.times != (status == CLG_OK)) abort();
}

/* A session whose inputs and outputs `clg_py_ask` makes up; it writes to no output. */
static void session(input *in) {
    clg_session_options options = {.size = byte(in) < 200 ? sizeof options : byte(in)};
    char path[2] = {(char)byte(in), 0};
    clg_session made = NULL;
    judge(clg_session_create(byte(in) < 240 ? path : NULL, byte(in) < 128 ? path : NULL,
                             byte(in) < 128 ? &options : NULL, byte(in) < 240 ? &made : NULL));
    keep(made);
    clg_session one = byte(in) < 128 && made ? made : pick(in);
    clg_port port = {.size = byte(in) < 200 ? sizeof port : byte(in)};
    uint32_t input_count = 0, output_count = 0;
    judge(clg_session_counts(one, byte(in) < 240 ? &input_count : NULL, byte(in) < 240 ? &output_count : NULL));
    judge(clg_session_input(one, (uint32_t)number(in), byte(in) < 240 ? &port : NULL));
    judge(clg_session_output(one, (uint32_t)number(in), byte(in) < 240 ? &port : NULL));
    clg_tensor tensors[4];
    memset(tensors, 0, sizeof tensors);
    for (int i = 0; i < 4; i++) {
        clg_tensor *t = &tensors[i];
        t->size = byte(in) < 230 ? sizeof *t : byte(in);
        t->dtype = byte(in) % 16;
        t->ndim = byte(in) < 230 ? byte(in) % 9 : byte(in);
        for (int axis = 0; axis < 8; axis++) t->shape[axis] = number(in);
        t->data = byte(in) < 200 ? tensors : NULL;
        t->bytes = number(in);
    }
    uint32_t given = byte(in) < 200 ? input_count : byte(in) % 3, wanted = byte(in) < 200 ? output_count : byte(in) % 3;
    clg_status (*call)(clg_session, const clg_tensor *, uint32_t, clg_tensor *, uint32_t) =
        byte(in) < 128 ? clg_session_run : clg_session_shapes;
    judge(call(one, byte(in) < 240 ? tensors : NULL, given, byte(in) < 240 ? tensors + 2 : NULL, wanted));
    if (byte(in) < 64) judge(clg_session_destroy(pick(in)));
}

void calls_play(input *in) {
    while (in->left) {
        clg_context context = NULL;
        clg_plan plan = NULL;
        uint8_t chosen = byte(in), what = chosen % 16;
        fake_fail_after(byte(in) % 8, byte(in) < 32 ? -(int32_t)(1 + byte(in) % 60) : 0);
        if (what == 0) {
            judge(clg_context_adopt(byte(in) < 250 ? cl_context : NULL, cl_device, byte(in) < 250 ? cl_queue : NULL,
                                    byte(in) % 5, byte(in) % 2, byte(in) < 250 ? &context : NULL));
            keep(context);
        } else if (what == 1) {
            judge(clg_context_destroy(pick(in)));
        } else if (what <= 4) {
            judge(assemble(pick(in), in, byte(in) < 250 ? &plan : NULL));
            keep(plan);
        } else if (what == 5) {
            judge(clg_plan_destroy(pick(in)));
        } else if (what == 6) {
            create(in);
        } else if (what == 7) {
            create_conv(in);
        } else if (what == 8) {
            ask(in);
        } else if (what == 9) {
            arrays(in);
        } else if (what == 10) {
            events(in);
        } else if (what == 11 && chosen < 128) {
            graph(in);
        } else if (what == 11 && chosen < 192) {
            question(in);
        } else if (what == 11) {
            session(in);
        } else {
            run(in, what < 14);
        }
        fake_fail_after(0, 0);
    }
}

clg_status clg_py_context_create(const char *selector, void *context, void *device, void *queue, clg_context *made) {
    return clg_context_adopt(context, device, queue, CLG_STAGED, 0, made);
}

clg_status clg_py_plan_create(clg_context context, const char *problem, clg_plan *plan) {
    if (problem[0] == 'x') { /* a planner that fails */
        clg_set_error("[plan] got x");
        return CLG_INVALID_PROBLEM;
    }
    if (problem[0] == 'y') return CLG_OK; /* one that could not be started */
    input in = {(const uint8_t *)problem, strlen(problem)};
    return assemble(context, &in, plan);
}

clg_status clg_py_graph_create(clg_context context, const char *text, const clg_graph_options *options,
                               clg_plan *plan) {
    return clg_py_plan_create(context, text, plan);
}

/* Up to two inputs and an output. */
static clg_status answer_session(const clg_session_question *question, clg_receive receive, void *with) {
    struct {
        clg_session_ports head;
        clg_port ports[3];
        char names[8];
    } answer = {.head = {.number = 7, .output_count = 1}, .names = "a\0bc\0d"};
    if (question->what != CLG_ASK_CREATE) {
        receive(with, "", 0);
        return CLG_OK;
    }
    if (question->path[0] == 'x') {
        clg_set_error("[session] got x");
        return CLG_INVALID_MODEL;
    }
    if (question->path[0] == 'y') return CLG_OK; /* a planner that could not be started */
    answer.head.input_count = (unsigned char)question->path[0] % 3;
    const uint32_t count = answer.head.input_count + 1;
    memmove((char *)answer.ports + count * sizeof *answer.ports, answer.names, sizeof answer.names);
    receive(with, &answer, sizeof answer.head + count * sizeof *answer.ports + sizeof answer.names);
    return CLG_OK;
}

clg_status clg_py_ask(const char *module, const void *question, uint64_t bytes, clg_receive receive, void *with) {
    if (!strcmp(module, CLG_SESSIONS)) return answer_session(question, receive, with);
    if (module[0] == 'x') { /* an answer that fails */
        clg_set_error("[asked] got x");
        return CLG_INVALID_PROBLEM;
    }
    if (module[0] == 'y') return CLG_OK; /* a planner that could not be started */
    receive(with, question, bytes);
    return CLG_OK;
}

void calls_begin(void) {
    cl_context = fake_new(FAKE_CONTEXT, NULL);
    cl_other = fake_new(FAKE_CONTEXT, NULL);
    cl_device = fake_new(FAKE_DEVICE, NULL);
    cl_queue = fake_new(FAKE_QUEUE, cl_context);
    cl_kernel = fake_new(FAKE_KERNEL, cl_context);
    memset(handles, 0, sizeof handles);
    handle_count = 0;
}

void calls_end(void) {
    for (int i = 0; i < HANDLES; i++) {
        clg_plan_destroy(handles[i]);
        clg_event_destroy(handles[i]);
        clg_array_destroy(handles[i]);
    }
    for (int i = 0; i < HANDLES; i++) clg_context_destroy(handles[i]);
    fake_release(cl_kernel);
    fake_release(cl_queue);
    fake_release(cl_device);
    fake_release(cl_other);
    fake_release(cl_context);
    if (fake_alive()) {
        fprintf(stderr, "%ld OpenCL objects were left\n", fake_alive());
        abort();
    }
}
