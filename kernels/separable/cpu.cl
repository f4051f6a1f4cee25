// A depthwise convolution and the convolution with kernels of one pixel that reads its result, on CPU devices, in one
// launch: the result of the first is a panel in the cache, from which the product of the second reads it.
//
//     z[image][channel][u]  =  prologue(start[channel] + sum over taps of filters[channel][tap]
//         * x[image][channel][...])
//     y[image][m][u]        =  epilogue(bias[m] + sum over channels of weights[m][channel] * z[image][channel][u])
//
// x         (batch, channels, source_h, source_w)   filters (channels, KH, KW)   y (batch, m_count, size_h, size_w)
// weights   (m_count, channels)
// panel     local, [channel][pitch]: z of a block of pixels, all channels; the block's first pixel is element `lead`
// tickets   share items, one for each block of pixels; pixels are numbered over all images
//
// The depthwise sums are those of cpu_rows.cl: R rows of results share the vectors that they load, taps are unrolled,
// and vectors and lines at a border are masked. A block of R rows and a vector is summed for `together` channels before
// the next one, so that its masks serve them all. Rows are stored as they lie in an image, in front of the block's
// first pixel and after its last one, too. A load that would leave x is made by elements. Strides are SH and SW, 1 or
// 2; taps are step_h and DW apart, with R = 1 where step_h is not 1. Each work-group is one work-item.
//
// PAST_CACHES  y is too large to be found in a cache again: whole tiles are stored past them

#include "conv/gemm_cpu/panel.cl"
#include "conv/gemm_cpu/block.cl"
#undef LANES
#include "conv/depthwise/cpu_lines.cl"
#include "common/prologue.cl"

#if STORAGE == 64
typedef long maskt;
#else
typedef int maskt;
#endif

// clang-format off
#define ADD_TO_ROWS(count, r, j, value, inside) \
    { \
        const realv met_ = MASKED(value, inside); \
        _Pragma("unroll") for (int k = 0; k < count; k++) if (r - k * SH >= 0 && r - k * SH < KH) sum[k] = \
            fma(met_, weight[(r - k * SH) * KW + j], sum[k]); \
    }
// clang-format on
#define LINES_OF(count) ((count - 1) * SH + KH)

