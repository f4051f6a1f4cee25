/* Errors that MXNet cannot report: they are written to stderr. */
#ifndef CLGRAFT_MXNET_FAILURES_H
#define CLGRAFT_MXNET_FAILURES_H

#include <stdbool.h>

#include "calls.h"

int clg_mx_fail(const char *op_type, const char *what); /* returns 0 */
bool clg_mx_fail_step(const clg_mx_step *step);         /* with the runtime's last error; returns false */

#endif
