/* The interface between the Python planner and the C runtime. It is private and may change at any time. */
#ifndef CLGRAFT_PLANNER_H
#define CLGRAFT_PLANNER_H

#include "clgraft.h"

#define CLG_SESSIONS "clgraft.plugins.models.c_sessions"

/*cdef-begin*/
/* How a device reaches host memory. */
enum { CLG_RAW_POINTER = 1, CLG_USE_HOST_PTR = 2, CLG_STAGED = 3 };

/* Where a kernel argument's value comes from. */
enum {
    CLG_BIND_BUFFER = 1, /* two kernel arguments: the buffer's base, its ulong offset in elements; value: more bytes */
    CLG_BIND_WORKSPACE = 2,  /* the same pair; value: offset in bytes, index: bytes of an element */
    CLG_BIND_CONSTANT = 3,   /* bytes of value (at most 8) */
    CLG_BIND_SCALAR = 4,     /* scalar number index, as float (bytes 4) or double (bytes 8) */
    CLG_BIND_ACCUMULATE = 5, /* int: 1 if buffer number index is to be accumulated into */
    CLG_BIND_LOCAL = 6,      /* bytes of local memory */
    CLG_BIND_STRUCT = 7,     /* bytes of the spec's constants, from byte number value on: a struct by value */
    CLG_BIND_TICKETS = 8     /* the context's counter: an int that is 0 before every launch, which leaves it so */
};

typedef struct clg_binding {
    uint32_t kind, index, bytes, reserved;
    uint64_t value;
} clg_binding;

typedef struct clg_launch {
    void *kernel; /* cl_kernel, retained; used by this plan alone */
    uint32_t dims, has_local, first_binding, binding_count;
    uint64_t global_size[3], local_size[3];
    /* Of the plan's writes. A launch is left out if all of its outputs are skipped; one without writes always runs. */
    uint32_t first_write, write_count;
    uint32_t lane;  /* 1: it runs on the context's second queue */
    uint32_t after; /* 1 + the number of the launch of the other queue that it waits for, an earlier one; or 0 */
} clg_launch;

typedef struct clg_plan_spec {
    const char *description;
    const clg_argument *arguments;
    const clg_launch *launches;
    const clg_binding *bindings;
    const uint32_t *writes;   /* numbers of the buffers that the launches write */
    const uint8_t *constants; /* read only while the plan is assembled */
    const char *label;        /* of verbose lines: IMPLEMENTATION,PROBLEM */
    const char *const *names; /* of the arguments, where they are longer than their structs hold; or NULL */
    const uint8_t *modes;     /* for each argument, bit m: it may have mode m; NULL: outputs may have all */
    uint32_t argument_count, launch_count, binding_count, scalar_count, write_count;
    uint32_t apart; /* 1: outputs must not share memory with other arguments */
    uint64_t workspace_bytes, constant_bytes;
} clg_plan_spec;

/* stays_awake 1: a thread that waits for a short launch keeps its core awake (wait.c). */
clg_status clg_context_adopt(void *cl_context, void *cl_device, void *cl_queue, uint32_t host_access,
                             uint32_t stays_awake, clg_context *context);
clg_status clg_plan_assemble(clg_context context, const clg_plan_spec *spec, clg_plan *plan);
/* A new kernel of a built cl_program, for one launch of one plan; NULL if the driver refuses. */
void *clg_kernel_create(void *cl_program, const char *name);
void clg_kernel_release(void *cl_kernel);
uint64_t clg_plan_runs(clg_plan plan); /* how many have succeeded */
/* Makes an event that ends once the device is done with the runs that have returned by now. */
clg_status clg_plan_mark(clg_plan plan, clg_event *event);
/* What CLGRAFT_VERBOSE asks for (verbose.c). clg_verbose_begin returns the time in milliseconds, or 0 if no line is
 * wanted. clg_verbose_end prints the line of what began then; clg_verbose_line does so for a time that is given.
 * Each problem of a graph has the line of a plan, with CLG_VERBOSE_RUN too. */
enum { CLG_VERBOSE_PLAN = 1, CLG_VERBOSE_RUN = 2, CLG_VERBOSE_START = 4, CLG_VERBOSE_PROBLEM = 8 };
double clg_verbose_begin(uint32_t what);
void clg_verbose_end(uint32_t what, const char *label, double begin);
void clg_verbose_line(uint32_t what, const char *label, double begin, double took);
/* Sets this thread's message, so that the planner's own errors reach clg_last_error(). */
void clg_set_error(const char *message);
/* Counters for tests: bytes copied between host and device, buffers made, buffers reused from the pool, launches, and
 * runs that waited for the device. */
typedef struct clg_counters {
    uint64_t bytes_to_device, bytes_to_host, buffers_created, buffers_reused, launches, waits;
} clg_counters;
clg_status clg_context_counters(clg_context context, clg_counters *counters);

/* What session.c asks CLG_SESSIONS, a module, by clg_ask: the bytes of this struct. Pointers are the caller's. */
enum { CLG_ASK_CREATE = 1, CLG_ASK_SHAPES = 2, CLG_ASK_RUN = 3, CLG_ASK_DESTROY = 4 };
typedef struct clg_session_question {
    uint32_t what, input_count, output_count, reserved;
    uint64_t number; /* of the session */
    const char *path, *weights, *device, *precision;
    const clg_tensor *inputs;
    clg_tensor *outputs;
} clg_session_question;
/* How the answer to CLG_ASK_CREATE begins. A clg_port for each input and output follows, then their names, each with a
 * final zero. Other answers are in the outputs. */
typedef struct clg_session_ports {
    uint64_t number;
    uint32_t input_count, output_count;
} clg_session_ports;
/*cdef-end*/

/* Answered by Python (cffi extern "Python"). */
clg_status clg_py_context_create(const char *selector, void *cl_context, void *cl_device, void *cl_queue,
                                 clg_context *context);
clg_status clg_py_plan_create(clg_context context, const char *problem, clg_plan *plan);
clg_status clg_py_graph_create(clg_context context, const char *text, const clg_graph_options *options, clg_plan *plan);
clg_status clg_py_ask(const char *module, const void *question, uint64_t bytes, clg_receive receive, void *with);

#endif
