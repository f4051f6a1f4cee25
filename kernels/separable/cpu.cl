// A depthwise convolution and the convolution with kernels of one pixel that reads its result, on CPU devices, in one
// launch: the result of the first is a panel in the cache, from which the product of the second reads it.
//
//     z[image][channel][u]  =  prologue(start[channel] + sum over taps of filters[channel][tap] * x[image][channel][...])
//     y[image][m][u]        =  epilogue(bias[m] + sum over channels of weights[m][channel] * z[image][channel][u])
//
// x         (batch, channels, source_h, source_w)   filters (channels, KH, KW)   y (batch, m_count, size_h, size_w)
// weights   real, [tile of MR rows][channel][MR], made by pack_weights; rows beyond m_count are not stored
// panel     local, [tile of COLS pixels][channel][COLS]: z of a block of pixels, all channels
// rows      local, [channel][row_pitch]: sums of `together` channels as they are computed, in rows of the result
// tickets   share items, one for each block of pixels; pixels are numbered over all images
//
// The depthwise sums are those of cpu_rows.cl: R rows of results share the vectors that they load, taps are unrolled,
// vectors at a border are masked, and a block that would reach out of x is summed by elements. A block of vectors is
// summed for some channels before the next one, so that its masks serve them all. Strides are SH and SW, 1 or 2; taps
// are step_h and step_w apart, with R = 1 where step_h is not 1. Each work-group is one work-item.
//
// PAST_CACHES  y is too large to be found in a cache again: whole tiles are stored past them

#include "conv/gemm_cpu/panel.cl"
#include "conv/gemm_cpu/block.cl"
#undef LANES
#include "conv/depthwise/cpu_lines.cl"
#include "common/prologue.cl"

#define ADD_TO_ROWS(count, r, j, value) \
    _Pragma("unroll") for (int k = 0; k < count; k++) if (r - k * SH >= 0 && r - k * SH < KH) sum[k] = \
        fma(MASKED(value, masks[j]), weight[(r - k * SH) * KW + j], sum[k]);

// Sums `count` rows of results from row u on, a vector of each, for all of some channels. CHECKED: lines may lie outside
// of the plane, and are left out then.
#define SUM_ROWS(count, CHECKED) \
    for (int channel = from; channel < to; channel++) { \
        const long before = ((long)image * channels + channel) * plane; \
        global const stored *source = OPEN(x) + before, *block = source + (h * iw + column); \
        global const stored *filter = OPEN(filters) + channel * (KH * KW); \
        const real start = has_start ? LOAD(OPEN(starts), channel) : 0; \
        local real *to_row = piece + (channel - from) * row_pitch + (next - count) * ow + v; \
        realv sum[count], weight[KH * KW]; \
        _Pragma("unroll") for (int k = 0; k < count; k++) sum[k] = start; \
        _Pragma("unroll") for (int t = 0; t < KH * KW; t++) weight[t] = filter[t]; \
        _Pragma("unroll") for (int k = 0; k < count * SH; k++) { \
            PREFETCH(block + (long)together * plane + k * iw); \
            if (SW == 2) PREFETCH(block + (long)together * plane + k * iw + VL); \
        } \
        if (loadable || block_loadable(before, all, h, column, ih, iw, dh, DW)) { \
            _Pragma("unroll") for (int r = 0; r < (count - 1) * SH + KH; r++) { \
                if (CHECKED && (h + r * dh < 0 || h + r * dh >= ih)) continue; \
                global const stored *line = block + r * dh * iw; \
                _Pragma("unroll") for (int j = 0; j < KW; j += 2) { \
                    realv a, b = 0; \
                    LOAD_PAIR(line, j, a, b) \
                    ADD_TO_ROWS(count, r, j, a) \
                    if (j + 1 < KW) ADD_TO_ROWS(count, r, j + 1, b) \
                } \
            } \
        } else { \
            _Pragma("unroll") for (int k = 0; k < count; k++) \
                sum[k] = sum_elements(source, filter, h + k * SH, column, ih, iw, dh, DW, start); \
        } \
        _Pragma("unroll") for (int k = 0; k < count; k++) STORE_REALS(to_row + k * ow, sum[k]); \
    }

// A vector of sums with all checks, by elements: pixels from (h, column) of a plane on.
__attribute__((noinline)) realv sum_elements(global const stored *plane, global const stored *filter, const int h,
                                             const int column, const int ih, const int iw, const int dh, const int dw,
                                             const real start) {
    real lanes[VL];
    for (int l = 0; l < VL; l++) {
        lanes[l] = start;
        for (int t = 0; t < KH * KW; t++) {
            const int y = h + t / KW * dh, x = column + l * SW + t % KW * dw;
            if (y >= 0 && y < ih && x >= 0 && x < iw) lanes[l] = fma(LOAD(plane, y * iw + x), filter[t], lanes[l]);
        }
    }
    return CAT(vload, VL)(0, lanes);
}

