// Depthwise convolution on GPUs, in all directions: a work-item per column of R rows, neighbours in neighbouring lanes.
//
// x (batch, channels, source_h, source_w)   w (channels * multiplier, KH, KW)
// y (batch, channels * multiplier, size_h, size_w); `grid` has y's pixels over x
//
// Lines are loaded once for the R rows they serve; what neighbouring columns share comes from the L1 cache. The rows of
// a work-item lie `dh` apart (a dilated kernel's rows share lines only so), so rows are numbered in strips: strip s
// starts at row s / dh * dh * R + s % dh. Kernels of too many taps to unroll have kernels of their own
// (gpu_wide.cl).

#ifndef MAKES
#define MAKES 1  // 1: depthwise_gpu_rows, 2: depthwise_gpu_spread, 3: depthwise_gpu_filter with depthwise_sum_splits
#endif
#ifndef R
#define R 8  // rows of results of a work-item
#endif
#ifndef GROUP
#define GROUP 128  // work-items of a work-group
#endif
#ifndef KH
#define KH 3
#define KW 3
#define SH 1
#define SW 1
#define DW 1
#endif
#ifndef TAP_ROWS
#define TAP_ROWS KH  // rows of a filter whose gradient a work-group sums
#endif
#define LINES ((R - 1) * SH + KH)
#define FILTER_LINES ((R - 1) * SH + TAP_ROWS)
#define PRAGMA(text) _Pragma(#text)
#define UNROLLED(times) PRAGMA(unroll times)
#define UNROLL 64

#include "common/epilogue.cl"
#include "common/raw.cl"
#include "conv/depthwise/planes.cl"

bool inside(const int at, const int size) { return (uint)at < (uint)size; }

int first_row(const int strip, const int dh) { return strip / dh * dh * R + strip % dh; }

#if MAKES == 1
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void depthwise_gpu_rows(
    CONST_TENSOR(x), CONST_TENSOR(w), CONST_TENSOR(b), TENSOR(y), const int has_bias, const int accumulate,
    const PlaneSums planes, const Grid grid, const uint items, const int strips EPILOGUE_PARAMETERS) {
    SIZES
    OPEN_EPILOGUE
    const uint item = get_global_id(0);
    if (item >= items) return;
    const int v = item % ow, strip = item / ow % strips;
    const uint t = item / ow / strips;
    const int channel = t % planes.channels, u0 = first_row(strip, dh);
    const int h = u0 * SH + grid.begin_h, column = v * SW + grid.begin_w;
    real sum[R];
    UNROLLED(R)
    for (int k = 0; k < R; k++) sum[k] = has_bias ? LOAD(OPEN(b), channel) : 0;
    for (int s = 0; s < planes.sums; s++) {
        global const stored *plane = OPEN(x) + (ulong)(t / planes.shared * planes.sums + s) * ((ulong)ih * iw);
        global const stored *weights = OPEN(w) + ((long)channel * planes.sums + s) * (KH * KW);
        real taps[KH * KW];
        UNROLLED(UNROLL)
        for (int i = 0; i < KH * KW; i++) taps[i] = LOAD(weights, planes.flip ? KH * KW - 1 - i : i);
        UNROLLED(UNROLL)
        for (int r = 0; r < LINES; r++) {
            const bool there = h + r * dh >= 0 && h + r * dh < ih;
            global const stored *line = plane + (long)(h + r * dh) * iw + column;
            UNROLLED(UNROLL)
            for (int j = 0; j < KW; j++) {
                const real value = REAL_OF(there && inside(column + j * DW, iw) ? LOAD_RAW(line, j * DW) : (raw)0);
                UNROLLED(R)
                for (int k = 0; k < R; k++)
                    if (r - k * SH >= 0 && r - k * SH < KH) sum[k] = fma(value, taps[(r - k * SH) * KW + j], sum[k]);
            }
        }
    }
    global stored *to = OPEN(y) + (ulong)t * ((ulong)oh * ow);
    UNROLLED(R)
    for (int k = 0; k < R; k++) {
        const int u = u0 + k * dh;
        if (u >= oh) continue;
        const long at = (long)u * ow + v;
        const real value = EPILOGUE_ELEMENT(sum[k], channel, (long)t * oh * ow + at);
        STORE(to, at, accumulate ? LOAD(to, at) + value : value);
    }
}

