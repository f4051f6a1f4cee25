// What the GPUs' kernels of a training batch norm share: steps of WIDE elements of a channel, their sums, activations.
//
// A channel is `batch` rows of `pixels` elements; a step is WIDE neighbours of a row. Rounds of a work-group are EACH *
// GROUP steps, of which a work-item takes every GROUP-th.
//
// INDEX    the type of a place in a tensor: uint or ulong
// Macros of an activation are described in batchnorm/activation.cl.
#include "batchnorm/activation.cl"
#include "common/wide.cl"

#ifndef GROUP
#define GROUP 256  // work-items of a work-group; a power of 2
#endif
#ifndef INDEX
#define INDEX ulong
#endif
#ifndef EACH
#define EACH 4  // steps of a work-item that are on their way at once
#endif
#ifndef WARPS
#define WARPS 0  // 1: sums through shuffles of warps (inline PTX); real is float
#endif
#define WARP 32
#define FOLDED (GROUP > 256 ? 32 : 16)  // values that a work-item sums where there are no shuffles
#define LEFT (GROUP / FOLDED)           // and how many sums are left then
#ifndef LANE
#define LANE ((uint)get_local_id(0))  // a work-item's number among the GROUP that take a channel or a part together
#endif

// How a channel lies in its tensor: a row in each image, of `per_row` steps. GROUP steps further on are `column_step`
// elements of the row and `place_step` of the tensor; where that leaves the row, `next_row` more.
#define OPEN_ROWS                                                                        \
    const uint per_row = (uint)pixels / WIDE, column_step = GROUP % per_row * WIDE;      \
    const INDEX image = (INDEX)channels * (uint)pixels, next_row = image - (uint)pixels; \
    const INDEX place_step = GROUP / per_row * image + column_step;
#define STEPS _Pragma("unroll") for (int i = 0; i < EACH; i++)
// A work-item's steps of the round from `start` on, where they lie, and the values that it takes there.
#define STEP(start) const uint step = (start) + LANE + i * GROUP;
#define FIRST_PLACE(start)                     \
    const uint first_step = (start) + LANE;    \
    uint column = first_step % per_row * WIDE; \
    INDEX place = first_step / per_row * image + (INDEX)channel * (uint)pixels + column;
#define NEXT_PLACE                \
    column += column_step;        \
    place += place_step;          \
    if (column >= (uint)pixels) { \
        column -= (uint)pixels;   \
        place += next_row;        \
    }
// clang-format off
#define READ_ROUND(to, tensor, start, end)                                                \
    {                                                                                     \
        raw held[WIDE * EACH];                                                           \
        FIRST_PLACE(start)                                                                \
        STEPS {                                                                           \
            STEP(start)                                                                   \
            if (step < (end)) read_wide(held + WIDE * i, OPEN(tensor) + place, quads);    \
            NEXT_PLACE                                                                    \
        }                                                                                 \
        STEPS {                                                                           \
            STEP(start)                                                                   \
            if (step < (end)) take_wide(to + WIDE * i, held + WIDE * i);                  \
        }                                                                                 \
    }
// clang-format on

// A round that stays in registers: x less its mean, dy the gradient of the norm, and their sums; then dx from both.
#define SUM_PRODUCTS(start, end)                                                  \
    real values[WIDE * EACH], gradients[WIDE * EACH], sums[WIDE], products[WIDE]; \
    WIDTH sums[e] = products[e] = 0;                                              \
    READ_ROUND(values, x, start, end)                                             \
    READ_ROUND(gradients, dy, start, end)                                         \
    STEPS {                                                                       \
        STEP(start)                                                               \
        if (step < (end)) {                                                       \
            WIDTH {                                                               \
                const int at = WIDE * i + e;                                      \
                gradients[at] = FLOWING(gradients[at], values[at]);               \
                values[at] -= mean_of_x;                                          \
                sums[e] += gradients[at];                                         \
                products[e] = fma(gradients[at], values[at], products[e]);        \
            }                                                                     \
        }                                                                         \
    }
#define WRITE_BACKWARD(start, end)                                                                          \
    FIRST_PLACE(start)                                                                                      \
    STEPS {                                                                                                 \
        STEP(start)                                                                                         \
        if (step < (end)) {                                                                                 \
            real results[WIDE];                                                                             \
            WIDTH results[e] = (gradients[WIDE * i + e] - mean_flow - values[WIDE * i + e] * slope) * gain; \
            write_wide(OPEN(dx) + place, results, quads, accumulate_dx);                                    \
        }                                                                                                   \
        NEXT_PLACE                                                                                          \
    }

// Of a round: y, the activation of the norm.
#define WRITE_FORWARD(start, end)                                                                                \
    FIRST_PLACE(start)                                                                                           \
    STEPS {                                                                                                      \
        STEP(start)                                                                                              \
        if (step < (end)) {                                                                                      \
            real results[WIDE];                                                                                  \
            WIDTH results[e] = activated((values[WIDE * i + e] - middle) * factor + level SCALARS(PASS_SCALAR)); \
            write_wide(OPEN(y) + place, results, quads, accumulate_y);                                           \
        }                                                                                                        \
        NEXT_PLACE                                                                                               \
    }

#if WARPS
// The sums of a warp's work-items, the same bits in each. OpenCL C has no shuffles of its own.
real sum_warp(real value) {
    for (int apart = WARP / 2; apart; apart /= 2) {
        real other;
        asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(other) : "f"(value), "r"(apart));
        value += other;
    }
    return value;
}
#endif

// The sums of all work-items' first and second, in a fixed order. A work-group's calls are numbered by `turn`, 0 or 1.
void sum_group(real *first, real *second, local real *firsts, local real *seconds, const int turn) {
#if WARPS
    const int lane = LANE, begin = turn * (GROUP / WARP);  // each turn has its own place, so one barrier is enough
    const real ours = sum_warp(*first), others = sum_warp(*second);
    if (lane % WARP == 0) {
        firsts[begin + lane / WARP] = ours;
        seconds[begin + lane / WARP] = others;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    *first = *second = 0;
    for (int i = 0; i < GROUP / WARP; i++) {
        *first += firsts[begin + i];
        *second += seconds[begin + i];
    }
#else
    // two sums at a time, of FOLDED values each: fewer barriers than a tree
    const int lane = LANE;
    firsts[lane] = *first;
    seconds[lane] = *second;
    barrier(CLK_LOCAL_MEM_FENCE);
    local real *const from = lane < LEFT ? firsts : seconds;
    const int place = lane % LEFT;
    if (lane < 2 * LEFT) {  // nobody else reads these values
        real sum = 0;
        _Pragma("unroll") for (int i = 0; i < FOLDED; i++) sum += from[place + i * LEFT];
        from[place] = sum;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    *first = *second = 0;
    for (int i = 0; i < LEFT; i++) {
        *first += firsts[i];
        *second += seconds[i];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
}

real join_wide(const real *sums) {
#if WIDE == 4
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
#else
    return sums[0];
#endif
}
