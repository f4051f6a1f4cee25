// Depthwise convolution of planes of some hundred elements on GPUs, forward and backward data: through local memory.
//
// Forward:        x (planes, IH, IW)   w (channels, KH, KW)   y (planes, OH, OW)
// Backward data:  the same with dy in place of x and dx in place of y
//
// The PLANES planes of a work-group are one stretch of memory: work-items bring four neighbours each to local memory,
// whatever plane these belong to, and write results in the same way. Between rows GAP_W zeros lie there, and GAP_H rows
// of them between planes, so that padding costs no comparisons. LANES work-items share a plane, of which each has
// ITEM_H x ITEM_W results.

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
#define HELD ((LARGER(ORIGIN + PLANES * PITCH, MADE) + 3) / 4 * 4)
#define TURNS(count) (((count) + 4 * GROUP - 1) / (4 * GROUP))

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
        UNROLLED
        for (int k = 0; k < TURNS(READ); k++) {
            const uint at = 4 * (me + k * GROUP);
            READ_RAWS_stored(held[k], from + (4 * GROUP * (k + 1) <= READ ? at : min(at, READ - 4u)))
        }
    }
    const uint in_group = me / LANES, block = me % LANES, strip = block / BLOCKS_W, across = block % BLOCKS_W;
    const uint plane = min(first + in_group, planes - 1), channel = plane - quotient(plane, by_channels) * channels;
    global const stored *weights = OPEN(w) + (ulong)channel * (KH * KW);
    const real bias = has_bias ? LOAD(OPEN(b), channel) : 0;
    real taps[KH * KW];
    UNROLLED
    for (int t = 0; t < KH * KW; t++) taps[t] = LOAD(weights, t);
    const real zeros[4] = {0, 0, 0, 0};
    UNROLLED
    for (int k = 0; k < TURNS(HELD); k++) {
        const uint at = 4 * (me + k * GROUP);
        if (at < HELD) PUT_QUAD(tile + at, zeros);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (together) {
        UNROLLED
        for (int k = 0; k < TURNS(READ); k++) {
            const uint at = 4 * (me + k * GROUP), place = PLACE(at);
            real numbers[4];
            NUMBERS_stored(numbers, held[k], true);
            if (at >= READ) continue;
            UNROLLED
            for (int e = 0; e < 4; e++) tile[IW % 4 == 0 ? place + e : PLACE(at + e)] = numbers[e];
        }
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
        local const real *corner = tile + ORIGIN + in_group * PITCH + BLOCK_AT(strip, ITEM_H, SH) * ROW +
                                   BLOCK_AT(across, ITEM_W, SW) + (LOW_H * ROW + LOW_W);
        UNROLLED
        for (int r = 0; r < LINES; r++) {
            real line[SPAN];
            UNROLLED
            for (int e = 0; e < SPAN; e++) line[e] = corner[r * ROW + e];
            UNROLLED
            for (int k = 0; k < ITEM_H; k++) {
                UNROLLED
                for (int i = 0; i < KH; i++) {
                    if (!MEETS(k, i, BEGIN_H, SH, DH) || MET(k, i, BEGIN_H, SH, DH) != LOW_H + r) continue;
                    UNROLLED
                    for (int c = 0; c < ITEM_W; c++) {
                        UNROLLED
                        for (int j = 0; j < KW; j++) {
                            if (!MEETS(c, j, BEGIN_W, SW, DW)) continue;
                            sum[k][c] = fma(line[MET(c, j, BEGIN_W, SW, DW) - LOW_W], taps[i * KW + j], sum[k][c]);
                        }
                    }
                }
            }
        }
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
