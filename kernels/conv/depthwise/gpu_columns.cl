// Depthwise convolution on GPUs, in all directions: a work-item per block of R rows and COLS columns.
//
// x (batch, channels, source_h, source_w)   w (channels * multiplier, KH, KW)
// y (batch, channels * multiplier, size_h, size_w); `grid` has y's pixels over x
//
// A line of the source is read once for all the results of a work-item that it serves, in vectors of four where tensors
// lie at multiples of four elements and have lines of a multiple of four; otherwise, one by one. All sums stay in
// registers. The rows of a work-item lie DH apart, because a dilated kernel's rows share lines only so: strip s of rows
// starts at row s / DH * DH * R + s % DH.

#ifndef MAKES
#define MAKES 1  // 1: depthwise_gpu_columns, 2: depthwise_gpu_phases, 3: depthwise_gpu_columns_filter
#endif
#ifndef R
#define R 4  // rows of a work-item; depthwise_gpu_phases: a multiple of SH
#endif
#ifndef COLS
#define COLS 4  // columns of a work-item; depthwise_gpu_phases: a multiple of SW
#endif
#ifndef GROUP
#define GROUP 128  // work-items of a work-group
#endif
#ifndef KH
#define KH 3
#define KW 3
#define SH 1
#define SW 1
#endif
#ifndef DH
#define DH 1  // the distance of a kernel's taps
#define DW 1
#endif
#ifndef BEGIN_H
#define BEGIN_H (-1)  // where the first tap of pixel 0 lies in the source
#define BEGIN_W (-1)
#endif
#ifndef LEAD
#define LEAD 3  // BEGIN_W modulo 4: elements of an aligned vector in front of a line's first one
#endif

#include "common/divide.cl"
#include "common/epilogue.cl"
#include "common/raw.cl"
#include "conv/depthwise/planes.cl"
#include "pointwise/quads.cl"

#define PRAGMA(text) _Pragma(#text)
#define UNROLLED(times) PRAGMA(unroll times)
#define UNROLL 128

// Over the planes that a result sums. A loop of one turn costs: compilers keep all addresses of its body in registers.
#ifdef ONE_SUM
#define SUMS(s, count) const int s = 0;
#else
#define SUMS(s, count) for (int s = 0; s < (count); s++)
#endif

// The elements of the source that a work-item meets: LINES lines of SPAN elements. Phases: of dy, the first of them
// FIRST_H and FIRST_W after the block's position divided by the stride (ceil((1 - KH - BEGIN) / stride) and so on), no
// dilation.
#if MAKES == 2
#define FLOORED(a, b) ((a) >= 0 ? (a) / (b) : -((b) - 1 - (a)) / (b))
#define FIRST_H FLOORED(-(BEGIN_H) - KH + SH, SH)
#define FIRST_W FLOORED(-(BEGIN_W) - KW + SW, SW)
#define LINES (FLOORED(R - 1 - (BEGIN_H), SH) - FIRST_H + 1)
#define SPAN (FLOORED(COLS - 1 - (BEGIN_W), SW) - FIRST_W + 1)
#else
#define LINES ((R - 1) * SH + KH)
#define SPAN ((COLS - 1) * SW + (KW - 1) * DW + 1)
#endif

int first_row(const int strip) { return strip / DH * DH * R + strip % DH; }

// Numbers of 64 bits are read one by one: a work-item has registers for few of them.
#if STORAGE == 64
#define ALIGNED(p, width) false
#else
#define ALIGNED(p, width) (((width) & 3) == 0 && QUAD_ALIGNED_stored(p))
#endif

// Functions that read COUNT elements of line `row` of a plane from `column` on, zeros outside of the plane, and that
// make numbers of what was read. With `quads`, `column` - AHEAD is a multiple of four. What is read stays as memory has
// it (common/raw.cl): in 16 bits two registers for a vector, otherwise one for each element. All numbers of turns are
// constants in the functions themselves: compilers unroll their loops before they know where they are called, and
// otherwise keep `line` in memory.
#if MAKES == 3
#define SKIP_LINE  // a condition for each load: the loop over items has registers enough, and waits less
#else
#define SKIP_LINE \
    if (!there) return;
