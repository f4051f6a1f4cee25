// Depthwise convolution of planes of some hundred elements on GPUs, in all directions: through local memory.
//
// Forward:          x (planes, IH, IW)   w (channels, KH, KW)   y (planes, OH, OW)
// Backward data:    the same with dy in place of x and dx in place of y
// Backward filter:  the same with dy in place of y, and dw (channels, KH, KW)
//
// The PLANES planes of a work-group are one stretch of memory: work-items bring four neighbours each to local memory,
// whatever plane these belong to, and write results in the same way. Between rows GAP_W zeros lie there, and GAP_H rows
// of them between planes, so that padding costs no comparisons. LANES work-items share a plane, of which each has
// ITEM_H x ITEM_W results. For filters, planes are neighbouring channels of one image after the other.

#ifndef MAKES
#define MAKES 1  // 1: depthwise_gpu_staged, 2: depthwise_gpu_staged_filter with depthwise_sum_splits
#endif

#ifndef PLANES
#define PLANES 8
#define GROUP 112  // work-items of a work-group, at least PLANES * LANES
#endif
#ifndef IH
#define IH 14  // what is read
#define IW 14
#define OH 14  // what is written
#define OW 14
#define KH 3
#define KW 3
#define SH 1
#define SW 1
#define DH 1
#define DW 1
#define BEGIN_H (-1)  // where the first tap of y's pixel 0 lies in x
#define BEGIN_W (-1)
#endif
#ifndef BACKWARD
#define BACKWARD 0  // 1: backward data; then blocks are multiples of the stride
#endif
#ifndef ITEM_H
#define ITEM_H 14
#define ITEM_W 1
#define BLOCKS_W 14  // blocks in the width of a plane
#define LANES 14     // and in all of it
#define LOW_H (-1)   // the lines and columns that a block meets, from its place on
#define LOW_W (-1)
#define LINES 16
#define SPAN 3
#define GAP_H 1
#define GAP_W 1
#define PITCH 238  // elements from plane to plane in local memory
#endif

#include "common/divide.cl"
#include "common/epilogue.cl"
#include "pointwise/quads.cl"

#define UNROLLED _Pragma("unroll")
#define SOURCE (IH * IW)
#define RESULT (OH * OW)
#define ROW (IW + GAP_W)
#define ORIGIN (GAP_H * ROW + GAP_W)  // of the first plane, after zeros
#define PLACE(at) (ORIGIN + (at) + (at) / IW * GAP_W + (at) / SOURCE * (PITCH - IH * ROW))
#define READ (PLANES * SOURCE)
#define MADE (PLANES * RESULT)
#define LARGER(a, b) ((a) > (b) ? (a) : (b))
#define FOURS(count) (((count) + 3) / 4 * 4)
#define HELD FOURS(LARGER(ORIGIN + PLANES * PITCH, MADE))
#define TURNS(count) (((count) + 4 * GROUP - 1) / (4 * GROUP))

// The fours of neighbours that a work-item has of so many elements: as memory has them, and where each goes to.
#define READ_FOURS(held, from, count)                                                                   \
    UNROLLED                                                                                            \
    for (int k = 0; k < TURNS(count); k++) {                                                            \
        const uint at = 4 * (me + k * GROUP);                                                           \
        READ_RAWS_stored(held[k], from + (4 * GROUP * (k + 1) <= (count) ? at : min(at, (count) - 4u))) \
    }
#define PUT_FOURS(held, count, PUT)             \
    UNROLLED                                    \
    for (int k = 0; k < TURNS(count); k++) {    \
        const uint at = 4 * (me + k * GROUP);   \
        real numbers[4];                        \
        NUMBERS_stored(numbers, held[k], true); \
        if (at >= (count)) continue;            \
        PUT                                     \
    }
#define PUT_SPREAD                \
    const uint place = PLACE(at); \
    UNROLLED                      \
    for (int e = 0; e < 4; e++) tile[IW % 4 == 0 ? place + e : PLACE(at + e)] = numbers[e];
#define CLEAR_TILE                                 \
    UNROLLED                                       \
    for (int k = 0; k < TURNS(HELD); k++) {        \
        const uint at = 4 * (me + k * GROUP);      \
        const real zeros[4] = {0, 0, 0, 0};        \
        if (at < HELD) PUT_QUAD(tile + at, zeros); \
    }
// Where a block's elements of the source begin in local memory.
#define CORNER                                                                                             \
    (tile + ORIGIN + in_group * PITCH + BLOCK_AT(strip, ITEM_H, SH) * ROW + BLOCK_AT(across, ITEM_W, SW) + \
     (LOW_H * ROW + LOW_W))
