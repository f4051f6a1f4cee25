// Depthwise convolution of small planes on GPUs, forward and backward data at stride 1: a work-item per plane.
//
// x (planes, IH, IW)   w (channels, KH, KW)   y (planes, OH, OW)
//
// The GROUP planes of a work-group follow one another in memory: neighbouring work-items bring neighbouring elements to
// local memory and the results back, whatever the planes' sizes. There planes lie PITCH elements apart, an odd
// number, so that work-items which read the same element of their planes meet different banks. All sizes are
// constants, so padding costs nothing.

#ifndef GROUP
#define GROUP 64  // planes of a work-group
#endif
#ifndef IH
#define IH 7
#define IW 7
#define OH 7
#define OW 7
#define KH 3
#define KW 3
#define SH 1
#define SW 1
#define DH 1
#define DW 1
#define BEGIN_H (-1)  // where the first tap of pixel 0 lies in x
#define BEGIN_W (-1)
#endif
#ifndef FLIP
#define FLIP 0  // whether the weights are taken backwards: backward data, whose source is dy
#endif

#include "common/divide.cl"
#include "common/epilogue.cl"
#include "common/raw.cl"

#define SOURCE (IH * IW)
#define RESULT (OH * OW)
#define PITCH ((SOURCE > RESULT ? SOURCE : RESULT) | 1)
#define UNROLLED _Pragma("unroll")

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void depthwise_gpu_planes(
    CONST_TENSOR(x), CONST_TENSOR(w), CONST_TENSOR(b), TENSOR(y), const int has_bias, const int accumulate,
    const int channels, const uint planes, const ulong by_channels EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    local real tiles[GROUP * PITCH];
    const uint me = get_local_id(0), first = get_group_id(0) * GROUP, count = min(planes - first, (uint)GROUP);
    global const stored *from = OPEN(x) + (ulong)first * SOURCE;
    real source[SOURCE];
    raw held[SOURCE];
    UNROLLED
    for (int i = 0; i < SOURCE; i++) {
        const uint at = i * GROUP + me;
        held[i] = at < count * SOURCE ? LOAD_RAW(from, at) : (raw)0;
    }
    UNROLLED
    for (int i = 0; i < SOURCE; i++) {
        const uint at = i * GROUP + me;
        tiles[at / SOURCE * PITCH + at % SOURCE] = REAL_OF(held[i]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (me < count) {
        const uint plane = first + me, channel = plane - quotient(plane, by_channels) * channels;
        global const stored *weights = OPEN(w) + (ulong)channel * (KH * KW);
        local real *tile = tiles + me * PITCH;
        const real bias = has_bias ? LOAD(OPEN(b), channel) : 0;
        real taps[KH * KW];
        UNROLLED
        for (int t = 0; t < KH * KW; t++) taps[t] = LOAD(weights, FLIP ? KH * KW - 1 - t : t);
        UNROLLED
        for (int i = 0; i < SOURCE; i++) source[i] = tile[i];
        UNROLLED
        for (int u = 0; u < OH; u++) {
            UNROLLED
            for (int v = 0; v < OW; v++) {
                real sum = bias;
                UNROLLED
                for (int i = 0; i < KH; i++) {
                    UNROLLED
                    for (int j = 0; j < KW; j++) {
                        const int h = u * SH + BEGIN_H + i * DH, k = v * SW + BEGIN_W + j * DW;
                        if (h >= 0 && h < IH && k >= 0 && k < IW) sum = fma(source[h * IW + k], taps[i * KW + j], sum);
                    }
                }
                tile[u * OW + v] = EPILOGUE_ELEMENT(sum, channel, (long)plane * RESULT + u * OW + v);
            }
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    global stored *to = OPEN(y) + (ulong)first * RESULT;
    UNROLLED
    for (int i = 0; i < RESULT; i++) {
        const uint at = i * GROUP + me;
        if (at >= count * RESULT) continue;
        const real value = tiles[at / RESULT * PITCH + at % RESULT];
        STORE(to, at, accumulate ? LOAD(to, at) + value : value);
    }
}
