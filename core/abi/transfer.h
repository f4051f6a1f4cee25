/* Transfers of a run. The context's mutex is held, and the plan's arguments are resolved. */
#ifndef CLGRAFT_TRANSFER_H
#define CLGRAFT_TRANSFER_H

#include "plan.h"

clg_status clg_transfers_begin(struct clg_plan_s *plan, const clg_buffer *buffers);
clg_status clg_transfers_before(struct clg_plan_s *plan, uint32_t launch, cl_object *wait); /* NULL: for nothing */
clg_status clg_transfers_after(struct clg_plan_s *plan, uint32_t launch, bool last);
/* Also after an error, which it returns. `waits`: the device is going to be waited for. */
clg_status clg_transfers_end(struct clg_plan_s *plan, clg_status status, bool waits);
void clg_transfers_free(struct clg_context_s *context);

#endif
