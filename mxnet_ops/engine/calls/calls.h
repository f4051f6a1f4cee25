/* MXNet's calls of clgraft's operators (ocl_*), answered in C. Private to mxnet_ops.
 *
 * MXNet asks a Custom operator for names, shapes, types and dependencies at every imperative call, and runs it on a
 * thread of its own. All of that is a look-up here: Python is asked once per set of attributes, once per shapes, once
 * for each set of write requests, and never else when an operator runs (random numbers excepted: they need a new key).
 */
#ifndef CLGRAFT_MXNET_CALLS_H
#define CLGRAFT_MXNET_CALLS_H

#include <stdint.h>

/*cdef-begin*/
/* MXNet's tags of a call's arrays, and the operator's own arrays. */
enum { CLG_MX_IN, CLG_MX_OUT, CLG_MX_IN_GRAD, CLG_MX_OUT_GRAD, CLG_MX_AUX, CLG_MX_STATE, CLG_MX_GROUPS };
/* The constants of a pass, in the place of a tag. */
enum { CLG_MX_FIXED = CLG_MX_GROUPS };
/* What stands for a write request where an array that is none of MXNet's is added to. */
enum { CLG_MX_ADDED = 2 };
/* The dtype of a work whose data are float16 and whose parameters are float32; other dtypes are MXNet's numbers. */
enum { CLG_MX_MIXED = 256 };

/* One call of an operator with one set of attributes, as MXNet knows it. */
typedef struct clg_mx_call clg_mx_call;
/* One operator at work. */
typedef struct clg_mx_execution clg_mx_execution;

/* The names and numbers of an operator's arrays, known once its attributes are valid. */
typedef struct clg_mx_signature {
    const char *const *arguments, *const *outputs, *const *auxiliary;
    int32_t argument_count, output_count, auxiliary_count;
    int32_t backward_reads_outputs, backward_reads_gradients;
    uint64_t unread_gradients; /* bit k: backward does not read the gradient of output k */
    /* for each argument, output and auxiliary state, in this order, whether it may be float32 where data are float16;
     * NULL: none */
    const int32_t *single;
} clg_mx_signature;

/* An argument of a problem. group -1: no array fills it, the output is left out. */
typedef struct clg_mx_argument {
    int32_t group, place;
    int32_t requested; /* written as MXNet's write request says; CLG_MX_ADDED: added to */
    uint32_t dtype;
    uint64_t bytes;
} clg_mx_argument;

/* A plan to run. */
typedef struct clg_mx_step {
    void *plan; /* clg_plan */
    const char *problem;
    const clg_mx_argument *arguments;
    const double *scalars;
    uint32_t argument_count, scalar_count;
} clg_mx_step;

typedef struct clg_mx_state {
    const void *content; /* to begin with; NULL: any */
    uint64_t bytes;
} clg_mx_state;

typedef struct clg_mx_zero {
    int32_t place, reserved; /* of an input's gradient */
    uint64_t bytes;
} clg_mx_zero;

/* What an operator is for given shapes. */
typedef struct clg_mx_work {
    const clg_mx_state *state; /* a single operator's own memory; that of regions is Python's */
    const uint64_t *out_bytes;
    uint32_t state_count, out_count;
    int32_t in_place;          /* an output may be the memory of an input */
    int32_t draws;             /* it needs random numbers */
    int32_t absent;            /* bit t: backward does not get the arrays of tag t */
    int32_t is_region;         /* Python starts and ends those at work */
    uint64_t unread_gradients; /* as of its signature */
    int64_t number;            /* of the region, or of the context that plans, in Python */
} clg_mx_work;

/* Memory of an operator's own, on the host or the device: keys of random numbers, values that backward reads,
 * constants, and clg_arrays that keep what a training forward sent to the device, so that its backward does not send
 * it again. */
typedef struct clg_mx_memory {
    void *handle;
    uint32_t kind, reserved; /* as of clg_buffer */
    uint64_t offset;
} clg_mx_memory;

/* An argument of a pass that is a moving average: the pass multiplies it by a number, and adds to it. */
typedef struct clg_mx_average {
    double keep;
    uint32_t argument, reserved;
} clg_mx_average;

/* A pass for one set of write requests. Those of a region, and the region, are Python's, which keeps them while they
 * run. */
typedef struct clg_mx_pass {
    struct clg_mx_pass *next;
    const int32_t *requests; /* of its outputs, as modes of clg_buffer; then the pattern of its residents, or 0 */
    const clg_mx_memory *fixed;
    const clg_mx_zero *zeros;
    const int32_t
        *copies; /* for each argument its copy's place among the region's own memory, or -1; NULL: no copies */
    const clg_mx_average *averages; /* that are MXNet's arrays */
    void **mark;      /* a clg_event: where the pass has left outputs on the device, its end; NULL: it leaves none */
    clg_mx_step step; /* without a plan: there is nothing to run */
    int32_t which;    /* 0 forward in inference, 1 forward in training, 2 and 3 the backward of these */
    int32_t keeps;    /* it reads or writes the values that live from forward to backward */
    uint32_t request_count, zero_count, average_count;
} clg_mx_pass;

