/* libFuzzer plays MXNet and Python: calls of operators in any order, arrays of exactly their size, failures anywhere.
 *
 * What Python would answer about a call follows from its attributes, so that a call is the same in every input. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mxnet.h"
#include "operator.h"
#include "questions.h"

enum { SLOTS = 6, MOST = 4, TYPES = 3, STATES = 3 };
static const uint64_t ITEM_BYTES[TYPES] = {4, 8, 2};

/* Input and failures. */
static const uint8_t *bytes_left;
static size_t left;
static unsigned failing;     /* out of 256 answers */
static unsigned allocations; /* until one fails; 0: none does */

static uint8_t byte(void) {
    if (!left) return 0;
    left--;
    return *bytes_left++;
}

static bool fails(void) { return failing && byte() < failing; }

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
int __real_posix_memalign(void **to, size_t alignment, size_t size);
static bool exhausted(void) { return allocations && !--allocations; }
void *__wrap_malloc(size_t size) { return exhausted() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) { return exhausted() ? NULL : __real_calloc(count, size); }
int __wrap_posix_memalign(void **to, size_t alignment, size_t size) {
    return exhausted() ? 12 : __real_posix_memalign(to, alignment, size);
}

static void expect(bool good, const char *what) {
    if (good) return;
    printf("expected %s\n", what);
    fflush(stdout);
    abort();
}

/* What there is to know about a call, from its attributes. */
typedef struct facts {
    int arguments, outputs, auxiliary;
    bool reads_outputs, reads_gradients, in_place, draws;
    uint32_t states, seed;
    bool region;
} facts;

static facts facts_of(int count, const char **attributes) {
    uint32_t h = 2166136261u;
    for (int i = 0; i < 2 * count; i++)
        for (const char *c = attributes[i]; *c; c++) h = (h ^ (uint8_t)*c) * 16777619u;
    return (facts){1 + h % MOST,     1 + h / 4 % 3,         h / 16 % 3, h / 64 % 2,       h / 128 % 2, h / 256 % 2,
                   h / 512 % 4 == 0, 1 + h / 2048 % STATES, h,          h / 8192 % 3 == 0};
}

/* MXNet's arrays: a handle per use, which the operator frees. */
typedef struct array {
    void *data;
    bool absent;
} array;
static long handles_alive;

static int get_data(void *handle, void **data) {
    array *a = handle;
    expect(!a->absent, "that nobody asks for an array that is not there");
    if (fails()) return -1;
    *data = a->data;
    return 0;
}

static int free_array(void *handle) {
    free(handle);
    handles_alive--;
    return 0;
}

static const char *words(void) { return "a failure of the test's own"; }

static double asked; /* a number for the direction and the write requests */

static double number_of(bool back, const int32_t *modes, uint32_t count) {
    double number = back;
    for (uint32_t i = 0; i < count; i++) number = 4 * number + modes[i];
    return number;
}

/* A plan: reads all of its inputs and writes all of its outputs. */
static clg_status plan_run(clg_plan plan, const clg_buffer *buffers, uint32_t count, const double *scalars,
                           uint32_t scalar_count) {
    uint8_t sum = 0;
    expect(plan == (clg_plan)0x10 || plan == (clg_plan)0x20, "the plan that Python gave");
    expect(scalar_count == 1 && scalars[0] == asked, "the pass for the write requests");
    if (plan == (clg_plan)0x10 && fails()) return CLG_INVALID_HANDLE; /* it was destroyed: Python is asked again */
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *memory = buffers[i].handle;
        expect(buffers[i].size == sizeof(clg_buffer) && (buffers[i].mode == CLG_SKIP) == !memory,
               "memory unless it is left out");
        for (uint64_t b = 0; b < buffers[i].bytes; b++) sum += memory[b];
        if (buffers[i].mode == CLG_OVERWRITE && i + 1 == count) memset(memory, (int)i, buffers[i].bytes);
    }
    __asm__ volatile("" : : "r"(sum)); /* or nothing would have to be read */
    return fails() ? CLG_OPENCL_ERROR : CLG_OK;
}