// Each product of a block's lines, from `corner` of the tile on, with taps: ADD(result's row, result's column, element
// of the line, tap).
#define EACH_PRODUCT(corner, ADD)                                                                       \
    UNROLLED                                                                                            \
    for (int r = 0; r < LINES; r++) {                                                                   \
        real line[SPAN];                                                                                \
        UNROLLED                                                                                        \
        for (int e = 0; e < SPAN; e++) line[e] = (corner)[r * ROW + e];                                 \
        UNROLLED                                                                                        \
        for (int k = 0; k < ITEM_H; k++) {                                                              \
            UNROLLED                                                                                    \
            for (int i = 0; i < KH; i++) {                                                              \
                if (!MEETS(k, i, BEGIN_H, SH, DH) || MET(k, i, BEGIN_H, SH, DH) != LOW_H + r) continue; \
                UNROLLED                                                                                \
                for (int c = 0; c < ITEM_W; c++) {                                                      \
                    UNROLLED                                                                            \
                    for (int j = 0; j < KW; j++) {                                                      \
                        if (!MEETS(c, j, BEGIN_W, SW, DW)) continue;                                    \
                        ADD(k, c, line[MET(c, j, BEGIN_W, SW, DW) - LOW_W], i * KW + j)                 \
                    }                                                                                   \
                }                                                                                       \
            }                                                                                           \
        }                                                                                               \
    }

// Whether result k of a block meets tap i, where it does so, and where a block begins.
#if BACKWARD
#define MEETS(k, i, begin, stride, step) (((k) - (begin) - (i) * (step)) % (stride) == 0)
#define MET(k, i, begin, stride, step) (((k) - (begin) - (i) * (step)) / (stride))
#define BLOCK_AT(block, item, stride) ((block) * ((item) / (stride)))
#else
#define MEETS(k, i, begin, stride, step) 1
#define MET(k, i, begin, stride, step) ((k) * (stride) + (begin) + (i) * (step))
#define BLOCK_AT(block, item, stride) ((block) * ((item) * (stride)))
#endif

