// Depthwise convolution on CPU devices, backward filter straight from memory: a vector accumulator for each tap.
//
// x (batch, channels, source_h, source_w)   dy (batch, channels * multiplier, size_h, size_w)
// dw (channels * multiplier, KH, KW)
//
// Strides and dilations as in cpu_rows.cl. Lanes of dy beyond a row are zero, so that a channel's sums meet no
// other channel's elements; an element of x that is not finite may turn any tap of its own channel into NaN.

#include "conv/depthwise/cpu_scratch.cl"
#include "conv/depthwise/cpu_lines.cl"
#include "conv/depthwise/planes.cl"

#define ADD_TO_TAPS(r, j, value)                                                                                       \
    _Pragma("unroll") for (int k = 0; k < R; k++) if (r - k * SH >= 0 && r - k * SH < KH) sum[(r - k * SH) * KW + j] = \
        fma(value, gradient[k], sum[(r - k * SH) * KW + j]);

// The block by elements, with all checks, onto totals in memory.
void add_elements(local real *totals, global const stored *x, global const stored *dy, const int h, const int column,
                  const int ih, const int iw, const int dh, const int dw, const int u0, const int bottom, const int ow,
                  const int v, const int begin) {
    for (int k = 0; k < R; k++) {
        const int u = u0 + k * dh;
        for (int l = begin; l < VL && u < bottom && v + l < ow; l++) {
            const real g = LOAD(dy, (long)u * ow + v + l);
            for (int i = 0; i < KH; i++)
                for (int j = 0; j < KW; j++) {
                    const int r = h + (k * SH + i) * dh, q = column + l * SW + j * dw;
                    if (r < 0 || r >= ih || q < 0 || q >= iw) continue;
                    local real *total = totals + (i * KW + j) * VL + l;
                    *total = fma(LOAD(x, (long)r * iw + q), g, *total);
                }
        }
    }
}

// partial[split][o][tap], or dw itself if there is one split. A split takes `split_tiles` of the row tiles of all
// images.
kernel void depthwise_rows_filter(CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR(dw_out), TENSOR_OF(real, partial),
                                  const int accumulate, const int channels, const int multiplier, const Grid grid,
                                  const int tile_h, const int split_tiles, const int item_filters, local real *totals) {
    SIZES
    const long batch = grid.batch;
    const int filters = channels * multiplier, tiles = (oh + tile_h - 1) / tile_h;
    const int split = get_global_id(0), first = get_global_id(1) * item_filters;
    const long from_tile = split * (long)split_tiles, to_tile = min(from_tile + split_tiles, batch * tiles);
    const long x_size = (long)ih * iw, y_size = (long)oh * ow;
    for (int o = first; o < min(first + item_filters, filters); o++) {
        realv sum[KH * KW];
#pragma unroll
        for (int t = 0; t < KH * KW; t++) {
            sum[t] = 0;
            VSTORE_REAL(totals + t * VL, sum[t]);
        }
        for (long at = from_tile; at < to_tile; at++) {
            const long n = at / tiles;
            const int top = (int)(at - n * tiles) * tile_h, bottom = min(top + tile_h, oh);
            const long plane = (n * channels + o / multiplier) * x_size, grads = (n * filters + o) * y_size;
            const long next = (at + 1) / tiles, next_top = ((at + 1) - next * tiles) * tile_h;
            global const stored *x_ahead = OPEN(x) + ((next * channels + o / multiplier) * x_size + next_top * SH * iw);
            global const stored *dy_ahead = OPEN(dy) + ((next * filters + o) * y_size + next_top * ow);
            for (int v0 = 0; v0 < ow; v0 += VL) {
                const int v = max(min(v0, ow - VL), 0), column = v * SW + grid.begin_w;
                maskv masks[KW];
#pragma unroll
                for (int j = 0; j < KW; j++) masks[j] = lanes_inside(column + j * dw, iw);
                const maskv fresh = TO_MASK((LANES >= v0 - v) & (LANES < ow));
                for (int u0 = top; u0 < bottom; u0 += u0 % dh == dh - 1 ? (R - 1) * dh + 1 : 1) {
                    const int h = u0 * SH + grid.begin_h;
#pragma unroll
                    for (int k = 0; k < R * SH * SW; k++, x_ahead += VL) PREFETCH_FAR(x_ahead);
#pragma unroll
                    for (int k = 0; k < R; k++, dy_ahead += VL) PREFETCH_FAR(dy_ahead);
                    const long last = grads + (long)min(u0 + (R - 1) * dh, bottom - 1) * ow + v + VL;
                    if (last > batch * filters * y_size ||
                        !block_loadable(plane, batch * channels * x_size, h, column, ih, iw, dh, dw)) {
                        add_elements(totals, OPEN(x) + plane, OPEN(dy) + grads, h, column, ih, iw, dh, dw, u0, bottom,
                                     ow, v, v0 - v);
                        continue;
                    }
                    global const stored *from = OPEN(x) + (plane + (long)h * iw + column);
                    realv gradient[R];
#pragma unroll
                    for (int k = 0; k < R; k++) {
                        const int u = u0 + k * dh;
                        gradient[k] = 0;
                        if (u < bottom) gradient[k] = MASKED(VLOAD(OPEN(dy) + grads, (long)u * ow + v), fresh);
                    }
                    if (block_inside(h, column, ih, iw, dh, dw)) {
                        FOR_LINES(ADD_TO_TAPS, false)
                    } else {
                        FOR_LINES(ADD_TO_TAPS, true)
                    }
                }
            }
            // Rounding errors grow with the length of a sum: totals take over before it is long.
            if (at + 1 == to_tile || y_size >= 32 * VL || (at & 7) == 7) {
#pragma unroll
                for (int t = 0; t < KH * KW; t++) {
                    VSTORE_REAL(totals + t * VL, VLOAD_REAL(totals + t * VL) + sum[t]);
                    sum[t] = 0;
                }
            }
        }
        for (int t = 0; t < KH * KW; t++) {
            const long place = (long)o * KH * KW + t;
            const real all = sum_lanes(totals + t * VL);
            if (get_global_size(0) > 1)
                OPEN(partial)[(long)split * filters * KH * KW + place] = all;
            else
                STORE(OPEN(dw_out), place, accumulate ? LOAD(OPEN(dw_out), place) + all : all);
        }
    }
}