static bool backwards; /* the region at work */

/* A plan with copies: an array of a copy is where this test keeps the version that it was last sent with. */
static clg_status plan_start(clg_plan plan, const clg_buffer *buffers, uint32_t count, const double *scalars,
                             uint32_t scalar_count, const clg_copy *copies, clg_event *event) {
    expect(copies && !event, "copies, and no event");
    for (uint32_t i = 0; i < count; i++) {
        if (backwards && !copies[i].version) continue; /* its forward failed: what is kept is sent, whatever it is */
        expect(!copies[i].array == !copies[i].version, "a version for each copy");
        if (!copies[i].array) continue;
        uint64_t *sent = (uint64_t *)copies[i].array;
        expect(backwards ? copies[i].version >= *sent : copies[i].version > *sent, "a new version for each forward");
        *sent = copies[i].version;
    }
    return plan_run(plan, buffers, count, scalars, scalar_count);
}

/* Python's answers. */
static const char *const NAMES[] = {"data", "weight", "bias", "gamma", "beta"};

int clg_mx_py_describe(clg_mx_call *call, const char *op_type, int count, const char **attributes) {
    expect(!strcmp(op_type, "ocl"), "the operator's type");
    if (fails()) return 0;
    facts f = facts_of(count, attributes);
    clg_mx_signature s = {NAMES, NAMES, NAMES, f.arguments, f.outputs, f.auxiliary, f.reads_outputs, f.reads_gradients};
    return clg_mx_set_signature(call, &s);
}

int clg_mx_py_shapes(clg_mx_call *call, const char *op_type, int count, const char **attributes, const int32_t *key,
                     uint32_t key_count) {
    (void)op_type;
    if (fails()) return 0;
    facts f = facts_of(count, attributes);
    int total = f.arguments + f.outputs + f.auxiliary;
    int32_t ndims[16], sizes[64];
    uint32_t n = 0;
    if (!key_count || key[0] < 0) return 0;
    for (int i = 0; i < total; i++) {
        ndims[i] = key[0];
        for (int j = 0; j < key[0]; j++) sizes[n++] = key[1 + j];
    }
    return clg_mx_add_shapes(call, key, key_count, ndims, sizes, (uint32_t)total);
}

int clg_mx_py_refuse_types(const char *op_type, int count, const char **attributes, const int *types) {
    (void)op_type, (void)count, (void)attributes, (void)types;
    return 0;
}

/* The bytes of an array: inputs by the key, auxiliary states and the operator's own by their
 * place, others like input 0. */
static uint64_t bytes_of(const facts *f, const int32_t *key, int group, int place) {
    if (group == CLG_MX_AUX) return 8;
    if (group == CLG_MX_STATE) return 16 * (uint64_t)place + 16;
    int wanted = group == CLG_MX_IN || group == CLG_MX_IN_GRAD ? place : 0;
    uint64_t n = ITEM_BYTES[key[0]];
    for (int i = 0, at = 1; i < f->arguments; at += key[at] + 1, i++)
        for (int j = 0; i == wanted && j < key[at]; j++) n *= (uint64_t)key[at + 1 + j];
    return n;
}

static clg_mx_argument fill(const facts *f, const int32_t *key, int group, uint32_t at, bool requested) {
    int counts[] = {f->arguments, f->outputs, f->arguments, f->outputs, f->auxiliary, (int)f->states};
    if (!counts[group]) return (clg_mx_argument){-1, 0, 0, CLG_FLOAT32, 0};
    int place = (int)(at % (uint32_t)counts[group]);
    return (clg_mx_argument){group, place, requested, CLG_FLOAT32, bytes_of(f, key, group, place)};
}

/* Regions by their number: what they are of, and the passes that were made. */
typedef struct known_region {
    facts facts;
    int32_t key[64];
    clg_mx_region region;
} known_region;
static known_region **known_regions;
static int64_t known_count;

