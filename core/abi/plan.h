/* A plan, with room for what one run of it needs: a run allocates nothing on the host. */
#ifndef CLGRAFT_PLAN_H
#define CLGRAFT_PLAN_H

#include "device.h"

/* Where an argument of the run lies. */
typedef struct clg_resolved {
    void *pointer;            /* raw host pointer, or NULL */
    cl_object mem;            /* or a cl_mem */
    uint64_t offset;          /* in elements */
    uint32_t item;            /* bytes of one */
    uint32_t block;           /* of transfer.c; 0: none */
    bool wrapped;             /* mem is made for this run */
    bool foreign;             /* mem is the caller's, who may put another one at the same address */
    struct clg_array_s *copy; /* of a host array, kept on the device; or NULL */
    bool current;             /* the copy is up to date: nothing is sent */
    bool lands;               /* the copy may be in use: it is sent to other memory first */
    cl_object landing;        /* that memory */
    uint64_t landed;          /* in bytes */
} clg_resolved;

/* What a kernel's argument was last set to. */
typedef struct clg_bound {
    const void *object; /* NULL: not known */
    uint64_t offset;
} clg_bound;

/* An event after which the first `slots` slots of the way up are written (transfer.c). */
typedef struct clg_mark {
    cl_object event;
    uint32_t slots;
} clg_mark;

/* A host array's part of a stream (transfer.c), in bytes. */
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
    uint8_t *modes; /* bit m: an output may have mode m */
    char **names;   /* in full: an argument's struct may cut its name */
    uint32_t argument_count, launch_count, binding_count, scalar_count;
    bool *awaited;     /* launches that the other queue waits for */
    bool split;        /* it has launches on the second queue */
    uint32_t unjoined; /* 1 + the last of them, if no launch of the first queue waits for it; else 0 */
    bool is_watched;   /* its only launch has an event, by which a run waits */
    bool apart;        /* outputs share no memory with other arguments */
    uint64_t workspace_bytes;
    uint32_t *first_use, *last_use; /* launches that use each argument; the number of launches if none does */
    uint32_t *by_first, *by_last;   /* arguments in that order */
    /* the context's mutex guards what follows */
    uint64_t runs;  /* that have succeeded */
    bool was_short; /* the last run of a watched plan that was waited for */
    /* of the current run */
    clg_resolved *resolved;
    clg_bound *bound; /* for each launch its bindings */
    uint64_t bound_count;
    uint64_t generation;
    clg_piece *pieces; /* two for each argument: down and up */
    clg_mark *marks;   /* at most one for each argument */
    cl_object blocks[4];
    cl_object *events; /* of launches that are awaited or watched */
};

uint32_t clg_dtype_bytes(uint32_t dtype); /* 0: no such type */

#endif
