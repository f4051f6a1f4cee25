// Depthwise convolution in channels last on GPUs, going down the rows: each line is read once for all rows of taps.
//
// x (batch, source_h, source_w, channels)   w (channels, KH, KW)   y (batch, size_h, size_w, channels)
// `grid` has y's pixels over x; channels is a multiple of WIDE
//
//   depthwise_lines         y, or with FLIP dx at stride 1
//   depthwise_lines_filter  sums of parts of the images for TAP_ROWS rows of the filters: partial[part][tap][channels];
//                           a work-group takes COLUMNS vectors of channels and LANES units at a time
//   depthwise_lines_blocks  dx at other strides, in blocks of a pixel for each phase, whose taps are known: a unit is
//                           `steps` blocks, and the lines of x are dy's
//
// A work-item goes through a unit: STRIP neighbouring columns of `steps` rows of y, which lie ROW_STEP apart, because
// rows of taps share lines of x only so. A step takes row u of y, and NEW lines of x: the first ones that u meets. The
// same lines are met by the HELD - 1 rows before u, with later taps. The reads of the next AHEAD steps are under way
// while a step's numbers are multiplied: addresses outside lead to a pixel that is there, whose bits are replaced by
// zeros.
//
// MAKES  0 to 2: which of the kernels
#include "common/divide.cl"
#include "common/epilogue.cl"
#include "common/wide.cl"
#include "conv/grid.cl"

#ifndef MAKES
#define MAKES 1
#endif
#ifndef GROUP
#define GROUP 256  // work-items of a work-group
#endif
#ifndef STRIP
#define STRIP 4
#endif
#ifndef COLUMNS
#define COLUMNS 32
#endif
#ifndef KH
#define KH 3
#define KW 3
#define SH 1
#define SW 1
#define DH 1
#define DW 1
#define ROW_STEP 1  // DH / gcd(SH, DH)
#define NEW 1       // SH / gcd(SH, DH)
#endif
#ifndef TAP_ROWS
#define TAP_ROWS KH
#endif
#ifndef AHEAD
#define AHEAD 2  // steps whose lines are on their way or in registers at the same time
#endif
#ifndef FLIP
#define FLIP 0
#endif
#define LANES (GROUP / COLUMNS)
#if MAKES == 2
#define HELD ((KH - 1) * DH / SH + 1)
#define SPAN ((KW - 1) * DW / SW + 1)
#else
#define HELD ((TAP_ROWS + NEW - 1) / NEW)
#define SPAN ((STRIP - 1) * SW + (KW - 1) * DW + 1)
#endif
#define TAP_AT(t, j) ((t) * SW + (j) * DW)
#define UNROLLED _Pragma("unroll")
#if STORAGE == 16 && WIDE == 4
#define RAWS 2
#else
#define RAWS WIDE
#endif
#if STORAGE == 16
#define NOTHING 0u
#else
#define NOTHING 0
#endif
#define ALWAYS_INLINE __attribute__((always_inline))

// Where the columns of a strip are, from `first` on: elements from a line's beginning, and a bit for each one that is
// there.
#define PLACES(name, count, first, size)                             \
    int name[count];                                                 \
    uint name##_there = 0;                                           \
    UNROLLED                                                         \
    for (int s = 0; s < count; s++) {                                \
        const int column = (first) + s;                              \
        name[s] = clamp(column, 0, (size) - 1) * channels;           \
        name##_there |= (uint)(column >= 0 && column < (size)) << s; \
    }

// Line `row` of `rows`, or the nearest one that is there. UNTIL: so many of `rows` that the last one is `row`, so that
// nothing after a unit's last line is read.
#define LINE_AT(from, row, rows, pitch) ((from) + (long)clamp((int)(row), 0, (rows) - 1) * (pitch))
#define UNTIL(row, rows) clamp((int)(row) + 1, 1, rows)
// Reads columns of a line, as memory has them.
#define READ_QUADS(to, line, name, count) \
    UNROLLED                              \
    for (int s = 0; s < count; s++) READ_RAWS_stored(to[s], line + name[s])
#define GATHER_QUADS(to, line, name, count) \
    UNROLLED                                \
    for (int s = 0; s < count; s++) GATHER_RAWS_stored(to[s], line + name[s])
#define READ_ONES(to, line, name, count) \
    UNROLLED                             \
    for (int s = 0; s < count; s++) to[s][0] = LOAD_RAW(line, name[s]);