static int64_t remember_region(const facts *f, const int32_t *key, uint32_t key_count) {
    known_region **more = realloc(known_regions, ((size_t)known_count + 1) * sizeof *more),
                 *made = __real_calloc(1, sizeof *made);
    expect(more && made && key_count <= 64, "memory for a region");
    known_regions = more;
    made->facts = *f;
    made->region.resident = f->seed / 5 % 2;
    memcpy(made->key, key, key_count * sizeof *key);
    known_regions[known_count] = made;
    return known_count++;
}

int clg_mx_py_work(clg_mx_call *call, const char *op_type, int count, const char **attributes, const char *where,
                   const char *device, const int32_t *key, uint32_t key_count) {
    (void)op_type;
    if (fails() || strncmp(where, "cpu", 3)) return 0;
    facts f = facts_of(count, attributes);
    uint8_t content[16 * STATES];
    memset(content, 7, sizeof content);
    clg_mx_state states[STATES];
    for (uint32_t i = 0; i < f.states; i++)
        states[i] = (clg_mx_state){content, bytes_of(&f, key, CLG_MX_STATE, (int)i)};
    if (f.states > 1) states[1].content = NULL;
    uint64_t outputs[3];
    for (int i = 0; i < f.outputs; i++) outputs[i] = bytes_of(&f, key, CLG_MX_OUT, i);
    clg_mx_work work = {
        states,
        outputs,
        f.states,
        (uint32_t)f.outputs,
        f.in_place,
        f.draws,
        (f.reads_outputs ? 0 : 1 << CLG_MX_OUT) | (f.reads_gradients ? 0 : 1 << CLG_MX_OUT_GRAD)};
    if (f.region) {
        work.state_count = 0;
        work.is_region = 1;
        work.number = remember_region(&f, key, key_count);
    }
    return clg_mx_add_work(call, key, key_count, device, &work);
}

int clg_mx_py_before_fork(void) { return 1; }

static long streams;

int clg_mx_py_start_numbers(clg_mx_execution *execution, const char *op_type, int count, const char **attributes,
                            const int32_t *key, uint32_t key_count) {
    (void)op_type, (void)key, (void)key_count;
    facts f = facts_of(count, attributes);
    for (uint32_t i = 0; i < f.states; i++) memset(clg_mx_state_of(execution, i), 1, 16 * i + 16);
    if (fails()) return 0;
    streams++;
    return 1;
}

/* Regions at work: a key of random numbers; a value that lives from forward to backward and a copy,
 * once they are asked for. */
enum { KEY, KEPT, COPY, OWN, KEPT_BYTES = 24 };
typedef struct region_at_work {
    clg_mx_execution *execution;
    known_region *known;
    clg_mx_memory own[OWN];
    uint64_t sent;
} region_at_work;
static region_at_work *at_work[2 * SLOTS];
static uint8_t constant[8];

static region_at_work **find_region(const clg_mx_execution *execution) {
    for (int i = 0; i < 2 * SLOTS; i++)
        if (execution ? at_work[i] && at_work[i]->execution == execution : !at_work[i]) return &at_work[i];
    return NULL;
}

int clg_mx_py_start_region(clg_mx_execution *execution, int64_t number) {
    expect(number >= 0 && number < known_count, "a number that Python gave");
    if (fails()) return 0;
    region_at_work **place = find_region(NULL), *made = __real_calloc(1, sizeof *made);
    expect(place && made, "room for a region");
    *made = (region_at_work){execution, known_regions[number], {{__real_calloc(1, 16), CLG_HOST, 0}}, 0};
    *place = made;
    clg_mx_set_region(execution, &made->known->region, made->own);
    return 1;
}

/* Before and after a backward of a region with residents: a pattern of them, by which passes differ. */
static int backwards_begun;

