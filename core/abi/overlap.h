/* Refuses arguments that share memory although their problem does not allow it. */
#ifndef CLGRAFT_OVERLAP_H
#define CLGRAFT_OVERLAP_H

#include "plan.h"

clg_status clg_check_apart(const struct clg_plan_s *plan, const clg_buffer *buffers);

#endif
