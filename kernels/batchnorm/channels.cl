// Batch norm of a training step on GPUs: a work-group per channel does everything in one launch.
//
// x, dy, y, dx (batch, channels, pixels); all others have one value for each channel.
// A work-item takes EACH times WIDE neighbouring elements at once. With HELD these are all of the channel's: they stay in
// registers between the sums and the result. Otherwise the group reads the channel again.
//
//   batchnorm_channels_forward    y = ACTIVATE of norm, mean and var. Sums are those of x - shift, where shift is the mean
//                                 of `sampled` steps: with HELD of all of them, otherwise of a sixteenth
//   batchnorm_channels_backward   dx, dgamma, dbeta, through the statistics
//
// ACTIVATE   y0 from x0, the norm's value; FLOW: y0, the gradient of the norm's value, from x0, y's, and x1, the value;
//            both only where an activation follows. SCALARS(F): its scalars
#include "pointwise/value.cl"
#include "pointwise/quads.cl"

#ifndef MAKES
#define MAKES 1  // 1: batchnorm_channels_forward, 2: batchnorm_channels_backward
#endif
#ifndef GROUP
#define GROUP 256  // work-items of a work-group; a power of 2
#endif
#ifndef EACH
#define EACH 4
#endif
#ifndef WIDE
#define WIDE 4  // 4 or 1
#endif
#ifndef SCALARS
#define SCALARS(F)
#endif