int clg_mx_py_begin_backward(clg_mx_execution *execution, int input_count, void **inputs, int count, int32_t *modes) {
    region_at_work *r = *find_region(execution);
    expect(r->known->region.resident, "that only a region with residents begins a backward");
    if (fails()) return 0;
    for (int i = 0; i < input_count; i++) expect(inputs[i] != NULL, "the inputs of a backward");
    modes[count] = r->known->facts.seed / 7 % 3;
    asked = 4 * asked + modes[count];
    backwards_begun++;
    return 1;
}

int clg_mx_py_end_backward(clg_mx_execution *execution, int good) {
    expect(find_region(execution) && (good == 0 || good == 1), "the end of a region's backward");
    backwards_begun--;
    return !fails();
}

/* Arguments of a pass: a region has a constant besides, and a copy of its first input when it trains. The last input
 * has no gradient. modes: of the outputs or gradients, then the pattern of the residents. */
static clg_mx_pass *new_pass(const facts *f, const int32_t *key, int which, const int32_t *modes, uint32_t count,
                             bool resident) {
    bool back = which >= 2;
    clg_mx_pass *pass = __real_calloc(1, sizeof *pass);
    clg_mx_argument *arguments = __real_calloc(count + 4, sizeof *arguments);
    int32_t *requests = __real_calloc(count + 1, sizeof *requests);
    clg_mx_memory *fixed = __real_calloc(1, sizeof *fixed);
    clg_mx_zero *zeros = __real_calloc(1, sizeof *zeros);
    double *scalars = __real_calloc(1, sizeof *scalars);
    int32_t *copies = f->region && which % 2 ? __real_calloc(count + 4, sizeof *copies) : NULL;
    expect(scalars && pass && arguments && requests && fixed && zeros, "memory for a pass");
    memcpy(requests, modes, (count + 1) * sizeof *modes);
    *scalars = number_of(back, modes, count);
    if (back && resident) *scalars = 4 * *scalars + modes[count];
    *fixed = (clg_mx_memory){constant, CLG_HOST, 0};
    uint32_t n = 0, zero = back ? count - 1 : count;
    int kept = f->region ? KEPT : (int)f->states - 1;
    uint64_t kept_bytes = f->region ? KEPT_BYTES : bytes_of(f, key, CLG_MX_STATE, kept);
    arguments[n++] = fill(f, key, back && f->reads_gradients ? CLG_MX_OUT_GRAD : CLG_MX_IN, f->seed, false);
    arguments[n++] = f->region ? (clg_mx_argument){CLG_MX_FIXED, 0, 0, CLG_FLOAT32, sizeof constant}
                               : (clg_mx_argument){-1, 0, 1, CLG_FLOAT32, 8};
    if (which % 2) arguments[n++] = (clg_mx_argument){CLG_MX_STATE, kept, 0, CLG_FLOAT32, kept_bytes};
    arguments[n++] = (clg_mx_argument){CLG_MX_STATE, KEY, 0, CLG_FLOAT32, 16};
    uint32_t inputs = n;
    for (uint32_t i = 0; i < count; i++)
        if (i != zero && modes[i] != CLG_SKIP)
            arguments[n++] = fill(f, key, back ? CLG_MX_IN_GRAD : CLG_MX_OUT, i, true);
    *zeros = (clg_mx_zero){(int32_t)zero, 0, back ? bytes_of(f, key, CLG_MX_IN, (int)zero) : 0};
    for (uint32_t i = 0; copies && i < n; i++) copies[i] = i ? -1 : COPY;
    void *plan = f->region ? (void *)0x20 : (void *)0x10;
    *pass = (clg_mx_pass){
        NULL,  requests,  fixed, zeros, copies, NULL, {n > inputs ? plan : NULL, "problem", arguments, scalars, n, 1},
        which, which % 2, count, back};
    return pass;
}

