/* An OpenCL of the fuzzers' own: the calls that the runtime makes, with objects that know whether they live, memory
 * whose bounds a sanitizer watches, and failures on request. */
#ifndef FAKE_OPENCL_H
#define FAKE_OPENCL_H

#include <stdint.h>

enum { FAKE_CONTEXT = 1, FAKE_DEVICE, FAKE_QUEUE, FAKE_MEM, FAKE_KERNEL, FAKE_EVENT };

void *fake_new(int kind, void *context); /* with one reference */
void fake_release(void *object);
long fake_alive(void); /* objects with references */
/* The call after `calls` more that can fail gives `code`; 0: none does. */
void fake_fail_after(unsigned calls, int32_t code);

#endif
