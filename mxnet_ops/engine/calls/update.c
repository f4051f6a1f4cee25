/* Optimizers: one operation of MXNet's engine updates many parameters, on several threads.
 *
 * MXNet's oneDNN operators leave gradients, and weights after inference, in layouts of their own. Such an array is
 * reordered first, as MXNet does it; the operation may, because it writes everything that it is given. The same brings
 * arrays into MXNet's own layout before operators of this package read them (clg_mx_push_plain). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "failures.h"
#include "halves.h"
#include "mxnet.h"
#include "threads.h"

enum { PART = 64 << 10, BLOCK = 512 }; /* elements of a part of the loop, and of a conversion of float16 */
enum { CPU = 1, PINNED = 3, SHARED = 5, DENSE = 0, FLOAT = 0, DOUBLE = 1, HALF = 2 }; /* of MXNet */

#define REAL float
#define NAMED(x) x##_float
#define ROOT(x) sqrtf(x)
#include "rules.h"
#define REAL double
#define NAMED(x) x##_double
#define ROOT(x) sqrt(x)
#include "rules.h"

typedef struct item {
    clg_mx_parameter parameter; /* with handles of our own */
    void *addresses[CLG_MX_ARRAYS];
    size_t elements;
    uint32_t first_part;
    int dtype; /* of the weight */
} item;

typedef struct update {
    clg_mx_rule rule;
    uint32_t count, parts;
    item items[];
} update;

/* What a rule needs of each parameter, as bits of CLG_MX_WEIGHT and so on. */
static unsigned needed(const clg_mx_rule *rule) {
    unsigned found = 1 << CLG_MX_WEIGHT | 1 << CLG_MX_GRADIENT;
    if (rule->mixed) found |= 1 << CLG_MX_MASTER;
    if (rule->kind == CLG_MX_SGD_MOMENTUM || rule->kind == CLG_MX_NAG || rule->kind == CLG_MX_ADAM)
        found |= 1 << CLG_MX_MEAN;
    if (rule->kind == CLG_MX_ADAM) found |= 1 << CLG_MX_VARIANCE;
    return found;
}

enum { MOST_DIMS = 32 };

typedef struct facts {
    int dtype, storage, device, device_id, dim_count, dims[MOST_DIMS];
} facts;

/* MXNet keeps the sizes of the last array that a thread asked for. */
static bool ask(uintptr_t array, facts *found) {
    const int *dims;
    void *handle = (void *)array;
    if (!array || mx.get_dtype(handle, &found->dtype) || mx.get_storage_type(handle, &found->storage) ||
        mx.get_context(handle, &found->device, &found->device_id) || mx.get_shape(handle, &found->dim_count, &dims))
        return false;
    if (found->dim_count < 0 || found->dim_count > MOST_DIMS) return false;
    memcpy(found->dims, dims, (size_t)found->dim_count * sizeof *dims);
    return true;
}

static bool plain(const facts *f) {
    return f->storage == DENSE && (f->device == CPU || f->device == PINNED || f->device == SHARED);
}

static size_t element_count(const facts *f) {
    size_t count = 1;
    for (int i = 0; i < f->dim_count; i++) count *= (size_t)f->dims[i];
    return count;
}

int32_t clg_mx_serves(const clg_mx_rule *rule, const clg_mx_parameter *parameter) {
    facts weight, other;
    unsigned arrays = needed(rule);
    if (!ask(parameter->arrays[CLG_MX_WEIGHT], &weight) || !plain(&weight)) return 0;
    if (rule->mixed ? weight.dtype != HALF : weight.dtype != FLOAT && weight.dtype != DOUBLE) return 0;
    for (int i = 0; i < weight.dim_count; i++)
        if (weight.dims[i] < 0) return 0;
    for (int i = CLG_MX_GRADIENT; i < CLG_MX_ARRAYS; i++) {
        if (!(arrays >> i & 1)) continue;
        int dtype = rule->mixed && i > CLG_MX_GRADIENT ? FLOAT : weight.dtype;
        if (!ask(parameter->arrays[i], &other) || !plain(&other) || other.dtype != dtype) return 0;
        if (other.dim_count != weight.dim_count ||
            memcmp(other.dims, weight.dims, (size_t)weight.dim_count * sizeof *weight.dims))
            return 0;
    }
    return 1;
}

static void release(void *given) {
    update *u = given;
    for (uint32_t i = 0; i < u->count; i++)
        for (int a = 0; a < CLG_MX_ARRAYS; a++)
            if (u->items[i].parameter.arrays[a]) mx.free_array((void *)u->items[i].parameter.arrays[a]);
    free(u);
}