int clg_mx_py_make_region_pass(clg_mx_execution *execution, int which, const int32_t *modes, uint32_t mode_count) {
    region_at_work *r = *find_region(execution);
    uint32_t count = mode_count - 1;
    if (fails()) return 0;
    for (const clg_mx_pass *p = r->known->region.passes; p; p = p->next)
        expect(p->which != which || p->request_count != count || memcmp(p->requests, modes, mode_count * sizeof *modes),
               "that nobody asks for a pass twice");
    clg_mx_add_pass(
        &r->known->region, new_pass(&r->known->facts, r->known->key, which, modes, count, r->known->region.resident));
    return 1;
}

int clg_mx_py_make_pass(clg_mx_execution *execution, int64_t context, const char *op_type, int attribute_count,
                        const char **attributes, const int32_t *key, uint32_t key_count, int which,
                        const int32_t *modes, uint32_t mode_count) {
    (void)key_count;
    expect(!strcmp(op_type, "ocl") && !context, "the operator and its context");
    if (fails()) return 0;
    facts f = facts_of(attribute_count, attributes);
    clg_mx_pass *made = new_pass(&f, key, which, modes, mode_count - 1, false);
    int good = clg_mx_copy_pass(execution, made);
    free((void *)made->requests);
    free((void *)made->fixed);
    free((void *)made->zeros);
    free((void *)made->step.arguments);
    free((void *)made->step.scalars);
    free(made);
    return good;
}

int clg_mx_py_keep(clg_mx_execution *execution) {
    region_at_work *r = *find_region(execution);
    expect(!r->own[KEPT].handle, "that nobody asks for kept memory twice");
    if (fails()) return 0;
    r->own[KEPT] = (clg_mx_memory){__real_calloc(1, KEPT_BYTES), CLG_HOST, 0};
    r->own[COPY] = (clg_mx_memory){&r->sent, CLG_ARRAY, 0};
    return 1;
}

int clg_mx_py_end_region(clg_mx_execution *execution) {
    region_at_work **place = find_region(execution);
    if (!place) return 1; /* its start failed */
    free((*place)->own[KEY].handle);
    free((*place)->own[KEPT].handle);
    free(*place);
    *place = NULL;
    return 1;
}

int clg_mx_py_draw(clg_mx_execution *execution, int train) {
    region_at_work **region = find_region(execution);
    memset(region ? (*region)->own[KEY].handle : clg_mx_state_of(execution, 0), train, 16);
    return !fails();
}

static long ended;
int clg_mx_py_end_numbers(clg_mx_execution *execution) {
    memset(clg_mx_state_of(execution, 0), 0, 16);
    ended++;
    return 1;
}

/* MXNet: calls and operators at work, a few at a time. */
typedef struct prop {
    callback_list list;
    facts facts;
} prop;
typedef struct op {
    callback_list list;
    facts facts;
    int32_t key[64];
} op;
static prop props[SLOTS];
static op ops[SLOTS];

static void *context_of(const callback_list *list, int which) { return list->contexts[which]; }

static void drop_prop(prop *p) {
    if (p->list.count) ((int (*)(void *))p->list.functions[0])(context_of(&p->list, 0));
    p->list.count = 0;
}

static void drop_op(op *o) {
    if (o->list.count) ((int (*)(void *))o->list.functions[0])(context_of(&o->list, 0));
    o->list.count = 0;
}

static void make(prop *p) {
    drop_prop(p);
    char value[16] = {0}, *key = "slope";
    for (int i = byte() % 8 ? 1 : 12; i > 0; i--) value[i - 1] = (char)('a' + byte() % 26);
    char other[4000];
    memset(other, 'x', sizeof other - 1);
    other[sizeof other - 1] = 0;
    const char *keys[] = {key, "long"}, *values[] = {value, other};
    int count = byte() % 16 ? 1 : 2; /* attributes longer than what fits on the stack */
    int (*creator)(const char *, int, const char **, const char **, callback_list *) =
        (int (*)(const char *, int, const char **, const char **, callback_list *))clg_mx_creator();
    callback_list made = {0};
    if (!creator("ocl", count, keys, values, &made)) return;
    const char *attributes[] = {keys[0], values[0], keys[1], values[1]};
    *p = (prop){made, facts_of(count, attributes)};
}

