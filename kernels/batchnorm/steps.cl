// What the GPUs' kernels of a training batch norm share: steps of WIDE elements of a channel, their sums, activations.
//
// A channel is `batch` rows of `pixels` elements; a step is WIDE neighbours of a row. Rounds of a work-group are EACH *
// GROUP steps, of which a work-item takes every GROUP-th.
//
// Macros of an activation are described in batchnorm/activation.cl.
#include "batchnorm/activation.cl"
#include "pointwise/quads.cl"

#ifndef GROUP
#define GROUP 256  // work-items of a work-group; a power of 2
#endif
#ifndef EACH
#define EACH 4  // steps of a work-item that are on their way at once
#endif
#ifndef WIDE
#define WIDE 4  // 4 or 1
#endif

// Where step `step` of a channel lies: rows of `per_row` steps, one row in each image.
#define PLACE(step) ((ulong)((step) / per_row * (uint)channels + channel) * (uint)pixels + (step) % per_row * WIDE)
#define STEPS _Pragma("unroll") for (int i = 0; i < EACH; i++)
#define WIDTH _Pragma("unroll") for (int e = 0; e < WIDE; e++)
// A work-item's steps of the round from `start` on, and the values that it takes there.
#define STEP(start) const uint step = (start) + get_local_id(0) + i * GROUP;
#define READ_ROUND(to, tensor, start, end)                                                      \
    STEPS {                                                                                     \
        STEP(start)                                                                             \
        if (step < (end)) read_wide(to + WIDE * i, OPEN(tensor) + PLACE(step), quads);          \
    }

void read_wide(real *to, global const stored *from, const bool quads) {
#if WIDE == 4
    if (quads) {
        READ_QUAD_stored(to, from)
        return;
    }
#endif
    WIDTH to[e] = LOAD(from, e);
}

void write_wide(global stored *to, const real *from, const bool quads, const int accumulate) {
#if WIDE == 4
    if (quads && !accumulate) {
        WRITE_QUAD_stored(to, from)
        return;
    }
#endif
    WIDTH STORE(to, e, accumulate ? LOAD(to, e) + from[e] : from[e]);
}

// The sums of all work-items' first and second, in a fixed order.
void sum_group(real *first, real *second, local real *firsts, local real *seconds) {
    const int lane = get_local_id(0);
    firsts[lane] = *first;
    seconds[lane] = *second;
    barrier(CLK_LOCAL_MEM_FENCE);
    int left = GROUP;
    while (left > 8) {  // eight become one: fewer barriers than by twos
        left /= 8;
        real sums[2] = {0, 0};
        if (lane < left)
            for (int i = 0; i < 8; i++) {
                sums[0] += firsts[lane + i * left];
                sums[1] += seconds[lane + i * left];
            }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane < left) {
            firsts[lane] = sums[0];
            seconds[lane] = sums[1];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    *first = *second = 0;
    for (int i = 0; i < left; i++) {
        *first += firsts[i];
        *second += seconds[i];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

real join_wide(const real *sums) {
#if WIDE == 4
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
#else
    return sums[0];
#endif
}
