// Pooling in channels last on GPUs, in one or two axes: a work-item has WIDE neighbouring channels of a pixel.
//
// x  (images, ih, iw, channels)    y, argmax  (images, oh, ow, channels)    channels: a multiple of WIDE
//
//   pool_pixels_forward   of a pixel of y
//   pool_pixels_backward  of a pixel of dx, which adds up the windows that hold it, in memory order
//
// OPERATOR  as in pooling/operators.cl; backward has no norms of power 2 and 3, and of maxima only that with ARGMAX
// ARGMAX    forward also notes where in its window each maximum stands, and backward reads that
// MAKES     which of the kernels

#include "common/divide.cl"
#include "common/channels.cl"
#include "pooling/operators.cl"
#include "pooling/windows.cl"

#ifndef MAKES
#define MAKES 1
#endif
#ifndef GROUP
#define GROUP 128
#endif
#ifndef KH
#define KH 3  // window
#define KW 3
#define SH 2  // stride
#define SW 2
#endif

#ifdef ARGMAX
#define RESULTS TENSOR(y), TENSOR_OF(uchar, argmax), const int accumulate, const int accumulate_argmax
#define VALUES TENSOR_OF(const uchar, argmax)
#else
#define RESULTS TENSOR(y), const int accumulate
#define VALUES CONST_TENSOR(x), CONST_TENSOR(y)
#endif

// The pixel (image, row, column) of a tensor of so many rows and columns, and the first channel, of a work-item.
#define OPEN_PIXEL(rows, columns)                                                           \
    WINDOW_PLANES                                                                           \
    const uint item = get_global_id(0);                                                     \
    if (item >= count) return;                                                              \
    const uint pixel = quotient(item, by_blocks), line = quotient(pixel, by_columns);       \
    const uint image = quotient(line, by_rows);                                             \
    const int first = (int)(item - pixel * blocks) * WIDE, channels = blocks * WIDE;        \
    const int row = (int)(line - image * (rows)), column = (int)(pixel - line * (columns)); \
    const ulong at = (ulong)pixel * channels + first;
#define SIZES                                                                                                 \
    const Windows windows, const uint count, const int blocks, const ulong by_blocks, const ulong by_columns, \
        const ulong by_rows

#if MAKES == 1
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void pool_pixels_forward(CONST_TENSOR(x), RESULTS, SIZES) {
    OPEN_PIXEL(oh, ow)
    const int r0 = row * SH - ph, q0 = column * SW - pw;
    global const stored *xs = OPEN(x) + (ulong)image * ih * iw * channels + first;
    const bool quads = QUAD_ALIGNED_stored(OPEN(x));
    real result[WIDE];
#ifdef ARGMAX
    int chosen[WIDE];  // from less than the lowest number on, so that this one has a place, too
    WIDTH {
        result[e] = -INFINITY;
        chosen[e] = NOWHERE;
    }
#else
    WIDTH result[e] = START;
#endif
    for (int r = max(-r0, 0); r < min(KH, ih - r0); r++) {
        global const stored *from = xs + (long)(r0 + r) * iw * channels;
#pragma unroll 16
        for (int q = 0; q < KW; q++) {
            if (q0 + q < 0 || q0 + q >= iw) continue;
            real value[WIDE];
            read_channels(value, from + (long)(q0 + q) * channels, quads);
            WIDTH {
#ifdef ARGMAX
                chosen[e] = value[e] > result[e] ? r * KW + q : chosen[e];
#endif
                const real raised = RAISE(value[e]);
                result[e] = JOIN(result[e], raised);
            }
        }
    }
#ifdef ARGMAX
    WIDTH {
        result[e] = JOIN(START, result[e]);
#if KEEP_NAN
        if (result[e] != result[e]) chosen[e] = NOWHERE;
#endif
    }
    if (argmax_base) {
        global uchar *places = OPEN(argmax) + at;
        WIDTH places[e] = chosen[e] + (accumulate_argmax ? places[e] : 0);
    }
    if (!y_base) return;
#elif OPERATOR == 1
    const real inside = (real)counted(r0, KH, ih, eh, count_padding) * (real)counted(q0, KW, iw, ew, count_padding);
    WIDTH result[e] /= inside;
#endif
    WIDTH result[e] = ROOT(result[e]);
    write_wide(OPEN(y) + at, result, QUAD_ALIGNED_stored(OPEN(y)), accumulate);
}
#else
// Windows u with u SH - ph <= row < u SH - ph + KH.
#define FIRST_OF(at, pad, window, stride) (max((at) + (pad) - (window) + (stride), 0) / (stride))

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void pool_pixels_backward(
    VALUES, CONST_TENSOR(dy), TENSOR(dx), const int accumulate, SIZES) {
    OPEN_PIXEL(ih, iw)
    const ulong begin = (ulong)image * oh * ow * channels + first;
    global const stored *gradients = OPEN(dy) + begin;
#ifdef ARGMAX
    global const uchar *places = OPEN(argmax) + begin;
#endif
    const bool quads = QUAD_ALIGNED_stored(OPEN(dy));
    real sum[WIDE];
    WIDTH sum[e] = 0;
    for (int u = FIRST_OF(row, ph, KH, SH); u < oh && u * SH - ph <= row; u++) {
        for (int v = FIRST_OF(column, pw, KW, SW); v < ow && v * SW - pw <= column; v++) {
            const long window = ((long)u * ow + v) * channels;
            real gradient[WIDE];
            read_channels(gradient, gradients + window, quads);
#ifdef ARGMAX
            const int tap = (row - u * SH + ph) * KW + column - v * SW + pw;
            WIDTH sum[e] += places[window + e] == tap ? gradient[e] : 0;
#elif OPERATOR == 1
            const real inside = (real)counted(u * SH - ph, KH, ih, eh, count_padding) *
                                (real)counted(v * SW - pw, KW, iw, ew, count_padding);
            WIDTH sum[e] += gradient[e] / inside;
#else
            WIDTH sum[e] += gradient[e];
#endif
        }
    }
    write_wide(OPEN(dx) + at, sum, QUAD_ALIGNED_stored(OPEN(dx)), accumulate);
}
#endif
