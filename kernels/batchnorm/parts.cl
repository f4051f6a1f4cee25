// Batch norm of a training step on GPUs: sums of parts of channels, and the result.
//
// x, dy, y, dx (batch, channels, pixels); all others have one value for each channel. A work-group takes one of `parts`
// of a channel, of `part_steps` steps (batchnorm/steps.cl): whole rounds, but for the last one. Each writes THREE sums:
// partial[channel][part].
//
//   batchnorm_parts_forward    sums: shift, the mean of the part's first round; the mean of x - shift; the sum of squares
//                              of what is left. Parts are joined by differences of shifts, which keeps digits.
//                              Result: y = ACTIVATE of norm, mean and var
//   batchnorm_parts_backward   sums: of the gradient of the norm, and of its product with x - mean. Result: dx, dgamma,
//                              dbeta, through the statistics
//
// MAKES   1: sums, 2: the result, in a second launch, 3: both in one launch. In two launches groups go from the first
//         images to the last, and those of the second launch go back, so that they begin with what caches still hold. In
//         one launch groups go from channel to channel. Each makes the sums of a part, and the result of the part that is
//         `lag` parts behind, which caches hold. It waits for the sums of that channel, which groups make that began
//         earlier: groups take their numbers from a counter as they begin.
#include "batchnorm/steps.cl"

#ifndef MAKES
#define MAKES 1
#endif
#define THREE 3

#define ROUNDS for (uint start = begin; start < end; start += EACH * GROUP)
#define PART(channel_of, part_of)                                                                              \
    const uint channel = channel_of, part = part_of;                                                           \
    const uint begin = min(part * part_steps, steps), end = min(begin + part_steps, steps);                    \
    volatile global real *of_channel = OPEN(partial) + (ulong)channel * parts * THREE;

#if MAKES == 3
// Makes what a work-item wrote visible to groups that read a later change of a counter.
#if NVIDIA
#define PUBLISH asm volatile("membar.gl;" ::: "memory")
#else
#define PUBLISH mem_fence(CLK_GLOBAL_MEM_FENCE)
#endif
// counters: the next group's number, then the number of parts of each channel that are summed.
#define COUNTERS TENSOR_OF(uint, counters), const uint lag,
#define OPEN_GROUP                                                               \
    local real firsts[GROUP], seconds[GROUP];                                    \
    local uint numbers[1];                                                       \
    if (get_local_id(0) == 0) numbers[0] = atomic_inc(OPEN(counters));           \
    barrier(CLK_LOCAL_MEM_FENCE);                                                \
    const uint number = numbers[0];                                              \
    OPEN_ROWS
// Groups without sums or without a result have a part of no steps: PoCL wants no barriers in branches.
#define PART_OR_NONE(any, index) PART((any) ? (index) / parts : 0, (any) ? (index) % parts : parts)
#define SUMS_PART PART_OR_NONE(number < (uint)channels * parts, number)
#define RESULT_PART PART_OR_NONE(number >= lag, number - lag)
#define SUMMED       \
    {                \
        PUBLISH;     \
        atomic_inc(OPEN(counters) + 1 + channel); \
    }
#define WAIT_FOR_SUMS                                                            \
    if (get_local_id(0) == 0 && part < parts) {                                  \
        volatile global uint *done = OPEN(counters) + 1 + channel;               \
        WAIT_WHILE(*done < parts);                                               \
        PUBLISH;                                                                 \
    }                                                                            \
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
#ifdef MOST_WAITS
#define WAIT_WHILE(x) for (int i = 0; i < MOST_WAITS && (x); i++)
#else
#define WAIT_WHILE(x) while (x)
#endif
#else
#define COUNTERS
#define OPEN_GROUP                                                                                  \
    local real firsts[GROUP], seconds[GROUP];                                                       \
    const uint group = MAKES == 1 ? get_group_id(0) : get_num_groups(0) - 1 - get_group_id(0);      \
    OPEN_ROWS
#define SUMS_PART PART(group % (uint)channels, group / (uint)channels)
#define RESULT_PART SUMS_PART
#define SUMMED
#define WAIT_FOR_SUMS
#endif