// READ(how) reads all lines of a step under one condition: each read would wait for the one before it in a condition of
// its own.
#if WIDE == 4
#define READ_STEP(READ)    \
    if (quads) {           \
        READ(READ_QUADS)   \
    } else {               \
        READ(GATHER_QUADS) \
    }
#else
#define READ_STEP(READ) READ(READ_ONES)
#endif
// Takes zeros for columns that are not there, or for all of a line.
#define CLEAR(to, row, rows, name, count, more)                                           \
    {                                                                                     \
        const uint bits = (more) && (row) >= 0 && (row) < (rows) ? name##_there : 0;      \
        UNROLLED                                                                          \
        for (int s = 0; s < count; s++) {                                                 \
            UNROLLED                                                                      \
            for (int i = 0; i < RAWS; i++) to[s][i] = bits >> s & 1 ? to[s][i] : NOTHING; \
        }                                                                                 \
    }

// The lines of x that a step needs: where one is, how all of them are read, and the values of those of step k, which
// have been read before, while those of step k + AHEAD are on their way. Steps take turns with AHEAD places.
#define LINE_OF(k, n) (r0 + ((k) * NEW + (n)) * (MAKES == 2 ? 1 : DH))
#define READ_SOURCES(READ)                                                                   \
    UNROLLED                                                                                 \
    for (int n = 0; n < NEW; n++) {                                                          \
        global const stored *line = LINE_AT(xs, LINE_OF(next, n), lines_end, iw * channels); \
        READ(lines[place][n], line, columns, SPAN)                                           \
    }
#define READ_FIRST_LINES                          \
    UNROLLED                                      \
    for (int place = 0; place < AHEAD; place++) { \
        const int next = place;                   \
        READ_STEP(READ_LINES)                     \
    }
#define TAKE_LINES                                                                  \
    real values[NEW][SPAN][WIDE];                                                   \
    UNROLLED                                                                        \
    for (int n = 0; n < NEW; n++) {                                                 \
        CLEAR(lines[place][n], LINE_OF(k, n), ih, columns, SPAN, true)              \
        UNROLLED                                                                    \
        for (int s = 0; s < SPAN; s++) take_wide(values[n][s], lines[place][n][s]); \
    }                                                                               \
    const int next = k + AHEAD;                                                     \
    READ_STEP(READ_LINES)

#if MAKES != 1
// Reads the filters of a work-item's channels.
ALWAYS_INLINE void read_filters(real weight[KH * KW][WIDE], global const stored *ws, const bool quads) {
#define WEIGHT_OF(t, e) ((e) * (KH * KW) + (FLIP ? KH * KW - 1 - (t) : (t)))
#if WIDE == 4
    raw packed[KH * KW][RAWS];
    if (quads) {
        UNROLLED
        for (int t = 0; t < KH * KW; t++) READ_RAWS_stored(packed[t], ws + 4 * t)
    } else {
        UNROLLED
        for (int t = 0; t < KH * KW; t++) GATHER_RAWS_stored(packed[t], ws + 4 * t)
    }
    real all[KH * KW][4];
    UNROLLED
    for (int t = 0; t < KH * KW; t++) take_wide(all[t], packed[t]);
    UNROLLED
    for (int t = 0; t < KH * KW; t++) {
        WIDTH weight[t][e] = all[WEIGHT_OF(t, e) / 4][WEIGHT_OF(t, e) % 4];
    }
#else
    UNROLLED
    for (int t = 0; t < KH * KW; t++) weight[t][0] = LOAD(ws, WEIGHT_OF(t, 0));
#endif
}
#endif

