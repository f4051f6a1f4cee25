// Batch norm of a training step on GPUs in two launches: sums of parts of channels, then the result.
//
// x, dy, y, dx (batch, channels, pixels); all others have one value for each channel. A work-group takes one of `parts`
// of a channel, of `part_steps` steps (batchnorm/steps.cl): whole rounds, but for the last one. Each writes THREE sums:
// partial[channel][part]. Groups go from the first images to the last, and those of the second launch go back, so that
// they begin with what caches still hold.
//
//   batchnorm_parts_statistics      shift, the mean of the part's first round; the mean of x - shift; the sum of squares
//                                   of what is left. Parts are joined by differences of shifts, which keeps digits
//   batchnorm_parts_forward         y = ACTIVATE of norm, mean and var
//   batchnorm_parts_products        the sums of the gradient of the norm, and of its product with x - mean
//   batchnorm_parts_backward        dx, dgamma, dbeta, through the statistics
#include "batchnorm/steps.cl"

#ifndef MAKES
#define MAKES 1  // the kernel, in the order above
#endif
#define THREE 3

#define OPEN_PART(group)                                                                   \
    local real firsts[GROUP], seconds[GROUP];                                              \
    const uint channel = (group) % (uint)channels, part = (group) / (uint)channels;        \
    const uint begin = part * part_steps, end = min(begin + part_steps, steps);            \
    OPEN_ROWS
#define LAST_FIRST (get_num_groups(0) - 1 - get_group_id(0))
#define ROUNDS for (uint start = begin; start < end; start += EACH * GROUP)

#if MAKES == 1
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void batchnorm_parts_statistics(
    CONST_TENSOR(x), TENSOR_OF(real, partial), const int channels, const int pixels, const uint steps,
    const uint part_steps, const uint parts) {
    OPEN_PART(get_group_id(0))
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
    if (get_local_id(0) == 0) {
        global real *to = OPEN(partial) + ((ulong)channel * parts + part) * THREE;
        const real d = first / (real)((end - begin) * WIDE);
        to[0] = shift;
        to[1] = d;
        to[2] = second - first * d;
    }
}

#elif MAKES == 2
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void batchnorm_parts_forward(
    CONST_TENSOR(x), CONST_TENSOR(gamma), CONST_TENSOR(beta), OUTPUT_OF(stored, y), OUTPUT_OF(stored, mean),
    OUTPUT_OF(stored, var), KEPT_OUTPUTS TENSOR_OF(const real, partial), const int channels, const int pixels,
    const uint steps, const uint part_steps, const uint parts, const real share, const real eps SCALARS(SCALAR_LAST)) {
    OPEN_PART(LAST_FIRST)
    const bool quads = QUAD_ALIGNED_stored(OPEN(x)) && QUAD_ALIGNED_stored(OPEN(y));
    real values[WIDE * EACH];
    if (y_base) {
        READ_ROUND(values, x, begin, end)
    }
    global const real *of_channel = OPEN(partial) + (ulong)channel * parts * THREE;
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
}

#elif MAKES == 3
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void batchnorm_parts_products(
    CONST_TENSOR(x), CONST_TENSOR(dy), CONST_TENSOR(mean), KEPT_INPUTS TENSOR_OF(real, partial), const int channels,
    const int pixels, const uint steps, const uint part_steps, const uint parts SCALARS(SCALAR_LAST)) {
    OPEN_PART(get_group_id(0))
    const bool quads = QUAD_ALIGNED_stored(OPEN(x)) && QUAD_ALIGNED_stored(OPEN(dy));
    const real mean_of_x = LOAD(OPEN(mean), channel);
    OPEN_KEPT
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
    if (get_local_id(0) == 0) {
        global real *to = OPEN(partial) + ((ulong)channel * parts + part) * THREE;
        to[0] = first;
        to[1] = second;
    }
}

#else
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void batchnorm_parts_backward(
    CONST_TENSOR(x), CONST_TENSOR(dy), CONST_TENSOR(gamma), CONST_TENSOR(mean), CONST_TENSOR(var), KEPT_INPUTS
    OUTPUT_OF(stored, dx), OUTPUT_OF(stored, dgamma), OUTPUT_OF(stored, dbeta), TENSOR_OF(const real, partial),
    const int channels, const int pixels, const uint steps, const uint part_steps, const uint parts, const real share,
    const real eps SCALARS(SCALAR_LAST)) {
    OPEN_PART(LAST_FIRST)
    const bool quads =
        QUAD_ALIGNED_stored(OPEN(x)) && QUAD_ALIGNED_stored(OPEN(dy)) && QUAD_ALIGNED_stored(OPEN(dx));
    real values[WIDE * EACH], gradients[WIDE * EACH];
    if (dx_base) {
        READ_ROUND(values, x, begin, end)
        READ_ROUND(gradients, dy, begin, end)
    }
    const real mean_of_x = LOAD(OPEN(mean), channel), inverse = 1 / sqrt(LOAD(OPEN(var), channel) + eps);
    OPEN_KEPT
    global const real *of_channel = OPEN(partial) + (ulong)channel * parts * THREE;
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
}
#endif
