/* A context's state, and its memory on the device: the workspace that its plans share and the pool of buffers. */
#ifndef CLGRAFT_DEVICE_H
#define CLGRAFT_DEVICE_H

#include <pthread.h>
#include <stdbool.h>

#include "opencl.h"
#include "planner.h"
#include "turns.h"

typedef struct clg_pooled {
    cl_object mem;
    uint64_t bytes;
    bool busy;
} clg_pooled;

struct clg_context_s {
    cl_object context, queue;
    cl_object second; /* a queue for launches next to it, made on first use; nothing runs there between two runs */
    uint32_t host_access;
    bool stays_awake; /* for short launches: the driver's own wait sleeps at once */
    unsigned fork_count;
    clg_turns turns;       /* of runs, and of reads and writes of arrays; a turn is begun before the mutex is locked */
    pthread_mutex_t mutex; /* guards everything below, the queue and the kernels of the context's plans */
    void *workspace;       /* host memory with CLG_RAW_POINTER, else a cl_mem */
    uint64_t workspace_bytes;
    cl_object tickets[2]; /* cl_mems: the counters of launches whose work-items take numbers, one for each queue */
    clg_pooled *pool;
    uint32_t pool_size;
    uint64_t generation;             /* changes when the context frees memory that kernels may be bound to */
    bool shared_kernels;             /* several plans use one kernel: what its arguments are set to is not known */
    bool queued;                     /* a run has returned whose work may not be finished */
    struct clg_transfers *transfers; /* with CLG_STAGED, once host arrays were used */
    uint32_t waits_asleep;           /* with stays_awake: how many of the next waits sleep all the same (wait.c) */
    uint32_t loss;                   /* how many the last loss of the core was answered by */
    uint32_t waits_awake;            /* without a loss */
    clg_counters counters;
    struct clg_runner *runner; /* of asynchronous runs; has a mutex of its own */
};

/* With the mutex held. A new workspace is made where the old one has fewer bytes. */
clg_status clg_context_reserve(struct clg_context_s *context, uint64_t bytes);
cl_object clg_device_memory(struct clg_context_s *context, uint64_t bytes, int32_t *code);
cl_object clg_pool_take(struct clg_context_s *context, uint64_t bytes, int32_t *code);
void clg_pool_give(struct clg_context_s *context, cl_object mem);
void clg_memory_free(struct clg_context_s *context); /* all of it, when the context ends */

#endif