static void list_names(prop *p) {
    int counts[] = {p->facts.arguments, p->facts.outputs, p->facts.auxiliary};
    for (int kind = 0; kind < 3; kind++) {
        char **names;
        if (!((int (*)(char ***, void *))p->list.functions[1 + kind])(&names, context_of(&p->list, 1 + kind))) continue;
        for (int i = 0; i < counts[kind]; i++) expect(!strcmp(names[i], NAMES[i]), "Python's names");
        expect(!names[counts[kind]], "no more names");
    }
}

static void infer_shapes(prop *p) {
    int total = p->facts.arguments + p->facts.outputs + p->facts.auxiliary;
    int ndims[16], sizes[16][160], *shapes[16];
    for (int i = 0; i < total; i++) {
        ndims[i] = byte() % 6 - 1;
        if (ndims[i] == 4 && i > 0) ndims[i] = 150; /* two are more than what fits on the stack */
        for (int j = 0; j < ndims[i]; j++) sizes[i][j] = (byte() + 1) % 9 - 1;
        shapes[i] = sizes[i];
    }
    bool good =
        ((int (*)(int, int *, int **, void *))p->list.functions[4])(total, ndims, shapes, context_of(&p->list, 4));
    for (int i = 0; good && i < total; i++)
        for (int j = 0; j < ndims[i]; j++) expect(shapes[i][j] == shapes[0][j], "the shapes that Python gave");
}

static void infer_types(prop *p) {
    int types[16], total = p->facts.arguments + p->facts.outputs + p->facts.auxiliary;
    for (int i = 0; i < total; i++) types[i] = byte() % 6 - 1;
    if (((int (*)(int, int *, void *))p->list.functions[7])(total, types, context_of(&p->list, 7)))
        for (int i = 0; i < total; i++) expect(types[i] == types[0] && types[i] < TYPES, "one type of real numbers");
}

static void declare(prop *p) {
    int numbers[] = {0, 1, 2, 3, 4, 5, 6, 7}, count = 0, *found = NULL;
    int (*ask)(const int *, const int *, const int *, int *, int **, void *) =
        (int (*)(const int *, const int *, const int *, int *, int **, void *))p->list.functions[5];
    if (!ask(numbers, numbers, numbers, &count, &found, context_of(&p->list, 5))) return;
    const facts *f = &p->facts;
    expect(count == f->arguments + f->outputs * (f->reads_outputs + f->reads_gradients), "what backward reads");
    for (int i = 0; i < count; i++) expect(found[i] >= 0 && found[i] < 8, "MXNet's numbers");
}

static void start(prop *p, op *o) {
    drop_op(o);
    int count = p->facts.arguments + p->facts.auxiliary, ndims[16], types[16];
    unsigned sizes[16][4], *shapes[16];
    int type = byte() % TYPES;
    op made = {.facts = p->facts};
    int n = 0;
    made.key[n++] = type;
    for (int i = 0; i < count; i++) {
        types[i] = type;
        ndims[i] = byte() % 4;
        shapes[i] = sizes[i];
        if (i < p->facts.arguments) made.key[n++] = ndims[i];
        for (int j = 0; j < ndims[i]; j++) {
            sizes[i][j] = byte() % 6;
            if (i < p->facts.arguments) made.key[n++] = (int32_t)sizes[i][j];
        }
    }
    uint8_t device = byte() % 4;
    if (device == 3)
        unsetenv("CLGRAFT_DEVICE");
    else
        setenv("CLGRAFT_DEVICE", device ? "pocl" : "intel", 1);
    int (*create)(const char *, int, unsigned **, const int *, const int *, callback_list *, void *) = (int (*)(
        const char *, int, unsigned **, const int *, const int *, callback_list *, void *))p->list.functions[6];
    if (!create(byte() < 240 ? "cpu" : "gpu", count, shapes, ndims, types, &made.list, context_of(&p->list, 6))) return;
    *o = made;
}

