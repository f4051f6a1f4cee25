/* Arrays: memory of a device that a caller owns. */
#ifndef CLGRAFT_ARRAYS_H
#define CLGRAFT_ARRAYS_H

#include "device.h"

struct clg_array_s {
    struct clg_context_s *context;
    uint64_t bytes;
    void *memory;     /* host memory with CLG_RAW_POINTER, */
    cl_object mem;    /* else a cl_mem */
    uint64_t version; /* of the host array whose copy it is; 0: none. The context's mutex guards it */
};

#endif
