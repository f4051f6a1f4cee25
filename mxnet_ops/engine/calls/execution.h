/* Makes operators for MXNet, which then calls them. */
#ifndef CLGRAFT_MXNET_EXECUTION_H
#define CLGRAFT_MXNET_EXECUTION_H

#include "mxnet.h"
#include "table.h"

int clg_mx_create_operator(const char *device, int count, unsigned **shapes, const int *ndims, const int *types,
                           callback_list *made, clg_mx_call *call);

#endif
