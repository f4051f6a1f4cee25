// What GPUs' kernels of rows of channels share: a work-group takes COLUMNS vectors of WIDE channels and LINES rows at a
// time, and a work-item AHEAD rows of these, LINES apart, which it reads before it computes with them.
#include "batchnorm/rows.cl"
#include "common/channels.cl"

#ifndef MAKES
#define MAKES 1
#endif
#ifndef GROUP
#define GROUP 256
#endif
#ifndef AHEAD
#define AHEAD 2
#endif
#ifndef COLUMNS
#define COLUMNS 32
#endif
#define LINES (GROUP / COLUMNS)  // a few work-items may be left over: they are not launched
#ifndef LINE
#define LINE ((int)get_local_id(1))
#endif

// Walks what is there of the rows from `row` on: the a-th one and its place in memory.
#define EACH_AHEAD _Pragma("unroll") for (int a = 0; a < AHEAD; a++) if (row + a * LINES < last)
#define PLACE ((row + a * LINES) * channels + channel)

// The sums of a part's rows, or of a tile's, which are `apart` from the number that all parts' sums are moved to.
#define ADD_MOVED(apart, count, sum, square) \
    first += fma(count, apart, sum);         \
    second += fma(apart, fma(count, apart, 2 * (sum)), square);

// Add up numbers of the work-items that lie `apart` from each other, into the first of them.
void sum_lines(real *first, real *second, local real *firsts, local real *seconds) {
    const int column = get_local_id(0), me = LINE * COLUMNS + column;
    WIDTH {
        firsts[e * GROUP + me] = first[e];
        seconds[e * GROUP + me] = second[e];
    }
    for (int left = LINES; left > 1;) {
        const int added = left / 2, kept = left - added;  // a line in the middle of odd ones stays
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < added * COLUMNS) {
            WIDTH {
                firsts[e * GROUP + me] += firsts[e * GROUP + me + kept * COLUMNS];
                seconds[e * GROUP + me] += seconds[e * GROUP + me + kept * COLUMNS];
            }
        }
        left = kept;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    WIDTH {
        first[e] = firsts[e * GROUP + column];
        second[e] = seconds[e * GROUP + column];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

// Of each channel, what leads from x to the norm.
#ifdef FLOW
#define OPEN_VECTORS                                       \
    real middles[WIDE], factors[WIDE], levels[WIDE];       \
    WIDTH {                                                \
        middles[e] = there ? OPEN(shift)[channel + e] : 0; \
        factors[e] = there ? OPEN(scale)[channel + e] : 0; \
        levels[e] = there ? OPEN(offset)[channel + e] : 0; \
    }
#define NAME_VECTORS const real middle = middles[e], factor = factors[e], level = levels[e];
#else
#define OPEN_VECTORS
#define NAME_VECTORS
#endif

// Of x and dy: what is read ahead of its use, and the numbers of one row of that.
#define READ_PAIRS                                        \
    raw values[AHEAD][WIDE], gradients[AHEAD][WIDE];      \
    EACH_AHEAD {                                          \
        read_wide(values[a], OPEN(x) + PLACE, quads);     \
        read_wide(gradients[a], OPEN(dy) + PLACE, quads); \
    }
#define TAKE_PAIR                     \
    real value[WIDE], gradient[WIDE]; \
    take_wide(value, values[a]);      \
    take_wide(gradient, gradients[a]);

// Of x, and of what is added to its norm: what is read, and how y is written.
#ifdef RESIDUAL
#define RESIDUAL_QUADS &&QUAD_ALIGNED_stored(OPEN(residual))
#define READ_ADDENDS          \
    raw addends[AHEAD][WIDE]; \
    EACH_AHEAD read_wide(addends[a], OPEN(residual) + PLACE, quads);
#define ADD_ADDEND                 \
    real addend[WIDE];             \
    take_wide(addend, addends[a]); \
    WIDTH value[e] += addend[e];
#else
#define RESIDUAL_QUADS
#define READ_ADDENDS
#define ADD_ADDEND
#endif
#define NORM_QUADS (QUAD_ALIGNED_stored(OPEN(x)) && QUAD_ALIGNED_stored(OPEN(y)) RESIDUAL_QUADS)
#define WRITE_NORMS                                                     \
    EACH_AHEAD {                                                        \
        real value[WIDE];                                               \
        take_wide(value, values[a]);                                    \
        WIDTH value[e] = (value[e] - middle[e]) * factor[e] + level[e]; \
        ADD_ADDEND                                                      \
        WIDTH value[e] = activated(value[e] SCALARS(PASS_SCALAR));      \
        write_wide(OPEN(y) + PLACE, value, quads, accumulate_y);        \
    }

// Of the rows that are read: adds what the statistics need, what the gradients need, and writes dx.
#define ADD_DEVIATIONS(shift)                   \
    EACH_AHEAD {                                \
        real value[WIDE];                       \
        take_wide(value, values[a]);            \
        WIDTH {                                 \
            const real d = value[e] - shift[e]; \
            sums[e] += d;                       \
            squares[e] = fma(d, d, squares[e]); \
        }                                       \
    }
#define ADD_FLOWS                                                         \
    EACH_AHEAD {                                                          \
        TAKE_PAIR                                                         \
        WIDTH {                                                           \
            NAME_VECTORS                                                  \
            const real flowing = FLOWING(gradient[e], value[e]);          \
            sums[e] += flowing;                                           \
            products[e] = fma(flowing, value[e] - means[e], products[e]); \
        }                                                                 \
    }
#define WRITE_GRADIENTS(flow_mean, slope, gain)                                                  \
    EACH_AHEAD {                                                                                 \
        TAKE_PAIR                                                                                \
        WIDTH {                                                                                  \
            NAME_VECTORS                                                                         \
            const real flowing = FLOWING(gradient[e], value[e]);                                 \
            gradient[e] = (flowing - flow_mean[e] - (value[e] - means[e]) * slope[e]) * gain[e]; \
        }                                                                                        \
        write_wide(OPEN(dx) + PLACE, gradient, quads, accumulate_dx);                            \
    }
