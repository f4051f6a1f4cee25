// Winograd's convolution F(4x4, 3x3) on CPU devices: forward and backward data of 3 x 3 kernels, stride 1.
//
// Every tile of 4 x 4 outputs takes 36 multiplications a channel instead of 144. Inside a block of tiles, lanes of vectors
// are channels: pixels are transposed from NCHW in registers on the way in and out, so that neither small planes nor
// borders waste lanes, and the transforms are plain arithmetic on vectors.
//
// e         one of the 36 elements of a transformed tile
// V         [e][chunk of WC channels][tile][WC]      transformed source
// U         [e][block of COLS outputs][channel][COLS] transformed weights
// M         [e][tile][COLS]                           products of one block of outputs
//
// Tiles are numbered along the rows of all images. A work-group is one work-item with a slice of the workspace of its own.
// Lavin and Gray, Fast algorithms for convolutional neural networks (2015); the points are 0, 1, -1, 2, -2.

#include "winograd_cpu_transforms.cl"

// Writes count pixels of up to VL planes, `plane` apart, from pixels[pixel][lane].
void store_pixels(global stored *y, const long plane, const int lanes, local const real *pixels, const int count, const int accumulate) {
    int at = 0;
    for (; at + VL <= count; at += VL) {
        realv a[VL], b[VL];
#pragma unroll
        for (int i = 0; i < VL; i++) a[i] = LOAD_REALS(pixels + (at + i) * VL);
        TRANSPOSE(a, b, VL)
#pragma unroll
        for (int i = 0; i < VL; i++) {
            if (i < lanes) VSTORE(y, i * plane + at, accumulate ? a[i] + VLOAD(y, i * plane + at) : a[i]);
        }
        // the rest is covered by a last block that overlaps; sums are added one by one, lest some be added twice
        if (at + VL < count && at + 2 * VL > count && !accumulate) at = count - 2 * VL;
    }
    for (; at < count; at++) {
        for (int i = 0; i < lanes; i++) {
            const long to = i * plane + at;
            STORE(y, to, pixels[at * VL + i] + (accumulate ? LOAD(y, to) : 0));
        }
    }
}

// The register tile: M[tile][COLS] (+)= sum over a chunk's channels of V[tile][channel] * U[channel][COLS].
void multiply_tile(global real *M, global const real *V, global const real *U, const int channels, const bool add) {
    realv acc[MR][NV];
#pragma unroll
    for (int i = 0; i < MR; i++) {
#pragma unroll
        for (int v = 0; v < NV; v++) acc[i][v] = add ? LOAD_REALS(M + i * COLS + v * VL) : (realv)(0);
    }
    for (int c = 0; c < channels; c++) {
        realv weights[NV];
#pragma unroll
        for (int v = 0; v < NV; v++) weights[v] = LOAD_REALS(U + v * VL);
#pragma unroll
        for (int i = 0; i < MR; i++) {
            const realv value = V[i * WC];
#pragma unroll
            for (int v = 0; v < NV; v++) acc[i][v] = fma(value, weights[v], acc[i][v]);
        }
        V++;
        U += COLS;
    }
#pragma unroll
    for (int i = 0; i < MR; i++) {
#pragma unroll
        for (int v = 0; v < NV; v++) STORE_REALS(M + i * COLS + v * VL, acc[i][v]);
    }
}

// U of VL outputs from m on and channels [first, last); m_size and channel_size are w's steps in elements, `flip` turns the
// kernel by 180 degrees. U points to the block's first channel, e_size elements lie between the transform's elements.
void transform_weights(global real *U, const long e_size, global const stored *w, const int channels, const int m_count,
                       const long m_size, const long channel_size, const int flip, const int m, const int first, const int last) {
    const int lanes = min(m_count - m, VL);
    const long all = (long)m_count * channels * 9;
    for (int channel = first; channel < last; channel++) {
        realv taps[9];
#pragma unroll
        for (int half_of = 0; half_of < (VL < 9 ? 2 : 1); half_of++) {
            const int skip = half_of ? 9 - VL : 0;
            realv a[VL], b[VL];
#pragma unroll
            for (int i = 0; i < VL; i++) {
                const long at = (m + min(i, lanes - 1)) * m_size + channel * channel_size + skip;
                a[i] = load_row(w + at, all - at, 9);
            }
            TRANSPOSE(a, b, VL)
#pragma unroll
            for (int i = 0; i < VL; i++) {
                if (i + skip < 9) taps[i + skip] = a[i];
            }
        }
        realv half_done[18];
#pragma unroll
        for (int j = 0; j < 3; j++) {
            realv in[3], out[6];
#pragma unroll
            for (int i = 0; i < 3; i++) in[i] = flip ? taps[8 - i * 3 - j] : taps[i * 3 + j];
            TRANSFORM_WEIGHTS(in, 1, out)
#pragma unroll
            for (int i = 0; i < 6; i++) half_done[i * 3 + j] = out[i];
        }
        global real *to = U + (long)channel * COLS + m % COLS;
#pragma unroll
        for (int i = 0; i < 6; i++) {
            realv out[6];
            TRANSFORM_WEIGHTS(half_done + i * 3, 1, out)
#pragma unroll
            for (int j = 0; j < 6; j++) STORE_REALS(to + (i * 6 + j) * e_size, out[j]);
        }
    }
}

