/* A job: one run of a plan with its buffers. */
#ifndef CLGRAFT_JOB_H
#define CLGRAFT_JOB_H

#include "plan.h"

typedef struct clg_job {
    struct clg_plan_s *plan;
    const void *handle; /* the plan's */
    const clg_buffer *buffers;
    const double *scalars;
    const clg_copy *copies; /* or NULL */
} clg_job;
/* Checks a run. Where it succeeds the job holds a reference to the plan and to each array, until it is dropped. */
clg_status clg_job_check(clg_job *job, uint32_t buffer_count, uint32_t scalar_count);
bool clg_job_uses_host(const clg_job *job);
bool clg_job_waits(const clg_job *job);     /* whether the device is done with it when clg_job_run returns */
clg_status clg_job_run(const clg_job *job); /* in a turn that the caller has begun */
void clg_job_drop(const clg_job *job);

#endif
