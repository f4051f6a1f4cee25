/* What MXNet asks of a call before an operator is made: names, shapes, types, what backward reads. */
#include <stdlib.h>

#include "execution.h"
#include "mxnet.h"
#include "questions.h"
#include "table.h"

static int delete_call(void *state) {
    clg_mx_release(state);
    return 1;
}

static int list_arguments(char ***names, clg_mx_call *call) {
    if (!clg_mx_describe(call)) return 0;
    *names = call->arguments;
    return 1;
}

static int list_outputs(char ***names, clg_mx_call *call) {
    if (!clg_mx_describe(call)) return 0;
    *names = call->outputs;
    return 1;
}

static int list_auxiliary(char ***names, clg_mx_call *call) {
    if (!clg_mx_describe(call)) return 0;
    *names = call->auxiliary;
    return 1;
}

static int infer_shape(int count, int *ndims, int **shapes, clg_mx_call *call) {
    if (!clg_mx_describe(call)) return 0;
    size_t room = 0;
    for (int i = 0; i < call->argument_count; i++) room += 1 + (ndims[i] > 0 ? (size_t)ndims[i] : 0);
    int32_t small[256], *key = room > 256 ? malloc(room * sizeof *key) : small;
    if (!key) return 0;
    uint32_t length = 0;
    for (int i = 0; i < call->argument_count; i++) {
        key[length++] = ndims[i] < 0 ? -1 : ndims[i];
        for (int j = 0; j < ndims[i]; j++) key[length++] = shapes[i][j];
    }
    int status = 1;
    known_shapes *found = clg_mx_find_shapes(call, key, length);
    if (!found) {
        status = clg_mx_py_shapes(call, call->text, call->attribute_count, call->attributes, key, length);
        found = clg_mx_find_shapes(call, key, length);
    }
    if (key != small) free(key);
    if (!status || !found) return 0;
    int32_t *sizes = found->sizes;
    for (int i = 0; i < count && i < (int)found->shape_count; i++) {
        ndims[i] = found->ndims[i];
        shapes[i] = sizes;
        sizes += ndims[i];
    }
    return 1;
}

/* MXNet's numbers of dtypes. */
enum { FLOAT32, FLOAT64, FLOAT16 };

/* The one dtype of the arrays that may be single, or are not; -1: none is known, -2: there are several, or others. */
static int common_type(int count, const int *types, const clg_mx_call *call, bool single) {
    int code = -1;
    for (int i = 0; i < count; i++) {
        if (types[i] < 0 || (call->single[i] != 0) != single) continue;
        if (types[i] > FLOAT16 || (code >= 0 && types[i] != code)) return -2;
        code = types[i];
    }
    return code;
}

/* Parameters that may be single follow the data, and are float32 where data are float16, as MXNet has them, unless they
 * are known to be float16. */
static int infer_type(int count, int *types, clg_mx_call *call) {
    if (!clg_mx_describe(call)) return 0;
    int code = common_type(call->argument_count, types, call, false);
    int single = common_type(count, types, call, true);
    if (code == -1 && single > FLOAT32) code = single;
    bool fits = single == -1 || single == code || code == -1 || (single == FLOAT32 && code == FLOAT16);
    if (code == -2 || single == -2 || !fits)
        return clg_mx_py_refuse_types(call->text, call->attribute_count, call->attributes, types);
    if (single == -1) single = code == FLOAT16 ? FLOAT32 : code;
    for (int i = 0; i < count; i++) types[i] = call->single[i] ? single : code;
    return 1;
}

static int dependencies(const int *out_grad, const int *in_data, const int *out_data, int *count, int **found,
                        clg_mx_call *call) {
    if (!clg_mx_describe(call)) return 0;
    int n = 0; /* MXNet numbers a call's arrays alike every time: concurrent writers write the same */
    for (int i = 0; i < call->output_count && call->backward_reads_gradients; i++)
        if (i >= 64 || !(call->unread_gradients >> i & 1)) call->dependencies[n++] = out_grad[i];
    for (int i = 0; i < call->argument_count; i++) call->dependencies[n++] = in_data[i];
    for (int i = 0; i < call->output_count && call->backward_reads_outputs; i++) call->dependencies[n++] = out_data[i];
    *count = n;
    *found = call->dependencies;
    return 1;
}

static int (*const CALLING[CALLBACKS])(void) = {
    (int (*)(void))delete_call,
    (int (*)(void))list_arguments,
    (int (*)(void))list_outputs,
    (int (*)(void))list_auxiliary,
    (int (*)(void))infer_shape,
    (int (*)(void))dependencies,
    (int (*)(void))clg_mx_create_operator,
    (int (*)(void))infer_type,
};

/* A failure here would end the process: attributes are checked when MXNet asks for the arguments' names. */
static int create(const char *op_type, int count, const char **keys, const char **values, callback_list *made) {
    clg_mx_call *call = clg_mx_take(op_type, count, keys, values);
    if (!call) return 0;
    *made = (callback_list){CALLBACKS, (int (**)(void))CALLING, call->contexts};
    return 1;
}

void *clg_mx_creator(void) { return (void *)create; }