static void work(op *o, bool back) {
    const facts *f = &o->facts;
    int groups[] = {CLG_MX_IN, CLG_MX_OUT, CLG_MX_IN_GRAD, CLG_MX_OUT_GRAD, CLG_MX_AUX};
    int counts[] = {f->arguments, f->outputs, f->arguments, f->outputs, f->auxiliary};
    void *memory[32], *handles[32];
    int tags[32], requests[8], n = 0, owned = 0;
    bool aliased = !back && byte() % 4 == 0; /* an output that is the memory of an input, of its size */
    for (int i = 0; i < 8; i++) requests[i] = byte() % 4;
    for (int g = 0; g < 5; g++) {
        if (!back && (groups[g] == CLG_MX_IN_GRAD || groups[g] == CLG_MX_OUT_GRAD)) continue;
        for (int i = 0; i < counts[g]; i++, n++) {
            array *a = __real_malloc(sizeof *a);
            uint64_t bytes = bytes_of(f, o->key, groups[g], i);
            a->absent = back && ((groups[g] == CLG_MX_OUT && !f->reads_outputs) ||
                                 (groups[g] == CLG_MX_OUT_GRAD && !f->reads_gradients));
            if (aliased && groups[g] == CLG_MX_OUT && i == 0) {
                a->data = memory[0];
            } else {
                a->data = memory[owned++] = __real_malloc(bytes + !bytes);
                memset(a->data, 3, bytes);
            }
            handles[n] = a;
            tags[n] = groups[g];
            handles_alive++;
        }
    }
    int32_t modes[8];
    for (int i = 0; i < 8; i++) modes[i] = (int32_t)MODES[requests[i]];
    backwards = back;
    asked = number_of(back, modes, (uint32_t)(back ? f->arguments : f->outputs));
    int (*call)(int, void **, const int *, const int *, int, void *) =
        (int (*)(int, void **, const int *, const int *, int, void *))o->list.functions[1 + back];
    call(n, handles, tags, requests, byte() % 2, context_of(&o->list, 1 + back));
    expect(!backwards_begun, "that a backward that has begun ends");
    for (int i = 0; i < owned; i++) free(memory[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size) {
    static bool started;
    clg_mx_functions functions = {
        (void *)get_data, (void *)free_array, (void *)words, (void *)plan_run, (void *)plan_start, (void *)words};
    if (!started) clg_mx_start(&functions);
    started = true;
    bytes_left = input;
    left = size;
    uint8_t chance = byte();
    failing = chance < 128 ? 0 : chance - 128;
    streams = ended = 0;
    while (left) {
        uint8_t what = byte();
        prop *p = &props[byte() % SLOTS];
        op *o = &ops[byte() % SLOTS];
        allocations = what >= 224 ? 1 + byte() % 16 : 0;
        if (!p->list.count)
            make(p);
        else if (what % 16 == 0)
            make(p);
        else if (what % 16 == 1)
            drop_prop(p);
        else if (what % 16 == 2)
            drop_op(o);
        else if (what % 16 == 3)
            list_names(p);
        else if (what % 16 == 4)
            infer_shapes(p);
        else if (what % 16 == 5)
            infer_types(p);
        else if (what % 16 == 6)
            declare(p);
        else if (!o->list.count || what % 16 == 7)
            start(p, o);
        else
            work(o, what % 2);
        allocations = 0;
    }
    for (int i = 0; i < SLOTS; i++) {
        drop_op(&ops[i]);
        drop_prop(&props[i]);
    }
    expect(!handles_alive, "every handle to be freed, once");
    expect(!clg_mx_held(), "no call to be held");
    for (int i = 0; i < 2 * SLOTS; i++) expect(!at_work[i], "regions to end with their operators");
    expect(ended >= streams, "random numbers to end with their operators");
    return 0;
}