#define SCALAR_LAST(name) , const real p_##name
#define OUTPUT_OF(type, name) TENSOR_OF(type, name), const int accumulate_##name
#define PUT(kind, name, at, value) \
    if (name##_base) STORE_##kind(OPEN(name), at, accumulate_##name ? LOAD_##kind(OPEN(name), at) + (value) : (value));

// Where step `step` of a channel lies: rows of `per_row` steps, one row in each image.
#define PLACE(step) \
    ((ulong)((step) / per_row * (uint)channels + channel) * (uint)pixels + (step) % per_row * WIDE)

void read_wide(real *to, global const stored *from, const bool quads) {
#if WIDE == 4
    if (quads) {
        READ_QUAD_stored(to, from)
        return;
    }
#endif
    for (int e = 0; e < WIDE; e++) to[e] = LOAD(from, e);
}

void write_wide(global stored *to, real *from, const bool quads, const int accumulate) {
#if WIDE == 4
    if (quads && !accumulate) {
        WRITE_QUAD_stored(to, from)
        return;
    }
#endif
    for (int e = 0; e < WIDE; e++) STORE(to, e, accumulate ? LOAD(to, e) + from[e] : from[e]);
}

// The sums of all work-items' first and second, in a fixed order.
void sum_group(real *first, real *second, local real *firsts, local real *seconds) {
    const int lane = get_local_id(0);
    firsts[lane] = *first;
    seconds[lane] = *second;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int half_way = GROUP / 2; half_way > 0; half_way /= 2) {
        if (lane < half_way) {
            firsts[lane] += firsts[lane + half_way];
            seconds[lane] += seconds[lane + half_way];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    *first = firsts[0];
    *second = seconds[0];
    barrier(CLK_LOCAL_MEM_FENCE);
}

real join_wide(const real *sums) {
#if WIDE == 4
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
#else
    return sums[0];
#endif
}

// A loop over all steps of a work-item: `start` is the first step of a round of EACH, and `step` one of them.
#define ROUNDS for (uint start = lane; start < steps; start += EACH * GROUP)
#define STEPS _Pragma("unroll") for (int i = 0; i < EACH; i++)
#define STEP const uint step = start + i * GROUP;
#ifdef HELD
#define READ_AGAIN(...)
#else
#define READ_AGAIN(...) __VA_ARGS__
#endif

#if MAKES == 1
real activated(const real norm SCALARS(SCALAR_LAST)) {
#ifdef ACTIVATE
    const VALUE x0 = norm;
    VALUE y0;
    ACTIVATE
    return y0;
#else
    return norm;
#endif
}
#define PASS_SCALAR(name) , p_##name

#define READ_X                                                                                  \
    STEPS {                                                                                     \
        STEP                                                                                    \
        if (step < steps) read_wide(values + WIDE * i, OPEN(x) + PLACE(step), quads);           \
    }

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void batchnorm_channels_forward(
    CONST_TENSOR(x), CONST_TENSOR(gamma), CONST_TENSOR(beta), OUTPUT_OF(stored, y), OUTPUT_OF(stored, mean),
    OUTPUT_OF(stored, var),
#ifdef ACTIVATE
    OUTPUT_OF(real, shift), OUTPUT_OF(real, scale), OUTPUT_OF(real, offset),
#endif
    const int channels, const int pixels, const uint steps, const uint sampled, const real sample_share,
    const real share, const real eps SCALARS(SCALAR_LAST)) {
    local real firsts[GROUP], seconds[GROUP];
    const uint lane = get_local_id(0), channel = get_group_id(0), per_row = (uint)pixels / WIDE;
    const bool quads = QUAD_ALIGNED_stored(OPEN(x)) && QUAD_ALIGNED_stored(OPEN(y));
    real values[WIDE * EACH], sums[WIDE], squares[WIDE];
    for (int e = 0; e < WIDE; e++) sums[e] = squares[e] = 0;
    for (uint start = lane; start < sampled; start += EACH * GROUP) {
        READ_X
        STEPS {
            STEP
            if (step < sampled)
                for (int e = 0; e < WIDE; e++) sums[e] += values[WIDE * i + e];
        }
    }
    real first = join_wide(sums), second = 0;
    sum_group(&first, &second, firsts, seconds);
    const real middle = first * sample_share;
    for (int e = 0; e < WIDE; e++) sums[e] = 0;
    ROUNDS {
        READ_AGAIN(READ_X)
        STEPS {
            STEP
            if (step < steps)
                for (int e = 0; e < WIDE; e++) {
                    const real d = values[WIDE * i + e] - middle;
                    sums[e] += d;
                    squares[e] = fma(d, d, squares[e]);
                }
        }
    }
    first = join_wide(sums);
    second = join_wide(squares);
    sum_group(&first, &second, firsts, seconds);
    const real d = first * share, spread = fmax(second * share - d * d, REAL(0.0));
    const real factor = LOAD(OPEN(gamma), channel) / sqrt(spread + eps);
    const real level = LOAD(OPEN(beta), channel) - d * factor;
    if (lane == 0) {
        PUT(stored, mean, channel, middle + d)
        PUT(stored, var, channel, spread)
#ifdef ACTIVATE
        PUT(real, shift, channel, middle)
        PUT(real, scale, channel, factor)
        PUT(real, offset, channel, level)
#endif
    }
    if (!y_base) return;
    ROUNDS {
        READ_AGAIN(READ_X)
        STEPS {
            STEP
            if (step < steps) {
                real results[WIDE];
                for (int e = 0; e < WIDE; e++)
                    results[e] = activated((values[WIDE * i + e] - middle) * factor + level SCALARS(PASS_SCALAR));
                write_wide(OPEN(y) + PLACE(step), results, quads, accumulate_y);
            }
        }
    }
}

#else
#ifdef FLOW
#define NORM(value) ((value - middle) * factor + level)
real flow(const real dy, const real norm SCALARS(SCALAR_LAST)) {
    const VALUE x0 = dy, x1 = norm;
    VALUE y0;
    FLOW
    return y0;
}
#define PASS_SCALAR(name) , p_##name
#define FLOWING(dy, value) flow(dy, NORM(value) SCALARS(PASS_SCALAR))
#else
#define FLOWING(dy, value) (dy)
#endif

#define READ_BOTH                                                                               \
    STEPS {                                                                                     \
        STEP                                                                                    \
        if (step < steps) {                                                                     \
            read_wide(values + WIDE * i, OPEN(x) + PLACE(step), quads);                         \
            read_wide(gradients + WIDE * i, OPEN(dy) + PLACE(step), quads);                     \
        }                                                                                       \
    }

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void batchnorm_channels_backward(
    CONST_TENSOR(x), CONST_TENSOR(dy), CONST_TENSOR(gamma), CONST_TENSOR(mean), CONST_TENSOR(var),
#ifdef FLOW
    TENSOR_OF(const real, shift), TENSOR_OF(const real, scale), TENSOR_OF(const real, offset),
#endif
    OUTPUT_OF(stored, dx), OUTPUT_OF(stored, dgamma), OUTPUT_OF(stored, dbeta), const int channels, const int pixels,
    const uint steps, const real share, const real eps SCALARS(SCALAR_LAST)) {
    local real firsts[GROUP], seconds[GROUP];
    const uint lane = get_local_id(0), channel = get_group_id(0), per_row = (uint)pixels / WIDE;
    const bool quads =
        QUAD_ALIGNED_stored(OPEN(x)) && QUAD_ALIGNED_stored(OPEN(dy)) && QUAD_ALIGNED_stored(OPEN(dx));
    const real mean_of_x = LOAD(OPEN(mean), channel), inverse = 1 / sqrt(LOAD(OPEN(var), channel) + eps);
#ifdef FLOW
    const real middle = OPEN(shift)[channel], factor = OPEN(scale)[channel], level = OPEN(offset)[channel];
#endif
    real values[WIDE * EACH], gradients[WIDE * EACH], sums[WIDE], products[WIDE];
    for (int e = 0; e < WIDE; e++) sums[e] = products[e] = 0;
    ROUNDS {
        READ_BOTH
        STEPS {
            STEP
            if (step < steps)
                for (int e = 0; e < WIDE; e++) {
                    const real value = values[WIDE * i + e], gradient = FLOWING(gradients[WIDE * i + e], value);
                    sums[e] += gradient;
                    products[e] = fma(gradient, value - mean_of_x, products[e]);
                }
        }
    }
    real first = join_wide(sums), second = join_wide(products);
    sum_group(&first, &second, firsts, seconds);
    second *= inverse;
    if (lane == 0) {
        PUT(stored, dgamma, channel, second)
        PUT(stored, dbeta, channel, first)
    }
    if (!dx_base) return;
    const real slope = inverse * second * share, mean_flow = first * share;
    const real gain = LOAD(OPEN(gamma), channel) * inverse;
    ROUNDS {
        READ_AGAIN(READ_BOTH)
        STEPS {
            STEP
            if (step < steps) {
                real results[WIDE];
                for (int e = 0; e < WIDE; e++) {
                    const real value = values[WIDE * i + e], gradient = FLOWING(gradients[WIDE * i + e], value);
                    results[e] = (gradient - mean_flow - (value - mean_of_x) * slope) * gain;
                }
                write_wide(OPEN(dx) + PLACE(step), results, quads, accumulate_dx);
            }
        }
    }
}
#endif
