/* Runs as callers make them: in their turn on the calling thread, or started for later. */
#include "events.h"

clg_status clg_plan_run(clg_plan plan, const clg_buffer *buffers, uint32_t buffer_count, const double *scalars,
                        uint32_t scalar_count) {
    return clg_plan_start(plan, buffers, buffer_count, scalars, scalar_count, NULL, NULL);
}

clg_status clg_plan_start(clg_plan plan, const clg_buffer *buffers, uint32_t buffer_count, const double *scalars,
                          uint32_t scalar_count, const clg_copy *copies, clg_event *event) {
    if (event) *event = NULL;
    clg_job job = {.handle = plan, .buffers = buffers, .scalars = scalars, .copies = copies};
    clg_status status = clg_job_check(&job, buffer_count, scalar_count);
    if (status) return status;
    if (event) return clg_runner_start(&job, clg_job_uses_host(&job), event);
    clg_turns *turns = &job.plan->context->turns;
    clg_turn_begin(turns);
    status = clg_job_run(&job);
    clg_turn_end(turns);
    clg_job_drop(&job);
    return status;
}
