// Depthwise convolution in channels last on GPUs: work-items have WIDE neighbouring channels.
//
// x (batch, source_h, source_w, channels)   w (channels, KH, KW)   y (batch, size_h, size_w, channels)
// `grid` has y's pixels over x; channels is a multiple of WIDE
//
//   depthwise_pixels_weights  the weights as [tap][channel], or with `flip` from the last tap to the first
//   depthwise_pixels          y, or dx at stride 1: STRIP neighbouring pixels of a row, which share what they read
//   depthwise_pixels_spread   dx at any stride: each pixel looks for the taps that meet a dy
//   depthwise_pixels_blocks   dx in blocks of a pixel for each phase of a stride, whose taps are known
//   depthwise_pixels_filter   sums of parts of the images for TAP_ROWS rows of the filters; a work-group takes COLUMNS
//                             vectors of channels and LANES strips at a time: partial[part][tap][channels]
//   depthwise_pixels_sum      dw of the parts, in their order
//
// MAKES  0 to 5: which of the kernels
#include "common/divide.cl"
#include "common/epilogue.cl"
#include "common/channels.cl"
#include "conv/grid.cl"

#ifndef MAKES
#define MAKES 1
#endif
#ifndef GROUP
#define GROUP 128
#endif
#ifndef STRIP
#define STRIP 4
#endif
#ifndef COLUMNS
#define COLUMNS 16
#endif
#ifndef TAP_ROWS
#define TAP_ROWS KH
#endif
#ifndef KH
#define KH 3
#define KW 3
#define SH 1
#define SW 1
#define DH 1
#define DW 1
#endif
#define LANES (GROUP / COLUMNS)
#define SUMMED 8  // elements of dw that a work-group adds up
// What a work-item reads of a row: the columns of a strip, or the taps of one pixel.
#if STRIP > 1
#define APART 1
#define SPAN ((STRIP - 1) * SW + (KW - 1) * DW + 1)
#define TAP_AT(t, j) ((t) * SW + (j) * DW)
#else
#define APART DW
#define SPAN KW
#define TAP_AT(t, j) (j)
#endif
#define UNROLLED _Pragma("unroll")

// The first channel of a work-item, and its place among the lines of pixels or strips.
#define OPEN_ITEM                                                                         \
    const int ih = grid.source_h, iw = grid.source_w, oh = grid.size_h, ow = grid.size_w; \
    const uint item = get_global_id(0);                                                   \
    if (item >= items) return;                                                            \
    const uint place = quotient(item, by_blocks), line = quotient(place, by_strips);      \
    const uint image = quotient(line, by_rows);                                           \
    const int channel = (int)(item - place * blocks) * WIDE, channels = blocks * WIDE;
#define PLACES                                                                                                    \
    const Grid grid, const uint items, const int blocks, const int strips, const int rows, const ulong by_blocks, \
        const ulong by_strips, const ulong by_rows

#if MAKES == 1 || MAKES == 2 || MAKES == 5
// The weights of WIDE channels for a tap.
void read_weights(real *to, global const real *from) {
#if WIDE == 4
    READ_QUAD_real(to, from)
#else
    WIDTH to[e] = from[e];
#endif
}
#endif

