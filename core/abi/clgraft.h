/* clgraft: OpenCL operators behind a C ABI.
 *
 * A problem is one line of text ("conv forward n8 ic64 ih56 iw56 oc64 kh3 kw3 ph1 pw1").
 * A plan is a problem prepared for a device: made once, run many times.
 * A graph is many problems with named values between them; its plan runs all of them as one call.
 * A session is a model of ONNX, Caffe or MXNet, loaded from its files.
 * Every function returns a status; clg_last_error() tells the calling thread what went wrong.
 * Handles are checked on every call: NULL, destroyed and foreign handles are refused, never followed.
 * All functions may be called from any thread. */
#ifndef CLGRAFT_H
#define CLGRAFT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/*cdef-begin*/
typedef struct clg_context_s *clg_context;
typedef struct clg_plan_s *clg_plan;
typedef struct clg_array_s *clg_array;     /* memory of a context's device */
typedef struct clg_event_s *clg_event;     /* a run that was started */
typedef struct clg_session_s *clg_session; /* a model of ONNX, Caffe or MXNet */

typedef int32_t clg_status;
enum {
    CLG_OK = 0,
    CLG_INVALID_HANDLE = 1,   /* NULL, destroyed, or not made by this library */
    CLG_INVALID_ARGUMENT = 2, /* an argument's value, count or struct size */
    CLG_INVALID_PROBLEM = 3,  /* the problem text or one of its shapes is invalid */
    CLG_BUFFER_TOO_SMALL = 4,
    CLG_WRONG_DTYPE = 5,
    CLG_OPENCL_ERROR = 6, /* the driver refused; the message holds its code */
    CLG_OUT_OF_MEMORY = 7,
    CLG_PLANNER_ERROR = 8, /* the planner could not be started or failed */
    CLG_FORKED = 9,        /* OpenCL was used before fork(); this child cannot */
    CLG_INVALID_MODEL = 10 /* a model's files cannot be read, do not fit, or have operators that clgraft does not run */
};

enum { CLG_FLOAT32 = 1, CLG_FLOAT16 = 2, CLG_FLOAT64 = 3, CLG_INT32 = 4, CLG_UINT8 = 5, CLG_BFLOAT16 = 6 };
/* Of models alone. CLG_BOOL is a byte that is 0 or 1. */
enum { CLG_INT64 = 7, CLG_INT16 = 8, CLG_INT8 = 9, CLG_UINT64 = 10, CLG_UINT32 = 11, CLG_UINT16 = 12, CLG_BOOL = 13 };
enum { CLG_IN = 1, CLG_OUT = 2, CLG_INOUT = 3 };
enum { CLG_HOST = 1, CLG_DEVICE = 2, CLG_ARRAY = 3 };         /* what a buffer's handle is */
enum { CLG_OVERWRITE = 0, CLG_ACCUMULATE = 1, CLG_SKIP = 2 }; /* how an output is written */

/* One argument of a run. Set size to sizeof(clg_buffer). */
typedef struct clg_buffer {
    uint32_t size;
    uint32_t kind; /* of handle: CLG_HOST host pointer, CLG_DEVICE cl_mem, CLG_ARRAY clg_array of the plan's context */
    uint32_t dtype;
    uint32_t mode; /* outputs only; CLG_SKIP: this output is not wanted and handle may be NULL */
    void *handle;
    uint64_t offset; /* bytes from the start of handle to the first element */
    uint64_t bytes;  /* bytes that may be used from there on */
} clg_buffer;

/* What an argument of a plan must be. Set size to sizeof(clg_argument). */
typedef struct clg_argument {
    uint32_t size;
    uint32_t role; /* CLG_IN, CLG_OUT or CLG_INOUT */
    uint32_t dtype;
    uint32_t ndim;
    uint64_t shape[8];
    uint64_t bytes;
    char name[32];
} clg_argument;

