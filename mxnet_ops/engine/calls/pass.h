/* Runs passes of operators at work. */
#ifndef CLGRAFT_MXNET_PASS_H
#define CLGRAFT_MXNET_PASS_H

#include "operator.h"

bool clg_mx_run_pass(clg_mx_execution *execution, int which, const arrays *given, const int *requests);

#endif
