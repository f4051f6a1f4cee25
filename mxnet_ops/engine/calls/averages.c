/* Moving averages that several operators of one backward change, in an order of MXNet's.
 *
 * A backward changes a to keep * a + share. MXNet's engine takes auxiliary states of a Custom operator's backward as
 * read only, so several of them that change one array are ordered by nothing. An operation that writes the array goes
 * before them and has it wait: each then finds zeros in its place, and leaves its share there. Another such operation
 * goes after them and changes the array by all shares, in the order that it is given.
 *
 * What tells the calls apart are their forwards, which the engine orders. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "averages.h"
#include "failures.h"
#include "halves.h"
#include "mxnet.h"

struct clg_mx_share {
    clg_mx_share *next;
    void *average; /* its address */
    void *memory;
    double keep;
    uint64_t version; /* of the forward */
    uint64_t serial;  /* of the operator at work */
    int32_t call;
    uint64_t bytes;
    uint32_t dtype;
};

typedef struct average {
    struct average *next;
    void *address;
    uint32_t users; /* backwards that have it wait */
    clg_mx_share *shares;
} average;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static average *first;
static int waiting; /* read without the mutex: what waits for an operator's arrays, waited before it ran */

static average **find(const void *address) {
    average **at = &first;
    while (*at && (*at)->address != address) at = &(*at)->next;
    return at;
}

static void drop(clg_mx_share *share) {
    while (share) {
        clg_mx_share *next = share->next;
        free(share->memory);
        free(share);
        share = next;
    }
}

clg_mx_share *clg_mx_set_aside(clg_mx_execution *execution, const clg_mx_pass *pass, bool *good) {
    clg_mx_share *found = NULL;
    if (!pass->average_count || !__atomic_load_n(&waiting, __ATOMIC_ACQUIRE)) return NULL;
    pthread_mutex_lock(&mutex);
    for (uint32_t i = 0; i < pass->average_count && *good; i++) {
        clg_buffer *buffer = &execution->buffers[pass->averages[i].argument];
        if (!buffer->bytes || !*find(buffer->handle)) continue;
        clg_mx_share *share = malloc(sizeof *share);
        void *memory = NULL;
        if (!share || posix_memalign(&memory, ALIGNMENT, buffer->bytes)) {
            free(share);
            *good = clg_mx_fail(execution->call->text, "got no memory for a share of a moving average");
            break;
        }
        memset(memory, 0, buffer->bytes);
        *share = (clg_mx_share){
            .next = found,
            .average = buffer->handle,
            .memory = memory,
            .keep = pass->averages[i].keep,
            .version = execution->version,
            .serial = execution->serial,
            .bytes = buffer->bytes,
            .dtype = buffer->dtype};
        buffer->handle = memory;
        found = share;
    }
    pthread_mutex_unlock(&mutex);
    if (*good) return found;
    drop(found);
    return NULL;
}

void clg_mx_leave_aside(clg_mx_share *shares, bool good) {
    if (!shares) return;
    if (!good) {
        drop(shares);
        return;
    }
    pthread_mutex_lock(&mutex);
    while (shares) {
        clg_mx_share *share = shares;
        average *found = *find(share->average); /* its operation at the end waits for this operator */
        shares = share->next;
        share->next = found->shares;
        found->shares = share;
    }
    pthread_mutex_unlock(&mutex);
}

static void add(const clg_mx_share *share) {
    size_t count = share->bytes / (share->dtype == CLG_FLOAT64 ? 8 : share->dtype == CLG_FLOAT32 ? 4 : 2);
    if (share->dtype == CLG_FLOAT64) {
        double *a = share->average, *s = share->memory;
        for (size_t i = 0; i < count; i++) a[i] = a[i] * share->keep + s[i];
    } else if (share->dtype == CLG_FLOAT32) {
        float *a = share->average, *s = share->memory, keep = (float)share->keep;
        for (size_t i = 0; i < count; i++) a[i] = a[i] * keep + s[i];
    } else {
        uint16_t *a = share->average, *s = share->memory;
        float keep = (float)share->keep;
        for (size_t i = 0; i < count; i++) a[i] = to_half(of_half(a[i]) * keep + of_half(s[i]));
    }
}

