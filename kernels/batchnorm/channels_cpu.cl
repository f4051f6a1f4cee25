// Batch norm of a training step on CPU devices in one launch: a work-item does everything for a run of channels.
//
// x, dy, y, dx (batch, channels, pixels); all others have one value for each channel. A channel is `batch` rows of
// `pixels` elements, which caches hold between the sums and the result. A row is whole vectors and a last one that
// overlaps them: its first `again` lanes have been there before, and it is computed before the others are written, so
// that the result may take the place of x or dy.
//
//   batchnorm_channels_cpu_forward    y = ACTIVATE of norm, mean and var. The statistics are those of x - shift, where
//                                     shift is the mean of the first `part` elements of the first `images` rows
//   batchnorm_channels_cpu_backward   dx, dgamma, dbeta, through the statistics
//
// VL           lanes, at most the pixels
// PAST_CACHES  the result is too large to be found in a cache again
// MAKES        the kernel, in the order above
#include "batchnorm/activation.cl"
#include "common/lanes.cl"

#ifndef MAKES
#define MAKES 1
#endif

#ifdef RESIDUAL
#define ADDEND(i) +VLOAD(OPEN(residual) + ROW(image), i)
#else
#define ADDEND(i)
#endif

#define BLOCK 64  // vectors that are summed before their sum is added to others

#define CHANNELS                                                \
    const long whole = pixels / VL * VL, rest = pixels - VL;    \
    const int again = (int)(whole - rest);                      \
    real numbers[VL];                                           \
    for (int i = 0; i < VL; i++) numbers[i] = i;                \
    const realv lanes = GET(numbers, 0);                        \
    const int first_channel = get_global_id(0) * item_channels; \
    for (int channel = first_channel; channel < min(first_channel + item_channels, channels); channel++)

#define ROW(image) (((ulong)(image) * channels + channel) * pixels)
// Of the last vector of a row of `count` elements, what no whole vector holds.
#define NEW_OF(value, count) (lanes >= (realv)(VL - (real)((count) % VL)) ? (value) : (realv)(0))

#ifdef PAST_CACHES
#include "common/past_caches.cl"
#define OPEN_RESULT(name) const bool past = ON_VECTORS(OPEN(name) + ROW(image)) && !accumulate_##name;
#define WRITE_RESULT(name, i, value)                    \
    if (past)                                           \
        PAST_stored(OPEN(name) + ROW(image), i, value); \
    else                                                \
        VSTORE(OPEN(name) + ROW(image), i, value);
#else
#define OPEN_RESULT(name)
#define WRITE_RESULT(name, i, value) VSTORE(OPEN(name) + ROW(image), i, value);
#endif
#define OLD(name, i) VLOAD(OPEN(name) + ROW(image), i)

// Writes a row of `name`, RESULT(i) from element i on.
#define WRITE_ROW(name, RESULT)                                      \
    {                                                                \
        OPEN_RESULT(name)                                            \
        realv last = 0;                                              \
        if (again < VL) last = RESULT(rest);                         \
        if (accumulate_##name) {                                     \
            if (again < VL) last += OLD(name, rest);                 \
            for (long i = 0; i < whole; i += VL) {                   \
                const realv value = RESULT(i) + OLD(name, i);        \
                VSTORE(OPEN(name) + ROW(image), i, value);           \
            }                                                        \
        } else {                                                     \
            for (long i = 0; i < whole; i += VL) {                   \
                const realv value = RESULT(i);                       \
                WRITE_RESULT(name, i, value)                         \
            }                                                        \
        }                                                            \
        if (again < VL) VSTORE(OPEN(name) + ROW(image), rest, last); \
    }

