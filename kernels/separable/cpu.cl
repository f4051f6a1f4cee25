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

#define ADD_TO_ROWS(r, j, value) \
    _Pragma("unroll") for (int k = 0; k < R; k++) if (r - k * SH >= 0 && r - k * SH < KH) sum[k] = \
        fma(value, (realv)(filter[(r - k * SH) * KW + j]), sum[k]);

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
    const int dh = grid.step_h, dw = grid.step_w;
    const int pixels = oh * ow, plane = ih * iw, m_tiles = (m_count + MR - 1) / MR;
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
                for (int u = top; u < bottom; u += R) {
                    const int h = u * SH + grid.begin_h;
                    for (int v0 = 0; v0 < ow; v0 += VL) {
                        const int v = max(min(v0, ow - VL), 0), column = v * SW + grid.begin_w;
                        const bool inside = block_inside(h, column, ih, iw, dh, dw);
                        maskv masks[COLUMNS];
#pragma unroll
                        for (int j = 0; j < COLUMNS; j++) masks[j] = lanes_inside(column + j * dw, iw);
                        for (int channel = from; channel < to; channel++) {
                            const long before = ((long)image * channels + channel) * plane;
                            global const stored *source = OPEN(x) + before, *from = source + (h * iw + column);
                            global const stored *filter = OPEN(filters) + channel * (KH * KW);
                            const real start = has_start ? LOAD(OPEN(starts), channel) : 0;
#pragma unroll
                            for (int k = 0; k < R * SH; k++) {
                                PREFETCH(from + (long)together * plane + k * iw);
                                if (SW == 2) PREFETCH(from + (long)together * plane + k * iw + VL);
                            }
                            realv sum[R];
#pragma unroll
                            for (int k = 0; k < R; k++) sum[k] = start;
                            if (inside) {
                                FOR_LINES(ADD_TO_ROWS, false)
                            } else if (block_loadable(before, all, h, column, ih, iw, dh, dw)) {
                                FOR_LINES(ADD_TO_ROWS, true)
                            } else {
#pragma unroll
                                for (int k = 0; k < R; k++)
                                    sum[k] = sum_elements(source, filter, h + k * SH, column, ih, iw, dh, dw, start);
                            }
                            local real *to_row = piece + (channel % together) * row_pitch + u * ow + v;
#pragma unroll
                            for (int k = 0; k < R; k++)
                                if (u + k < bottom) STORE_REALS(to_row + k * ow, sum[k]);
                        }
                    }
                }
                at += length;
            }
            for (int channel = from; channel < to; channel++) {
                local const real *row = rows + (channel % together) * row_pitch + ow;
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
