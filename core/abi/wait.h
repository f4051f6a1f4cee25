/* Waiting for a device: on one with memory of its own most of the time asleep, for a processor's short launch awake. */
#ifndef CLGRAFT_WAIT_H
#define CLGRAFT_WAIT_H

#include <stdint.h>

#include "device.h"
#include "opencl.h"

/* Returns once an event whose queue was flushed has ended, or when the driver had better wait. */
void clg_wait_asleep(cl_object event);

/* As clWaitForEvents and clFinish. `queue` is the event's, or NULL for the context's. */
int32_t clg_wait_event(struct clg_context_s *context, cl_object queue, cl_object event);
int32_t clg_wait_queue(struct clg_context_s *context);

double clg_seconds(void); /* of a clock that begins anywhere */

/* As clFinish, after one launch with its event, in a run that began then. `was_short` says whether the last run of its
 * plan was, then whether this one is. */
int32_t clg_wait_launch(struct clg_context_s *context, cl_object event, double began, bool *was_short);

#endif
