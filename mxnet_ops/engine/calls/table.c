/* Calls by their attributes, with everything that was ever found out about them. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "mxnet.h"
#include "questions.h"
#include "table.h"

enum { BUCKETS = 512, LIMIT = 4096 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static clg_mx_call *buckets[BUCKETS];
static int64_t kept, held;

/* OpenCL does not survive fork(): Python has to be asked again, and says so. The mutex is not held over the fork, as it
 * often is: MXNet stops its threads first, and they may need it to finish. Nobody else is left in the child. */
static void after_fork_in_child(void) {
    pthread_mutex_init(&mutex, NULL);
    for (int b = 0; b < BUCKETS; b++)
        for (clg_mx_call *call = buckets[b]; call; call = call->next)
            for (known_work *work = call->works; work; work = work->next) work->stale = true;
}

void clg_mx_start(const clg_mx_functions *found) {
    clg_mx_use(found);
    pthread_atfork(NULL, NULL, after_fork_in_child);
}

static void *copy(const void *from, size_t bytes) {
    void *to = malloc(bytes + 1);
    if (to && bytes) memcpy(to, from, bytes);
    return to;
}

static void free_names(char **names) {
    for (int i = 0; names && names[i]; i++) free(names[i]);
    free(names);
}

static void free_work(known_work *known) {
    for (clg_mx_pass *next, *pass = known->region.passes; pass; pass = next) {
        next = pass->next;
        free(pass);
    }
    for (uint32_t i = 0; i < known->block_count; i++) free(known->blocks[i]);
    free(known->blocks);
    free(known->key);
    free(known->device);
    free(known);
}

static void free_shapes(known_shapes *known) {
    free(known->key);
    free(known->ndims);
    free(known->sizes);
    free(known);
}

static void free_signature(clg_mx_call *call) {
    free_names(call->arguments);
    free_names(call->outputs);
    free_names(call->auxiliary);
    free(call->dependencies);
    free(call->single);
    call->arguments = call->outputs = call->auxiliary = NULL;
    call->dependencies = NULL;
    call->single = NULL;
}

static void free_call(clg_mx_call *call) {
    for (known_shapes *next, *s = call->shapes; s; s = next) {
        next = s->next;
        free_shapes(s);
    }
    for (known_work *next, *w = call->works; w; w = next) {
        next = w->next;
        free_work(w);
    }
    free_signature(call);
    free(call->attributes);
    free(call->text);
    free(call);
}

/* Mutex held. A program whose attributes never repeat must not fill the memory. */
static void make_room(void) {
    for (int b = 0; b < BUCKETS; b++)
        for (clg_mx_call **place = &buckets[b]; *place;) {
            clg_mx_call *call = *place;
            if (call->users) {
                place = &call->next;
            } else {
                *place = call->next;
                free_call(call);
                kept--;
            }
        }
}

static clg_mx_call *new_call(const char *text, size_t bytes, uint64_t hash, int count) {
    clg_mx_call *call = calloc(1, sizeof *call);
    if (!call) return NULL;
    call->text = copy(text, bytes);
    call->attributes = calloc((size_t)count * 2 + 1, sizeof *call->attributes);
    if (!call->text || !call->attributes) {
        free_call(call);
        return NULL;
    }
    call->text_bytes = bytes;
    call->hash = hash;
    call->attribute_count = count;
    const char *at = call->text;
    for (int i = 0; i < count * 2; i++) call->attributes[i] = at += strlen(at) + 1;
    for (int i = 0; i < CALLBACKS; i++) call->contexts[i] = call;
    return call;
}

clg_mx_call *clg_mx_take(const char *op_type, int count, const char **keys, const char **values) {
    size_t bytes = strlen(op_type) + 1;
    for (int i = 0; i < count; i++) bytes += strlen(keys[i]) + strlen(values[i]) + 2;
    char small[2048], *text = bytes > sizeof small ? malloc(bytes) : small;
    if (!text) return NULL;
    char *at = text;
    for (int i = -1; i < count; i++) {
        at = stpcpy(at, i < 0 ? op_type : keys[i]) + 1;
        if (i >= 0) at = stpcpy(at, values[i]) + 1;
    }
    uint64_t hash = 1469598103934665603u;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
    pthread_mutex_lock(&mutex);
    clg_mx_call *call = buckets[hash % BUCKETS];
    while (call && (call->hash != hash || call->text_bytes != bytes || memcmp(call->text, text, bytes)))
        call = call->next;
    if (!call) {
        if (kept >= LIMIT) make_room();
        call = new_call(text, bytes, hash, count);
        if (call) {
            call->next = buckets[hash % BUCKETS];
            buckets[hash % BUCKETS] = call;
            kept++;
        }
    }
    if (call) {
        call->users++;
        held++;
    }
    pthread_mutex_unlock(&mutex);
    if (text != small) free(text);
    return call;
}

void clg_mx_retain(clg_mx_call *call) {
    pthread_mutex_lock(&mutex);
    call->users++;
    held++;
    pthread_mutex_unlock(&mutex);
}

void clg_mx_release(clg_mx_call *call) {
    pthread_mutex_lock(&mutex);
    call->users--;
    held--;
    pthread_mutex_unlock(&mutex);
}

bool clg_mx_describe(clg_mx_call *call) {
    return __atomic_load_n(&call->described, __ATOMIC_ACQUIRE) ||
           clg_mx_py_describe(call, call->text, call->attribute_count, call->attributes);
}