/* A convolution as a struct, as an alternative to its text. Set size to sizeof(clg_conv). */
typedef struct clg_conv {
    uint32_t size;
    uint32_t direction; /* CLG_FORWARD ... */
    uint32_t dtype;
    uint32_t ndim; /* spatial dimensions: 1, 2 or 3 */
    uint64_t batch, in_channels, out_channels, groups;
    uint64_t in[3], kernel[3], stride[3], pad_begin[3], pad_end[3], dilate[3];
    uint32_t bias; /* forward only: 1 adds an argument b */
    uint32_t reserved;
} clg_conv;
enum { CLG_FORWARD = 1, CLG_BACKWARD_DATA = 2, CLG_BACKWARD_FILTER = 3, CLG_BACKWARD_BIAS = 4 };

/* The version as major * 10000 + minor * 100 + patch. */
uint32_t clg_version(void);

/* This thread's last error as text: what was passed and what was expected. Never NULL; valid until the thread's next
 * call. */
const char *clg_last_error(void);

/* Creates a context on the device that selector names: "cpu", "gpu", part of a name or "0:1" (platform:device).
 * NULL and "" stand for CLGRAFT_DEVICE, or for the best device if that is not set. */
clg_status clg_context_create(const char *selector, clg_context *context);

/* Creates a context on a cl_context, cl_device_id and cl_command_queue of the caller, which are retained. */
clg_status clg_context_create_from_cl(void *cl_context, void *cl_device, void *cl_queue, clg_context *context);

/* Destroys a context, with its plans and arrays. */
clg_status clg_context_destroy(clg_context context);

/* Creates the plan of a problem. Planning the same text again costs little. */
clg_status clg_plan_create(clg_context context, const char *problem, clg_plan *plan);
clg_status clg_plan_create_conv(clg_context context, const clg_conv *problem, clg_plan *plan);
clg_status clg_plan_destroy(clg_plan plan);

/* The plan's problem and algorithm as text, cut to bytes (with the final zero). */
clg_status clg_plan_describe(clg_plan plan, char *text, size_t bytes);

/* The arguments in the order that clg_plan_run takes them, and the number of scalars. */
clg_status clg_plan_counts(clg_plan plan, uint32_t *buffers, uint32_t *scalars);
clg_status clg_plan_argument(clg_plan plan, uint32_t index, clg_argument *argument);

/* Runs the plan. Returns when every host buffer holds its result, or may be overwritten if it was read. If no result is
 * in host memory, the work may still be queued. */
clg_status clg_plan_run(clg_plan plan, const clg_buffer *buffers, uint32_t buffer_count, const double *scalars,
                        uint32_t scalar_count);

/* Waits for all work of the context. */
clg_status clg_context_finish(clg_context context);

/* How a graph becomes a plan. Set size to sizeof(clg_graph_options); the rest may be 0. Names stand between spaces. */
typedef struct clg_graph_options {
    uint32_t size;
    uint32_t reserved;
    const char *gradients; /* inputs NAME whose gradients d.NAME are outputs too; each output Y of the graph then has an
                              input d.Y, or d.Y.out if Y is one of these NAMEs */
    const char *outputs;   /* what a run computes, NAME or NAME+, which is added to; NULL: all outputs, overwritten */
    const char *passes;    /* switches of passes, such as "-fold"; NULL: what CLGRAFT_GRAPH holds */
    const char *precision; /* of products of float32: "float32", "float16" or "bfloat16"; NULL: what CLGRAFT_PRECISION
                              holds. A caller whose struct ends before this member may set size to that. */
} clg_graph_options;

/* Creates the plan of a graph, given as text (docs/graphs.md). Its arguments are the inputs, states and outputs in this
 * order. The options set the mode of each output. An input that is also an output is two arguments of the same name.
 * clg_plan_describe returns what a run needs, then each problem with its algorithm. */
clg_status clg_graph_create(clg_context context, const char *text, const clg_graph_options *options, clg_plan *plan);

/* The whole name of an argument, cut to bytes (with the final zero): names of a graph may not fit clg_argument. */
clg_status clg_plan_argument_name(clg_plan plan, uint32_t index, char *text, size_t bytes);

/* Memory of the device, for buffers of the kind CLG_ARRAY. Writing and reading wait for runs that were started before.
 * An array is destroyed with its context. */
clg_status clg_array_create(clg_context context, uint64_t bytes, clg_array *array);
clg_status clg_array_write(clg_array array, uint64_t offset, const void *data, uint64_t bytes);
clg_status clg_array_read(clg_array array, uint64_t offset, void *data, uint64_t bytes);
clg_status clg_array_destroy(clg_array array);

