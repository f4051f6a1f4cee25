// Batch norm of a training step on GPUs in two launches: sums of parts of channels, then the result.
//
// x, dy, y, dx (batch, channels, pixels); all others have one value for each channel. A work-group takes one of `parts`
// of a channel, of `part_steps` steps (batchnorm/steps.cl): whole rounds, but for the last one. Each writes THREE sums:
// partial[channel][part]. Groups go from the first images to the last, and those of the second launch go back, so that
// they begin with what caches still hold.
//
//   batchnorm_parts_statistics      shift, the mean of the part's first round; the mean of x - shift; the
//                                   sum of squares of what is left. Parts are joined by differences of
//                                   shifts, which keeps digits
//   batchnorm_parts_forward         y = ACTIVATE of norm, mean and var
//   batchnorm_parts_products        the sums of the gradient of the norm, and of its product with x - mean
//   batchnorm_parts_backward        dx, dgamma, dbeta, through the statistics
//
// The work-groups of batchnorm_teams_forward and batchnorm_teams_backward do both in one launch, and keep their part,
// one round, in registers: memory is read once. TEAM of them, the parts of a channel, meet (batchnorm/teams.cl).
#ifndef EMULATED
#define EMULATED 0
#endif
#ifndef TEAM
#define TEAM 2  // parts of a channel
#endif
#if EMULATED
#define LANE ((uint)get_local_id(0) % GROUP)
#define TEAM_ITEMS (GROUP * TEAM)
#define IN_TEAM (get_local_id(0) / GROUP)
#else
#define TEAM_ITEMS GROUP
#define IN_TEAM 0
#endif
#include "batchnorm/steps.cl"
#include "batchnorm/teams.cl"

#ifndef MAKES
#define MAKES 1  // the kernel, in the order above; 5 and 6: the teams'
#endif
#define THREE 3

#define OPEN_PART(group)                                                            \
    local real firsts[GROUP], seconds[GROUP];                                       \
    const uint channel = (group) % (uint)channels, part = (group) / (uint)channels; \
    const uint begin = part * part_steps, end = min(begin + part_steps, steps);     \
    OPEN_ROWS
#define LAST_FIRST (get_num_groups(0) - 1 - get_group_id(0))
#define ROUNDS for (uint start = begin; start < end; start += EACH * GROUP)

// From a part's first round, which it reads, the shift; then the sums of what is left of a round.
#define OPEN_STATISTICS                                                               \
    real values[WIDE * EACH], sums[WIDE], squares[WIDE];                              \
    WIDTH sums[e] = squares[e] = 0;                                                   \
    READ_ROUND(values, x, begin, end)                                                 \
    STEPS {                                                                           \
        STEP(begin)                                                                   \
        if (step < end) WIDTH sums[e] += values[WIDE * i + e];                        \
    }                                                                                 \
    real first = join_wide(sums), second = 0;                                         \
    sum_group(&first, &second, firsts, seconds, 0);                                   \
    const real shift = first / (real)(min(end - begin, (uint)(EACH * GROUP)) * WIDE); \
    WIDTH sums[e] = 0;
#define ADD_STATISTICS(start)                                \
    STEPS {                                                  \
        STEP(start)                                          \
        if (step < end) {                                    \
            WIDTH {                                          \
                const real d = values[WIDE * i + e] - shift; \
                sums[e] += d;                                \
                squares[e] = fma(d, d, squares[e]);          \
            }                                                \
        }                                                    \
    }
#define LEAVE_STATISTICS                                                           \
    first = join_wide(sums);                                                       \
    second = join_wide(squares);                                                   \
    sum_group(&first, &second, firsts, seconds, 1);                                \
    if (LANE == 0) {                                                               \
        global real *to = OPEN(partial) + ((ulong)channel * parts + part) * THREE; \
        const real d = first / (real)((end - begin) * WIDE);                       \
        to[0] = shift;                                                             \
        to[1] = d;                                                                 \
        to[2] = second - first * d;                                                \
    }

// Who joins the sums of a channel's parts: the work-group, or, where shuffles do it without a barrier and a lane has
// one part at most, every warp for itself.
#if WARPS && MAKES >= 5 && TEAM <= WARP
#define JOIN_LANE (LANE % WARP)
#define JOIN_LANES WARP
#define JOIN_SUMS(turn)      \
    first = sum_warp(first); \
    second = sum_warp(second);
#else
#define JOIN_LANE LANE
#define JOIN_LANES GROUP
#define JOIN_SUMS(turn) sum_group(&first, &second, firsts, seconds, turn);
#endif
#define EACH_PART _Pragma("unroll") for (uint p = JOIN_LANE; p < parts; p += JOIN_LANES)