// Sums `count` rows of results, a vector of each, for some channels. EDGE: lines may lie outside of the plane.
#define SUM_ROWS(count, EDGE)                                                                                   \
    {                                                                                                           \
        int line_at[LINES_OF(count)];                                                                           \
        maskt line_mask[LINES_OF(count)];                                                                       \
        _Pragma("unroll") for (int r = 0; r < LINES_OF(count); r++) {                                           \
            line_at[r] = (EDGE ? clamp(h + r * dh, 0, ih - 1) : h + r * dh) * iw + column;                      \
            line_mask[r] = -(h + r * dh >= 0 && h + r * dh < ih);                                               \
        }                                                                                                       \
        for (int channel = from; channel < to; channel++) {                                                     \
            const long before = ((long)image * channels + channel) * plane;                                     \
            global const stored *source = OPEN(x) + before, *filter = OPEN(filters) + channel * (KH * KW);      \
            const real start = has_start ? LOAD(OPEN(starts), channel) : 0;                                     \
            local real *to_row = to_rows + channel * pitch;                                                     \
            realv sum[count], weight[KH * KW];                                                                  \
            _Pragma("unroll") for (int k = 0; k < count; k++) sum[k] = start;                                   \
            _Pragma("unroll") for (int t = 0; t < KH * KW; t++) weight[t] = filter[t];                          \
            _Pragma("unroll") for (int r = LINES_OF(count) - count * SH; r < LINES_OF(count); r++) {            \
                PREFETCH(source + (long)together * plane + line_at[r]);                                         \
                if (SW == 2) PREFETCH(source + (long)together * plane + line_at[r] + VL);                       \
            }                                                                                                   \
            if (loadable || block_loadable(before, all, h, column, ih, iw, dh, DW)) {                           \
                _Pragma("unroll") for (int r = 0; r < LINES_OF(count); r++) {                                   \
                    global const stored *line = source + line_at[r];                                            \
                    _Pragma("unroll") for (int j = 0; j < KW; j += 2) {                                         \
                        realv a, b = 0;                                                                         \
                        LOAD_PAIR(line, j, a, b)                                                                \
                        ADD_TO_ROWS(count, r, j, a, EDGE ? masks[j] & (maskv)(line_mask[r]) : masks[j])         \
                        if (j + 1 < KW)                                                                         \
                            ADD_TO_ROWS(                                                                        \
                                count, r, j + 1, b, EDGE ? masks[j + 1] & (maskv)(line_mask[r]) : masks[j + 1]) \
                    }                                                                                           \
                }                                                                                               \
            } else {                                                                                            \
                _Pragma("unroll") for (int k = 0; k < count; k++) sum[k] =                                      \
                    sum_elements(source, filter, h + k * SH, column, ih, iw, dh, DW, start);                    \
            }                                                                                                   \
            _Pragma("unroll") for (int k = 0; k < count; k++)                                                   \
                STORE_REALS(to_row + k * ow, PROLOGUE_VECTOR(sum[k], channel));                                 \
        }                                                                                                       \
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

kernel void separable(CONST_TENSOR(x), CONST_TENSOR(filters), CONST_TENSOR(starts), CONST_TENSOR(weights),
                      CONST_TENSOR(bias), TENSOR(y), const int has_start, const int has_bias, const int accumulate,
                      const int channels, const int m_count, const Grid grid, const int block_tiles, const int together,
                      const int lead, const int pitch, volatile global int *tickets, local real *panel,
                      local real *tile_out PROLOGUE_PARAMETERS EPILOGUE_PARAMETERS) {
    OPEN_PROLOGUE
    OPEN_EPILOGUE
    const int ih = grid.source_h, iw = grid.source_w, oh = grid.size_h, ow = grid.size_w;
    const int dh = grid.step_h, dw = DW;
    const int pixels = oh * ow, plane = ih * iw, m_tiles = (m_count + MR - 1) / MR;
    const long all = (long)grid.batch * channels * plane;
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
                const long first_plane = ((long)image * channels + from) * plane;
                const long last_plane = ((long)image * channels + to - 1) * plane;
                for (int u = top, next; u < bottom; u = next) {
                    // R rows, the first of which may be there already, or one
                    const bool several = bottom - top >= R;
                    next = several ? min(u + R, bottom) : u + 1;
                    const int row = several ? next - R : u, h = row * SH + grid.begin_h;
                    for (int v0 = 0; v0 < ow; v0 += VL) {
                        const int v = max(min(v0, ow - VL), 0), column = v * SW + grid.begin_w;
                        maskv masks[KW];
#pragma unroll
                        for (int j = 0; j < KW; j++) masks[j] = lanes_inside(column + j * DW, iw);
                        const bool loadable = block_loadable(first_plane, all, h, column, ih, iw, dh, DW) &&
                                              block_loadable(last_plane, all, h, column, ih, iw, dh, DW);
                        local real *to_rows = panel + (lead + at - begin + row * ow + v);
                        if (!several) {
                            SUM_ROWS(1, true)
                        } else if (h >= 0 && h + (LINES - 1) * dh < ih) {
                            SUM_ROWS(R, false)
                        } else {
                            SUM_ROWS(R, true)
                        }
                    }
                }
                at += length;
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
                global const real *a[MR];  // rows beyond m_count repeat the last one, and are not stored
                TILE_ROWS a[i_] = OPEN(weights) + (m + min(i_, m_rows - 1)) * (long)channels;
                local const real *b = panel + lead + tile * COLS;
                for (int k = 0; k < channels; k++) {
                    TILE_STEP(acc, a[i_][k], vector_[v_] = LOAD_REALS(b + v_ * VL))
                    b += pitch;
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
