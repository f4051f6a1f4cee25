/* See fake_opencl.h. Table indices: the Khronos ICD specification. */
#include "fake_opencl.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_SIZE 140
#define MAX_ARGUMENTS 64
#define LARGEST (1u << 20) /* bytes of a buffer; more is out of memory */
#define MEMORY (5u << 19)  /* bytes of all buffers */

typedef struct argument {
    int kind; /* 0 not set, 1 bytes, 2 a mem or NULL, 3 a pointer */
    void *value;
} argument;

typedef struct object {
    void **table;
    int kind;
    int references;
    struct object *context;
    size_t bytes;
    unsigned char *data;
    int owns_data;
    argument arguments[MAX_ARGUMENTS];
    struct object *next; /* of all that live */
} object;

static void *table[TABLE_SIZE];
static object *living;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the list */
static size_t taken;                                      /* bytes of all buffers */
static _Thread_local unsigned fail_in;
static _Thread_local int32_t fail_code;

static void broken(const char *what) {
    fprintf(stderr, "fake OpenCL: %s\n", what);
    abort();
}

static object *expect(void *pointer, int kind) {
    object *o = pointer;
    if (!o || o->table != table || o->kind != kind || __atomic_load_n(&o->references, __ATOMIC_ACQUIRE) < 1)
        broken("got a dead or wrong object");
    return o;
}

static int32_t failure(void) {
    if (!fail_in || --fail_in) return 0;
    return fail_code;
}

void fake_fail_after(unsigned calls, int32_t code) {
    fail_in = code ? calls + 1 : 0;
    fail_code = code;
}

static int lives(const void *candidate) {
    pthread_mutex_lock(&mutex);
    const object *o = living;
    while (o && o != candidate) o = o->next;
    pthread_mutex_unlock(&mutex);
    return o != NULL;
}

long fake_alive(void) {
    long count = 0;
    pthread_mutex_lock(&mutex);
    for (const object *o = living; o; o = o->next) count++;
    pthread_mutex_unlock(&mutex);
    return count;
}

static int32_t retain(void *pointer) {
    object *o = pointer;
    if (__atomic_fetch_add(&o->references, 1, __ATOMIC_ACQ_REL) < 1) broken("a dead object was retained");
    return 0;
}

static int32_t release(void *pointer) {
    object *o = pointer;
    if (o->table != table) broken("something else was released");
    if (__atomic_sub_fetch(&o->references, 1, __ATOMIC_ACQ_REL)) return 0;
    pthread_mutex_lock(&mutex);
    object **place = &living;
    while (*place != o) place = &(*place)->next;
    *place = o->next;
    pthread_mutex_unlock(&mutex);
    if (o->owns_data) {
        __atomic_fetch_sub(&taken, o->bytes, __ATOMIC_RELAXED);
        free(o->data);
    }
    free(o);
    return 0;
}

void fake_release(void *pointer) { release(pointer); }

static void *create_buffer(void *context, uint64_t flags, size_t bytes, void *host, int32_t *code) {
    expect(context, FAKE_CONTEXT);
    *code = failure();
    if (!*code && bytes > LARGEST) *code = -61;
    if (!*code && !bytes) *code = -61;
    if (!*code && !host && __atomic_add_fetch(&taken, bytes, __ATOMIC_RELAXED) > MEMORY) {
        __atomic_fetch_sub(&taken, bytes, __ATOMIC_RELAXED);
        *code = -4;
    }
    if (*code) return NULL;
    object *mem = fake_new(FAKE_MEM, context);
    mem->bytes = bytes;
    mem->owns_data = !host;
    mem->data = host ? host : malloc(bytes);
    return mem;
}

static int32_t mem_info(void *pointer, uint32_t name, size_t bytes, void *value, size_t *used) {
    object *mem = expect(pointer, FAKE_MEM);
    if (name == 0x1102)
        memcpy(value, &mem->bytes, bytes);
    else
        memcpy(value, &mem->context, bytes);
    return failure();
}

static int32_t set_argument(void *pointer, uint32_t index, size_t bytes, const void *value) {
    object *kernel = expect(pointer, FAKE_KERNEL);
    int32_t code = failure();
    if (code || index >= MAX_ARGUMENTS) return code ? code : -49;
    argument *a = &kernel->arguments[index];
    *a = (argument){1, NULL};
    if (!value || bytes > 8) return 0;
    unsigned char copy[8]; /* reads all of what it was given */
    memcpy(copy, value, bytes);
    if (bytes == sizeof(void *)) {
        void *candidate;
        memcpy(&candidate, copy, sizeof candidate);
        if (lives(candidate)) *a = (argument){2, candidate}; /* else an offset or a constant */
    }
    return 0;
}

static int32_t set_pointer(void *pointer, uint32_t index, const void *value) {
    object *kernel = expect(pointer, FAKE_KERNEL);
    int32_t code = failure();
    if (code || index >= MAX_ARGUMENTS) return code ? code : -49;
    if (!value) broken("a pointer of NULL was bound");
    kernel->arguments[index] = (argument){3, (void *)value};
    return 0;
}

/* What every command does with its events: those that it waits for live, and its own is made. */
static void trace(object *queue, uint32_t waits, void *const *list, void **event) {
    if (!waits != !list) broken("got a list of events without a count, or a count without a list");
    for (uint32_t i = 0; i < waits; i++) expect(list[i], FAKE_EVENT);
    if (event) *event = fake_new(FAKE_EVENT, queue->context);
}