#if MAKES == 0
ALWAYS_INLINE void go_down(global const stored *x, const real weight[KH * KW][WIDE], const real first[WIDE],
                           global stored *y, const long image, const int u0, const int v, const int steps,
                           const int channel, const int channels, const Grid grid, const bool quads, const bool written,
                           const int accumulate TAKE_EPILOGUE) {
    const int ih = grid.source_h, iw = grid.source_w, oh = grid.size_h, ow = grid.size_w;
    const int r0 = u0 * SH + grid.begin_h;
    PLACES(columns, SPAN, v * SW + grid.begin_w, iw)
    global const stored *const xs = x + image * ih * iw * channels + channel;
    real sum[HELD][STRIP][WIDE];
    UNROLLED
    for (int h = 0; h < HELD; h++) {
        UNROLLED
        for (int t = 0; t < STRIP; t++) {
            WIDTH sum[h][t][e] = first[e];
        }
    }
    const int all = steps + HELD - 1, lines_end = UNTIL(LINE_OF(all - 1, NEW - 1), ih);
    raw lines[AHEAD][NEW][SPAN][RAWS];
#define READ_LINES(READ) READ_SOURCES(READ)
    READ_FIRST_LINES
    _Pragma("unroll 1") for (int first_step = 0; first_step < all; first_step += AHEAD) {
        UNROLLED
        for (int place = 0; place < AHEAD; place++) {
            const int k = first_step + place;
            if (k >= all) break;
            TAKE_LINES
            UNROLLED
            for (int n = 0; n < NEW; n++) {
                UNROLLED
                for (int h = 0; h < HELD; h++) {
                    if (h * NEW + n >= KH) continue;
                    UNROLLED
                    for (int j = 0; j < KW; j++) {
                        UNROLLED
                        for (int t = 0; t < STRIP; t++) {
                            WIDTH sum[h][t][e] =
                                fma(values[n][TAP_AT(t, j)][e], weight[(h * NEW + n) * KW + j][e], sum[h][t][e]);
                        }
                    }
                }
            }
            const int u = u0 + (k - (HELD - 1)) * ROW_STEP;
            if (k >= HELD - 1 && u < oh) {
                UNROLLED
                for (int t = 0; t < STRIP; t++) {
                    if (v + t >= ow) continue;
                    const long at = ((image * oh + u) * ow + v + t) * channels + channel;
                    real result[WIDE];
                    WIDTH result[e] = EPILOGUE_ELEMENT(sum[HELD - 1][t][e], channel + e, at + e);
                    write_wide(y + at, result, written, accumulate);
                }
            }
            UNROLLED
            for (int h = HELD - 1; h > 0; h--) {
                UNROLLED
                for (int t = 0; t < STRIP; t++) {
                    WIDTH sum[h][t][e] = sum[h - 1][t][e];
                }
            }
            UNROLLED
            for (int t = 0; t < STRIP; t++) {
                WIDTH sum[0][t][e] = first[e];
            }
        }
    }
}

// A work-item for each vector of channels of each unit; strips, and chunks of `steps` rows, are those of an image.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void depthwise_lines(
    CONST_TENSOR(x), CONST_TENSOR(w), CONST_TENSOR(b), TENSOR(y), const int has_bias, const int accumulate,
    const Grid grid, const uint items, const int blocks, const int strips, const int chunks, const int steps,
    const ulong by_blocks, const ulong by_strips, const ulong by_chunks EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    const uint item = get_global_id(0);
    if (item >= items) return;
    const uint unit = quotient(item, by_blocks), line = quotient(unit, by_strips), image = quotient(line, by_chunks);
    const int channel = (int)(item - unit * blocks) * WIDE, channels = blocks * WIDE;
    const int v = (int)(unit - line * strips) * STRIP, chunk = line - image * chunks;
    const int u0 = chunk % ROW_STEP + chunk / ROW_STEP * steps * ROW_STEP;
    real weight[KH * KW][WIDE], first[WIDE];
    read_filters(weight, OPEN(w) + (long)channel * (KH * KW), QUAD_ALIGNED_stored(OPEN(w)));
    WIDTH first[e] = has_bias ? LOAD(OPEN(b), channel + e) : 0;
    go_down(OPEN(x), weight, first, OPEN(y), image, u0, v, steps, channel, channels, grid, QUAD_ALIGNED_stored(OPEN(x)),
            QUAD_ALIGNED_stored(OPEN(y)), accumulate PASS_EPILOGUE);
}
#elif MAKES == 1
// Adds a unit's products.
ALWAYS_INLINE void add_unit(real sum[TAP_ROWS * KW][WIDE], global const stored *x, global const stored *dy,
                            const long image, const int u0, const int v, const int steps, const int tap_row,
                            const int channel, const int channels, const Grid grid, const bool quads) {
    const int ih = grid.source_h, iw = grid.source_w, oh = grid.size_h, ow = grid.size_w;
    const int r0 = u0 * SH + grid.begin_h + tap_row * DH;
    PLACES(columns, SPAN, v * SW + grid.begin_w, iw)
    PLACES(pixels, STRIP, v, ow)
    global const stored *const xs = x + image * ih * iw * channels + channel;
    global const stored *const grads = dy + image * oh * ow * channels + channel;
    const int all = steps + HELD - 1, lines_end = UNTIL(LINE_OF(all - 1, NEW - 1), ih);
    const int gradients_end = UNTIL(u0 + (steps - 1) * ROW_STEP, oh);
    raw held[HELD][STRIP][RAWS], gradients[AHEAD][STRIP][RAWS], lines[AHEAD][NEW][SPAN][RAWS];
    UNROLLED
    for (int h = 0; h < HELD; h++) {
        UNROLLED
        for (int t = 0; t < STRIP; t++) {
            UNROLLED
            for (int i = 0; i < RAWS; i++) held[h][t][i] = NOTHING;
        }
    }
#define READ_LINES(READ)                                                                                     \
    {                                                                                                        \
        global const stored *grad_line = LINE_AT(grads, u0 + next * ROW_STEP, gradients_end, ow * channels); \
        READ(gradients[place], grad_line, pixels, STRIP)                                                     \
        READ_SOURCES(READ)                                                                                   \
    }
    READ_FIRST_LINES
    _Pragma("unroll 1") for (int first_step = 0; first_step < all; first_step += AHEAD) {
        UNROLLED
        for (int place = 0; place < AHEAD; place++) {
            const int k = first_step + place;
            if (k >= all) break;
            UNROLLED
            for (int h = HELD - 1; h > 0; h--) {
                UNROLLED
                for (int t = 0; t < STRIP; t++) {
                    UNROLLED
                    for (int i = 0; i < RAWS; i++) held[h][t][i] = held[h - 1][t][i];
                }
            }
            CLEAR(gradients[place], u0 + k * ROW_STEP, oh, pixels, STRIP, k < steps)
            UNROLLED
            for (int t = 0; t < STRIP; t++) {
                UNROLLED
                for (int i = 0; i < RAWS; i++) held[0][t][i] = gradients[place][t][i];
            }
            TAKE_LINES
            UNROLLED
            for (int h = 0; h < HELD; h++) {
                UNROLLED
                for (int t = 0; t < STRIP; t++) {
                    real gradient[WIDE];
                    take_wide(gradient, held[h][t]);
                    UNROLLED
                    for (int n = 0; n < NEW; n++) {
                        const int i = h * NEW + n;
                        if (i >= TAP_ROWS) continue;
                        UNROLLED
                        for (int j = 0; j < KW; j++) {
                            WIDTH sum[i * KW + j][e] = fma(values[n][TAP_AT(t, j)][e], gradient[e], sum[i * KW + j][e]);
                        }
                    }
                }
            }
        }
    }
}

