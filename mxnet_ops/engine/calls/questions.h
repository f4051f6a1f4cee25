/* What C asks Python (cffi extern "Python"). The answers are 0 after an error, which has been shown. */
#ifndef CLGRAFT_MXNET_QUESTIONS_H
#define CLGRAFT_MXNET_QUESTIONS_H

#include "calls.h"

/*cdef-begin*/
int clg_mx_py_describe(clg_mx_call *call, const char *op_type, int count, const char **attributes);
int clg_mx_py_shapes(clg_mx_call *call, const char *op_type, int count, const char **attributes, const int32_t *key,
                     uint32_t key_count);
int clg_mx_py_refuse_types(const char *op_type, int count, const char **attributes, const int *types);
int clg_mx_py_work(clg_mx_call *call, const char *op_type, int count, const char **attributes, const char *where,
                   const char *device, const int32_t *key, uint32_t key_count);
int clg_mx_py_start_numbers(clg_mx_execution *execution, const char *op_type, int count, const char **attributes,
                            const int32_t *key, uint32_t key_count);
int clg_mx_py_draw(clg_mx_execution *execution, int train);
int clg_mx_py_end_numbers(clg_mx_execution *execution);
int clg_mx_py_start_region(clg_mx_execution *execution, int64_t number);
int clg_mx_py_make_pass(clg_mx_execution *execution, int64_t context, const char *op_type, int attribute_count,
                        const char **attributes, const int32_t *key, uint32_t key_count, int which,
                        const int32_t *modes, uint32_t count);
int clg_mx_py_make_region_pass(clg_mx_execution *execution, int which, const int32_t *modes, uint32_t count);
int clg_mx_py_keep(clg_mx_execution *execution);
int clg_mx_py_begin_backward(clg_mx_execution *execution, int input_count, void **inputs, int count, int32_t *modes);
int clg_mx_py_end_backward(clg_mx_execution *execution, int good);
int clg_mx_py_end_region(clg_mx_execution *execution);
int clg_mx_py_before_fork(void);
/*cdef-end*/

#endif