static void update_mixed(const clg_mx_rule *rule, const clg_mx_parameter *p, uint16_t *w16, const uint16_t *g16,
                         float *w, float *m, float *v, size_t count) {
    float g[BLOCK];
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t n = count - at < BLOCK ? count - at : BLOCK;
        for (size_t i = 0; i < n; i++) g[i] = of_half(g16[at + i]);
        update_float(rule, p, w + at, g, m ? m + at : NULL, v ? v + at : NULL, n);
        for (size_t i = 0; i < n; i++) w16[at + i] = to_half(w[at + i]);
    }
}

#define AT(type, i) ((type *)it->addresses[i] ? (type *)it->addresses[i] + at : NULL)

static void run_part(void *given, uint32_t part) {
    const update *u = given;
    uint32_t low = 0, high = u->count; /* the last item that begins at this part or before */
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (u->items[middle].first_part <= part)
            low = middle;
        else
            high = middle;
    }
    const item *it = &u->items[low];
    size_t at = (size_t)(part - it->first_part) * PART, rest = it->elements - at, n = rest < PART ? rest : PART;
    const clg_mx_parameter *p = &it->parameter;
    if (u->rule.mixed)
        update_mixed(&u->rule, p, AT(uint16_t, CLG_MX_WEIGHT), AT(uint16_t, CLG_MX_GRADIENT), AT(float, CLG_MX_MASTER),
                     AT(float, CLG_MX_MEAN), AT(float, CLG_MX_VARIANCE), n);
    else if (it->dtype == DOUBLE)
        update_double(&u->rule, p, AT(double, CLG_MX_WEIGHT), AT(double, CLG_MX_GRADIENT), AT(double, CLG_MX_MEAN),
                      AT(double, CLG_MX_VARIANCE), n);
    else
        update_float(&u->rule, p, AT(float, CLG_MX_WEIGHT), AT(float, CLG_MX_GRADIENT), AT(float, CLG_MX_MEAN),
                     AT(float, CLG_MX_VARIANCE), n);
}

/* The memory of an MXNet array, and the engine's variable that guards it, are its first member's: arrays share a
 * variable if they share this address. */
static void *chunk(uintptr_t array) { return *(void **)array; }

/* On a thread of MXNet's engine. */
static void run(void *context, void *given) {
    (void)context;
    update *u = given;
    for (uint32_t i = 0; i < u->count; i++) {
        item *it = &u->items[i];
        for (int a = 0; a < CLG_MX_ARRAYS; a++) {
            uintptr_t array = it->parameter.arrays[a];
            if (!array || !it->elements) continue;
            if (mx.reorder) mx.reorder(chunk(array));
            if (mx.get_data((void *)array, &it->addresses[a]) || !it->addresses[a]) {
                clg_mx_fail("optimizer", mx.last_failure());
                return;
            }
        }
    }
    clg_mx_parallel(run_part, u, u->parts);
}

typedef struct variable {
    void *chunk, *array;
} variable;

static int by_chunk(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const variable *)a)->chunk, y = (uintptr_t)((const variable *)b)->chunk;
    return (x > y) - (x < y);
}

/* Fills `found` with an array of each variable, `count` times CLG_MX_ARRAYS at most, and tells
 * whether some share one. */
static uint32_t list_variables(const clg_mx_parameter *parameters, uint32_t count, variable *found, void **arrays,
                               bool *shared) {
    uint32_t listed = 0, kept = 0;
    for (uint32_t i = 0; i < count; i++)
        for (int a = 0; a < CLG_MX_ARRAYS; a++) {
            uintptr_t array = parameters[i].arrays[a];
            if (array) found[listed++] = (variable){chunk(array), (void *)array};
        }
    qsort(found, listed, sizeof *found, by_chunk);
    for (uint32_t i = 0; i < listed; i++)
        if (!i || found[i].chunk != found[i - 1].chunk) arrays[kept++] = found[i].array;
    *shared = kept < listed;
    return kept;
}

/* Keeps arrays of its own: the caller's may go before the engine runs the operation. */
static bool fill(update *u, const clg_mx_parameter *parameters, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        item *it = &u->items[u->count++];
        facts weight;
        it->parameter = parameters[i];
        memset(it->parameter.arrays, 0, sizeof it->parameter.arrays);
        for (int a = 0; a < CLG_MX_ARRAYS; a++) {
            void *copy, *array = (void *)parameters[i].arrays[a];
            if (!array) continue;
            if (mx.copy_array(array, &copy)) return false;
            it->parameter.arrays[a] = (uintptr_t)copy;
        }
        if (!ask(parameters[i].arrays[CLG_MX_WEIGHT], &weight)) return false;
        it->dtype = weight.dtype;
        it->elements = element_count(&weight);
        it->first_part = u->parts;
        u->parts += (uint32_t)((it->elements + PART - 1) / PART);
    }
    return true;
}

