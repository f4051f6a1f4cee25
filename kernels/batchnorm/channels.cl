// Batch norm of a training step on GPUs: a work-group per channel does everything in one launch.
//
// x, dy, y, dx (batch, channels, pixels); all others have one value for each channel. A channel is one round of its
// work-group (batchnorm/steps.cl), which keeps it in registers between the sums and the result.
//
//   batchnorm_channels_forward    y = ACTIVATE of norm, mean and var; var from the values less their mean
//   batchnorm_channels_backward   dx, dgamma, dbeta, through the statistics
#include "batchnorm/steps.cl"

#ifndef MAKES
#define MAKES 1  // 1: batchnorm_channels_forward, 2: batchnorm_channels_backward
#endif

#if MAKES == 1
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void batchnorm_channels_forward(
    CONST_TENSOR(x), TENSOR_OF(const parameter, gamma), TENSOR_OF(const parameter, beta), OUTPUT_OF(stored, y),
    OUTPUT_OF(parameter, mean), OUTPUT_OF(parameter, var), KEPT_OUTPUTS const int channels, const int pixels,
    const uint steps, const real share, const real eps SCALARS(SCALAR_LAST)) {
    local real firsts[GROUP], seconds[GROUP];
    const uint channel = get_group_id(0);
    OPEN_ROWS
    const bool quads = QUAD_ALIGNED_stored(OPEN(x)) && QUAD_ALIGNED_stored(OPEN(y));
    const real scale = LOAD_parameter(OPEN(gamma), channel),
               offset = LOAD_parameter(OPEN(beta), channel);  // read while x arrives
    real values[WIDE * EACH], sums[WIDE], squares[WIDE];
    WIDTH sums[e] = squares[e] = 0;
    READ_ROUND(values, x, 0, steps)
    STEPS {
        STEP(0)
        if (step < steps) WIDTH sums[e] += values[WIDE * i + e];
    }
    real first = join_wide(sums), second = 0;
    sum_group(&first, &second, firsts, seconds, 0);
    const real middle = first * share;
    WIDTH sums[e] = 0;
    STEPS {
        STEP(0)
        if (step < steps) {
            WIDTH {
                const real d = values[WIDE * i + e] - middle;
                sums[e] += d;
                squares[e] = fma(d, d, squares[e]);
            }
        }
    }
    first = join_wide(sums);
    second = join_wide(squares);
    sum_group(&first, &second, firsts, seconds, 1);
    const real d = first * share, variance = second * share - d * d, spread = variance < 0 ? 0 : variance;
    const real factor = scale / sqrt(spread + eps);
    const real level = offset - d * factor;
    if (get_local_id(0) == 0) {
        PUT_STATISTICS(middle, d, spread, factor, level)
    }
    if (!y_base) return;
    WRITE_FORWARD(0, steps)
}

#else
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void batchnorm_channels_backward(
    CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR_OF(const parameter, gamma), TENSOR_OF(const parameter, mean),
    TENSOR_OF(const parameter, var), KEPT_INPUTS OUTPUT_OF(stored, dx), OUTPUT_OF(parameter, dgamma),
    OUTPUT_OF(parameter, dbeta), BIAS_OUTPUT const int channels, const int pixels, const uint steps, const real share,
    const real eps SCALARS(SCALAR_LAST)) {
    local real firsts[GROUP], seconds[GROUP];
    const uint channel = get_group_id(0);
    OPEN_ROWS
    const bool quads = QUAD_ALIGNED_stored(OPEN(x)) && QUAD_ALIGNED_stored(OPEN(dy)) && QUAD_ALIGNED_stored(OPEN(dx));
    const real mean_of_x = LOAD_parameter(OPEN(mean), channel),
               inverse = 1 / sqrt(LOAD_parameter(OPEN(var), channel) + eps);
#if WARPS
    const real gain = LOAD_parameter(OPEN(gamma), channel) * inverse;  // read while x arrives
#endif
    OPEN_KEPT
    SUM_PRODUCTS(0, steps)
    real first = join_wide(sums), second = join_wide(products);
    sum_group(&first, &second, firsts, seconds, 0);
    second *= inverse;
    if (get_local_id(0) == 0) {
        PUT_GRADIENTS(first, second)
    }
    if (!dx_base) return;
    const real slope = inverse * second * share, mean_flow = first * share;
#if !WARPS
    const real gain = LOAD_parameter(OPEN(gamma), channel) * inverse;
#endif
    WRITE_BACKWARD(0, steps)
}
#endif