#endif
#define BLOCKS(COUNT, AHEAD) (((AHEAD) + (COUNT) + 3) / 4)
// Elements of a block that are wanted: of a vector, or one alone.
#define WANTED(block, COUNT, AHEAD) (min(4 * (block) - (AHEAD) + 4, COUNT) - max(4 * (block) - (AHEAD), 0))
#define HAS_VECTOR(block, COUNT, AHEAD) (WANTED(block, COUNT, AHEAD) > 1)
#if STORAGE == 16
// The registers of a line. A block of which one element is wanted has it in its first one.
#define RAWS(COUNT, AHEAD) (COUNT > 2 * BLOCKS(COUNT, AHEAD) ? COUNT : 2 * BLOCKS(COUNT, AHEAD))
#define TAKE_VECTOR(COUNT)    \
    line[2 * block] = quad.x; \
    line[2 * block + 1] = quad.y;
#define PLACE_OF(e) (quads ? 2 * block : first + (e))
#define NUMBER_AT(e, COUNT, AHEAD)                                                                       \
    (!quads                                          ? REAL_OF(line[e])                                  \
     : HAS_VECTOR(((e) + (AHEAD)) / 4, COUNT, AHEAD) ? REAL_IN(line[((e) + (AHEAD)) / 2], (e) + (AHEAD)) \
                                                     : REAL_OF(line[((e) + (AHEAD)) / 4 * 2]))
#else
#define RAWS(COUNT, AHEAD) COUNT
#define TAKE(place, COUNT, value) \
    if (first + (place) >= 0 && first + (place) < COUNT) line[first + (place)] = (value);
#define TAKE_VECTOR(COUNT) \
    TAKE(0, COUNT, quad.x) \
    TAKE(1, COUNT, quad.y) \
    TAKE(2, COUNT, quad.z) \
    TAKE(3, COUNT, quad.w)
#define PLACE_OF(e) (first + (e))
#define NUMBER_AT(e, COUNT, AHEAD) (line[e])
#endif
#if STORAGE != 64
#define TRY_VECTOR(COUNT, AHEAD)                                         \
    if (quads && HAS_VECTOR(block, COUNT, AHEAD)) {                      \
        if (there && (uint)at < (uint)width) {                           \
            const raw_quad quad = *(global const raw_quad *)(from + at); \
            TAKE_VECTOR(COUNT)                                           \
        }                                                                \
        continue;                                                        \
    }
#else
#define TRY_VECTOR(COUNT, AHEAD)
#endif
#define READER(READ, NUMBERS, COUNT, AHEAD)                                                             \
    void READ(raw *line, global const stored *plane, const int row, const int height, const int column, \
              const int width, const bool quads) {                                                      \
        UNROLLED(UNROLL)                                                                                \
        for (int e = 0; e < RAWS(COUNT, AHEAD); e++) line[e] = 0;                                       \
        const bool there = (uint)row < (uint)height;                                                    \
        SKIP_LINE                                                                                       \
        global const stored *from = plane + (there ? (long)row * width : 0);                            \
        UNROLLED(UNROLL)                                                                                \
        for (int block = 0; block < BLOCKS(COUNT, AHEAD); block++) {                                    \
            const int first = 4 * block - (AHEAD), at = column + first;                                 \
            TRY_VECTOR(COUNT, AHEAD)                                                                    \
            UNROLLED(4)                                                                                 \
            for (int e = 0; e < 4; e++) {                                                               \
                if (first + e >= 0 && first + e < COUNT && there && (uint)(at + e) < (uint)width)       \
                    line[PLACE_OF(e)] = LOAD_RAW(from, at + e);                                         \
            }                                                                                           \
        }                                                                                               \
    }                                                                                                   \
    void NUMBERS(real *numbers, const raw *line, const bool quads) {                                    \
        UNROLLED(UNROLL)                                                                                \
        for (int e = 0; e < COUNT; e++) numbers[e] = NUMBER_AT(e, COUNT, AHEAD);                        \
    }