/* For a host input that may be unchanged since an earlier run: its copy on the device, and a number for its
 * content. The input is sent only if the copy has another version; version 0 is always sent. Without an
 * array no copy is kept. */
typedef struct clg_copy {
    clg_array array;
    uint64_t version;
} clg_copy;

/* Starts a run: as clg_plan_run, but may return before it is done. Runs of a context, and reads and writes of its
 * arrays, take place in the order of their calls, whichever threads make them. copies is NULL, or has one for each
 * buffer. Host memory must stay valid until the event is done; event NULL waits for the run. */
clg_status clg_plan_start(clg_plan plan, const clg_buffer *buffers, uint32_t buffer_count, const double *scalars,
                          uint32_t scalar_count, const clg_copy *copies, clg_event *event);

/* Waits for a run and returns its status; clg_event_done tells whether it would wait. Destroying an event does not. */
clg_status clg_event_wait(clg_event event);
clg_status clg_event_done(clg_event event, uint32_t *done);
clg_status clg_event_destroy(clg_event event);

/* How a model is loaded. Set size to sizeof(clg_session_options); the rest may be 0. */
typedef struct clg_session_options {
    uint32_t size;
    uint32_t reserved;
    const char *device;    /* as clg_context_create takes it */
    const char *precision; /* "float32", "float16", "bfloat16" or "float64" (docs/models.md); NULL: the model's */
} clg_session_options;

/* An input or output of a model. Set size to sizeof(clg_port). */
typedef struct clg_port {
    uint32_t size;
    uint32_t dtype;
    uint32_t ndim;
    uint32_t any;      /* 1: the model does not say how many dimensions it has, and ndim is 0 */
    uint64_t shape[8]; /* 0: any size */
    uint64_t usual[8]; /* the shape with the sizes of the file where others are possible; 0: it says none */
    const char *name;  /* valid until the session is destroyed */
} clg_port;

/* An array of a session's run in host memory, row by row without gaps. Set size to sizeof(clg_tensor). */
typedef struct clg_tensor {
    uint32_t size;
    uint32_t dtype;
    uint32_t ndim;
    uint32_t reserved;
    uint64_t shape[8];
    void *data;
    uint64_t bytes; /* that may be used at data */
} clg_tensor;

/* Loads a model: path is an .onnx, a net's .prototxt or a symbol's .json; weights the .caffemodel or the .params, or
 * NULL. The same model has the same bits as from clgraft.load in Python. Sessions belong to no context. */
clg_status clg_session_create(const char *path, const char *weights, const clg_session_options *options,
                              clg_session *session);
clg_status clg_session_destroy(clg_session session);

/* The inputs and outputs in the order in which runs take them. */
clg_status clg_session_counts(clg_session session, uint32_t *inputs, uint32_t *outputs);
clg_status clg_session_input(clg_session session, uint32_t index, clg_port *port);
clg_status clg_session_output(clg_session session, uint32_t index, clg_port *port);

/* Finds what a run on inputs of these types and shapes returns, without a run: sets dtype, ndim, shape and bytes of the
 * outputs. Refused where shapes depend on the elements of inputs. */
clg_status clg_session_shapes(clg_session session, const clg_tensor *inputs, uint32_t input_count, clg_tensor *outputs,
                              uint32_t output_count);

/* Runs the model on inputs of any shapes that it allows; new shapes are planned on their first use. Sets dtype, ndim
 * and shape of the outputs and writes their elements to data. Where data is NULL none are written. If bytes is too
 * little it is set to what is needed, and the call returns CLG_BUFFER_TOO_SMALL. */
clg_status clg_session_run(clg_session session, const clg_tensor *inputs, uint32_t input_count, clg_tensor *outputs,
                           uint32_t output_count);

/* For libraries that are built on this one: calls the function answer(bytes) of a Python module, named in full, and
 * passes the bytes that it returns to receive, once, before clg_ask returns. They are valid only during that call. */
typedef void (*clg_receive)(void *with, const void *answer, uint64_t bytes);
clg_status clg_ask(const char *module, const void *question, uint64_t bytes, clg_receive receive, void *with);
/*cdef-end*/

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
#endif