/* What a region or a single operator does for given shapes. */
typedef struct clg_mx_region {
    clg_mx_pass *passes;    /* newest first */
    int32_t resident;       /* it has residents: a backward asks Python which of their gradients it writes, and how */
    const int32_t *forward; /* the pattern of forwards that train: what they leave on the device; NULL: nothing */
} clg_mx_region;

/* The formula of an optimizer (rules.h). CLG_MX_DECAY is MXNet's NAG without momentum. */
enum { CLG_MX_SGD, CLG_MX_SGD_MOMENTUM, CLG_MX_NAG, CLG_MX_DECAY, CLG_MX_ADAM };

typedef struct clg_mx_rule {
    int32_t kind;
    int32_t mixed;        /* weights and gradients in float16, arithmetic on a copy of the weights in float32 */
    float rescale, clip;  /* of gradients; clip < 0: they are not clipped */
    float momentum;       /* or beta1 */
    float beta2, epsilon; /* Adam's */
} clg_mx_rule;

/* A parameter's arrays, as MXNet's handles or 0: MASTER is the copy in float32, MEAN the momentum
 * or Adam's first state. */
enum { CLG_MX_WEIGHT, CLG_MX_GRADIENT, CLG_MX_MASTER, CLG_MX_MEAN, CLG_MX_VARIANCE, CLG_MX_ARRAYS };

typedef struct clg_mx_parameter {
    uintptr_t arrays[5]; /* CLG_MX_ARRAYS */
    float lr, wd;
} clg_mx_parameter;

/* The functions of MXNet and of clgraft's runtime, which this library is not linked to. */
typedef struct clg_mx_functions {
    void *get_data, *free_array, *last_failure, *plan_run, *plan_start, *plan_mark, *event_destroy, *last_error;
    void *get_dtype, *get_storage_type, *get_context, *get_shape, *copy_array, *push, *get_gradient;
    void *reorder; /* of an array's memory, to MXNet's own layout; NULL in an MXNet without oneDNN */
} clg_mx_functions;

void clg_mx_start(const clg_mx_functions *functions);
/* The function that MXNet calls to create a Custom operator (CustomOpPropCreator). */
void *clg_mx_creator(void);
/* Python's answers; all of them copy what they are given. */
int32_t clg_mx_set_signature(clg_mx_call *call, const clg_mx_signature *signature);
int32_t clg_mx_add_shapes(clg_mx_call *call, const int32_t *key, uint32_t key_count, const int32_t *ndims,
                          const int32_t *sizes, uint32_t shape_count);
int32_t clg_mx_add_work(clg_mx_call *call, const int32_t *key, uint32_t key_count, const char *device,
                        const clg_mx_work *work);
/* Sets what a region runs with. own: keys of random numbers, then kept values, which Python fills in when asked. */
void clg_mx_set_region(clg_mx_execution *execution, const clg_mx_region *region, const clg_mx_memory *own);
void clg_mx_add_pass(clg_mx_region *region, clg_mx_pass *pass);
/* Adds a copy of a pass of a single operator. */
int32_t clg_mx_copy_pass(clg_mx_execution *execution, const clg_mx_pass *pass);
void *clg_mx_state_of(clg_mx_execution *execution, uint32_t place);
/* Whether to wait for MXNet's operators before this process forks; returns 0, or the system's error. */
int32_t clg_mx_watch_forks(int32_t on);
/* Waits for operators that are ending; others end after this thread has forked. Python's lock must not be held. */
void clg_mx_hold_ends(void);
/* Optimizers. Whether the update of a parameter can be made here: its arrays are dense, in host memory, of one shape
 * and in float32 or float64; if mixed, in float16 with states in float32. */
int32_t clg_mx_serves(const clg_mx_rule *rule, const clg_mx_parameter *parameter);
/* Hands MXNet's engine an update of parameters that can be made here; -1 if that fails (MXGetLastError). */
int32_t clg_mx_push_update(const clg_mx_rule *rule, const clg_mx_parameter *parameters, uint32_t count);
/* Hands MXNet's engine an operation after which arrays, and with `gradients` theirs too, have MXNet's own layout: what
 * is queued later finds it so. By their handles; -1 if that fails (MXGetLastError). */
int32_t clg_mx_push_plain(const uintptr_t *arrays, uint32_t count, int32_t gradients);
/* Hands MXNet's engine an operation between which and the next one for the same arrays backwards leave aside what they
 * change of moving averages. changes: NULL for the first; for the next one, which changes the arrays, for each array a
 * count, then places among the operators that change it, in the order of the changes, then for each operator the call
 * that it belongs to. -1 if that fails (MXGetLastError). */
int32_t clg_mx_push_averages(const uintptr_t *arrays, uint32_t count, const int32_t *changes, uint32_t change_count);
/* For tests: calls and operators that MXNet holds, and those that are kept for reuse. */
int64_t clg_mx_held(void);
int64_t clg_mx_kept(void);
/*cdef-end*/

#endif
