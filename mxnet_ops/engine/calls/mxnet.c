/* The functions of MXNet and of the runtime, as Python has found them. */
#include "mxnet.h"

functions mx;

void clg_mx_use(const clg_mx_functions *found) {
    mx.get_data = found->get_data;
    mx.free_array = found->free_array;
    mx.last_failure = found->last_failure;
    mx.plan_run = found->plan_run;
    mx.plan_start = found->plan_start;
    mx.plan_mark = found->plan_mark;
    mx.event_destroy = found->event_destroy;
    mx.last_error = found->last_error;
    mx.get_dtype = found->get_dtype;
    mx.get_storage_type = found->get_storage_type;
    mx.get_context = found->get_context;
    mx.get_shape = found->get_shape;
    mx.copy_array = found->copy_array;
    mx.get_gradient = found->get_gradient;
    mx.push = found->push;
    mx.reorder = found->reorder;
}