#if MAKES == 1
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void depthwise_gpu_staged(
    CONST_TENSOR(x), CONST_TENSOR(w), CONST_TENSOR(b), TENSOR(y), const int has_bias, const int accumulate,
    const int channels, const uint planes, const ulong by_channels EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    local real tile[HELD] __attribute__((aligned(32)));
    const uint me = get_local_id(0), first = get_group_id(0) * PLANES, count = min(planes - first, (uint)PLANES);
    const bool whole = count == PLANES;
    global const stored *from = OPEN(x) + (ulong)first * SOURCE;
    const bool together = READ % 4 == 0 && whole && QUAD_ALIGNED_stored(from);
    RAW_stored held[TURNS(READ)][4];
    if (together) {
        READ_FOURS(held, from, READ)
    }
    const uint in_group = me / LANES, block = me % LANES, strip = block / BLOCKS_W, across = block % BLOCKS_W;
    const uint plane = min(first + in_group, planes - 1), channel = plane - quotient(plane, by_channels) * channels;
    global const stored *weights = OPEN(w) + (ulong)channel * (KH * KW);
    const real bias = has_bias ? LOAD(OPEN(b), channel) : 0;
    real taps[KH * KW];
    UNROLLED
    for (int t = 0; t < KH * KW; t++) taps[t] = LOAD(weights, t);
    CLEAR_TILE
    barrier(CLK_LOCAL_MEM_FENCE);
    if (together) {
        PUT_FOURS(held, READ, PUT_SPREAD)
    } else {
        for (uint at = me; at < count * SOURCE; at += GROUP) tile[PLACE(at)] = LOAD(from, at);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    real sum[ITEM_H][ITEM_W];
    UNROLLED
    for (int k = 0; k < ITEM_H; k++) {
        UNROLLED
        for (int c = 0; c < ITEM_W; c++) sum[k][c] = bias;
    }
    if (in_group < count) {
        local const real *corner = CORNER;
#define ADD(k, c, element, tap) sum[k][c] = fma(element, taps[tap], sum[k][c]);
        EACH_PRODUCT(corner, ADD)
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (in_group < count) {
        const uint u = strip * ITEM_H, v = across * ITEM_W;
        UNROLLED
        for (int k = 0; k < ITEM_H; k++) {
            UNROLLED
            for (int c = 0; c < ITEM_W; c++) {
                if (OH % ITEM_H != 0 && u + k >= OH) continue;
                if (OW % ITEM_W != 0 && v + c >= OW) continue;
                const uint at = (u + k) * OW + v + c;
                tile[in_group * RESULT + at] = EPILOGUE_ELEMENT(sum[k][c], channel, (long)plane * RESULT + at);
            }
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    global stored *to = OPEN(y) + (ulong)first * RESULT;
    if (MADE % 4 == 0 && whole && !accumulate && QUAD_ALIGNED_stored(to)) {
        UNROLLED
        for (int k = 0; k < TURNS(MADE); k++) {
            const uint at = 4 * (me + k * GROUP);
            if (at >= MADE) continue;
            real numbers[4];
            const real_quad quad = *(local const real_quad *)(tile + at);
            TAKE_QUAD(numbers, quad)
            WRITE_QUAD_stored(to + at, numbers)
        }
    } else {
        for (uint at = me; at < count * RESULT; at += GROUP)
            STORE(to, at, accumulate ? LOAD(to, at) + tile[at] : tile[at]);
    }
}

#else
// A work-group sums the filters of PLANES neighbouring channels over `split_images` images, into
// partial[split][filter][tap].
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void depthwise_gpu_staged_filter(
    CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR_OF(real, partial), const int channels, const int images,
    const int split_images) {
    local real tile[LARGER(HELD, FOURS(GROUP * KH * KW))] __attribute__((aligned(32)));
    local real gradients[FOURS(MADE)] __attribute__((aligned(32)));
    const uint me = get_local_id(0), first = get_group_id(0) * PLANES, count = min(channels - first, (uint)PLANES);
    const int from = get_group_id(1) * split_images, to = min(from + split_images, images);
    const uint in_group = me / LANES, block = me % LANES, strip = block / BLOCKS_W, across = block % BLOCKS_W;
    const uint u = strip * ITEM_H, v = across * ITEM_W;
    RAW_stored held[TURNS(READ)][4], flowing[TURNS(MADE)][4];
    real sum[KH * KW];
    UNROLLED
    for (int t = 0; t < KH * KW; t++) sum[t] = 0;
    CLEAR_TILE
    global const stored *xs = OPEN(x) + ((ulong)from * channels + first) * SOURCE;
    global const stored *dys = OPEN(dy) + ((ulong)from * channels + first) * RESULT;
    const int rests = READ % 4 | MADE % 4 | channels * SOURCE % 4 | channels * RESULT % 4;
    const bool together = rests == 0 && count == PLANES && QUAD_ALIGNED_stored(xs) && QUAD_ALIGNED_stored(dys);
    if (together) {
        READ_FOURS(held, xs, READ)
        READ_FOURS(flowing, dys, MADE)
    }
    for (int n = from; n < to; n++) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (together) {
            PUT_FOURS(held, READ, PUT_SPREAD)
#define PUT_TOGETHER PUT_QUAD(gradients + at, numbers)
            PUT_FOURS(flowing, MADE, PUT_TOGETHER)
        } else {
            for (uint at = me; at < count * SOURCE; at += GROUP) tile[PLACE(at)] = LOAD(xs, at);
            for (uint at = me; at < count * RESULT; at += GROUP) gradients[at] = LOAD(dys, at);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        xs += (ulong)channels * SOURCE;
        dys += (ulong)channels * RESULT;
        if (together && n + 1 < to) {  // the next image's are on their way meanwhile
            READ_FOURS(held, xs, READ)
            READ_FOURS(flowing, dys, MADE)
        }
        if (in_group >= count) continue;
        real gradient[ITEM_H][ITEM_W];
        UNROLLED
        for (int k = 0; k < ITEM_H; k++) {
            UNROLLED
            for (int c = 0; c < ITEM_W; c++) {
                gradient[k][c] = 0;
                if (OH % ITEM_H != 0 && u + k >= OH) continue;
                if (OW % ITEM_W != 0 && v + c >= OW) continue;
                gradient[k][c] = gradients[in_group * RESULT + (u + k) * OW + v + c];
            }
        }
        local const real *corner = CORNER;
#define ADD(k, c, element, tap) sum[tap] = fma(element, gradient[k][c], sum[tap]);
        EACH_PRODUCT(corner, ADD)
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (in_group < PLANES) {
        UNROLLED
        for (int t = 0; t < KH * KW; t++) tile[(in_group * (KH * KW) + t) * LANES + block] = sum[t];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    global real *sums = OPEN(partial) + ((ulong)get_group_id(1) * channels + first) * (KH * KW);
    for (uint at = me; at < count * (KH * KW); at += GROUP) {
        real total = 0;
        for (int lane = 0; lane < LANES; lane++) total += tile[at * LANES + lane];
        sums[at] = total;
    }
}

#include "conv/depthwise/sum.cl"
#endif