#if MAKES == 2
#define LINE_AHEAD 0
#else
#define LINE_AHEAD LEAD
#endif
#define LINE_RAWS RAWS(SPAN, LINE_AHEAD)
READER(read_line, line_numbers, SPAN, LINE_AHEAD)
#if MAKES == 3
READER(read_gradients, gradient_numbers, COLS, 0)
#endif

// Write R lines of COLS results, from (row, column) of a plane on.
#define WRITE_BLOCK(sum, to, row, column, rows, columns, accumulate, RESULT)                                          \
    const bool whole = COLS % 4 == 0 && ALIGNED(to, columns) && !(accumulate);                                        \
    UNROLLED(R)                                                                                                       \
    for (int k = 0; k < R; k++) {                                                                                     \
        if ((row) + k * DH >= (rows)) continue;                                                                       \
        const long at = (long)((row) + k * DH) * (columns) + (column);                                                \
        real value[COLS];                                                                                             \
        UNROLLED(COLS)                                                                                                \
        for (int c = 0; c < COLS; c++)                                                                                \
            if ((column) + c < (columns)) value[c] = RESULT(sum[k][c], at + c);                                       \
        if (whole) {                                                                                                  \
            UNROLLED(COLS)                                                                                            \
            for (int c = 0; c < COLS; c += 4)                                                                         \
                if (c == 0 || (column) + c < (columns)) WRITE_QUAD(to, at + c, value + c)                             \
        } else                                                                                                        \
            for (int c = 0; c < COLS; c++)                                                                            \
                if ((column) + c < (columns)) STORE(to, at + c, accumulate ? LOAD(to, at + c) + value[c] : value[c]); \
    }
#if STORAGE != 64 && COLS % 4 == 0
#define WRITE_QUAD(to, at, v) WRITE_QUAD_stored((to) + (at), v)
#else
#define WRITE_QUAD(to, at, v) ;
#endif

#if MAKES == 1
// The sums of one plane's products, over all taps.
void sum_lines(real sum[R][COLS], global const stored *plane, const real *taps, const int h, const int column,
               const int ih, const int iw, const bool quads) {
    raw lines[LINES][LINE_RAWS];
    UNROLLED(UNROLL)
    for (int r = 0; r < LINES; r++) read_line(lines[r], plane, h + r * DH, ih, column, iw, quads);
    UNROLLED(UNROLL)
    for (int r = 0; r < LINES; r++) {
        real line[SPAN];
        line_numbers(line, lines[r], quads);
        UNROLLED(R)
        for (int k = 0; k < R; k++) {
            const int i = r - k * SH;
            if (i < 0 || i >= KH) continue;
            UNROLLED(COLS)
            for (int c = 0; c < COLS; c++) {
                UNROLLED(KW)
                for (int j = 0; j < KW; j++) sum[k][c] = fma(line[c * SW + j * DW], taps[i * KW + j], sum[k][c]);
            }
        }
    }
}

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void depthwise_gpu_columns(
    CONST_TENSOR(x), CONST_TENSOR(w), CONST_TENSOR(b), TENSOR(y), const int has_bias, const int accumulate,
    const PlaneSums planes, const Grid grid, const uint items, const int strips, const int blocks,
    const ulong by_strips, const ulong by_blocks, const ulong by_channels EPILOGUE_PARAMETERS) {
    SIZES
    OPEN_EPILOGUE
    const uint item = get_global_id(0);
    if (item >= items) return;
    const uint line = quotient(item, by_blocks), t = quotient(line, by_strips);
    const int v = (item - line * blocks) * COLS, u = first_row(line - t * strips);
    const int channel = t - quotient(t, by_channels) * planes.channels;
    const uint of_source = planes.shared == 1 ? t : t / planes.shared;
    real sum[R][COLS];
    const real bias = has_bias ? LOAD(OPEN(b), channel) : 0;
    UNROLLED(R)
    for (int k = 0; k < R; k++) {
        UNROLLED(COLS)
        for (int c = 0; c < COLS; c++) sum[k][c] = bias;
    }
    SUMS(s, planes.sums) {
        global const stored *plane = OPEN(x) + (ulong)(of_source * planes.sums + s) * ((ulong)ih * iw);
        global const stored *weights = OPEN(w) + ((long)channel * planes.sums + s) * (KH * KW);
        real taps[KH * KW];
        UNROLLED(UNROLL)
        for (int i = 0; i < KH * KW; i++) taps[i] = LOAD(weights, planes.flip ? KH * KW - 1 - i : i);
        if (COLS % 4 == 0 && ALIGNED(plane, iw))
            sum_lines(sum, plane, taps, u * SH + grid.begin_h, v * SW + grid.begin_w, ih, iw, true);
        else
            sum_lines(sum, plane, taps, u * SH + grid.begin_h, v * SW + grid.begin_w, ih, iw, false);
    }
    global stored *to = OPEN(y) + (ulong)t * ((ulong)oh * ow);
#define RESULT(value, at) EPILOGUE_ELEMENT(value, channel, (long)t * oh * ow + (at))
    WRITE_BLOCK(sum, to, u, v, oh, ow, accumulate, RESULT)
}

