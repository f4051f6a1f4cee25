// Depthwise convolution on GPUs with more taps than are worth unrolling: forward, and backward data at any stride.
//
// x (batch, channels, source_h, source_w)   w (channels * multiplier, KH, KW)
// y (batch, channels * multiplier, size_h, size_w); `grid` has y's pixels over x

#ifndef MAKES
#define MAKES 1  // 1: depthwise_gpu_wide_rows, 2: depthwise_gpu_wide_spread
#endif
#ifndef GROUP
#define GROUP 128  // work-items of a work-group
#endif
#ifndef LANES
#define LANES 8  // neighbours that share the taps of a result's rows; a power of 2, at most GROUP
#endif
#ifndef KH
#define KH 9
#define KW 9
#define SH 4
#define SW 4
#define DW 1
#endif

#include "conv/depthwise/planes.cl"

#if MAKES == 1
// Where outputs lie a stride apart, lanes take neighbouring taps of one output, so that they read neighbouring
// elements.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void depthwise_gpu_wide_rows(
    CONST_TENSOR(x), CONST_TENSOR(w), CONST_TENSOR(b), TENSOR(y), const int has_bias, const int accumulate,
    const PlaneSums planes, const Grid grid, const uint items) {
    SIZES
    const uint item = get_global_id(0) / LANES;
    const int me = get_local_id(0), lane = me % LANES;
    const int v = item % ow, u = item / ow % oh;
    const uint t = item / ow / oh;
    const int channel = t % planes.channels, top = u * SH + grid.begin_h, column = v * SW + grid.begin_w;
    real sum = 0;
    for (int s = 0; s < planes.sums && item < items; s++) {
        global const stored *plane = OPEN(x) + (ulong)(t / planes.shared * planes.sums + s) * ((ulong)ih * iw);
        global const stored *weights = OPEN(w) + ((long)channel * planes.sums + s) * (KH * KW);
        for (int i = 0; i < KH; i++) {
            const int h = top + i * dh;
            if (h < 0 || h >= ih) continue;
            real line = 0;
            for (int j = lane; j < KW; j += LANES) {
                const int at = column + j * DW, tap = i * KW + j;
                if (at >= 0 && at < iw)
                    line =
                        fma(LOAD(plane, (long)h * iw + at), LOAD(weights, planes.flip ? KH * KW - 1 - tap : tap), line);
            }
            sum += line;
        }
    }
#if LANES > 1
    local real shares[GROUP];
    shares[me] = sum;
    for (int half_lanes = LANES / 2; half_lanes > 0; half_lanes /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane < half_lanes) shares[me] += shares[me + half_lanes];
    }
    sum = shares[me];
#endif
    if (lane || item >= items) return;
    if (has_bias) sum += LOAD(OPEN(b), channel);
    STORE(OPEN(y), (ulong)item, accumulate ? LOAD(OPEN(y), (ulong)item) + sum : sum);
}
#else
// dx: an element goes from tap to tap that meets a dy. Those are every_h and every_w apart, a stride without dilation.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void depthwise_gpu_wide_spread(
    CONST_TENSOR(dy), CONST_TENSOR(w), TENSOR(dx), const int accumulate, const int channels, const int multiplier,
    const Grid grid, const uint items, const int every_h, const int every_w) {
    SIZES
    const uint item = get_global_id(0);
    if (item >= items) return;
    const int right = item % iw - grid.begin_w, bottom = item / iw % ih - grid.begin_h;
    const uint t = item / iw / ih;
    int first_i = 0, first_j = 0;
    while (first_i < every_h && (bottom - first_i * dh) % SH) first_i++;
    while (first_j < every_w && (right - first_j * DW) % SW) first_j++;
    real sum = 0;
    for (int m = 0; m < multiplier && first_i < every_h && first_j < every_w; m++) {
        global const stored *plane = OPEN(dy) + ((ulong)t * multiplier + m) * ((ulong)oh * ow);
        global const stored *weights = OPEN(w) + ((long)(t % channels) * multiplier + m) * (KH * KW);
        for (int i = first_i; i < KH; i += every_h) {
            const int u = (bottom - i * dh) / SH;
            if (bottom < i * dh || u >= oh) continue;
            real line = 0;
            for (int j = first_j; j < KW; j += every_w) {
                const int v = (right - j * DW) / SW;
                if (right >= j * DW && v < ow)
                    line = fma(LOAD(plane, (long)u * ow + v), LOAD(weights, i * KW + j), line);
            }
            sum += line;
        }
    }
    STORE(OPEN(dx), (ulong)item, accumulate ? LOAD(OPEN(dx), (ulong)item) + sum : sum);
}
#endif
