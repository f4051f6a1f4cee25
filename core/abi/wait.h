/* Waiting for a device; on one with memory of its own most of the time asleep. */
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

#endif
