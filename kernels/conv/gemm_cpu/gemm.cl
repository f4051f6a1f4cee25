// Convolution and its backward data on CPU devices, as a product of matrices over a panel that stays in the cache.
//
//     y[image][group][m][u * stride + begin]  =  bias[m] + sum over (channel, tap) of weights[m][channel, tap] * panel[channel, tap][u]
//
// weights   real, [group][tile of MR rows][channel, tap][MR], made by pack_weights; rows beyond M are zeros
// panel     local, [tile of COLS pixels][channel, tap][COLS], one block of pixels, a part of the channels at a time
// y         (batch, groups * outputs, od, oh, ow); the grid's pixels are stored by `target`, so that a stride's phases can be
//           apart. With m_count > outputs, rows m = (phase, output) hold several phases of target.stride.
//
// PAST_CACHES  y is too large to be found in a cache again: whole tiles are stored past them
//
// A work-group is one work-item: one block of pixels, one block of rows m, one group. Its tiles are MR x NV vectors.

#include "conv/gemm_cpu/pack.cl"
#include "conv/gemm_cpu/panel.cl"

kernel void conv_gather(CONST_TENSOR(x), TENSOR_OF(const real, weights), CONST_TENSOR(bias), TENSOR(y),
                        const int has_bias, const int accumulate, const int channels, const int m_count,
                        const int outputs, const Grid grid, const Target target, const int block_tiles,
                        const int block_rows, const int part, local real *panel, local real *tile_out, local int *runs,
                        local real *kept EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    const int group = get_global_id(2), groups = get_global_size(2);
    const long pixels = (long)grid.size_d * grid.size_h * grid.size_w;
    const long first = get_global_id(0) * (long)(block_tiles * COLS);
    const int count = (int)min((long)grid.batch * pixels - first, (long)block_tiles * COLS);
    const int m_tiles = (m_count + MR - 1) / MR;
    const int m_first = get_global_id(1) * block_rows, m_last = min(m_first + block_rows, m_tiles);
    const int source_rows = channels * grid.taps_d * grid.taps_h, depth = source_rows * grid.taps_w;
    const int pitch = part * grid.taps_w * COLS + VL;  // of a tile
    const long source = (long)grid.source_d * grid.source_h * grid.source_w, image_size = groups * channels * source;
    const long row_size = (long)target.size_d * target.size_h * target.size_w;
    const bool dense = row_size == pixels && m_count == outputs;
    global const stored *xs = OPEN(x) + group * channels * source;
    const long left = grid.batch * image_size - group * channels * source;

    cut_runs(runs, first, count, grid);
    for (int from = 0; from < max(source_rows, 1); from += part) {
        const int to = min(from + part, source_rows);
        const int k_count = (to - from) * grid.taps_w;
#if KEEP_SUMS
        const bool add = accumulate;
#else
        const bool add = accumulate || from;
#endif
        const bool once = !accumulate && (KEEP_SUMS || part >= source_rows);  // no part is added to another's in y
        fill_panel(panel, COLS, COLS, pitch, runs, count, xs, image_size, left, from, to, grid);
        for (int m_tile = m_first; m_tile < m_last; m_tile++) {
            global const real *a0 =
                OPEN(weights) + (((long)group * m_tiles + m_tile) * depth + (long)from * grid.taps_w) * MR;
            const int m = m_tile * MR, m_rows = min(MR, m_count - m);
            int run_number = 0;
            for (int tile = 0; tile * COLS < count; tile++) {
                realv acc[MR][NV];
#pragma unroll
                for (int i = 0; i < MR; i++) {
                    const real start = has_bias && from == 0 && i < m_rows ? LOAD(OPEN(bias), group * m_count + m + i) : 0;
#pragma unroll
                    for (int v = 0; v < NV; v++) acc[i][v] = start;
                }
#if KEEP_SUMS
                local real *sums = kept + ((m_tile - m_first) * block_tiles + tile) * MR * COLS;
                if (from > 0) {
                    TILE_LOAD(acc, sums, COLS)
                }
#endif
                global const real *a = a0;
                local const real *b = panel + tile * pitch;
                for (int k = 0; k < k_count; k++) {
                    TILE_STEP(acc, a[i_], vector_[v_] = LOAD_REALS(b + v_ * VL))
                    a += MR;
                    b += COLS;
                }
#if KEEP_SUMS
                if (to < source_rows) {
                    TILE_STORE(acc, sums, COLS)
                    continue;
                }
#endif
                const long p = first + tile * COLS, image = p / pixels;
                const long y_at = ((image * groups + group) * outputs + m) * row_size;
                if (dense && m_rows == MR && p + COLS <= (image + 1) * pixels) {
                    global stored *ys = OPEN(y) + y_at + (p - image * pixels);
                    STORE_TILE(acc, ys, row_size, group * m_count + m, add, once)
                    continue;
                }
                TILE_STORE(acc, tile_out, COLS)
                const int columns = min(COLS, count - tile * COLS);
                for (int at = 0; at < columns;) {
                    const long q = p + at, q_image = q / pixels;
                    const int rest = (int)(q - q_image * pixels), column = rest % grid.size_w;
                    global stored *images = OPEN(y) + (q_image * groups + group) * outputs * row_size;
                    int length;
                    if (dense) {
                        length = (int)min((long)(columns - at), pixels - rest);
                        for (int i = 0; i < m_rows; i++) {
                            finish_run(tile_out + i * COLS + at, length, group * m_count + m + i,
                                       images + (m + i) * row_size + rest - OPEN(y) PASS_EPILOGUE);
                            store_run(images + (m + i) * row_size + rest, tile_out + i * COLS + at, length, 1, add);
                        }
                    } else {
                        const int row = rest / grid.size_w;
                        const int d0 = row / grid.size_h * target.stride_d + target.begin_d;
                        const int h0 = row % grid.size_h * target.stride_h + target.begin_h;
                        const int w0 = column * target.stride_w + target.begin_w;
                        length = min(columns - at, grid.size_w - column);
                        for (int i = 0; i < m_rows; i++) {
                            int output = m + i, d = d0, h = h0, w = w0;
                            if (m_count != outputs) {  // divisions for each row and run would take as long as a tap
                                const int phase = output / outputs;
                                output -= phase * outputs;
                                d += phase / target.stride_w / target.stride_h;
                                h += phase / target.stride_w % target.stride_h;
                                w += phase % target.stride_w;
                            }
                            if (d >= target.size_d || h >= target.size_h || w >= target.size_w) continue;
                            const int step = target.stride_w;
                            store_run(images + output * row_size + ((long)d * target.size_h + h) * target.size_w + w,
                                      tile_out + i * COLS + at, min(length, (target.size_w - w + step - 1) / step), step,
                                      add);
                        }
                    }
                    at += length;
                }
            }
        }
    }
}

