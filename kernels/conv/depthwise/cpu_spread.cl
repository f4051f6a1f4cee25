// Depthwise convolution on CPU devices, backward data at stride 2: rows of dx straight from rows of dy.
//
// dy (batch, channels * multiplier, size_h, size_w)   w (channels * multiplier, KH, KW)
// dx (batch, channels, source_h, source_w); `grid` is the forward convolution's
//
// dx[2u + a][2v + b] sums taps i = a + PAD_H - 2r, j = b + PAD_W - 2c times dy[u + r + shift_h][v + c + shift_w], where
// PAD_H and PAD_W are the padding's parity and the shifts its halves: no tap meets a zero between elements. A block
// makes 2R rows of 2 VL elements from LINES lines and COLUMNS vectors of dy.
//
// PAST_CACHES  dx is too large to be found in a cache again: rows of whole vectors are stored past them

#define SH 1  // the lines' own
#define SW 1
#define LOW_H (-((KH - 1 - PAD_H) / 2))
#define LOW_W (-((KW - 1 - PAD_W) / 2))
#define LINES (R + PAD_H - LOW_H)
#define COLUMNS (PAD_W - LOW_W + 1)

#include "conv/depthwise/cpu_scratch.cl"
#include "conv/depthwise/cpu_lines.cl"
#include "conv/grid.cl"
#include "conv/past_caches.cl"

#define ADD_TO_PHASES(r, j, value)                                                                              \
    _Pragma("unroll") for (int p = 0; p < 4 * R; p++) {                                                         \
        const int tap_h = p / 2 % 2 + PAD_H - 2 * (r + LOW_H - p / 4), tap_w = p % 2 + PAD_W - 2 * (j + LOW_W); \
        if (tap_h >= 0 && tap_h < KH && tap_w >= 0 && tap_w < KW)                                               \
            sum[p] = fma(value, (realv)(weights[tap_h * KW + tap_w]), sum[p]);                                  \
    }

// One element of dx, with all checks.
real sum_element(global const stored *plane, local const real *weights, const int row, const int column,
                 const Grid grid) {
    real sum = 0;
    for (int i = 0; i < KH; i++)
        for (int j = 0; j < KW; j++) {
            const int r = row - grid.begin_h - i, q = column - grid.begin_w - j;
            if (r >= 0 && r % 2 == 0 && r / 2 < grid.size_h && q >= 0 && q % 2 == 0 && q / 2 < grid.size_w)
                sum = fma(LOAD(plane, (long)(r / 2) * grid.size_w + q / 2), weights[i * KW + j], sum);
        }
    return sum;
}

kernel void depthwise_spread(CONST_TENSOR(dy), CONST_TENSOR(w), TENSOR(dx), const int accumulate, const int channels,
                             const int multiplier, const Grid grid, const int tile_h, const int item_planes,
                             local real *all_weights, local real *spare) {
    const int xh = grid.source_h, xw = grid.source_w;
    const int ih = grid.size_h, iw = grid.size_w, dh = 1, dw = 1;  // the lines are dy's
    const int taps = KH * KW, shift_h = -(grid.begin_h + PAD_H) / 2, shift_w = -(grid.begin_w + PAD_W) / 2;
    const long planes = (long)grid.batch * channels;
    const int half_h = (xh + 1) / 2, half_w = (xw + 1) / 2;
    const int top = get_global_id(0) * tile_h, bottom = min(top + tile_h, half_h);
    const long first = get_global_id(1) * (long)item_planes, last = min(first + item_planes, planes);
    const long x_size = (long)xh * xw, y_size = (long)ih * iw, all = planes * multiplier * y_size;
    int channel = first % channels;
    const bool past = GOES_PAST(OPEN(dx), xw % VL == 0 && !accumulate);
    for (long t = first; t < last; t++, channel = channel + 1 == channels ? 0 : channel + 1) {
        for (int i = 0; i < multiplier * taps; i++)
            all_weights[i] = LOAD(OPEN(w), (long)channel * multiplier * taps + i);
        global const stored *ahead = OPEN(dy) + ((t + 1) * multiplier * y_size + top * iw);
        global stored *dx_ahead = OPEN(dx) + ((t + 1) * x_size + 2 * top * xw);
        const long end = bottom < half_h ? t * x_size + 2 * bottom * (long)xw : last * x_size;
        for (int v0 = 0; v0 < half_w; v0 += VL) {  // the last vector overlaps the one before
            const int v = accumulate ? v0 : min(v0, max(half_w - VL, 0));
            const int column = v + LOW_W + shift_w, length = min(2 * VL, xw - 2 * v);
            maskv masks[COLUMNS];
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) masks[j] = lanes_inside(column + j, iw);
            for (int u = top; u < bottom; u += R) {
                const int h = u + LOW_H + shift_h;
                realv sum[4 * R];
#pragma unroll
                for (int p = 0; p < 4 * R; p++) sum[p] = 0;
#pragma unroll
                for (int k = 0; k < R; k++, ahead += VL) PREFETCH(ahead);
#pragma unroll
                for (int k = 0; !past && k < 4 * R; k++, dx_ahead += VL) PREFETCH_TO_WRITE(dx_ahead);
                for (int m = 0; m < multiplier; m++) {
                    const long plane = (t * multiplier + m) * y_size;
                    global const stored *from = OPEN(dy) + (plane + (long)h * iw + column);
                    local const real *weights = all_weights + m * taps;
                    if (block_inside(h, column, ih, iw, dh, dw)) {
                        FOR_LINES(ADD_TO_PHASES, false)
                    } else if (block_loadable(plane, all, h, column, ih, iw, dh, dw)) {
                        FOR_LINES(ADD_TO_PHASES, true)
                    } else {
#pragma unroll
                        for (int p = 0; p < 4 * R; p++) {
                            for (int l = 0; l < VL; l++)
                                spare[l] =
                                    sum_element(OPEN(dy) + plane, weights, 2 * u + p / 2, 2 * (v + l) + p % 2, grid);
                            sum[p] += VLOAD_REAL(spare);
                        }
                    }
                }
#pragma unroll
                for (int k = 0; k < 2 * R; k++) {
                    const int row = 2 * u + k;
                    if (row >= min(2 * bottom, xh)) continue;
                    const long at = t * x_size + (long)row * xw + 2 * v;
                    realv low, high;
                    low.even = sum[2 * k].lo;
                    low.odd = sum[2 * k + 1].lo;
                    high.even = sum[2 * k].hi;
                    high.odd = sum[2 * k + 1].hi;
                    if (length == 2 * VL && !accumulate) {
                        if (!past || 2 * v + VL > 2 * v0) {  // else it is there already
                            PUT_VECTOR(past, OPEN(dx), at, low)
                        }
                        PUT_VECTOR(past, OPEN(dx), at + VL, high)
                    } else {
                        VSTORE_REAL(spare, low);
                        VSTORE_REAL(spare + VL, high);
                        write_row(OPEN(dx) + at, spare, length, half_w <= VL ? end - at : 0, accumulate);
                    }
                }
            }
        }
    }
}