#if MAKES == 1
SINGLE void batchnorm_channels_cpu_forward(
    CONST_TENSOR(x), TENSOR_OF(const parameter, gamma), TENSOR_OF(const parameter, beta),
    RESIDUAL_PARAMETER OUTPUT_OF(stored, y), OUTPUT_OF(parameter, mean), OUTPUT_OF(parameter, var),
    KEPT_OUTPUTS const int channels, const int batch, const int item_channels, const int images, const long pixels,
    const long part, const real share, const real sampled, const real eps SCALARS(SCALAR_LAST)) {
    CHANNELS {
        realv sums = 0, squares = 0;
        for (int image = 0; image < images; image++) {
            global const stored *xs = OPEN(x) + ROW(image);
            long i = 0;
            while (i + VL <= part) {
                realv some = 0;
                for (const long stop = min(i + BLOCK * VL, part - VL + 1); i < stop; i += VL) some += VLOAD(xs, i);
                sums += some;
            }
            if (i < part) sums += NEW_OF(VLOAD(xs, part - VL), part);
        }
        const real middle = sum_of_lanes(sums) * sampled;
        sums = 0;
        for (int image = 0; image < batch; image++) {
            global const stored *xs = OPEN(x) + ROW(image);
            long i = 0;
            while (i < whole) {
                realv some = 0, others = 0, some_squares = 0, other_squares = 0;
                const long stop = min(i + BLOCK * VL, whole);
                for (; i + 2 * VL <= stop; i += 2 * VL) {
                    const realv d = VLOAD(xs, i) - middle, e = VLOAD(xs, i + VL) - middle;
                    some += d;
                    others += e;
                    some_squares = fma(d, d, some_squares);
                    other_squares = fma(e, e, other_squares);
                }
                if (i < stop) {
                    const realv d = VLOAD(xs, i) - middle;
                    some += d;
                    some_squares = fma(d, d, some_squares);
                    i += VL;
                }
                sums += some + others;
                squares += some_squares + other_squares;
            }
            if (again < VL) {
                const realv d = NEW_OF(VLOAD(xs, rest) - middle, pixels);
                sums += d;
                squares = fma(d, d, squares);
            }
        }
        const real d = sum_of_lanes(sums) * share;
        const real variance = sum_of_lanes(squares) * share - d * d, spread = variance < 0 ? 0 : variance;
        const real factor = LOAD_parameter(OPEN(gamma), channel) / sqrt(spread + eps);
        const real level = LOAD_parameter(OPEN(beta), channel) - d * factor;
        PUT_STATISTICS(middle, d, spread, factor, level)
        if (!y_base) continue;
#define NORM(i) activated((VLOAD(xs, i) - middle) * factor + level ADDEND(i) SCALARS(PASS_SCALAR))
        for (int image = 0; image < batch; image++) {
            global const stored *xs = OPEN(x) + ROW(image);
            WRITE_ROW(y, NORM)
        }
    }
}

#else
SINGLE void batchnorm_channels_cpu_backward(
    CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR_OF(const parameter, gamma), TENSOR_OF(const parameter, mean),
    TENSOR_OF(const parameter, var), KEPT_INPUTS OUTPUT_OF(stored, dx), OUTPUT_OF(parameter, dgamma),
    OUTPUT_OF(parameter, dbeta), BIAS_OUTPUT const int channels, const int batch, const int item_channels,
    const long pixels, const real share, const real eps SCALARS(SCALAR_LAST)) {
    CHANNELS {
        const real mean_of_x = LOAD_parameter(OPEN(mean), channel),
                   inverse = 1 / sqrt(LOAD_parameter(OPEN(var), channel) + eps);
        OPEN_KEPT
        realv sums = 0, products = 0;
        for (int image = 0; image < batch; image++) {
            global const stored *xs = OPEN(x) + ROW(image), *dys = OPEN(dy) + ROW(image);
            long i = 0;
            while (i < whole) {
                realv some = 0, others = 0, some_products = 0, other_products = 0;
                const long stop = min(i + BLOCK * VL, whole);
                for (; i + 2 * VL <= stop; i += 2 * VL) {
                    const realv value = VLOAD(xs, i), next = VLOAD(xs, i + VL);
                    const realv gradient = FLOWING(VLOAD(dys, i), value), other = FLOWING(VLOAD(dys, i + VL), next);
                    some += gradient;
                    others += other;
                    some_products = fma(gradient, value - mean_of_x, some_products);
                    other_products = fma(other, next - mean_of_x, other_products);
                }
                if (i < stop) {
                    const realv value = VLOAD(xs, i), gradient = FLOWING(VLOAD(dys, i), value);
                    some += gradient;
                    some_products = fma(gradient, value - mean_of_x, some_products);
                    i += VL;
                }
                sums += some + others;
                products += some_products + other_products;
            }
            if (again < VL) {
                const realv value = VLOAD(xs, rest), gradient = NEW_OF(FLOWING(VLOAD(dys, rest), value), pixels);
                sums += gradient;
                products += NEW_OF(gradient * (value - mean_of_x), pixels);
            }
        }
        const real first = sum_of_lanes(sums), second = sum_of_lanes(products) * inverse;
        PUT_GRADIENTS(first, second)
        if (!dx_base) continue;
        const real slope = inverse * second * share, mean_flow = first * share;
        const real gain = LOAD_parameter(OPEN(gamma), channel) * inverse;
#define GRADIENT(i) ((FLOWING(VLOAD(dys, i), VLOAD(xs, i)) - mean_flow - (VLOAD(xs, i) - mean_of_x) * slope) * gain)
        for (int image = 0; image < batch; image++) {
            global const stored *xs = OPEN(x) + ROW(image), *dys = OPEN(dy) + ROW(image);
            WRITE_ROW(dx, GRADIENT)
        }
    }
}
#endif
