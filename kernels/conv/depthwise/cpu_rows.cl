// Depthwise convolution on CPU devices, straight from memory: R rows of results at a time, each in one vector.
//
// source (planes, source_h, source_w)   weights (channels, KH, KW)   target (planes, size_h, size_w)
//
// Forward, and backward data at stride 1, which is forward with flipped weights and other padding. Taps are unrolled,
// and a loaded vector serves all of the R rows. Vectors at a plane's border mask what is not of their row; a block that
// would reach out of the tensor itself is summed by elements. Strides are 1 with any dilation, or 2 (SH, SW) without.
//
// PAST_CACHES  target is too large to be found in a cache again: rows of whole vectors are stored past them
// BY_ROWS      blocks are taken in the order of memory, else those of the same columns one after the other

#include "common/epilogue.cl"
#include "conv/depthwise/cpu_scratch.cl"
#include "conv/depthwise/cpu_lines.cl"

#if SH * SW > 1  // memory is read several times as fast as results are made
#define PREFETCH_ROWS PREFETCH_FAR
#else
#define PREFETCH_ROWS PREFETCH
#endif
#include "conv/depthwise/planes.cl"
#include "conv/past_caches.cl"

#define ADD_TO_ROWS(r, j, value)                                                                   \
    _Pragma("unroll") for (int k = 0; k < R; k++) if (r - k * SH >= 0 && r - k * SH < KH) sum[k] = \
        fma(value, (realv)(weights[(r - k * SH) * KW + j]), sum[k]);

// Blocks of rows, and the vectors of their columns.
#define FOR_ROWS for (int u0 = top; u0 < bottom; u0 += u0 % dh == dh - 1 ? (R - 1) * dh + 1 : 1)
#define FOR_VECTORS for (int v0 = 0; v0 < ow; v0 += VL)
#ifdef BY_ROWS
#define FOR_OUTER FOR_ROWS
#define FOR_INNER FOR_VECTORS
#else
#define FOR_OUTER FOR_VECTORS
#define FOR_INNER FOR_ROWS
#endif

// One element of the result, with all checks.
real sum_element(global const stored *plane, local const real *weights, const int h, const int column, const int ih,
                 const int iw, const int dh, const int dw) {
    real sum = 0;
    for (int i = 0; i < KH; i++)
        for (int j = 0; j < KW; j++) {
            const int y = h + i * dh, x = column + j * dw;
            if (y >= 0 && y < ih && x >= 0 && x < iw)
                sum = fma(LOAD(plane, (long)y * iw + x), weights[i * KW + j], sum);
        }
    return sum;
}

kernel void depthwise_rows(CONST_TENSOR(x), CONST_TENSOR(w), CONST_TENSOR(b), TENSOR(y), const int has_bias,
                           const int accumulate, const PlaneSums planes, const Grid grid, const int tile_h,
                           const int item_planes, local real *all_weights, local real *spare,
                           local real *narrow EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    const int channels = planes.channels, sums = planes.sums, shared = planes.shared, flip = planes.flip;
    SIZES
    const long targets = (long)grid.batch * channels;
    const int taps = KH * KW, top = get_global_id(0) * tile_h, bottom = min(top + tile_h, oh);
    const long first = get_global_id(1) * (long)item_planes, last = min(first + item_planes, targets);
    const long source_size = (long)ih * iw, size = (long)oh * ow, all = targets / shared * sums * source_size;
    long source = first / shared * sums;
    int channel = first % channels, left = shared - (int)(first % shared);
    const bool past = GOES_PAST(OPEN(y), ow % VL == 0 && !accumulate);
    for (long t = first; t < last; t++) {
        for (int i = 0; i < sums * taps; i++)
            all_weights[i] =
                LOAD(OPEN(w), (long)channel * sums * taps + (flip ? i / taps * taps + taps - 1 - i % taps : i));
        const real start = has_bias ? LOAD(OPEN(b), channel) : 0;
        global stored *to = OPEN(y) + t * size;
        global stored *to_ahead = to + size + top * ow;
        global const stored *ahead = OPEN(x) + ((source + sums) * source_size + top * SH * iw);
        FOR_OUTER {
            FOR_INNER {
                const int v = max(min(v0, ow - VL), 0), column = v * SW + grid.begin_w, h = u0 * SH + grid.begin_h;
                maskv masks[KW];
#pragma unroll
                for (int j = 0; j < KW; j++) masks[j] = lanes_inside(column + j * dw, iw);
                const maskv fresh = TO_MASK(LANES >= v0 - v);
#pragma unroll
                for (int k = 0; k < R * SH * SW; k++, ahead += VL) PREFETCH_ROWS(ahead);
#pragma unroll
                for (int k = 0; !past && k < R; k++, to_ahead += VL) PREFETCH_TO_WRITE(to_ahead);
                realv sum[R];
#pragma unroll
                for (int k = 0; k < R; k++) sum[k] = start;
                for (int s = 0; s < sums; s++) {
                    const long plane = (source + s) * source_size;
                    global const stored *from = OPEN(x) + (plane + (long)h * iw + column);
                    local const real *weights = all_weights + s * taps;
                    if (block_inside(h, column, ih, iw, dh, dw)) {
                        FOR_LINES(ADD_TO_ROWS, false)
                    } else if (block_loadable(plane, all, h, column, ih, iw, dh, dw)) {
                        FOR_LINES(ADD_TO_ROWS, true)
                    } else {
#pragma unroll
                        for (int k = 0; k < R; k++) {
                            for (int l = 0; l < VL; l++)
                                spare[l] = sum_element(
                                    OPEN(x) + plane, weights, h + k * SH * dh, column + l * SW, ih, iw, dh, dw);
                            sum[k] += VLOAD_REAL(spare);
                        }
                    }
                }
#pragma unroll
                for (int k = 0; k < R; k++) {
                    const int u = u0 + k * dh;
                    if (u >= bottom) continue;
                    sum[k] = EPILOGUE_VECTOR(sum[k], channel, 0);
                    if (ow < VL) {
                        VSTORE_REAL(narrow + (u - top) * VL, sum[k]);
                    } else {
                        const long at = (long)u * ow + v;
                        if (accumulate) sum[k] = VLOAD(to, at) + MASKED(sum[k], fresh);
                        PUT_VECTOR(past, to, at, sum[k])
                    }
                }
            }
        }
        if (ow < VL)
            for (int u = top; u < bottom; u++) {
                const long end = bottom < oh ? (long)bottom * ow : (last - t) * size;
                write_row(to + (long)u * ow, narrow + (u - top) * VL, ow, end - (long)u * ow, accumulate);
            }
        if (--left == 0) {
            left = shared;
            source += sums;
        }
        if (++channel == channels) channel = 0;
    }
}
