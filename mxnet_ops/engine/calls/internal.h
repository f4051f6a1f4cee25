/* What the files of this library share. */
#ifndef CLGRAFT_MXNET_CALLS_INTERNAL_H
#define CLGRAFT_MXNET_CALLS_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "calls.h"
#include "clgraft.h"

typedef struct callback_list { /* MXCallbackList */
    int count;
    int (**functions)(void);
    void **contexts;
} callback_list;

typedef struct functions {
    int (*get_data)(void *array, void **data);
    int (*free_array)(void *array);
    const char *(*last_failure)(void);
    clg_status (*plan_run)(clg_plan plan, const clg_buffer *buffers, uint32_t buffer_count, const double *scalars,
                           uint32_t scalar_count);
    clg_status (*plan_start)(clg_plan plan, const clg_buffer *buffers, uint32_t buffer_count, const double *scalars,
                             uint32_t scalar_count, const clg_copy *copies, clg_event *event);
    const char *(*last_error)(void);
    int (*get_dtype)(void *array, int *dtype);
    int (*get_storage_type)(void *array, int *type);
    int (*get_context)(void *array, int *device_type, int *device_id);
    int (*get_shape)(void *array, int *count, const int **sizes);
    int (*copy_array)(void *array, void **copy);
    int (*push)(void (*run)(void *context, void *with), void *with, void (*release)(void *with), const void *place,
                void **read, int read_count, void **written, int written_count, const void *property, int priority,
                const char *name);
    void (*reorder)(void *chunk);
} functions;
extern functions mx;

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
    void **blocks; /* what the work points to */
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
    known_shapes *shapes;
    known_work *works;
    void *contexts[CALLBACKS];
};

/* An operator at work. */
struct clg_mx_execution {
    struct clg_mx_execution *next; /* of those that end after a fork */
    clg_mx_call *call;
    const clg_mx_work *work;
    const clg_mx_region *region; /* NULL for single operators */
    const clg_mx_memory *own;
    clg_buffer *buffers; /* room for the arguments of any step: MXNet runs an operator's calls one after another */
    uint32_t room;
    bool train; /* of the last forward: backward follows it */
    bool keeps; /* memory for the kept values is there */
    uint64_t version; /* of the inputs of the last forward that trained; no two forwards have the same */
    void *contexts[3];
    void *state[];
};

/* Addresses by tag, one after another; first[t] is where those of tag t begin. */
typedef struct arrays {
    int first[CLG_MX_GROUPS + 1];
    void **addresses;
} arrays;

enum { SKIPPED, WRITTEN, IN_PLACE, ADDED }; /* MXNet's write requests */
static const uint32_t MODES[] = {CLG_SKIP, CLG_OVERWRITE, CLG_OVERWRITE, CLG_ACCUMULATE};

/* table.c */
extern pthread_mutex_t clg_mx_mutex;
clg_mx_call *clg_mx_take(const char *op_type, int count, const char **keys, const char **values);
bool clg_mx_describe(clg_mx_call *call);
void clg_mx_retain(clg_mx_call *call);
void clg_mx_release(clg_mx_call *call);
known_shapes *clg_mx_find_shapes(clg_mx_call *call, const int32_t *key, uint32_t key_count);
known_work *clg_mx_find_work(clg_mx_call *call, const int32_t *key, uint32_t key_count, const char *device);

/* execution.c */
int clg_mx_create_operator(const char *device, int count, unsigned **shapes, const int *ndims, const int *types,
                           callback_list *made, clg_mx_call *call);

int clg_mx_fail(const char *op_type, const char *what); /* returns 0 */
void *clg_mx_address(const clg_mx_execution *execution, const arrays *given, const clg_mx_argument *argument);
bool clg_mx_run_step(const clg_mx_execution *execution, const clg_mx_step *step, const clg_copy *copies);

void clg_mx_end(clg_mx_execution *execution);

/* forks.c: how many operators this thread is running; whether an operator may end now (then it says when it has), or is
 * ended after a fork */
extern __thread int clg_mx_running;
bool clg_mx_may_end(clg_mx_execution *execution);
void clg_mx_has_ended(void);

/* threads.c: runs body for each part, on several threads; returns when all are done */
void clg_mx_parallel(void (*body)(void *with, uint32_t part), void *with, uint32_t parts);
void clg_mx_forget_threads(void); /* in a child process, which has none of them */

/* region.c */
bool clg_mx_run_region(clg_mx_execution *execution, int which, const arrays *given, const int *requests);

/* Answered by Python (cffi extern "Python"). They return 0 after an error, which has been shown. */
/*cdef-begin*/
int clg_mx_py_describe(clg_mx_call *call, const char *op_type, int count, const char **attributes);
int clg_mx_py_shapes(clg_mx_call *call, const char *op_type, int count, const char **attributes, const int32_t *key,
                     uint32_t key_count);
int clg_mx_py_refuse_types(const char *op_type, int count, const char **attributes, const int *types);
int clg_mx_py_work(clg_mx_call *call, const char *op_type, int count, const char **attributes, const char *where,
                   const char *device, const int32_t *key, uint32_t key_count);
int clg_mx_py_plan(const char *problem, int context, void **plan);
int clg_mx_py_start_numbers(clg_mx_execution *execution, const char *op_type, int count, const char **attributes,
                            const int32_t *key, uint32_t key_count);
int clg_mx_py_draw(clg_mx_execution *execution, int train);
int clg_mx_py_end_numbers(clg_mx_execution *execution);
int clg_mx_py_start_region(clg_mx_execution *execution, int64_t number);
int clg_mx_py_make_pass(clg_mx_execution *execution, int which, const int32_t *modes, uint32_t count);
int clg_mx_py_keep(clg_mx_execution *execution);
int clg_mx_py_end_region(clg_mx_execution *execution);
int clg_mx_py_before_fork(void);
/*cdef-end*/

#endif