#elif MAKES == 2
// dx of a strided convolution: a block begins at a multiple of the stride, so that each of its elements is of one phase
// for the compiler, and meets taps that the compiler knows.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void depthwise_gpu_phases(
    CONST_TENSOR(dy), CONST_TENSOR(w), TENSOR(dx), const int accumulate, const int channels, const int multiplier,
    const Grid grid, const uint items, const int strips, const int blocks, const ulong by_strips, const ulong by_blocks,
    const ulong by_channels) {
    SIZES
    const uint item = get_global_id(0);
    if (item >= items) return;
    const uint line_of_blocks = quotient(item, by_blocks), t = quotient(line_of_blocks, by_strips);
    const int q = (item - line_of_blocks * blocks) * COLS, p = (line_of_blocks - t * strips) * R;
    const int channel = t - quotient(t, by_channels) * channels;
    real sum[R][COLS];
    UNROLLED(R)
    for (int k = 0; k < R; k++) {
        UNROLLED(COLS)
        for (int c = 0; c < COLS; c++) sum[k][c] = 0;
    }
    SUMS(m, multiplier) {
        global const stored *plane = OPEN(dy) + ((ulong)t * multiplier + m) * ((ulong)oh * ow);
        global const stored *weights = OPEN(w) + ((long)channel * multiplier + m) * (KH * KW);
        real taps[KH * KW];
        UNROLLED(UNROLL)
        for (int i = 0; i < KH * KW; i++) taps[i] = LOAD(weights, i);
        UNROLLED(UNROLL)
        for (int r = 0; r < LINES; r++) {
            const int u = p / SH + FIRST_H + r;
            raw held[LINE_RAWS];
            real line[SPAN];
            read_line(held, plane, u, oh, q / SW + FIRST_W, ow, false);
            line_numbers(line, held, false);
            UNROLLED(R)
            for (int k = 0; k < R; k++) {
                const int i = k - (BEGIN_H) - (FIRST_H + r) * SH;
                if (i < 0 || i >= KH) continue;
                UNROLLED(COLS)
                for (int c = 0; c < COLS; c++) {
                    UNROLLED(SPAN)
                    for (int e = 0; e < SPAN; e++) {
                        const int j = c - (BEGIN_W) - (FIRST_W + e) * SW;
                        if (j >= 0 && j < KW) sum[k][c] = fma(line[e], taps[i * KW + j], sum[k][c]);
                    }
                }
            }
        }
    }
    global stored *to = OPEN(dx) + (ulong)t * ((ulong)ih * iw);
#define RESULT(value, at) (value)
    WRITE_BLOCK(sum, to, p, q, ih, iw, accumulate, RESULT)
}

