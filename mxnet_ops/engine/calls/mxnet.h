/* MXNet's functions and types, and the runtime's functions: this library is linked to neither. */
#ifndef CLGRAFT_MXNET_MXNET_H
#define CLGRAFT_MXNET_MXNET_H

#include <stdint.h>

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
    clg_status (*plan_mark)(clg_plan plan, clg_event *event);
    clg_status (*event_destroy)(clg_event event);
    const char *(*last_error)(void);
    int (*get_dtype)(void *array, int *dtype);
    int (*get_storage_type)(void *array, int *type);
    int (*get_context)(void *array, int *device_type, int *device_id);
    int (*get_shape)(void *array, int *count, const int **sizes);
    int (*copy_array)(void *array, void **copy);
    int (*get_gradient)(void *array, void **gradient); /* NULL: it has none */
    int (*push)(void (*run)(void *context, void *with), void *with, void (*release)(void *with), const void *place,
                void **read, int read_count, void **written, int written_count, const void *property, int priority,
                const char *name);
    void (*reorder)(void *chunk);
} functions;
extern functions mx;
void clg_mx_use(const clg_mx_functions *found);

enum { SKIPPED, WRITTEN, IN_PLACE, ADDED }; /* MXNet's write requests */
static const uint32_t MODES[] = {CLG_SKIP, CLG_OVERWRITE, CLG_OVERWRITE, CLG_ACCUMULATE};

#endif
