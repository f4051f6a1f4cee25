// Batch norm of a training step on CPU devices where a pixel's channels lie together: vectors run along channels.
//
// x, dy, y, dx (rows, channels), with a row for each pixel of each image; all others have one value for each channel.
// The channels are whole vectors. Three launches: sums of parts of the rows, one vector of results from the parts in
// their order, and the rows of the result, which may take the place of x or dy.
//
//   partial   real, [part][3][channels]: forward the shift, and the sums of x - shift and of its square,
//             where the shift is the mean of the part's first rows; backward (the first is unused) the sums
//             of dy and of dy (x - mean)
//   vectors   real, [3][channels]: what the last launch computes with
//
// The parts are joined by the formula of Chan, Golub and LeVeque (Updating formulae and a pairwise algorithm for
// computing sample variances, 1979).
//
// PAST_CACHES  the result is too large to be found in a cache again
// MAKES        1 to 3: forward's launches; 4 to 6: backward's
#include "batchnorm/rows.cl"
#include "common/lanes.cl"

#ifndef MAKES
#define MAKES 1
#endif
#define TOGETHER 8  // rows that are summed in registers before their sum is added to others
#define SAMPLE 16   // one row in this many makes the shift
#define PART(n) (OPEN(partial) + ((long)get_global_id(0) * 3 + (n)) * channels)
#define EACH_BLOCK for (int channel = 0; channel < channels; channel += VL)

#if MAKES == 1 || MAKES == 4
// clang-format off: a function on one line stays in every kernel's source (core/runtime/sources.py)
void clear(global real *sums, const int channels) {
    EACH_BLOCK PUT(sums, channel, (realv)(0));
}
// clang-format on
#endif

