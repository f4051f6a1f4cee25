// Batch norm of a training step on GPUs where a pixel's channels lie together, in one launch.
//
// x, dy, y, dx (rows, channels), with a row for each pixel of each image; all others have one value for each channel.
// The channels are a multiple of WIDE. A work-group takes COLUMNS vectors of WIDE channels and one of TEAM parts of the
// rows, AHEAD for each work-item, which keeps them in registers between the sums and the result: memory is read once.
// The parts of the same channels meet (batchnorm/teams.cl); where TEAM is 1, nobody waits.
//
//   partial   real, [part][3][channels]: forward the part's shift, and the sums of x - shift and of its square;
//             backward (the first is unused) the sums of dy and of dy (x - mean)
//
// A part's shift is the mean of its first line's rows, which are so near to the mean that squares lose no digits. Parts
// are joined by Chan, Golub and LeVeque's formula, around the shift of the first one.
//
// MAKES   1: batchnorm_rows_teams_forward; 2: batchnorm_rows_teams_backward
#ifndef TEAM
#define TEAM 1
#endif
#ifndef EMULATED
#define EMULATED 0
#endif
#ifndef WARPS
#define WARPS 0  // 1: the device has fences of its own (inline PTX)
#endif
#define LINE ((int)get_local_id(1) % LINES)
#define IN_TEAM ((int)get_local_id(1) / LINES)
#define IS_FIRST (get_local_id(0) == 0 && get_local_id(1) == 0)
#include "batchnorm/lines.cl"
#include "batchnorm/teams.cl"

#define GROUPS_TOGETHER (EMULATED ? TEAM : 1)
#define TEAM_GROUP __attribute__((reqd_work_group_size(COLUMNS, LINES * GROUPS_TOGETHER, 1)))
#define LOCAL_REALS (GROUP * WIDE)
#define PART_ROWS (AHEAD * LINES)
#define PART(part, n) (OPEN(partial) + ((long)(part) * 3 + (n)) * channels + channel)
#if TEAM > 1
#define TEAM_PARAMETERS TENSOR_OF(volatile real, partial), COUNTER tickets,
#else
#define TEAM_PARAMETERS
#undef OPEN_NUMBER
#define OPEN_NUMBER const uint number = get_group_id(0);
#endif

// The place of a work-item: its part, its first channel, and its rows from `row` on, LINES apart.
#define OPEN_PART                                                                                          \
    local real all_firsts[LOCAL_REALS * GROUPS_TOGETHER], all_seconds[LOCAL_REALS * GROUPS_TOGETHER];      \
    OPEN_NUMBER                                                                                            \
    local real *firsts = all_firsts + (EMULATED ? IN_TEAM * LOCAL_REALS : 0);                              \
    local real *seconds = all_seconds + (EMULATED ? IN_TEAM * LOCAL_REALS : 0);                            \
    const int team = number / TEAM, part = number % TEAM;                                                  \
    const int channel = (team * COLUMNS + (int)get_local_id(0)) * WIDE;                                    \
    const bool there = channel < channels;                                                                 \
    const long begin = (long)part * PART_ROWS, end = min(begin + PART_ROWS, rows), last = there ? end : 0; \
    const long row = begin + LINE;

// The first line of a group leaves its sums, and waits for the team.
#define LEAVE_PART(shift, sum, square)                   \
    if (there && LINE == 0) {                            \
        WIDTH {                                          \
            PART(part, 0)[e] = shift;                    \
            PART(part, 1)[e] = sum;                      \
            PART(part, 2)[e] = square;                   \
        }                                                \
    }                                                    \
    barrier(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE); \
    MEET_TEAM(team)
#define EACH_PART for (int p = LINE; p < TEAM && there; p += LINES)
#define ROWS_OF(p) (real)(min((long)((p) + 1) * PART_ROWS, rows) - (long)(p) * PART_ROWS)

