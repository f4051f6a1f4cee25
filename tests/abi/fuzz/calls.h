/* Calls of the ABI, read from bytes: valid ones, nearly valid ones, and nonsense. */
#ifndef FUZZ_CALLS_H
#define FUZZ_CALLS_H

#include <stddef.h>
#include <stdint.h>

typedef struct input {
    const uint8_t *bytes;
    size_t left;
} input;

void calls_begin(void);     /* makes the OpenCL objects that all calls share */
void calls_play(input *in); /* until the input ends */
void calls_end(void);       /* destroys everything; aborts if anything is left */

#endif