#ifdef PAST_CACHES
#include "common/past_caches.cl"
#define WRITE_ROW(name, at, value)                               \
    if (accumulate_##name)                                       \
        VSTORE(OPEN(name), at, (value) + VLOAD(OPEN(name), at)); \
    else if (ON_VECTORS(OPEN(name) + (at)))                      \
        PAST_stored(OPEN(name), at, value);                      \
    else                                                         \
        VSTORE(OPEN(name), at, value);
#else
#define WRITE_ROW(name, at, value) \
    VSTORE(OPEN(name), at, accumulate_##name ? (value) + VLOAD(OPEN(name), at) : (value));
#endif

#if MAKES == 1
SINGLE void batchnorm_rows_statistics(CONST_TENSOR(x), TENSOR_OF(real, partial), const int channels, const long rows,
                                      const long part_rows) {
    const long first = get_global_id(0) * part_rows, last = min(first + part_rows, rows);
    const long sampled = (last - first + SAMPLE - 1) / SAMPLE;
    global real *shifts = PART(0), *sums = PART(1), *squares = PART(2);
    clear(shifts, channels);
    clear(sums, channels);
    clear(squares, channels);
    for (long row = first; row < first + sampled; row += TOGETHER) {
        const int count = (int)min((long)TOGETHER, first + sampled - row);
        EACH_BLOCK {
            realv some = 0;
            for (int i = 0; i < count; i++) some += VLOAD(OPEN(x), (row + i) * channels + channel);
            PUT(shifts, channel, GET(shifts, channel) + some);
        }
    }
    EACH_BLOCK PUT(shifts, channel, GET(shifts, channel) / (real)sampled);
    for (long row = first; row < last; row += TOGETHER) {
        const int count = (int)min((long)TOGETHER, last - row);
        EACH_BLOCK {
            const realv shift = GET(shifts, channel);
            realv some = 0, some_squares = 0;
            for (int i = 0; i < count; i++) {
                const realv d = VLOAD(OPEN(x), (row + i) * channels + channel) - shift;
                some += d;
                some_squares = fma(d, d, some_squares);
            }
            PUT(sums, channel, GET(sums, channel) + some);
            PUT(squares, channel, GET(squares, channel) + some_squares);
        }
    }
}
#elif MAKES == 2
SINGLE void batchnorm_rows_join(TENSOR_OF(const real, partial), TENSOR_OF(real, vectors),
                                TENSOR_OF(const parameter, gamma), TENSOR_OF(const parameter, beta),
                                OUTPUT_OF(parameter, mean), OUTPUT_OF(parameter, var), KEPT_OUTPUTS const int channels,
                                const int parts, const long rows, const long part_rows, const real eps) {
    const int channel = get_global_id(0);
    const real middle = OPEN(partial)[channel];   // the first part's shift: means are close to it, so they keep digits
    real known = 0, average = 0, deviations = 0;  // rows so far, their mean - middle, the sum of squares around it
    for (int part = 0; part < parts; part++) {
        global const real *of_part = OPEN(partial) + (long)part * 3 * channels + channel;
        const real count = (real)min(part_rows, rows - part * part_rows), d = of_part[channels] / count;
        const real own = of_part[2 * channels] - d * of_part[channels], apart = of_part[0] - middle + d - average;
        const real all = known + count;
        average += apart * (count / all);
        deviations += (own < 0 ? 0 : own) + apart * apart * (known * (count / all));
        known = all;
    }
    const real variance = deviations / known;
    PUT_NORM(middle, average, variance)
}
#elif MAKES == 3
SINGLE void batchnorm_rows_result(CONST_TENSOR(x), TENSOR_OF(const real, vectors), TENSOR(y), const int accumulate_y,
                                  const int channels, const long rows, const long item_rows SCALARS(SCALAR_LAST)) {
    const long first = get_global_id(0) * item_rows;
    for (long row = first; row < min(first + item_rows, rows); row++) {
        EACH_BLOCK {
            const realv middle = GET(VECTOR(0), channel), factor = GET(VECTOR(1), channel),
                        level = GET(VECTOR(2), channel);
            const long at = row * channels + channel;
            const realv value = activated((VLOAD(OPEN(x), at) - middle) * factor + level SCALARS(PASS_SCALAR));
            WRITE_ROW(y, at, value)
        }
    }
}
#endif

#ifdef FLOW
#define OPEN_VECTORS                                                                    \
    const realv middle = GET(OPEN(shift), channel), factor = GET(OPEN(scale), channel), \
                level = GET(OPEN(offset), channel);
#else
#define OPEN_VECTORS
#endif

#if MAKES == 4
SINGLE void batchnorm_rows_products(CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR_OF(const parameter, mean),
                                    KEPT_INPUTS TENSOR_OF(real, partial), const int channels, const long rows,
                                    const long part_rows SCALARS(SCALAR_LAST)) {
    const long first = get_global_id(0) * part_rows, last = min(first + part_rows, rows);
    global real *sums = PART(1), *products = PART(2);
    clear(sums, channels);
    clear(products, channels);
    for (long row = first; row < last; row += TOGETHER) {
        const int count = (int)min((long)TOGETHER, last - row);
        EACH_BLOCK {
            OPEN_VECTORS
            const realv mean_of_x = VLOAD_parameter(OPEN(mean), channel);
            realv some = 0, some_products = 0;
            for (int i = 0; i < count; i++) {
                const long at = (row + i) * channels + channel;
                const realv value = VLOAD(OPEN(x), at), gradient = FLOWING(VLOAD(OPEN(dy), at), value);
                some += gradient;
                some_products = fma(gradient, value - mean_of_x, some_products);
            }
            PUT(sums, channel, GET(sums, channel) + some);
            PUT(products, channel, GET(products, channel) + some_products);
        }
    }
}
#elif MAKES == 5
SINGLE void batchnorm_rows_join_products(
    TENSOR_OF(const real, partial), TENSOR_OF(real, vectors), TENSOR_OF(const parameter, gamma),
    TENSOR_OF(const parameter, var), OUTPUT_OF(parameter, dgamma), OUTPUT_OF(parameter, dbeta),
    BIAS_OUTPUT const int channels, const int parts, const long rows, const real eps) {
    const int channel = get_global_id(0);
    const real inverse = 1 / sqrt(LOAD_parameter(OPEN(var), channel) + eps), share = 1 / (real)rows;
    real first = 0, second = 0;
    for (int part = 0; part < parts; part++) {
        global const real *of_part = OPEN(partial) + (long)part * 3 * channels + channel;
        first += of_part[channels];
        second += of_part[2 * channels];
    }
    PUT_GRADIENT(first, second, inverse, share)
}
#elif MAKES == 6
SINGLE void batchnorm_rows_gradient(CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR_OF(const parameter, mean),
                                    KEPT_INPUTS TENSOR_OF(const real, vectors), TENSOR(dx), const int accumulate_dx,
                                    const int channels, const long rows, const long item_rows SCALARS(SCALAR_LAST)) {
    const long first = get_global_id(0) * item_rows;
    for (long row = first; row < min(first + item_rows, rows); row++) {
        EACH_BLOCK {
            OPEN_VECTORS
            const realv flow_mean = GET(VECTOR(0), channel), slope = GET(VECTOR(1), channel),
                        gain = GET(VECTOR(2), channel);
            const long at = row * channels + channel;
            const realv value = VLOAD(OPEN(x), at), d = value - VLOAD_parameter(OPEN(mean), channel);
            const realv result = (FLOWING(VLOAD(OPEN(dy), at), value) - flow_mean - d * slope) * gain;
            WRITE_ROW(dx, at, result)
        }
    }
}
#endif