#elif MAKES == 2
// dx at any stride: each element looks for the taps that meet a dy.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void depthwise_gpu_spread(
    CONST_TENSOR(dy), CONST_TENSOR(w), TENSOR(dx), const int accumulate, const int channels, const int multiplier,
    const Grid grid, const uint items, const int strips) {
    SIZES
    const uint item = get_global_id(0);
    if (item >= items) return;
    const int q = item % iw, top = item / iw % strips * R;
    const uint t = item / iw / strips;
    const int channel = t % channels;
    real sum[R];
    UNROLLED(R)
    for (int k = 0; k < R; k++) sum[k] = 0;
    for (int m = 0; m < multiplier; m++) {
        global const stored *plane = OPEN(dy) + ((ulong)t * multiplier + m) * ((ulong)oh * ow);
        global const stored *weights = OPEN(w) + ((long)channel * multiplier + m) * (KH * KW);
        UNROLLED(UNROLL)
        for (int j = 0; j < KW; j++) {
            const int v = q - grid.begin_w - j * DW;
            if (v < 0 || v % SW || v / SW >= ow) continue;
            UNROLLED(UNROLL)
            for (int i = 0; i < KH; i++) {
                const real tap = LOAD(weights, i * KW + j);
                UNROLLED(R)
                for (int k = 0; k < R; k++) {
                    const int u = top + k - grid.begin_h - i * dh;
                    if (u >= 0 && u % SH == 0 && u / SH < oh)
                        sum[k] = fma(LOAD(plane, (long)(u / SH) * ow + v / SW), tap, sum[k]);
                }
            }
        }
    }
    global stored *to = OPEN(dx) + (ulong)t * ((ulong)ih * iw);
    UNROLLED(R)
    for (int k = 0; k < R; k++) {
        if (top + k >= ih) continue;
        const long at = (long)(top + k) * iw + q;
        STORE(to, at, accumulate ? LOAD(to, at) + sum[k] : sum[k]);
    }
}

#else
// A work-group sums TAP_ROWS rows of one filter over `split_items` of the (image, strip, column)s:
// partial[split][filter][tap], or dw itself if there is one split.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void depthwise_gpu_filter(
    CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR(dw_out), TENSOR_OF(real, partial), const int accumulate,
    const int channels, const int multiplier, const Grid grid, const uint items, const uint split_items,
    const int strips) {
    SIZES
    local real shares[TAP_ROWS * KW][GROUP];
    const int me = get_local_id(0), filter = get_group_id(0), tap_row = get_group_id(1) * TAP_ROWS;
    const uint split = get_group_id(2), from = split * split_items, to = min(from + split_items, items);
    real sum[TAP_ROWS * KW];
    UNROLLED(UNROLL)
    for (int t = 0; t < TAP_ROWS * KW; t++) sum[t] = 0;
    for (uint item = from + me; item < to; item += GROUP) {
        const int v = item % ow, strip = item / ow % strips;
        const ulong n = item / ow / strips;
        const int u0 = first_row(strip, dh), h = u0 * SH + grid.begin_h + tap_row * dh, column = v * SW + grid.begin_w;
        global const stored *plane = OPEN(x) + (n * channels + filter / multiplier) * ((ulong)ih * iw);
        global const stored *grads = OPEN(dy) + (n * channels * multiplier + filter) * ((ulong)oh * ow);
        real gradient[R];
        UNROLLED(R)
        for (int k = 0; k < R; k++) gradient[k] = u0 + k * dh < oh ? LOAD(grads, (long)(u0 + k * dh) * ow + v) : 0;
        UNROLLED(UNROLL)
        for (int r = 0; r < FILTER_LINES; r++) {
            const bool there = h + r * dh >= 0 && h + r * dh < ih;
            global const stored *line = plane + (long)(h + r * dh) * iw + column;
            UNROLLED(UNROLL)
            for (int j = 0; j < KW; j++) {
                const real value = REAL_OF(there && inside(column + j * DW, iw) ? LOAD_RAW(line, j * DW) : (raw)0);
                UNROLLED(R)
                for (int k = 0; k < R; k++)
                    if (r - k * SH >= 0 && r - k * SH < TAP_ROWS)
                        sum[(r - k * SH) * KW + j] = fma(value, gradient[k], sum[(r - k * SH) * KW + j]);
            }
        }
    }
    UNROLLED(UNROLL)
    for (int t = 0; t < TAP_ROWS * KW; t++) shares[t][me] = sum[t];
    for (int half_group = GROUP / 2; half_group > 0; half_group /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < half_group)
            for (int t = 0; t < TAP_ROWS * KW; t++) shares[t][me] += shares[t][me + half_group];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int t = me; t < TAP_ROWS * KW; t += GROUP) {
        const ulong place = (ulong)filter * (KH * KW) + tap_row * KW + t;
        if (get_num_groups(2) > 1)
            OPEN(partial)[(ulong)split * channels * multiplier * (KH * KW) + place] = shares[t][0];
        else
            STORE(OPEN(dw_out), place, accumulate ? LOAD(OPEN(dw_out), place) + shares[t][0] : shares[t][0]);
    }
}

#include "conv/depthwise/sum.cl"
#endif
