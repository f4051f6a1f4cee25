/* A region at work. */
#ifndef CLGRAFT_MXNET_REGION_H
#define CLGRAFT_MXNET_REGION_H

#include "operator.h"

bool clg_mx_run_region(clg_mx_execution *execution, int which, const arrays *given, const int *requests);

#endif