kernel void separable(CONST_TENSOR(x), CONST_TENSOR(filters), CONST_TENSOR(starts), TENSOR_OF(const real, weights),
                      CONST_TENSOR(bias), TENSOR(y), const int has_start, const int has_bias, const int accumulate,
                      const int channels, const int m_count, const Grid grid, const int block_tiles, const int together,
                      const int row_pitch, volatile global int *tickets, local real *panel, local real *tile_out,
                      local real *rows PROLOGUE_PARAMETERS EPILOGUE_PARAMETERS) {
    OPEN_PROLOGUE
    OPEN_EPILOGUE
    const int ih = grid.source_h, iw = grid.source_w, oh = grid.size_h, ow = grid.size_w;
    const int dh = grid.step_h, dw = DW;
    const int pixels = oh * ow, plane = ih * iw, m_tiles = (m_count + MR - 1) / MR;
    // from this row of results on, taps lie below the plane
    const int reach = grid.begin_h + (KH - 1) * dh, inner = ih > reach ? (ih - 1 - reach) / SH + 1 : 0;
    const long all = (long)grid.batch * channels * plane;
    const int pitch = channels * COLS + VL;  // of a tile
    const Blocks blocks = blocks_of((long)grid.batch * pixels, block_tiles, m_tiles, m_tiles);
    const int items = blocks.across, workers = get_global_size(0);

    FOR_ITEMS(share) {
        const Block block = block_of(&blocks, share.item);
        const int count = block.count;
        const long first = block.first;
        for (int from = 0; from < channels; from += together) {
            const int to = min(from + together, channels);
            for (int at = 0; at < count;) {  // pieces of images
                const int image = (int)((first + at) / pixels), begin = (int)(first + at - (long)image * pixels);
                const int length = min(count - at, pixels - begin);
                const int top = begin / ow, bottom = (begin + length - 1) / ow + 1;
                // where the piece's plane begins in rows: ow elements are free in front of a block's first pixel
                local real *piece = rows + (ow + at - begin);
                for (int u = top, next; u < bottom; u = next) {
                    // R rows that meet lines of the plane alone, of which the first may be there already; or one row
                    const int low = min(u, min(bottom, inner) - R), h_low = low * SH + grid.begin_h;
                    const bool several = u < inner && low >= top && h_low >= 0;
                    const int h = several ? h_low : u * SH + grid.begin_h;
                    next = several ? low + R : u + 1;
                    for (int v0 = 0; v0 < ow; v0 += VL) {
                        const int v = max(min(v0, ow - VL), 0), column = v * SW + grid.begin_w;
                        maskv masks[KW];
#pragma unroll
                        for (int j = 0; j < KW; j++) masks[j] = lanes_inside(column + j * DW, iw);
                        const long first_plane = ((long)image * channels + from) * plane;
                        const bool loadable = block_loadable(first_plane, all, h, column, ih, iw, dh, DW)
                            && block_loadable(first_plane + (long)(to - 1 - from) * plane, all, h, column, ih, iw, dh, DW);
                        if (several) {
                            SUM_ROWS(R, false)
                        } else {
                            SUM_ROWS(1, true)
                        }
                    }
                }
                at += length;
            }
            for (int channel = from; channel < to; channel++) {
                local const real *row = rows + (channel - from) * row_pitch + ow;
                local real *to_panel = panel + channel * COLS;
                for (int tile = 0; tile * COLS < count; tile++) {
#pragma unroll
                    for (int v = 0; v < NV; v++) {
                        const realv value = LOAD_REALS(row + tile * COLS + v * VL);
                        STORE_REALS(to_panel + tile * pitch + v * VL, PROLOGUE_VECTOR(value, channel));
                    }
                }
            }
        }
        for (int m_tile = 0; m_tile < m_tiles; m_tile++) {
            const int m = m_tile * MR, m_rows = min(MR, m_count - m);
            for (int tile = 0; tile * COLS < count; tile++) {
                realv acc[MR][NV];
#pragma unroll
                for (int i = 0; i < MR; i++) {
                    const real start = has_bias && i < m_rows ? LOAD(OPEN(bias), m + i) : 0;
#pragma unroll
                    for (int v = 0; v < NV; v++) acc[i][v] = start;
                }
                global const real *a = OPEN(weights) + (long)m * channels;
                local const real *b = panel + tile * pitch;
                for (int k = 0; k < channels; k++) {
                    TILE_STEP(acc, a[i_], vector_[v_] = LOAD_REALS(b + v_ * VL))
                    a += MR;
                    b += COLS;
                }
                const long p = first + tile * COLS, image = p / pixels;
                if (m_rows == MR && min((long)count - tile * COLS, (image + 1) * pixels - p) >= COLS) {
                    global stored *ys = OPEN(y) + (image * m_count + m) * pixels + (p - image * pixels);
                    STORE_TILE(acc, ys, pixels, m, accumulate, !accumulate)
                    continue;
                }
                TILE_STORE(acc, tile_out, COLS)
                store_columns(OPEN(y), tile_out, p, min(COLS, count - tile * COLS), pixels, 0, 1, m_count, m, m_rows,
                              accumulate PASS_EPILOGUE);
            }
        }
    }
}