// Work-groups: COLUMNS vectors of channels; parts of `part_units` units; TAP_ROWS rows of the filters.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void depthwise_lines_filter(
    CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR_OF(real, partial), const Grid grid, const int channels, const uint units,
    const uint part_units, const int strips, const int chunks, const int steps, const ulong by_strips,
    const ulong by_chunks) {
    local real shares[TAP_ROWS * KW][GROUP * WIDE];
    const int me = get_local_id(0), lane = me / COLUMNS, first = get_group_id(0) * (COLUMNS * WIDE);
    const int channel = first + me % COLUMNS * WIDE, tap_row = get_group_id(2) * TAP_ROWS;
    const uint part = get_group_id(1), last = min((part + 1) * part_units, units);
    const bool there = channel < channels && lane < LANES;
    const bool quads = QUAD_ALIGNED_stored(OPEN(x)) && QUAD_ALIGNED_stored(OPEN(dy));
    real sum[TAP_ROWS * KW][WIDE];
    UNROLLED
    for (int t = 0; t < TAP_ROWS * KW; t++) {
        WIDTH sum[t][e] = 0;
    }
    for (uint unit = part * part_units + lane; there && unit < last; unit += LANES) {
        const uint line = quotient(unit, by_strips), image = quotient(line, by_chunks);
        const int v = (int)(unit - line * strips) * STRIP, chunk = line - image * chunks;
        const int u0 = chunk % ROW_STEP + chunk / ROW_STEP * steps * ROW_STEP;
        add_unit(sum, OPEN(x), OPEN(dy), image, u0, v, steps, tap_row, channel, channels, grid, quads);
    }
    UNROLLED
    for (int t = 0; t < TAP_ROWS * KW; t++) {
        WIDTH shares[t][me * WIDE + e] = sum[t][e];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int place = me; place < TAP_ROWS * KW * COLUMNS * WIDE; place += GROUP) {
        const int t = place / (COLUMNS * WIDE), e = place % (COLUMNS * WIDE);
        real total = 0;
        UNROLLED
        for (int other = 0; other < LANES; other++) total += shares[t][other * (COLUMNS * WIDE) + e];
        if (first + e < channels && tap_row * KW + t < KH * KW)
            OPEN(partial)[((long)part * (KH * KW) + tap_row * KW + t) * channels + first + e] = total;
    }
}
#else
ALWAYS_INLINE void go_down_blocks(global const stored *dy, const real weight[KH * KW][WIDE], global stored *dx,
                                  const long image, const int u0, const int v, const int steps, const int channel,
                                  const int channels, const Grid grid, const bool quads, const bool written,
                                  const int accumulate) {
    const int ih = grid.size_h, iw = grid.size_w, rows = grid.source_h, width = grid.source_w;
    const int r0 = u0 - (HELD - 1), column0 = v * SW + grid.begin_w;
    PLACES(columns, SPAN, v - (SPAN - 1), iw)
    global const stored *const xs = dy + image * ih * iw * channels + channel;
    global stored *const target = dx + image * rows * width * channels + channel;
    real held[HELD][SPAN][WIDE];
    UNROLLED
    for (int h = 0; h < HELD; h++) {
        UNROLLED
        for (int s = 0; s < SPAN; s++) {
            WIDTH held[h][s][e] = 0;
        }
    }
    const int all = steps + HELD - 1, lines_end = UNTIL(LINE_OF(all - 1, 0), ih);
    raw lines[AHEAD][NEW][SPAN][RAWS];
#define READ_LINES(READ) READ_SOURCES(READ)
    READ_FIRST_LINES
    _Pragma("unroll 1") for (int first_step = 0; first_step < all; first_step += AHEAD) {
        UNROLLED
        for (int place = 0; place < AHEAD; place++) {
            const int k = first_step + place;
            if (k >= all) break;
            TAKE_LINES
            UNROLLED
            for (int s = 0; s < SPAN; s++) {
                UNROLLED
                for (int h = HELD - 1; h > 0; h--) {
                    WIDTH held[h][s][e] = held[h - 1][s][e];
                }
                WIDTH held[0][s][e] = values[0][s][e];
            }
            if (k < HELD - 1) continue;
            UNROLLED
            for (int p = 0; p < SH; p++) {
                const int row = LINE_OF(k, 0) * SH + p + grid.begin_h;
                if (row < 0 || row >= rows) continue;
                UNROLLED
                for (int q = 0; q < SW; q++) {
                    const int column = column0 + q;
                    real sum[WIDE];
                    WIDTH sum[e] = 0;
                    UNROLLED
                    for (int i = 0; i < KH; i++) {
                        if (i * DH % SH != p) continue;
                        UNROLLED
                        for (int j = 0; j < KW; j++) {
                            if (j * DW % SW != q) continue;
                            WIDTH sum[e] =
                                fma(held[i * DH / SH][SPAN - 1 - j * DW / SW][e], weight[i * KW + j][e], sum[e]);
                        }
                    }
                    if (column >= 0 && column < width)
                        write_wide(target + ((long)row * width + column) * channels, sum, written, accumulate);
                }
            }
        }
    }
}