kernel void batchnorm_parts_begin(TENSOR_OF(uint, counters), const uint count) {
    if (get_global_id(0) < count) OPEN(counters)[get_global_id(0)] = 0;
}

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void batchnorm_parts_forward(
    CONST_TENSOR(x), CONST_TENSOR(gamma), CONST_TENSOR(beta), OUTPUT_OF(stored, y), OUTPUT_OF(stored, mean),
    OUTPUT_OF(stored, var), KEPT_OUTPUTS TENSOR_OF(real, partial), COUNTERS const int channels, const int pixels,
    const uint steps, const uint part_steps, const uint parts, const real share, const real eps SCALARS(SCALAR_LAST)) {
    OPEN_GROUP
#if MAKES & 2
    RESULT_PART
    const bool quads = QUAD_ALIGNED_stored(OPEN(x)) && QUAD_ALIGNED_stored(OPEN(y));
    real values[WIDE * EACH];
    if (y_base) {
        READ_ROUND(values, x, begin, end)
    }
#endif
#if MAKES & 1
    {
        SUMS_PART
        const bool quads = QUAD_ALIGNED_stored(OPEN(x));
        real values[WIDE * EACH], sums[WIDE], squares[WIDE];
        WIDTH sums[e] = squares[e] = 0;
        READ_ROUND(values, x, begin, end)
        STEPS {
            STEP(begin)
            if (step < end) WIDTH sums[e] += values[WIDE * i + e];
        }
        real first = join_wide(sums), second = 0;
        sum_group(&first, &second, firsts, seconds);
        const real shift = first / (real)(min(end - begin, (uint)(EACH * GROUP)) * WIDE);
        WIDTH sums[e] = 0;
        ROUNDS {
            if (start > begin) {
                READ_ROUND(values, x, start, end)
            }
            STEPS {
                STEP(start)
                if (step < end) {
                    WIDTH {
                        const real d = values[WIDE * i + e] - shift;
                        sums[e] += d;
                        squares[e] = fma(d, d, squares[e]);
                    }
                }
            }
        }
        first = join_wide(sums);
        second = join_wide(squares);
        sum_group(&first, &second, firsts, seconds);
        if (get_local_id(0) == 0 && part < parts) {
            volatile global real *to = of_channel + part * THREE;
            const real d = first / (real)((end - begin) * WIDE);
            to[0] = shift;
            to[1] = d;
            to[2] = second - first * d;
            SUMMED
        }
    }
#endif
#if MAKES & 2
    WAIT_FOR_SUMS
    const real middle = of_channel[0];
    real first = 0, second = 0;
    for (uint p = get_local_id(0); p < parts; p += GROUP) {
        const real count = (min((p + 1) * part_steps, steps) - p * part_steps) * WIDE;
        const real d = (of_channel[THREE * p] - middle) + of_channel[THREE * p + 1];
        first = fma(count, d, first);
    }
    sum_group(&first, &second, firsts, seconds);
    const real d = first * share;
    first = 0;
    for (uint p = get_local_id(0); p < parts; p += GROUP) {
        const real count = (min((p + 1) * part_steps, steps) - p * part_steps) * WIDE;
        const real apart = (of_channel[THREE * p] - middle) + of_channel[THREE * p + 1] - d;
        first += fma(count * apart, apart, of_channel[THREE * p + 2]);
    }
    sum_group(&first, &second, firsts, seconds);
    const real spread = first * share, factor = LOAD(OPEN(gamma), channel) / sqrt(spread + eps);
    const real level = LOAD(OPEN(beta), channel) - d * factor;
    if (part == 0 && get_local_id(0) == 0) {
        PUT_VALUE(stored, mean, channel, middle + d)
        PUT_VALUE(stored, var, channel, spread)
        PUT_KEPT(middle, factor, level)
    }
    if (!y_base) return;
    ROUNDS {
        if (start > begin) {
            READ_ROUND(values, x, start, end)
        }
        FIRST_PLACE(start)
        STEPS {
            STEP(start)
            if (step < end) {
                real results[WIDE];
                WIDTH results[e] =
                    activated((values[WIDE * i + e] - middle) * factor + level SCALARS(PASS_SCALAR));
                write_wide(OPEN(y) + place, results, quads, accumulate_y);
            }
            NEXT_PLACE
        }
    }
#endif
}

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void batchnorm_parts_backward(
    CONST_TENSOR(x), CONST_TENSOR(dy), CONST_TENSOR(gamma), CONST_TENSOR(mean), CONST_TENSOR(var), KEPT_INPUTS
    OUTPUT_OF(stored, dx), OUTPUT_OF(stored, dgamma), OUTPUT_OF(stored, dbeta), TENSOR_OF(real, partial),
    COUNTERS const int channels, const int pixels, const uint steps, const uint part_steps, const uint parts,
    const real share, const real eps SCALARS(SCALAR_LAST)) {
    OPEN_GROUP
#if MAKES & 2
    RESULT_PART
    const bool quads =
        QUAD_ALIGNED_stored(OPEN(x)) && QUAD_ALIGNED_stored(OPEN(dy)) && QUAD_ALIGNED_stored(OPEN(dx));
    real values[WIDE * EACH], gradients[WIDE * EACH];
    if (dx_base) {
        READ_ROUND(values, x, begin, end)
        READ_ROUND(gradients, dy, begin, end)
    }
#endif
#if MAKES & 1
    {
        SUMS_PART
        const real mean_of_x = LOAD(OPEN(mean), channel);
        OPEN_KEPT
        const bool quads = QUAD_ALIGNED_stored(OPEN(x)) && QUAD_ALIGNED_stored(OPEN(dy));
        real sums[WIDE], products[WIDE];
        WIDTH sums[e] = products[e] = 0;
        ROUNDS {
            real values[WIDE * EACH], gradients[WIDE * EACH];
            READ_ROUND(values, x, start, end)
            READ_ROUND(gradients, dy, start, end)
            STEPS {
                STEP(start)
                if (step < end) {
                    WIDTH {
                        const real value = values[WIDE * i + e], gradient = FLOWING(gradients[WIDE * i + e], value);
                        sums[e] += gradient;
                        products[e] = fma(gradient, value - mean_of_x, products[e]);
                    }
                }
            }
        }
        real first = join_wide(sums), second = join_wide(products);
        sum_group(&first, &second, firsts, seconds);
        if (get_local_id(0) == 0 && part < parts) {
            volatile global real *to = of_channel + part * THREE;
            to[0] = first;
            to[1] = second;
            SUMMED
        }
    }
#endif
#if MAKES & 2
    WAIT_FOR_SUMS
    const real mean_of_x = LOAD(OPEN(mean), channel);
    OPEN_KEPT
    const real inverse = 1 / sqrt(LOAD(OPEN(var), channel) + eps);
    real first = 0, second = 0;
    for (uint p = get_local_id(0); p < parts; p += GROUP) {
        first += of_channel[THREE * p];
        second += of_channel[THREE * p + 1];
    }
    sum_group(&first, &second, firsts, seconds);
    second *= inverse;
    if (part == 0 && get_local_id(0) == 0) {
        PUT_VALUE(stored, dgamma, channel, second)
        PUT_VALUE(stored, dbeta, channel, first)
    }
    if (!dx_base) return;
    const real slope = inverse * second * share, mean_flow = first * share;
    const real gain = LOAD(OPEN(gamma), channel) * inverse;
    ROUNDS {
        if (start > begin) {
            READ_ROUND(values, x, start, end)
            READ_ROUND(gradients, dy, start, end)
        }
        FIRST_PLACE(start)
        STEPS {
            STEP(start)
            if (step < end) {
                real results[WIDE];
                WIDTH {
                    const real value = values[WIDE * i + e], gradient = FLOWING(gradients[WIDE * i + e], value);
                    results[e] = (gradient - mean_flow - (value - mean_of_x) * slope) * gain;
                }
                write_wide(OPEN(dx) + place, results, quads, accumulate_dx);
            }
            NEXT_PLACE
        }
    }
#endif
}