static int32_t launch(void *queue, void *pointer, uint32_t dims, const size_t *offset, const size_t *global,
                      const size_t *local, uint32_t waits, void *const *list, void **event) {
    object *q = expect(queue, FAKE_QUEUE);
    object *kernel = expect(pointer, FAKE_KERNEL);
    int32_t code = failure();
    if (code) return code;
    trace(q, waits, list, event);
    for (uint32_t d = 0; d < dims; d++)
        if (!global[d]) return -63;
    for (int i = 0; i < MAX_ARGUMENTS; i++) {
        argument *a = &kernel->arguments[i];
        if (a->kind == 2) {
            object *mem = expect(a->value, FAKE_MEM);
            mem->data[0] ^= 1;
            mem->data[mem->bytes - 1] ^= 1;
        }
        if (a->kind == 3) *(unsigned char *)a->value ^= 1;
    }
    return 0;
}

static int32_t read_buffer(void *queue, void *pointer, uint32_t blocking, size_t offset, size_t bytes, void *host,
                           uint32_t waits, void *const *list, void **event) {
    object *q = expect(queue, FAKE_QUEUE);
    object *mem = expect(pointer, FAKE_MEM);
    int32_t code = failure();
    if (offset > mem->bytes || bytes > mem->bytes - offset) broken("more was moved than there is");
    if (!code) trace(q, waits, list, event);
    if (!code) memcpy(host, mem->data + offset, bytes);
    return code;
}

static int32_t write_buffer(void *queue, void *pointer, uint32_t blocking, size_t offset, size_t bytes,
                            const void *host, uint32_t waits, void *const *list, void **event) {
    object *q = expect(queue, FAKE_QUEUE);
    object *mem = expect(pointer, FAKE_MEM);
    int32_t code = failure();
    if (offset > mem->bytes || bytes > mem->bytes - offset) broken("more was moved than there is");
    if (!code) trace(q, waits, list, event);
    if (!code) memcpy(mem->data + offset, host, bytes);
    return code;
}

static void *map(void *queue, void *pointer, uint32_t blocking, uint64_t flags, size_t offset, size_t bytes,
                 uint32_t waits, const void *list, void *event, int32_t *code) {
    expect(queue, FAKE_QUEUE);
    object *mem = expect(pointer, FAKE_MEM);
    *code = failure();
    if (bytes + offset > mem->bytes) broken("more was mapped than there is");
    return *code ? NULL : mem->data + offset;
}

static int32_t unmap(void *queue, void *pointer, void *mapped, uint32_t waits, const void *list, void *event) {
    expect(queue, FAKE_QUEUE);
    expect(pointer, FAKE_MEM);
    return failure();
}

static int32_t wait_queue(void *queue) {
    expect(queue, FAKE_QUEUE);
    return failure();
}

static void *create_queue(void *context, void *device, uint64_t properties, int32_t *code) {
    expect(context, FAKE_CONTEXT);
    *code = failure();
    return *code ? NULL : fake_new(FAKE_QUEUE, context);
}

static int32_t queue_info(void *queue, uint32_t name, size_t bytes, void *value, size_t *used) {
    expect(queue, FAKE_QUEUE);
    memset(value, 0, bytes);
    return failure();
}

static int32_t kernel_info(void *kernel, uint32_t name, size_t bytes, void *value, size_t *used) {
    uint32_t references = (uint32_t)__atomic_load_n(&expect(kernel, FAKE_KERNEL)->references, __ATOMIC_ACQUIRE);
    memcpy(value, &references, sizeof references);
    return failure();
}

static int32_t event_info(void *event, uint32_t name, size_t bytes, void *value, size_t *used) {
    expect(event, FAKE_EVENT);
    memset(value, 0, bytes); /* CL_COMPLETE */
    return failure();
}

static int32_t wait_events(uint32_t count, void *const *list) {
    for (uint32_t i = 0; i < count; i++) expect(list[i], FAKE_EVENT);
    return failure();
}

static int32_t marker(void *queue, void **event) {
    object *q = expect(queue, FAKE_QUEUE);
    int32_t code = failure();
    if (!code) trace(q, 0, NULL, event);
    return code;
}

static void never(void) { broken("a call that the runtime has no business to make"); }

static void fill_table(void) {
    for (int i = 0; i < TABLE_SIZE; i++) table[i] = (void *)never;
    table[6] = table[10] = table[36] = (void *)retain;
    table[7] = table[11] = table[18] = table[37] = table[44] = (void *)release;
    table[9] = (void *)create_queue;
    table[12] = (void *)queue_info;
    table[14] = (void *)create_buffer;
    table[20] = (void *)mem_info;
    table[38] = (void *)set_argument;
    table[39] = (void *)kernel_info;
    table[41] = (void *)wait_events;
    table[42] = (void *)event_info;
    table[46] = table[47] = (void *)wait_queue;
    table[48] = (void *)read_buffer;
    table[49] = (void *)write_buffer;
    table[56] = (void *)map;
    table[58] = (void *)unmap;
    table[59] = (void *)launch;
    table[62] = (void *)marker;
    table[134] = (void *)set_pointer;
}

void *fake_new(int kind, void *context) {
    static int filled;
    if (!__atomic_load_n(&filled, __ATOMIC_ACQUIRE)) { /* the first object is made before there are threads */
        fill_table();
        __atomic_store_n(&filled, 1, __ATOMIC_RELEASE);
    }
    object *o = calloc(1, sizeof *o);
    o->table = table;
    o->kind = kind;
    o->references = 1;
    o->context = context;
    pthread_mutex_lock(&mutex);
    o->next = living;
    living = o;
    pthread_mutex_unlock(&mutex);
    return o;
}
