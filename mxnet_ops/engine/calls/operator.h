/* An operator at work: its memory, and the arrays of one call of it. */
#ifndef CLGRAFT_MXNET_OPERATOR_H
#define CLGRAFT_MXNET_OPERATOR_H

#include "clgraft.h"
#include "table.h"

enum { ALIGNMENT = 128 }; /* of states and of copies of outputs, in bytes */

struct clg_mx_execution {
    struct clg_mx_execution *next; /* of those that end after a fork */
    clg_mx_call *call;
    known_work *known;
    const clg_mx_work *work;
    const clg_mx_region *region;
    const clg_mx_memory *own;
    clg_buffer *buffers; /* room for the arguments of a pass: MXNet runs an operator's calls one after another */
    uint32_t room;
    bool train;       /* of the last forward: backward follows it */
    bool keeps;       /* memory for the kept values is there */
    uint64_t version; /* of the inputs of the last forward that trained; no two forwards have the same */
    uint64_t serial;  /* in the order in which they are made */
    void *contexts[3];
    clg_mx_memory memory[]; /* a single operator's own */
};

/* Addresses by tag, one after another; first[t] is where those of tag t begin. */
typedef struct arrays {
    int first[CLG_MX_GROUPS + 1];
    void **addresses;
} arrays;

clg_mx_execution *clg_mx_make(clg_mx_call *call, known_work *known); /* NULL: there is no memory */
void clg_mx_end(clg_mx_execution *execution);
void *clg_mx_address(const arrays *given, const clg_mx_argument *argument);

#endif