#if MAKES == 0
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void depthwise_pixels_weights(
    CONST_TENSOR(w), TENSOR_OF(real, weights), const int channels, const int flip) {
    const int item = get_global_id(0), tap = item / channels, channel = item % channels;
    if (tap >= KH * KW) return;
    OPEN(weights)[item] = LOAD(OPEN(w), (long)channel * (KH * KW) + (flip ? KH * KW - 1 - tap : tap));
}
#elif MAKES == 1
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void depthwise_pixels(
    CONST_TENSOR(x), TENSOR_OF(const real, weights), CONST_TENSOR(b), TENSOR(y), const int has_bias,
    const int accumulate, PLACES EPILOGUE_PARAMETERS) {
    OPEN_ITEM
    OPEN_EPILOGUE
    const int u = (int)(line - image * rows), v = (int)(place - line * strips) * STRIP;
    const int r0 = u * SH + grid.begin_h, q0 = v * SW + grid.begin_w;
    const bool quads = QUAD_ALIGNED_stored(OPEN(x));
    global const stored *xs = OPEN(x) + (ulong)image * ih * iw * channels + channel;
    real sum[STRIP][WIDE];
    UNROLLED
    for (int t = 0; t < STRIP; t++) {
        WIDTH sum[t][e] = has_bias ? LOAD(OPEN(b), channel + e) : 0;
    }
    UNROLLED
    for (int i = 0; i < KH; i++) {
        const int r = r0 + i * DH;
        if (r < 0 || r >= ih) continue;
        real values[SPAN][WIDE];
        UNROLLED
        for (int s = 0; s < SPAN; s++) {
            const int q = q0 + s * APART;
            WIDTH values[s][e] = 0;
            if (q >= 0 && q < iw) read_channels(values[s], xs + ((long)r * iw + q) * channels, quads);
        }
        UNROLLED
        for (int j = 0; j < KW; j++) {
            real weight[WIDE];
            read_weights(weight, OPEN(weights) + (i * KW + j) * channels + channel);
            WIDTH {
                UNROLLED
                for (int t = 0; t < STRIP; t++) sum[t][e] = fma(values[TAP_AT(t, j)][e], weight[e], sum[t][e]);
            }
        }
    }
    const bool written = QUAD_ALIGNED_stored(OPEN(y));
    UNROLLED
    for (int t = 0; t < STRIP; t++) {
        if (v + t >= ow) continue;
        const long at = ((long)line * ow + v + t) * channels + channel;
        WIDTH sum[t][e] = EPILOGUE_ELEMENT(sum[t][e], channel + e, at + e);
        write_wide(OPEN(y) + at, sum[t], written, accumulate);
    }
}
#elif MAKES == 2
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void depthwise_pixels_spread(
    CONST_TENSOR(dy), TENSOR_OF(const real, weights), TENSOR(dx), const int accumulate, PLACES) {
    OPEN_ITEM
    const int r = (int)(line - image * rows), q = (int)(place - line * strips);
    const bool quads = QUAD_ALIGNED_stored(OPEN(dy));
    global const stored *gradients = OPEN(dy) + (ulong)image * oh * ow * channels + channel;
    real sum[WIDE];
    WIDTH sum[e] = 0;
    UNROLLED
    for (int i = 0; i < KH; i++) {
        const int u = r - grid.begin_h - i * DH;
        if (u < 0 || u % SH || u / SH >= oh) continue;
        UNROLLED
        for (int j = 0; j < KW; j++) {
            const int v = q - grid.begin_w - j * DW;
            if (v < 0 || v % SW || v / SW >= ow) continue;
            real value[WIDE];
            read_channels(value, gradients + ((long)(u / SH) * ow + v / SW) * channels, quads);
            real weight[WIDE];
            read_weights(weight, OPEN(weights) + (i * KW + j) * channels + channel);
            WIDTH sum[e] = fma(value[e], weight[e], sum[e]);
        }
    }
    write_wide(OPEN(dx) + (ulong)place * channels + channel, sum, QUAD_ALIGNED_stored(OPEN(dx)), accumulate);
}
#elif MAKES == 5
// Lines and columns of dy that a block meets.
#define BLOCK_U ((KH - 1) * DH / SH + 1)
#define BLOCK_V ((KW - 1) * DW / SW + 1)
// Global: vectors of channels of blocks; `rows` and `strips` are those of blocks in an image.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void depthwise_pixels_blocks(
    CONST_TENSOR(dy), TENSOR_OF(const real, weights), TENSOR(dx), const int accumulate, PLACES) {
    OPEN_ITEM
    // dy's last line and column that the block's first pixel meets
    const int u = (int)(line - image * rows) - grid.begin_h / SH, v = (int)(place - line * strips) - grid.begin_w / SW;
    const bool quads = QUAD_ALIGNED_stored(OPEN(dy)), written = QUAD_ALIGNED_stored(OPEN(dx));
    global const stored *const gradients = OPEN(dy) + (ulong)image * oh * ow * channels + channel;
    raw held[BLOCK_U][BLOCK_V][WIDE];
// All reads under one condition: addresses outside lead to a pixel that is there.
#define READ_BLOCK(READ)                                                                                    \
    UNROLLED                                                                                                \
    for (int i = 0; i < BLOCK_U; i++) {                                                                     \
        global const stored *const from = gradients + (ulong)clamp(u - i, 0, oh - 1) * ow * channels;       \
        UNROLLED                                                                                            \
        for (int j = 0; j < BLOCK_V; j++) READ(held[i][j], from + (long)clamp(v - j, 0, ow - 1) * channels) \
    }
#if WIDE == 4
    if (quads) {
        READ_BLOCK(READ_RAWS_stored)
    } else {
        READ_BLOCK(GATHER_RAWS_stored)
    }
#else
#define READ_ONE(to, from) (to)[0] = LOAD_RAW(from, 0);
    READ_BLOCK(READ_ONE)
#endif
    real values[BLOCK_U][BLOCK_V][WIDE];
    UNROLLED
    for (int i = 0; i < BLOCK_U; i++) {
        UNROLLED
        for (int j = 0; j < BLOCK_V; j++) {
            const bool there = u - i >= 0 && u - i < oh && v - j >= 0 && v - j < ow;
            take_wide(values[i][j], held[i][j]);
            WIDTH values[i][j][e] = there ? values[i][j][e] : 0;
        }
    }
    real sum[SH][SW][WIDE];
    UNROLLED
    for (int p = 0; p < SH; p++) {
        UNROLLED
        for (int q = 0; q < SW; q++) {
            WIDTH sum[p][q][e] = 0;
        }
    }
    UNROLLED
    for (int i = 0; i < KH; i++) {
        UNROLLED
        for (int j = 0; j < KW; j++) {
            real weight[WIDE];
            read_weights(weight, OPEN(weights) + (i * KW + j) * channels + channel);
            WIDTH sum[i * DH % SH][j * DW % SW][e] =
                fma(values[i * DH / SH][j * DW / SW][e], weight[e], sum[i * DH % SH][j * DW % SW][e]);
        }
    }
    UNROLLED
    for (int p = 0; p < SH; p++) {
        const int r = u * SH + p + grid.begin_h;
        if (r < 0 || r >= ih) continue;
        UNROLLED
        for (int q = 0; q < SW; q++) {
            const int column = v * SW + q + grid.begin_w;
            if (column < 0 || column >= iw) continue;
            write_wide(OPEN(dx) + (((ulong)image * ih + r) * iw + column) * channels + channel, sum[p][q], written,
                       accumulate);
        }
    }
}
#elif MAKES == 3
kernel __attribute__((reqd_work_group_size(COLUMNS, LANES, 1))) void depthwise_pixels_filter(
    CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR_OF(real, partial), const Grid grid, const int channels, const uint strips,
    const uint part_strips, const int row_strips, const ulong by_row, const ulong by_rows) {
    local real shares[GROUP * WIDE];
    const int ih = grid.source_h, iw = grid.source_w, oh = grid.size_h, ow = grid.size_w;
    const int channel = (int)get_global_id(0) * WIDE, me = get_local_id(1) * COLUMNS + get_local_id(0);
    const int tap_row = get_group_id(2) * TAP_ROWS;
    const uint part = get_group_id(1), last = min((part + 1) * part_strips, strips);
    const bool there = channel < channels;
    const bool quads = QUAD_ALIGNED_stored(OPEN(x)) && QUAD_ALIGNED_stored(OPEN(dy));
    real sum[TAP_ROWS * KW][WIDE];
    UNROLLED
    for (int t = 0; t < TAP_ROWS * KW; t++) {
        WIDTH sum[t][e] = 0;
    }
    for (uint strip = part * part_strips + get_local_id(1); there && strip < last; strip += LANES) {
        const uint line = quotient(strip, by_row), image = quotient(line, by_rows);
        const int v = (int)(strip - line * row_strips) * STRIP;
        const int r0 = (int)(line - image * oh) * SH + grid.begin_h, q0 = v * SW + grid.begin_w;
        global const stored *xs = OPEN(x) + (ulong)image * ih * iw * channels + channel;
        real gradients[STRIP][WIDE];
        UNROLLED
        for (int t = 0; t < STRIP; t++) {
            WIDTH gradients[t][e] = 0;
            if (v + t < ow)
                read_channels(gradients[t], OPEN(dy) + ((ulong)line * ow + v + t) * channels + channel, quads);
        }
        UNROLLED
        for (int i = 0; i < TAP_ROWS; i++) {
            const int r = r0 + (tap_row + i) * DH;
            if (r < 0 || r >= ih) continue;
            real values[SPAN][WIDE];
            UNROLLED
            for (int s = 0; s < SPAN; s++) {
                const int q = q0 + s * APART;
                WIDTH values[s][e] = 0;
                if (q >= 0 && q < iw) read_channels(values[s], xs + ((long)r * iw + q) * channels, quads);
            }
            UNROLLED
            for (int j = 0; j < KW; j++) {
                UNROLLED
                for (int t = 0; t < STRIP; t++) {
                    WIDTH sum[i * KW + j][e] = fma(values[TAP_AT(t, j)][e], gradients[t][e], sum[i * KW + j][e]);
                }
            }
        }
    }
    UNROLLED
    for (int t = 0; t < TAP_ROWS * KW; t++) {
        WIDTH shares[me * WIDE + e] = sum[t][e];
        for (int left = LANES / 2; left > 0; left /= 2) {
            barrier(CLK_LOCAL_MEM_FENCE);
            if (me < left * COLUMNS) {
                WIDTH shares[me * WIDE + e] += shares[(me + left * COLUMNS) * WIDE + e];
            }
        }
        if (there && me < COLUMNS) {
            global real *to = OPEN(partial) + ((long)part * (KH * KW) + tap_row * KW + t) * channels + channel;
            WIDTH to[e] = shares[me * WIDE + e];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}
#else
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void depthwise_pixels_sum(
    TENSOR_OF(const real, partial), TENSOR(dw_out), const int accumulate, const int channels, const int parts) {
    local real shares[GROUP];
    const int me = get_local_id(0), place = get_group_id(0) * SUMMED + me % SUMMED, count = KH * KW * channels;
    real sum = 0;
    for (int part = me / SUMMED; place < count && part < parts; part += GROUP / SUMMED)
        sum += OPEN(partial)[(long)part * count + place];
    shares[me] = sum;
    for (int left = GROUP / SUMMED / 2; left > 0; left /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < left * SUMMED) shares[me] += shares[me + left * SUMMED];
    }
    if (me >= SUMMED || place >= count) return;
    const long at = (long)(place % channels) * (KH * KW) + place / channels;
    STORE(OPEN(dw_out), at, accumulate ? LOAD(OPEN(dw_out), at) + shares[me] : shares[me]);
}
#endif
