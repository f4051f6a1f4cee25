/* Moving averages that several operators of one backward change. */
#ifndef CLGRAFT_MXNET_AVERAGES_H
#define CLGRAFT_MXNET_AVERAGES_H

#include "operator.h"

typedef struct clg_mx_share clg_mx_share;

/* Where averages wait, binds memory of zeros in the place of each that a pass changes; NULL otherwise, and if there is
 * no memory, which `good` tells. */
clg_mx_share *clg_mx_set_aside(clg_mx_execution *execution, const clg_mx_pass *pass, bool *good);
/* What the pass has left there is added later, or forgotten. */
void clg_mx_leave_aside(clg_mx_share *shares, bool good);

#endif
