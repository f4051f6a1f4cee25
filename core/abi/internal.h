/* What the runtime's own files share. */
#ifndef CLGRAFT_INTERNAL_H
#define CLGRAFT_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>

#include "opencl.h"
#include "planner.h"


/* errors.c */
clg_status clg_fail(clg_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
clg_status clg_cl_fail(const char *what, int32_t code);

/* handles.c: a handle is a number that names a slot; nobody ever follows it as a pointer. */
enum { CLG_KIND_CONTEXT = 1, CLG_KIND_PLAN = 2 };
typedef void (*clg_free_fn)(void *object);
void *clg_handle_new(uint32_t kind, void *object, clg_free_fn release);
void *clg_handle_acquire(const void *handle, uint32_t kind); /* NULL, with a message, if it is none of ours */
void clg_handle_drop(void *object);                          /* after acquire */
clg_status clg_handle_destroy(const void *handle, uint32_t kind);
void clg_handle_destroy_if(uint32_t kind, bool (*test)(void *object, void *with), void *with);
unsigned clg_fork_count(void);

/* affinity.c: where the calling thread may run, before and after a driver's calls */
typedef struct clg_affinity {
    bool known;
    uint64_t cores[16];
} clg_affinity;
void clg_affinity_keep(clg_affinity *kept);
void clg_affinity_restore(const clg_affinity *kept);

/* verbose.c: what CLGRAFT_VERBOSE asked for when the library was loaded; usually 0 */
extern uint32_t clg_verbose_flags;

/* context.c */
typedef struct clg_pooled {
    cl_object mem;
    uint64_t bytes;
    bool busy;
} clg_pooled;

struct clg_context_s {
    cl_object context, queue;
    uint32_t host_access;
    unsigned fork_count;
    pthread_mutex_t mutex; /* guards everything below, the queue and the kernels of the context's plans */
    void *workspace;       /* host memory with CLG_RAW_POINTER, else a cl_mem */
    uint64_t workspace_bytes;
    clg_pooled *pool;
    uint32_t pool_size;
    clg_counters counters;
};
clg_status clg_context_reserve(struct clg_context_s *context, uint64_t bytes); /* mutex held */
cl_object clg_pool_take(struct clg_context_s *context, uint64_t bytes, int32_t *code);
void clg_pool_give(struct clg_context_s *context, cl_object mem);

/* plan.c */
typedef struct clg_resolved {
    void *pointer;   /* raw host pointer, or NULL */
    cl_object mem;   /* or a cl_mem */
    uint64_t offset; /* in elements */
    uint32_t owner;  /* what to do after the run */
} clg_resolved;
enum { CLG_OWN_NOTHING = 0, CLG_OWN_POOLED = 1, CLG_OWN_WRAPPED = 2 };

struct clg_plan_s {
    struct clg_context_s *context;
    char *description, *label;
    clg_argument *arguments;
    clg_launch *launches;
    clg_binding *bindings;
    uint32_t *writes;
    clg_resolved *resolved;
    uint32_t argument_count, launch_count, binding_count, scalar_count;
    bool apart; /* outputs share no memory with other arguments */
    uint64_t workspace_bytes;
};
uint32_t clg_dtype_bytes(uint32_t dtype);

/* overlap.c */
clg_status clg_check_apart(const struct clg_plan_s *plan, const clg_buffer *buffers);

#endif