// The norm's factor and level for x - middle, from what all parts of the channel left.
#define OPEN_SCALE \
    const real scale = LOAD_parameter(OPEN(gamma), channel), offset = LOAD_parameter(OPEN(beta), channel);
#define PART_COUNT(p) (real)((min((p + 1) * part_steps, steps) - p * part_steps) * WIDE)
#define JOIN_STATISTICS                                                                      \
    volatile global const real *of_channel = OPEN(partial) + (ulong)channel * parts * THREE; \
    const real middle = of_channel[0];                                                       \
    first = second = 0;                                                                      \
    EACH_PART {                                                                              \
        const real apart = (of_channel[THREE * p] - middle) + of_channel[THREE * p + 1];     \
        first = fma(PART_COUNT(p), apart, first);                                            \
    }                                                                                        \
    JOIN_SUMS(0)                                                                             \
    const real d = first * share;                                                            \
    first = 0;                                                                               \
    EACH_PART {                                                                              \
        const real apart = (of_channel[THREE * p] - middle) + of_channel[THREE * p + 1] - d; \
        first += fma(PART_COUNT(p) * apart, apart, of_channel[THREE * p + 2]);               \
    }                                                                                        \
    JOIN_SUMS(1)                                                                             \
    const real spread = first * share, factor = scale / sqrt(spread + eps);                  \
    const real level = offset - d * factor;                                                  \
    if (part == 0 && LANE == 0) {                                                            \
        PUT_STATISTICS(middle, d, spread, factor, level)                                     \
    }

// The sums of a part's gradients and of their products with x - mean.
#define LEAVE_PRODUCTS                                                             \
    real first = join_wide(sums), second = join_wide(products);                    \
    sum_group(&first, &second, firsts, seconds, 0);                                \
    if (LANE == 0) {                                                               \
        global real *to = OPEN(partial) + ((ulong)channel * parts + part) * THREE; \
        to[0] = first;                                                             \
        to[1] = second;                                                            \
    }
#define JOIN_PRODUCTS                                                                        \
    volatile global const real *of_channel = OPEN(partial) + (ulong)channel * parts * THREE; \
    first = second = 0;                                                                      \
    EACH_PART {                                                                              \
        first += of_channel[THREE * p];                                                      \
        second += of_channel[THREE * p + 1];                                                 \
    }                                                                                        \
    JOIN_SUMS(1)                                                                             \
    second *= inverse;                                                                       \
    if (part == 0 && LANE == 0) {                                                            \
        PUT_GRADIENTS(first, second)                                                         \
    }                                                                                        \
    const real slope = inverse * second * share, mean_flow = first * share;

// The channel and the part that a team's group stands for.
#define TEAM_LOCAL (GROUP * (EMULATED ? TEAM : 1))
#define OPEN_TEAM_PART                                                                                 \
    local real team_firsts[TEAM_LOCAL], team_seconds[TEAM_LOCAL];                                      \
    OPEN_NUMBER                                                                                        \
    local real *firsts = team_firsts + IN_TEAM * GROUP, *seconds = team_seconds + IN_TEAM * GROUP;     \
    const uint channel = number / TEAM, part = number % TEAM, parts = TEAM, part_steps = EACH * GROUP; \
    const uint begin = part * part_steps, end = min(begin + part_steps, steps);                        \
    OPEN_ROWS

#if MAKES == 1
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void batchnorm_parts_statistics(
    CONST_TENSOR(x), TENSOR_OF(real, partial), const int channels, const int pixels, const uint steps,
    const uint part_steps, const uint parts) {
    OPEN_PART(get_group_id(0))
    const bool quads = QUAD_ALIGNED_stored(OPEN(x));
    OPEN_STATISTICS
    ROUNDS {
        if (start > begin) {
            READ_ROUND(values, x, start, end)
        }
        ADD_STATISTICS(start)
    }
    LEAVE_STATISTICS
}

#elif MAKES == 2
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void batchnorm_parts_forward(
    CONST_TENSOR(x), TENSOR_OF(const parameter, gamma), TENSOR_OF(const parameter, beta), OUTPUT_OF(stored, y),
    OUTPUT_OF(parameter, mean), OUTPUT_OF(parameter, var), KEPT_OUTPUTS TENSOR_OF(const real, partial),
    const int channels, const int pixels, const uint steps, const uint part_steps, const uint parts, const real share,
    const real eps SCALARS(SCALAR_LAST)) {
    OPEN_PART(LAST_FIRST)
    const bool quads = QUAD_ALIGNED_stored(OPEN(x)) && QUAD_ALIGNED_stored(OPEN(y));
    OPEN_SCALE
    real values[WIDE * EACH], first, second;
    if (y_base) {
        READ_ROUND(values, x, begin, end)
    }
    JOIN_STATISTICS
    if (!y_base) return;
    ROUNDS {
        if (start > begin) {
            READ_ROUND(values, x, start, end)
        }
        WRITE_FORWARD(start, end)
    }
}