#if MAKES == 1
kernel TEAM_GROUP void batchnorm_rows_teams_forward(
    CONST_TENSOR(x), TENSOR_OF(const parameter, gamma), TENSOR_OF(const parameter, beta),
    RESIDUAL_PARAMETER OUTPUT_OF(stored, y), OUTPUT_OF(parameter, mean), OUTPUT_OF(parameter, var),
    KEPT_OUTPUTS TEAM_PARAMETERS const int channels, const long rows, const real eps SCALARS(SCALAR_LAST)) {
    OPEN_PART
    const bool quads = NORM_QUADS;
    raw values[AHEAD][WIDE];
    EACH_AHEAD read_wide(values[a], OPEN(x) + PLACE, quads);
    real middle[WIDE], factor[WIDE], level[WIDE], sums[WIDE], squares[WIDE];
    WIDTH {
        factor[e] = there ? LOAD_parameter(OPEN(gamma), channel + e) : 0;
        level[e] = there ? LOAD_parameter(OPEN(beta), channel + e) : 0;
        sums[e] = squares[e] = 0;
    }
    const int column = get_local_id(0);
    if (LINE == 0) {  // the others wait for the mean of its rows, which come from all over the part
        EACH_AHEAD {
            real value[WIDE];
            take_wide(value, values[a]);
            WIDTH sums[e] += value[e];
        }
        WIDTH {
            firsts[e * GROUP + column] = sums[e] / (real)((end - begin + LINES - 1) / LINES);
            sums[e] = 0;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    WIDTH middle[e] = firsts[e * GROUP + column];
    barrier(CLK_LOCAL_MEM_FENCE);
    ADD_DEVIATIONS(middle)
    sum_lines(sums, squares, firsts, seconds);
#if TEAM > 1
    LEAVE_PART(middle[e], sums[e], squares[e])
    WIDTH {
        middle[e] = there ? PART(0, 0)[e] : 0;
        sums[e] = squares[e] = 0;
    }
    EACH_PART {
        WIDTH {
            const real apart = PART(p, 0)[e] - middle[e], sum = PART(p, 1)[e];
            real first = 0, second = 0;
            ADD_MOVED(apart, ROWS_OF(p), sum, PART(p, 2)[e])
            sums[e] += first;
            squares[e] += second;
        }
    }
    sum_lines(sums, squares, firsts, seconds);
#endif
    real averages[WIDE], variances[WIDE];
    WIDTH {
        averages[e] = sums[e] / (real)rows;
        const real square = squares[e] / (real)rows - averages[e] * averages[e];
        variances[e] = square < 0 ? 0 : square;
        factor[e] /= sqrt(variances[e] + eps);
        level[e] -= averages[e] * factor[e];
    }
    if (there && part == 0 && LINE == 0) {
        const int first_channel = channel;
        WIDTH {
            const int channel = first_channel + e;
            PUT_STATISTICS(middle[e], averages[e], variances[e], factor[e], level[e])
        }
    }
    if (y_base) {
        READ_ADDENDS
        WRITE_NORMS
    }
#if TEAM > 1
    LEAVE_TEAM(team)
#endif
}

#else
kernel TEAM_GROUP void batchnorm_rows_teams_backward(
    CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR_OF(const parameter, gamma), TENSOR_OF(const parameter, mean),
    TENSOR_OF(const parameter, var), KEPT_INPUTS OUTPUT_OF(stored, dx), OUTPUT_OF(parameter, dgamma),
    OUTPUT_OF(parameter, dbeta), BIAS_OUTPUT TEAM_PARAMETERS const int channels, const long rows,
    const real eps SCALARS(SCALAR_LAST)) {
    OPEN_PART
    const bool quads = QUAD_ALIGNED_stored(OPEN(x)) && QUAD_ALIGNED_stored(OPEN(dy)) && QUAD_ALIGNED_stored(OPEN(dx));
    READ_PAIRS
    real means[WIDE], inverses[WIDE], gains[WIDE], sums[WIDE], products[WIDE];
    OPEN_VECTORS
    WIDTH {
        means[e] = there ? LOAD_parameter(OPEN(mean), channel + e) : 0;
        inverses[e] = there ? 1 / sqrt(LOAD_parameter(OPEN(var), channel + e) + eps) : 0;
        gains[e] = there ? LOAD_parameter(OPEN(gamma), channel + e) * inverses[e] : 0;
        sums[e] = products[e] = 0;
    }
    ADD_FLOWS
    sum_lines(sums, products, firsts, seconds);
#if TEAM > 1
    LEAVE_PART(0, sums[e], products[e])
    WIDTH sums[e] = products[e] = 0;
    EACH_PART {
        WIDTH {
            sums[e] += PART(p, 1)[e];
            products[e] += PART(p, 2)[e];
        }
    }
    sum_lines(sums, products, firsts, seconds);
#endif
    WIDTH products[e] *= inverses[e];
    if (there && part == 0 && LINE == 0) {
        const int first_channel = channel;
        WIDTH {
            const int channel = first_channel + e;
            PUT_GRADIENTS(sums[e], products[e])
        }
    }
    if (dx_base) {
        WIDTH {
            sums[e] /= (real)rows;
            products[e] *= inverses[e] / (real)rows;
        }
        WRITE_GRADIENTS(sums, products, gains)
    }
#if TEAM > 1
    LEAVE_TEAM(team)
#endif
}
#endif