// A work-item for each vector of channels of each unit; strips are columns of blocks of an image, and chunks of `steps`
// rows of them.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void depthwise_lines_blocks(
    CONST_TENSOR(dy), CONST_TENSOR(w), TENSOR(dx), const int accumulate, const Grid grid, const uint items,
    const int blocks, const int strips, const int chunks, const int steps, const ulong by_blocks, const ulong by_strips,
    const ulong by_chunks) {
    const uint item = get_global_id(0);
    if (item >= items) return;
    const uint unit = quotient(item, by_blocks), line = quotient(unit, by_strips), image = quotient(line, by_chunks);
    const int channel = (int)(item - unit * blocks) * WIDE, channels = blocks * WIDE;
    // dy's last line and column that the unit's first pixel meets
    const int u0 = (int)(line - image * chunks) * steps - grid.begin_h / SH;
    const int v = (int)(unit - line * strips) - grid.begin_w / SW;
    real weight[KH * KW][WIDE];
    read_filters(weight, OPEN(w) + (long)channel * (KH * KW), QUAD_ALIGNED_stored(OPEN(w)));
    go_down_blocks(OPEN(dy), weight, OPEN(dx), image, u0, v, steps, channel, channels, grid,
                   QUAD_ALIGNED_stored(OPEN(dy)), QUAD_ALIGNED_stored(OPEN(dx)), accumulate);
}
#endif
