/* Errors that MXNet cannot report. */
#include <stdio.h>

#include "failures.h"
#include "mxnet.h"

int clg_mx_fail(const char *op_type, const char *what) {
    fprintf(stderr, "clgraft: [%s] %s\n", op_type, what);
    fflush(stderr);
    return 0;
}

bool clg_mx_fail_step(const clg_mx_step *step) {
    fprintf(stderr, "clgraft: %s (problem: %s)\n", mx.last_error(), step->problem);
    fflush(stderr);
    return false;
}