// U of w; one work-item takes VL outputs m and `range` channels.
kernel void winograd_weights(CONST_TENSOR(w), TENSOR_OF(real, U), const int channels, const int m_count, const long m_size,
                             const long channel_size, const int flip, const int range) {
    const int m = get_global_id(0) * VL, first = get_global_id(1) * range, last = min(first + range, channels);
    const int m_blocks = (m_count + COLS - 1) / COLS;
    transform_weights(OPEN(U) + (long)(m / COLS) * channels * COLS, (long)m_blocks * channels * COLS + PAD, OPEN(w), channels, m_count,
                      m_size, channel_size, flip, m, first, last);
}

// y (batch, m_count, oh, ow) from x (batch, channels, ch, cw). A work-item takes rows_of_item tile rows, block_rows at a
// time, and blocks_of_item blocks of output channels. With own_weights it transforms its blocks' weights itself, which
// keeps them in the cache: for problems so small that every block of weights is used once.
kernel void winograd(CONST_TENSOR(x), TENSOR_OF(const real, U), CONST_TENSOR(w), CONST_TENSOR(bias), TENSOR(y),
                     TENSOR_OF(real, slices), const long m_step, const long channel_step, const int flip,
                     const int own_weights, const int has_bias, const int accumulate, const int batch, const int channels, const int m_count,
                     const int ch, const int cw, const int oh, const int ow, const int bh, const int bw,
                     const int rows_of_item, const int block_rows, const int blocks_of_item, local real *pixels) {
    const int tile_h = (oh + 3) / 4, tile_w = (ow + 3) / 4;
    const int tiles = (block_rows * tile_w + MR - 1) / MR * MR;
    const int chunks = (channels + WC - 1) / WC, m_blocks = (m_count + COLS - 1) / COLS;
    const long v_size = (long)chunks * tiles * WC + PAD, m_size = (long)tiles * COLS + PAD, block_size = (long)channels * COLS;
    const long u_size = (own_weights ? 1 : m_blocks) * block_size + PAD;
    const long slice_size = 36 * (v_size + m_size + (own_weights ? u_size : 0));
    global real *V = OPEN(slices) + (get_global_id(0) * get_global_size(1) + get_global_id(1)) * slice_size;
    global real *M = V + 36 * v_size, *own = M + 36 * m_size;
    const int first_block = get_global_id(1) * blocks_of_item, last_block = min(first_block + blocks_of_item, m_blocks);
    const int last_row = min((int)(get_global_id(0) + 1) * rows_of_item, batch * tile_h);
    const long plane = (long)oh * ow;

    for (int first = get_global_id(0) * rows_of_item; first < last_row; first += block_rows) {
        const int count = min(block_rows, last_row - first);
        transform_source(V, pixels, OPEN(x), batch, channels, 0, channels, ch, cw, bh, bw, tile_h, tile_w, tiles, first, count);
        for (int block = first_block; block < last_block; block++) {
            for (int m = block * COLS; own_weights && m < min((block + 1) * COLS, m_count); m += VL) {
                transform_weights(own, u_size, OPEN(w), channels, m_count, m_step, channel_step, flip, m, 0, channels);
            }
            global const real *weights = own_weights ? own : OPEN(U) + block * block_size;
            for (int e = 0; e < 36; e++) {
                // chunk by chunk, so that the weights of one stay in the first level's cache
                for (int chunk = 0; chunk < channels; chunk += WC) {
                    for (int tile = 0; tile < count * tile_w; tile += MR) {
                        multiply_tile(M + e * m_size + tile * COLS, V + e * v_size + ((long)chunk * tiles + tile * WC),
                                      weights + e * u_size + chunk * COLS, min(channels - chunk, WC), chunk > 0);
                    }
                }
            }
            for (int lane = 0; lane < COLS && block * COLS + lane < m_count; lane += VL) {
                const int m = block * COLS + lane, lanes = min(m_count - m, VL);
                realv start = 0;
                if (has_bias) start = load_row(OPEN(bias) + m, m_count - m, lanes);
                for (int row = 0; row < count;) {
                    const int image = (first + row) / tile_h, h = (first + row) % tile_h;
                    const int group = min(min(count - row, tile_h - h), ROWS);
                    for (int tile = 0; tile < group * tile_w; tile++) {
                        global const real *element = M + (row * tile_w + tile) * COLS + lane;
                        realv m4[24];
#pragma unroll
                        for (int j = 0; j < 6; j++) {
                            realv in[6], out[4];
#pragma unroll
                            for (int i = 0; i < 6; i++) in[i] = LOAD_REALS(element + (i * 6 + j) * m_size);
                            TRANSFORM_PRODUCT(in, 1, out)
#pragma unroll
                            for (int i = 0; i < 4; i++) m4[i * 6 + j] = out[i];
                        }
                        const int column = tile % tile_w * 4;
                        local real *to = pixels + (tile / tile_w * 4 * ow + column) * VL;
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            realv out[4];
                            TRANSFORM_PRODUCT(m4 + i * 6, 1, out)
#pragma unroll
                            for (int j = 0; j < 4; j++) {
                                if (column + j < ow) STORE_REALS(to + (i * ow + j) * VL, out[j] + start);
                            }
                        }
                    }
                    const int rows = min(group * 4, oh - h * 4);
                    store_pixels(OPEN(y) + ((long)image * m_count + m) * plane + (long)h * 4 * ow, plane, lanes, pixels,
                                 rows * ow, accumulate);
                    row += group;
                }
            }
        }
    }
}

