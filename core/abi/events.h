/* The runner: a thread of a context that makes the runs which were started for later. */
#ifndef CLGRAFT_EVENTS_H
#define CLGRAFT_EVENTS_H

#include "job.h"

void clg_runner_drain(struct clg_context_s *context); /* returns when it has nothing to do */
void clg_runner_free(struct clg_context_s *context);
/* Starts a run, now or on the thread. Drops the job afterwards, also after an error. `host`: it uses host memory. */
clg_status clg_runner_start(const clg_job *job, bool host, clg_event *event);

#endif
