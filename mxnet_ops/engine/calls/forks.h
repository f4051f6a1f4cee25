/* Waits for MXNet's operators before the process forks. */
#ifndef CLGRAFT_MXNET_FORKS_H
#define CLGRAFT_MXNET_FORKS_H

#include "operator.h"

extern __thread int clg_mx_running; /* operators that this thread runs */
/* Whether an operator may end now; the caller then says when it has. Otherwise it is ended after the fork. */
bool clg_mx_may_end(clg_mx_execution *execution);
void clg_mx_has_ended(void);

#endif
