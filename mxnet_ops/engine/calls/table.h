/* Calls by their attributes, with everything that was ever found out about them. */
#ifndef CLGRAFT_MXNET_TABLE_H
#define CLGRAFT_MXNET_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "calls.h"

enum { CALLBACKS = 8 };

/* Inferred shapes for the inputs' shapes in key: per input the number of axes and their sizes (-1: unknown). */
typedef struct known_shapes {
    struct known_shapes *next;
    uint32_t key_count, shape_count;
    int32_t *key, *ndims, *sizes;
} known_shapes;

/* A work and what it is for: dtype, inputs' shapes, and the device that was asked for. */
typedef struct known_work {
    struct known_work *next;
    uint32_t key_count;
    int32_t *key;
    char *device;
    clg_mx_work work;
    clg_mx_region region; /* the passes of a single operator */
    void **blocks;        /* what the work points to */
    uint32_t block_count;
    bool stale; /* made before a fork */
} known_work;

struct clg_mx_call {
    struct clg_mx_call *next;
    uint64_t hash;
    size_t text_bytes;
    char *text; /* op_type, then keys and values in turn, each with its final zero */
    int attribute_count;
    const char **attributes;
    int64_t users;  /* calls and operators at work; guarded by the table's mutex */
    bool described; /* what follows is set */
    int argument_count, output_count, auxiliary_count, backward_reads_outputs, backward_reads_gradients;
    uint64_t unread_gradients;
    char **arguments, **outputs, **auxiliary;
    int *dependencies;
    int32_t *single; /* as of its signature */
    known_shapes *shapes;
    known_work *works;
    void *contexts[CALLBACKS];
};

clg_mx_call *clg_mx_take(const char *op_type, int count, const char **keys, const char **values);
bool clg_mx_describe(clg_mx_call *call);
void clg_mx_retain(clg_mx_call *call);
void clg_mx_release(clg_mx_call *call);
known_shapes *clg_mx_find_shapes(clg_mx_call *call, const int32_t *key, uint32_t key_count);
known_work *clg_mx_find_work(clg_mx_call *call, const int32_t *key, uint32_t key_count, const char *device);

#endif
