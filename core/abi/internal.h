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
enum { CLG_KIND_CONTEXT = 1, CLG_KIND_PLAN = 2, CLG_KIND_ARRAY = 3, CLG_KIND_EVENT = 4 };
typedef void (*clg_free_fn)(void *object);
void *clg_handle_new(uint32_t kind, void *object, clg_free_fn release);
void *clg_handle_acquire(const void *handle, uint32_t kind); /* NULL, with a message, if it is none of ours */
void clg_handle_drop(void *object);                          /* after acquire */
void *clg_handle_object(const void *handle);                 /* of a handle that is acquired */
void clg_handle_return(const void *handle);                  /* the same, by handle: without a search */
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

/* turns.c: a turn is taken by its number and awaited, or begun at once; the thread that has begun one ends it */
typedef struct clg_turns {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t next, served;
    uint32_t waiting;
} clg_turns;
void clg_turns_init(clg_turns *turns);
void clg_turns_destroy(clg_turns *turns); /* of this process: a child of it must not */
uint64_t clg_turn_take(clg_turns *turns);
void clg_turn_await(clg_turns *turns, uint64_t turn);
void clg_turn_begin(clg_turns *turns);
bool clg_turn_begin_if_free(clg_turns *turns); /* false: others are at work, or wait */
void clg_turn_end(clg_turns *turns);

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
    clg_turns turns;       /* of runs, and of reads and writes of arrays; a turn is begun before the mutex is locked */
    pthread_mutex_t mutex; /* guards everything below, the queue and the kernels of the context's plans */
    void *workspace;       /* host memory with CLG_RAW_POINTER, else a cl_mem */
    uint64_t workspace_bytes;
    cl_object tickets; /* a cl_mem: the counter of launches whose work-items take numbers */
    clg_pooled *pool;
    uint32_t pool_size;
    uint64_t generation; /* changes when memory of the context's own goes: kernels may be bound to it */
    bool shared_kernels; /* several plans have used one kernel: what it was set to is not known */
    bool queued;         /* work of a run that has returned may not be done */
    struct clg_transfers *transfers; /* with CLG_STAGED, once host arrays were used */
    clg_counters counters;
    struct clg_runner *runner; /* of asynchronous runs; has a mutex of its own */
};
clg_status clg_context_reserve(struct clg_context_s *context, uint64_t bytes); /* mutex held */
cl_object clg_device_memory(struct clg_context_s *context, uint64_t bytes, int32_t *code);
cl_object clg_pool_take(struct clg_context_s *context, uint64_t bytes, int32_t *code);
void clg_pool_give(struct clg_context_s *context, cl_object mem);

/* arrays.c */
struct clg_array_s {
    struct clg_context_s *context;
    uint64_t bytes;
    void *memory;     /* host memory with CLG_RAW_POINTER, */
    cl_object mem;    /* else a cl_mem */
    uint64_t version; /* of the host array whose copy it is; 0: none. The context's mutex guards it */
};

/* plan.c */
typedef struct clg_resolved {
    void *pointer;   /* raw host pointer, or NULL */
    cl_object mem;   /* or a cl_mem */
    uint64_t offset; /* in elements */
    uint32_t item;   /* bytes of one */
    uint32_t block;  /* of transfer.c; 0: none */
    bool wrapped;    /* mem is made for this run */
    bool foreign;    /* mem may be replaced by another one of the same address */
    struct clg_array_s *copy; /* a copy of a host array that is kept; */
    bool current;             /* it need not be sent */
} clg_resolved;

/* What a kernel's argument was last set to. */
typedef struct clg_bound {
    const void *object; /* NULL: not known */
    uint64_t offset;
} clg_bound;

/* transfer.c: an event after which the first `slots` slots of the way up are written */
typedef struct clg_mark {
    cl_object event;
    uint32_t slots;
} clg_mark;

/* a host array's part of a stream, in bytes */
typedef struct clg_piece {
    char *host;
    uint64_t bytes, position;
    const clg_resolved *resolved;
    uint32_t launch; /* the first one that uses it (down), or the last one (up) */
} clg_piece;

struct clg_plan_s {
    struct clg_context_s *context;
    char *description, *label;
    clg_argument *arguments;
    clg_launch *launches;
    clg_binding *bindings;
    uint32_t *writes;
    uint8_t *modes;               /* bit m: an output may have mode m */
    char **names;                 /* whole: an argument's struct may cut its name */
    uint32_t argument_count, launch_count, binding_count, scalar_count;
    bool apart; /* outputs share no memory with other arguments */
    uint64_t workspace_bytes;
    uint32_t *first_use, *last_use; /* launches that use each argument; the number of launches if none does */
    uint32_t *by_first, *by_last;   /* arguments in that order */
    /* the context's mutex guards what follows */
    uint64_t runs; /* that have succeeded */
    /* of the run at work */
    clg_resolved *resolved;
    clg_bound *bound; /* for each launch its bindings */
    uint64_t bound_count;
    uint64_t generation;
    clg_piece *pieces; /* two for each argument: down and up */
    clg_mark *marks;   /* at most one for each argument */
    cl_object blocks[4];
};
uint32_t clg_dtype_bytes(uint32_t dtype);

/* overlap.c */
clg_status clg_check_apart(const struct clg_plan_s *plan, const clg_buffer *buffers);

/* copy.c */
struct clg_copier *clg_copier_new(void);
void clg_copier_free(struct clg_copier *copier);
/* `pending` counts the parts that are left; they read and write memory until it is 0. */
void clg_copy_start(struct clg_copier *copier, void *to, const void *from, size_t bytes, uint32_t *pending);
void clg_copy_wait(struct clg_copier *copier, uint32_t *pending);

/* transfer.c: mutex held; the plan's arguments are resolved */
clg_status clg_transfers_begin(struct clg_plan_s *plan, const clg_buffer *buffers);
clg_status clg_transfers_before(struct clg_plan_s *plan, uint32_t launch, cl_object *wait); /* NULL: for nothing */
clg_status clg_transfers_after(struct clg_plan_s *plan, uint32_t launch, bool last);
clg_status clg_transfers_end(struct clg_plan_s *plan, clg_status status); /* also after an error, which it returns */
void clg_transfers_free(struct clg_context_s *context);

/* run.c: a checked run with its references */
typedef struct clg_job {
    struct clg_plan_s *plan;
    const void *handle; /* the plan's */
    const clg_buffer *buffers;
    const double *scalars;
    const clg_copy *copies; /* or NULL */
} clg_job;
clg_status clg_job_run(const clg_job *job); /* in a turn of the caller's */
void clg_job_drop(const clg_job *job);

/* events.c */
void clg_runner_drain(struct clg_context_s *context); /* waits until the runner has nothing to do */
void clg_runner_free(struct clg_context_s *context);
clg_status clg_runner_start(const clg_job *job, bool host, clg_event *event); /* owns the job's references then */

#endif
