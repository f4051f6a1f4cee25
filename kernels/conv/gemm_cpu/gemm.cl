// Convolution and its backward data on CPU devices, as a product of matrices over a panel that stays in the cache.
//
//     y[image][group][m][u * p + a]  =  bias[m] + sum over (channel, tap) of weights[m][channel, tap] * panel[channel, tap][u]
//
// weights   real, [group][tile of MR rows][channel, tap][MR], made by pack_weights; rows beyond M are zeros
// panel     local, [tile of COLS pixels][channel, tap][COLS], one block of pixels, a part of the channels at a time
// y         (batch, groups * outputs, od, oh, ow); the grid's pixel u goes to u * p + a, so that a stride's phases can be apart.
//           With m_count > outputs, rows m = (phase, output) hold several phases of the stride p, each with its own a.
//
// A work-group is one work-item: one block of pixels, one block of rows m, one group. Its tiles are MR x NV vectors.

#include "conv/gemm_cpu/pack.cl"
#include "conv/gemm_cpu/panel.cl"

#define TARGET \
    const int od, const int oh, const int ow, const int pd, const int ph, const int pw, const int ad, const int ah, const int aw

kernel void conv_gather(CONST_TENSOR(x), TENSOR_OF(const real, weights), CONST_TENSOR(bias), TENSOR(y), const int has_bias,
                        const int accumulate, const int channels, const int m_count, const int outputs, GRID, TARGET, const int block_tiles,
                        const int block_rows, const int part, local real *panel, local real *pieces, local int *runs,
                        local real *kept) {
    const int group = get_global_id(2), groups = get_global_size(2);
    const long grid = (long)ud * uh * uw, first = get_global_id(0) * (long)(block_tiles * COLS);
    const int count = (int)min((long)batch * grid - first, (long)block_tiles * COLS);
    const int m_tiles = (m_count + MR - 1) / MR;
    const int m_first = get_global_id(1) * block_rows, m_last = min(m_first + block_rows, m_tiles);
    const int source_rows = channels * jd * jh, depth = source_rows * jw;
    const int pitch = part * jw * COLS + VL;  // of a tile: VL more because runs are copied in whole vectors
    const long source = (long)cd * ch * cw, image_size = groups * channels * source;
    const long target = (long)od * oh * ow, row_size = target;
    const bool dense = target == grid && m_count == outputs;
    global const stored *xs = OPEN(x) + group * channels * source;
    const long left = batch * image_size - group * channels * source;
    local real *tile_out = pieces;  // free by the time a tile is finished

    const int run_count = cut_runs(runs, first, count, COLS, pitch, batch, ud, uh, uw, cd, ch, cw, jd, jh, jw, sd, sh, sw,
                                   bd, bh, bw, td, th, tw);
    for (int from = 0; from < max(source_rows, 1); from += part) {
        const int to = min(from + part, source_rows);
        const int k_count = (to - from) * jw;
#if STORAGE == 16
        const bool add = accumulate;
#else
        const bool add = accumulate || from;
#endif
        fill_panel(panel, COLS, pieces, runs, run_count, xs, image_size, left, from, to, batch, ud, uh, uw, cd, ch, cw, jd,
                   jh, jw, sd, sh, sw, bd, bh, bw, td, th, tw);
        for (int m_tile = m_first; m_tile < m_last; m_tile++) {
            global const real *a0 = OPEN(weights) + (((long)group * m_tiles + m_tile) * depth + (long)from * jw) * MR;
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
#if STORAGE == 16
                // between the parts of the sum, tiles are kept in local memory: half precision would lose bits each time
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
#if STORAGE == 16
                if (to < source_rows) {
                    TILE_STORE(acc, sums, COLS)
                    continue;
                }
#endif
                const long p = first + tile * COLS, image = p / grid;
                const long y_at = ((image * groups + group) * outputs + m) * row_size;
                if (dense && m_rows == MR && p + COLS <= (image + 1) * grid) {
                    global stored *ys = OPEN(y) + y_at + (p - image * grid);
#pragma unroll
                    for (int i = 0; i < MR; i++) {
#pragma unroll
                        for (int v = 0; v < NV; v++) {
                            const realv old = add ? VLOAD(ys, v * VL) : (realv)(0);
                            VSTORE(ys, v * VL, acc[i][v] + old);
                        }
                        ys += row_size;
                    }
                    continue;
                }
                TILE_STORE(acc, tile_out, COLS)
                const int columns = min(COLS, count - tile * COLS);
                for (int at = 0; at < columns;) {
                    const long q = p + at, q_image = q / grid;
                    const int rest = (int)(q - q_image * grid), column = rest % uw;
                    global stored *images = OPEN(y) + (q_image * groups + group) * outputs * row_size;
                    int length;
                    if (dense) {
                        length = (int)min((long)(columns - at), grid - rest);
                        for (int i = 0; i < m_rows; i++) {
                            store_run(images + (m + i) * row_size + rest, tile_out + i * COLS + at, length, 1, add);
                        }
                    } else {
                        const int h0 = rest / uw % uh * ph + ah, d0 = rest / uw / uh * pd + ad, w0 = column * pw + aw;
                        length = min(columns - at, uw - column);
                        for (int i = 0; i < m_rows; i++) {
                            const int phase = (m + i) / outputs, output = (m + i) % outputs;
                            const int w = w0 + phase % pw, h = h0 + phase / pw % ph, d = d0 + phase / pw / ph;
                            if (d >= od || h >= oh || w >= ow) continue;
                            store_run(images + output * row_size + ((long)d * oh + h) * ow + w, tile_out + i * COLS + at,
                                      min(length, (ow - w + pw - 1) / pw), pw, add);
                        }
                    }
                    at += length;
                }
            }
        }
    }
}

// packed for rows m = (phase, output) of all phases of the stride s at once, from w (groups * channels, outputs, kernel):
// the tap that phase a meets at source offset b + j is (a + p - s * (b + j)) / t where that is a whole tap of the kernel,
// and there is none elsewhere. One work-item packs one channel of a tile.
kernel void pack_phases(CONST_TENSOR(w), TENSOR_OF(real, packed), const int channels, const int outputs, const int kd,
                        const int kh, const int kw, const int jd, const int jh, const int jw, const int sd, const int sh,
                        const int sw, const int pd, const int ph, const int pw, const int bd, const int bh, const int bw,
                        const int td, const int th, const int tw) {
    const int channel = get_global_id(0), m_tile = get_global_id(1), group = get_global_id(2), m_tiles = get_global_size(1);
    global const stored *ws = OPEN(w) + ((long)group * channels + channel) * outputs * kd * kh * kw;
    global real *out = OPEN(packed) + (((long)group * m_tiles + m_tile) * channels + channel) * jd * jh * jw * MR;
    for (int j = 0; j < jd * jh * jw; j++) {
        for (int i = 0; i < MR; i++) {
            const int phase = (m_tile * MR + i) / outputs, output = (m_tile * MR + i) % outputs;
            const int d = phase / sw / sh + pd - sd * (bd + j / jw / jh), h = phase / sw % sh + ph - sh * (bh + j / jw % jh);
            const int l = phase % sw + pw - sw * (bw + j % jw);
            const bool met = phase < sd * sh * sw && d >= 0 && h >= 0 && l >= 0 && d % td == 0 && h % th == 0 && l % tw == 0
                && d / td < kd && h / th < kh && l / tw < kw;
            *out++ = met ? LOAD(ws, ((output * kd + d / td) * kh + h / th) * kw + l / tw) : 0;
        }
    }
}