// packed for rows m = (phase, output) of all phases of a stride at once, from w (groups * channels, outputs, kernel);
// the taps that phase a meets are whole taps of the kernel, and there are none elsewhere. One work-item packs one
// channel of a tile.
kernel void pack_phases(CONST_TENSOR(w), TENSOR_OF(real, packed), const int channels, const int outputs,
                        const PhaseTaps met) {
    const int channel = get_global_id(0), m_tile = get_global_id(1), group = get_global_id(2);
    const int m_tiles = get_global_size(1), kd = met.kernel_d, kh = met.kernel_h, kw = met.kernel_w;
    const int taps = met.taps_d * met.taps_h * met.taps_w, phases = met.stride_d * met.stride_h * met.stride_w;
    global const stored *ws = OPEN(w) + ((long)group * channels + channel) * outputs * kd * kh * kw;
    global real *out = OPEN(packed) + (((long)group * m_tiles + m_tile) * channels + channel) * taps * MR;
    for (int j = 0; j < taps; j++) {
        const int jd = j / met.taps_w / met.taps_h, jh = j / met.taps_w % met.taps_h, jw = j % met.taps_w;
        for (int i = 0; i < MR; i++) {
            const int phase = (m_tile * MR + i) / outputs, output = (m_tile * MR + i) % outputs;
            const int d = phase / met.stride_w / met.stride_h + met.pad_d - met.stride_d * (met.begin_d + jd);
            const int h = phase / met.stride_w % met.stride_h + met.pad_h - met.stride_h * (met.begin_h + jh);
            const int l = phase % met.stride_w + met.pad_w - met.stride_w * (met.begin_w + jw);
            const bool tap = phase < phases && d >= 0 && h >= 0 && l >= 0 && d % met.dilate_d == 0
                && h % met.dilate_h == 0 && l % met.dilate_w == 0 && d / met.dilate_d < kd && h / met.dilate_h < kh
                && l / met.dilate_w < kw;
            *out++ = tap ? LOAD(ws, ((output * kd + d / met.dilate_d) * kh + h / met.dilate_h) * kw + l / met.dilate_w) : 0;
        }
    }
}