static char **copy_names(const char *const *names, int count) {
    char **made = calloc((size_t)count + 1, sizeof *made);
    for (int i = 0; made && i < count; i++) {
        made[i] = copy(names[i], strlen(names[i]) + 1);
        if (!made[i]) {
            free_names(made);
            return NULL;
        }
    }
    return made;
}

int32_t clg_mx_set_signature(clg_mx_call *call, const clg_mx_signature *signature) {
    pthread_mutex_lock(&mutex);
    if (!call->described) {
        call->argument_count = signature->argument_count;
        call->output_count = signature->output_count;
        call->auxiliary_count = signature->auxiliary_count;
        call->backward_reads_outputs = signature->backward_reads_outputs;
        call->backward_reads_gradients = signature->backward_reads_gradients;
        call->unread_gradients = signature->unread_gradients;
        call->arguments = copy_names(signature->arguments, signature->argument_count);
        call->outputs = copy_names(signature->outputs, signature->output_count);
        call->auxiliary = copy_names(signature->auxiliary, signature->auxiliary_count);
        size_t arrays = (size_t)(signature->argument_count + signature->output_count + signature->auxiliary_count);
        call->single = calloc(arrays + 1, sizeof *call->single);
        if (call->single && signature->single) memcpy(call->single, signature->single, arrays * sizeof *call->single);
        call->dependencies =
            calloc((size_t)signature->argument_count + 2 * (size_t)signature->output_count + 1, sizeof(int));
        bool whole = call->arguments && call->outputs && call->auxiliary && call->dependencies && call->single;
        if (!whole) free_signature(call);
        __atomic_store_n(&call->described, whole, __ATOMIC_RELEASE);
    }
    bool described = call->described;
    pthread_mutex_unlock(&mutex);
    return described;
}

static bool same_key(const int32_t *a, uint32_t a_count, const int32_t *b, uint32_t b_count) {
    return a_count == b_count && !memcmp(a, b, a_count * sizeof *a);
}

known_shapes *clg_mx_find_shapes(clg_mx_call *call, const int32_t *key, uint32_t key_count) {
    pthread_mutex_lock(&mutex);
    known_shapes *known = call->shapes;
    while (known && !same_key(known->key, known->key_count, key, key_count)) known = known->next;
    pthread_mutex_unlock(&mutex);
    return known;
}

int32_t clg_mx_add_shapes(clg_mx_call *call, const int32_t *key, uint32_t key_count, const int32_t *ndims,
                          const int32_t *sizes, uint32_t shape_count) {
    size_t total = 0;
    for (uint32_t i = 0; i < shape_count; i++) total += ndims[i] > 0 ? (size_t)ndims[i] : 0;
    known_shapes *known = calloc(1, sizeof *known);
    if (!known) return 0;
    known->key = copy(key, key_count * sizeof *key);
    known->ndims = copy(ndims, shape_count * sizeof *ndims);
    known->sizes = copy(sizes, total * sizeof *sizes);
    known->key_count = key_count;
    known->shape_count = shape_count;
    if (!known->key || !known->ndims || !known->sizes) {
        free_shapes(known);
        return 0;
    }
    pthread_mutex_lock(&mutex);
    known->next = call->shapes;
    call->shapes = known;
    pthread_mutex_unlock(&mutex);
    return 1;
}

known_work *clg_mx_find_work(clg_mx_call *call, const int32_t *key, uint32_t key_count, const char *device) {
    pthread_mutex_lock(&mutex);
    known_work *known = call->works;
    while (known &&
           (known->stale || strcmp(known->device, device) || !same_key(known->key, known->key_count, key, key_count)))
        known = known->next;
    pthread_mutex_unlock(&mutex);
    return known;
}

/* Copies a block and keeps it with the work; NULL makes the whole work fail. */
static void *keep(known_work *known, const void *from, size_t bytes) {
    void *block = copy(from, bytes);
    if (block) known->blocks[known->block_count++] = block;
    return block;
}

int32_t clg_mx_add_work(clg_mx_call *call, const int32_t *key, uint32_t key_count, const char *device,
                        const clg_mx_work *work) {
    known_work *known = calloc(1, sizeof *known);
    if (!known) return 0;
    known->key = copy(key, key_count * sizeof *key);
    known->key_count = key_count;
    known->device = copy(device, strlen(device) + 1);
    known->blocks = calloc((size_t)work->state_count + 2, sizeof *known->blocks);
    bool whole = known->key && known->device && known->blocks;
    known->work = *work;
    clg_mx_state *state = whole ? keep(known, work->state, work->state_count * sizeof *state) : NULL;
    known->work.state = state;
    for (uint32_t i = 0; i < work->state_count && state; i++)
        if (state[i].content) whole = whole && (state[i].content = keep(known, state[i].content, state[i].bytes));
    whole = whole && state;
    whole = whole && (known->work.out_bytes = keep(known, work->out_bytes, work->out_count * sizeof *work->out_bytes));
    if (!whole) {
        free_work(known);
        return 0;
    }
    pthread_mutex_lock(&mutex);
    known->next = call->works;
    call->works = known;
    pthread_mutex_unlock(&mutex);
    return 1;
}

int64_t clg_mx_held(void) { return __atomic_load_n(&held, __ATOMIC_RELAXED); }
int64_t clg_mx_kept(void) { return __atomic_load_n(&kept, __ATOMIC_RELAXED); }