#elif MAKES == 5
kernel __attribute__((reqd_work_group_size(TEAM_ITEMS, 1, 1))) void batchnorm_teams_forward(
    CONST_TENSOR(x), TENSOR_OF(const parameter, gamma), TENSOR_OF(const parameter, beta), OUTPUT_OF(stored, y),
    OUTPUT_OF(parameter, mean), OUTPUT_OF(parameter, var), KEPT_OUTPUTS TENSOR_OF(real, partial), COUNTER tickets,
    const int channels, const int pixels, const uint steps, const real share, const real eps SCALARS(SCALAR_LAST)) {
    OPEN_TEAM_PART
    const bool quads = QUAD_ALIGNED_stored(OPEN(x)) && QUAD_ALIGNED_stored(OPEN(y));
    OPEN_SCALE
    OPEN_STATISTICS
    ADD_STATISTICS(begin)
    LEAVE_STATISTICS
    MEET_TEAM(channel)
    JOIN_STATISTICS
    if (y_base) {
        WRITE_FORWARD(begin, end)
    }
    LEAVE_TEAM(channel)
}

#elif MAKES == 3
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void batchnorm_parts_products(
    CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR_OF(const parameter, mean), KEPT_INPUTS TENSOR_OF(real, partial),
    const int channels, const int pixels, const uint steps, const uint part_steps,
    const uint parts SCALARS(SCALAR_LAST)) {
    OPEN_PART(get_group_id(0))
    const bool quads = QUAD_ALIGNED_stored(OPEN(x)) && QUAD_ALIGNED_stored(OPEN(dy));
    const real mean_of_x = LOAD_parameter(OPEN(mean), channel);
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
    LEAVE_PRODUCTS
}

#elif MAKES == 4
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void batchnorm_parts_backward(
    CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR_OF(const parameter, gamma), TENSOR_OF(const parameter, mean),
    TENSOR_OF(const parameter, var), KEPT_INPUTS OUTPUT_OF(stored, dx), OUTPUT_OF(parameter, dgamma),
    OUTPUT_OF(parameter, dbeta), BIAS_OUTPUT TENSOR_OF(const real, partial), const int channels, const int pixels,
    const uint steps, const uint part_steps, const uint parts, const real share, const real eps SCALARS(SCALAR_LAST)) {
    OPEN_PART(LAST_FIRST)
    const bool quads = QUAD_ALIGNED_stored(OPEN(x)) && QUAD_ALIGNED_stored(OPEN(dy)) && QUAD_ALIGNED_stored(OPEN(dx));
    real values[WIDE * EACH], gradients[WIDE * EACH], first, second;
    if (dx_base) {
        READ_ROUND(values, x, begin, end)
        READ_ROUND(gradients, dy, begin, end)
    }
    const real mean_of_x = LOAD_parameter(OPEN(mean), channel),
               inverse = 1 / sqrt(LOAD_parameter(OPEN(var), channel) + eps);
    const real gain = LOAD_parameter(OPEN(gamma), channel) * inverse;
    OPEN_KEPT
    JOIN_PRODUCTS
    if (!dx_base) return;
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

#else
kernel __attribute__((reqd_work_group_size(TEAM_ITEMS, 1, 1))) void batchnorm_teams_backward(
    CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR_OF(const parameter, gamma), TENSOR_OF(const parameter, mean),
    TENSOR_OF(const parameter, var), KEPT_INPUTS OUTPUT_OF(stored, dx), OUTPUT_OF(parameter, dgamma),
    OUTPUT_OF(parameter, dbeta), BIAS_OUTPUT TENSOR_OF(real, partial), COUNTER tickets, const int channels,
    const int pixels, const uint steps, const real share, const real eps SCALARS(SCALAR_LAST)) {
    OPEN_TEAM_PART
    const bool quads = QUAD_ALIGNED_stored(OPEN(x)) && QUAD_ALIGNED_stored(OPEN(dy)) && QUAD_ALIGNED_stored(OPEN(dx));
    const real mean_of_x = LOAD_parameter(OPEN(mean), channel),
               inverse = 1 / sqrt(LOAD_parameter(OPEN(var), channel) + eps);
    const real gain = LOAD_parameter(OPEN(gamma), channel) * inverse;
    OPEN_KEPT
    SUM_PRODUCTS(begin, end)
    LEAVE_PRODUCTS
    MEET_TEAM(channel)
    JOIN_PRODUCTS
    if (dx_base) {
        WRITE_BACKWARD(begin, end)
    }
    LEAVE_TEAM(channel)
}
#endif