#else
// The products of one block of gradients and the x that it met.
void sum_products(real *sum, global const stored *plane, global const stored *grads, const int u, const int v,
                  const Grid grid, const bool quads) {
    SIZES
    const int h = u * SH + grid.begin_h;
    raw found[R][RAWS(COLS, 0)];
    real gradient[R][COLS];
    UNROLLED(R)
    for (int k = 0; k < R; k++) read_gradients(found[k], grads, u + k * DH, oh, v, ow, quads);
    UNROLLED(R)
    for (int k = 0; k < R; k++) gradient_numbers(gradient[k], found[k], quads);
    UNROLLED(UNROLL)
    for (int r = 0; r < LINES; r++) {
        raw held[LINE_RAWS];
        real line[SPAN];
        read_line(held, plane, h + r * DH, ih, v * SW + grid.begin_w, iw, quads);
        line_numbers(line, held, quads);
        UNROLLED(R)
        for (int k = 0; k < R; k++) {
            const int i = r - k * SH;
            if (i < 0 || i >= KH) continue;
            UNROLLED(COLS)
            for (int c = 0; c < COLS; c++) {
                UNROLLED(KW)
                for (int j = 0; j < KW; j++)
                    sum[i * KW + j] = fma(line[c * SW + j * DW], gradient[k][c], sum[i * KW + j]);
            }
        }
    }
}

// A work-group sums one filter over `split_items` of the (image, strip, block)s: partial[split][filter][tap], or dw
// itself if there is one split.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void depthwise_gpu_columns_filter(
    CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR(dw_out), TENSOR_OF(real, partial), const int accumulate,
    const int channels, const int multiplier, const Grid grid, const uint items, const uint split_items,
    const int strips, const int blocks, const ulong by_strips, const ulong by_blocks) {
    SIZES
    local real shares[KH * KW][GROUP];
    const int me = get_local_id(0), filter = get_group_id(0);
    const uint split = get_group_id(1), from = split * split_items, to = min(from + split_items, items);
    const bool quads = COLS % 4 == 0 && ALIGNED(OPEN(x), iw) && ALIGNED(OPEN(dy), ow);
    real sum[KH * KW];
    UNROLLED(UNROLL)
    for (int t = 0; t < KH * KW; t++) sum[t] = 0;
    for (uint item = from + me; item < to; item += GROUP) {
        const uint line = quotient(item, by_blocks);
        const ulong n = quotient(line, by_strips);
        const int v = (item - line * blocks) * COLS, u = first_row(line - (uint)n * strips);
        global const stored *plane = OPEN(x) + (n * channels + filter / multiplier) * ((ulong)ih * iw);
        global const stored *grads = OPEN(dy) + (n * channels * multiplier + filter) * ((ulong)oh * ow);
        if (quads)
            sum_products(sum, plane, grads, u, v, grid, true);
        else
            sum_products(sum, plane, grads, u, v, grid, false);
    }
    UNROLLED(UNROLL)
    for (int t = 0; t < KH * KW; t++) shares[t][me] = sum[t];
    for (int half_group = GROUP / 2; half_group > 0; half_group /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < half_group)
            for (int t = 0; t < KH * KW; t++) shares[t][me] += shares[t][me + half_group];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int t = me; t < KH * KW; t += GROUP) {
        const ulong place = (ulong)filter * (KH * KW) + t;
        if (get_num_groups(1) > 1)
            OPEN(partial)[(ulong)split * channels * multiplier * (KH * KW) + place] = shares[t][0];
        else
            STORE(OPEN(dw_out), place, accumulate ? LOAD(OPEN(dw_out), place) + shares[t][0] : shares[t][0]);
    }
}

#include "conv/depthwise/sum.cl"
#endif