int32_t clg_mx_push_update(const clg_mx_rule *rule, const clg_mx_parameter *parameters, uint32_t count) {
    if (!count) return 0;
    size_t room = (size_t)count * CLG_MX_ARRAYS;
    variable *variables = malloc(room * sizeof *variables);
    void **arrays = malloc(room * sizeof *arrays);
    update *u = calloc(1, sizeof *u + count * sizeof *u->items);
    int32_t failed = !variables || !arrays || !u;
    bool shared = false;
    uint32_t variable_count = failed ? 0 : list_variables(parameters, count, variables, arrays, &shared);
    if (!failed && shared && count > 1) { /* in their order */
        for (uint32_t i = 0; i < count && !failed; i++) failed = clg_mx_push_update(rule, parameters + i, 1);
    } else if (!failed) {
        u->rule = *rule;
        facts weight;
        failed = !fill(u, parameters, count) || !ask(parameters->arrays[CLG_MX_WEIGHT], &weight);
        if (!failed) {
            const int place[] = {CPU, weight.device_id};
            update *pushed = u;
            u = NULL; /* MXNet's from here on */
            failed = mx.push(run, pushed, release, place, NULL, 0, arrays, (int)variable_count, NULL, 0, "ocl_update");
        }
    }
    if (u) release(u);
    free(arrays);
    free(variables);
    return failed ? -1 : 0;
}

typedef struct plain_arrays {
    uint32_t count;
    void *arrays[]; /* handles of our own, one of each variable */
} plain_arrays;

/* On a thread of MXNet's engine. */
static void make_plain(void *context, void *given) {
    (void)context;
    plain_arrays *p = given;
    for (uint32_t i = 0; i < p->count; i++) mx.reorder(chunk((uintptr_t)p->arrays[i]));
}

static void release_plain(void *given) {
    plain_arrays *p = given;
    for (uint32_t i = 0; i < p->count; i++) mx.free_array(p->arrays[i]);
    free(p);
}

/* Whether an array may be in a layout of oneDNN's. */
static bool may_be_blocked(uintptr_t array) {
    facts found;
    void *handle = (void *)array;
    return array && !mx.get_storage_type(handle, &found.storage) && found.storage == DENSE &&
           !mx.get_context(handle, &found.device, &found.device_id) && plain(&found);
}

/* Fills `found`, with room for two variables for each array, and returns how many; `own` gets the gradients' handles,
 * which the caller frees. */
static uint32_t list_blocked(const uintptr_t *arrays, uint32_t count, bool gradients, variable *found, void **own,
                             uint32_t *own_count) {
    uint32_t listed = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (may_be_blocked(arrays[i])) found[listed++] = (variable){chunk(arrays[i]), (void *)arrays[i]};
        void *gradient = NULL;
        if (!gradients || mx.get_gradient((void *)arrays[i], &gradient) || !gradient) continue;
        own[(*own_count)++] = gradient;
        if (may_be_blocked((uintptr_t)gradient)) found[listed++] = (variable){chunk((uintptr_t)gradient), gradient};
    }
    return listed;
}

int32_t clg_mx_push_plain(const uintptr_t *arrays, uint32_t count, int32_t gradients) {
    if (!count || !mx.reorder) return 0;
    size_t room = 2 * (size_t)count;
    variable *variables = malloc(room * sizeof *variables);
    void **own = malloc(count * sizeof *own);
    plain_arrays *p = calloc(1, sizeof *p + room * sizeof *p->arrays);
    int32_t failed = !variables || !own || !p;
    uint32_t own_count = 0, listed = failed ? 0 : list_blocked(arrays, count, gradients, variables, own, &own_count);
    if (listed) qsort(variables, listed, sizeof *variables, by_chunk);
    for (uint32_t i = 0; i < listed && !failed; i++) {
        if (i && variables[i].chunk == variables[i - 1].chunk) continue;
        failed = mx.copy_array(variables[i].array, &p->arrays[p->count]);
        p->count += !failed;
    }
    if (!failed && p->count) {
        const int place[] = {CPU, 0};
        plain_arrays *pushed = p;
        p = NULL; /* MXNet's from here on */
        failed = mx.push(make_plain, pushed, release_plain, place, NULL, 0, pushed->arrays, (int)pushed->count, NULL, 0,
                         "ocl_plain");
    }
    if (p) release_plain(p);
    for (uint32_t i = 0; i < own_count; i++) mx.free_array(own[i]);
    free(own);
    free(variables);
    return failed ? -1 : 0;
}