static int by_version(const void *a, const void *b) {
    const clg_mx_share *x = *(clg_mx_share *const *)a, *y = *(clg_mx_share *const *)b;
    return (x->version > y->version) - (x->version < y->version);
}

/* Operators of one call may run forward in any order, but they are made in their own. */
static int by_call(const void *a, const void *b) {
    const clg_mx_share *x = *(clg_mx_share *const *)a, *y = *(clg_mx_share *const *)b;
    if (x->call != y->call) return (x->call > y->call) - (x->call < y->call);
    return (x->serial > y->serial) - (x->serial < y->serial);
}

/* Where the shares are not as many as expected, the last comes first, as in MXNet as a rule. */
static void add_all(average *a, const int32_t *order, const int32_t *calls, uint32_t expected) {
    uint32_t count = 0;
    for (clg_mx_share *share = a->shares; share; share = share->next) count++;
    clg_mx_share *sorted[count + 1];
    count = 0;
    for (clg_mx_share *share = a->shares; share; share = share->next) sorted[count++] = share;
    qsort(sorted, count, sizeof *sorted, by_version);
    if (count == expected) {
        for (uint32_t i = 0; i < count; i++) sorted[i]->call = calls[i];
        qsort(sorted, count, sizeof *sorted, by_call);
    }
    for (uint32_t i = 0; i < count; i++) add(sorted[count == expected ? (uint32_t)order[i] : count - 1 - i]);
    drop(a->shares);
    a->shares = NULL;
}

typedef struct held_arrays {
    uint32_t count;
    void **arrays;    /* handles of our own */
    int32_t *changes; /* for each array; NULL: the backward is to begin */
} held_arrays;

/* On a thread of MXNet's engine. */
static void begin_or_end(void *context, void *given) {
    (void)context;
    held_arrays *h = given;
    const int32_t *change = h->changes;
    pthread_mutex_lock(&mutex);
    for (uint32_t i = 0; i < h->count; i++) {
        void *address = NULL;
        bool known = !mx.get_data(h->arrays[i], &address) && address;
        average **at = find(address);
        if (!h->changes && known && !*at && (*at = calloc(1, sizeof **at))) {
            (*at)->address = address;
            __atomic_add_fetch(&waiting, 1, __ATOMIC_RELEASE);
        }
        average *found = known ? *at : NULL;
        if (found && !h->changes) found->users++;
        if (found && h->changes) {
            add_all(found, change + 1, change + 1 + *change, (uint32_t)*change);
            if (!--found->users) {
                *at = found->next;
                free(found);
                __atomic_sub_fetch(&waiting, 1, __ATOMIC_RELEASE);
            }
        }
        if (change) change += 1 + 2 * *change;
    }
    pthread_mutex_unlock(&mutex);
}

static void release(void *given) {
    held_arrays *h = given;
    for (uint32_t i = 0; i < h->count; i++) mx.free_array(h->arrays[i]);
    free(h->arrays);
    free(h->changes);
    free(h);
}

int32_t clg_mx_push_averages(const uintptr_t *arrays, uint32_t count, const int32_t *changes, uint32_t change_count) {
    held_arrays *h = calloc(1, sizeof *h);
    if (!h) return -1;
    h->arrays = calloc(count + 1, sizeof *h->arrays);
    if (changes) h->changes = malloc(change_count * sizeof *changes + 1);
    int32_t failed = !h->arrays || (changes && !h->changes);
    if (!failed && changes) memcpy(h->changes, changes, change_count * sizeof *changes);
    for (uint32_t i = 0; i < count && !failed; i++) {
        failed = mx.copy_array((void *)arrays[i], &h->arrays[i]);
        h->count += !failed;
    }
    if (failed) {
        release(h);
        return -1;
    }
    const int place[] = {1, 0}; /* the CPU */
    return mx.push(begin_or_end, h, release, place, NULL, 0, h->arrays, (int)count, NULL, 0, "ocl_averages") ? -1 : 0;
}
