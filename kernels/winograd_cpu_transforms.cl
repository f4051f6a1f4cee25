// The parts that Winograd's convolutions on CPU devices share: their layouts, the transforms, and pixels in and out.

#ifndef MR
#define MR 6  // rows of the register tile: tiles, or channels in the backward filter
#endif
#ifndef NV
#define NV 4  // vectors of the register tile: output channels
#endif
#define COLS (NV * VL)
#define PAD 48  // elements between a transform's elements, so that the 36 do not share the sets of a cache
#define WC 64  // channels of a row of V; a constant, so that a register tile's rows need one address

#include "conv_cpu_transpose.cl"

// B^T d, on six vectors `s` apart.
#define TRANSFORM_SOURCE(d, s, out) \
    { \
        const realv a_ = (d)[4 * (s)] - 4 * (d)[2 * (s)], b_ = (d)[3 * (s)] - 4 * (d)[1 * (s)]; \
        const realv c_ = (d)[4 * (s)] - (d)[2 * (s)], e_ = 2 * ((d)[3 * (s)] - (d)[1 * (s)]); \
        out[0] = 4 * (d)[0] - 5 * (d)[2 * (s)] + (d)[4 * (s)]; \
        out[1] = a_ + b_; \
        out[2] = a_ - b_; \
        out[3] = c_ + e_; \
        out[4] = c_ - e_; \
        out[5] = 4 * (d)[1 * (s)] - 5 * (d)[3 * (s)] + (d)[5 * (s)]; \
    }

// A^T m: six to four.
#define TRANSFORM_PRODUCT(m, s, out) \
    { \
        const realv a_ = (m)[1 * (s)] + (m)[2 * (s)], b_ = (m)[1 * (s)] - (m)[2 * (s)]; \
        const realv c_ = (m)[3 * (s)] + (m)[4 * (s)], e_ = (m)[3 * (s)] - (m)[4 * (s)]; \
        out[0] = (m)[0] + a_ + c_; \
        out[1] = b_ + 2 * e_; \
        out[2] = a_ + 4 * c_; \
        out[3] = b_ + 8 * e_ + (m)[5 * (s)]; \
    }

// A y: four to six, the transpose of the above.
#define TRANSFORM_GRADIENT(y, s, out) \
    { \
        const realv a_ = (y)[0] + (y)[2 * (s)], b_ = (y)[1 * (s)] + (y)[3 * (s)]; \
        const realv c_ = (y)[0] + 4 * (y)[2 * (s)], e_ = 2 * (y)[1 * (s)] + 8 * (y)[3 * (s)]; \
        out[0] = (y)[0]; \
        out[1] = a_ + b_; \
        out[2] = a_ - b_; \
        out[3] = c_ + e_; \
        out[4] = c_ - e_; \
        out[5] = (y)[3 * (s)]; \
    }

// G w: three to six.
#define TRANSFORM_WEIGHTS(w, s, out) \
    { \
        const realv a_ = ((w)[0] + (w)[2 * (s)]) * (REAL(-1.0) / 6), b_ = (w)[1 * (s)] * (REAL(-1.0) / 6); \
        const realv c_ = (w)[0] * (REAL(1.0) / 24) + (w)[2 * (s)] * (REAL(1.0) / 6), e_ = (w)[1 * (s)] * (REAL(1.0) / 12); \
        out[0] = (w)[0] * REAL(0.25); \
        out[1] = a_ + b_; \
        out[2] = a_ - b_; \
        out[3] = c_ + e_; \
        out[4] = c_ - e_; \
        out[5] = (w)[2 * (s)]; \
    }

// G^T m: six to three.
#define TRANSFORM_FILTER(m, s, out) \
    { \
        const realv a_ = (m)[1 * (s)] + (m)[2 * (s)], b_ = (m)[1 * (s)] - (m)[2 * (s)]; \
        const realv c_ = (m)[3 * (s)] + (m)[4 * (s)], e_ = (m)[3 * (s)] - (m)[4 * (s)]; \
        out[0] = (m)[0] * REAL(0.25) - a_ * (REAL(1.0) / 6) + c_ * (REAL(1.0) / 24); \
        out[1] = e_ * (REAL(1.0) / 12) - b_ * (REAL(1.0) / 6); \
        out[2] = (c_ - a_) * (REAL(1.0) / 6) + (m)[5 * (s)]; \
    }

// Loads VL elements of a row, the last ones of a tensor one by one.
realv load_row(global const stored *row, const long left, const int wanted) {
    if (left >= VL) return VLOAD(row, 0);
    real values[VL];
    for (int i = 0; i < VL; i++) values[i] = i < wanted ? LOAD(row, i) : 0;
    return LOAD_REALS(values);
}

// pixels[row][column][lane] = x[channel + lane][top + row][left_column + column], 0 outside of the plane.
// x starts at the first of `lanes` channels' planes; `left` elements may be read. VL more vectors are written at the end.
void load_pixels(local real *pixels, global const stored *x, const long left, const int lanes, const int ch, const int cw,
                 const int top, const int left_column, const int rows, const int columns) {
    const long plane = (long)ch * cw;
    const int begin = clamp(-left_column, 0, columns), end = clamp(cw - left_column, begin, columns);
    for (int row = 0; row < rows; row++) {
        local real *to = pixels + row * columns * VL;
        const int h = top + row;
        const int stop = h >= 0 && h < ch ? end : 0;
        for (int column = 0; column < (stop ? begin : columns); column++) STORE_REALS(to + column * VL, (realv)(0));
        if (!stop) continue;
        for (int column = begin; column < stop; column += VL) {
            realv a[VL], b[VL];
            const long at = (long)h * cw + left_column + column;
            if ((lanes - 1) * plane + at + VL <= left) {
#pragma unroll
                for (int i = 0; i < VL; i++) {
                    __builtin_prefetch(x + (VL + i) * plane + at);  // for the next channels
                    a[i] = VLOAD(x, min(i, lanes - 1) * plane + at);
                }
            } else {
                for (int i = 0; i < VL; i++) {
                    const long from = min(i, lanes - 1) * plane + at;
                    a[i] = load_row(x + from, left - from, stop - column);
                }
            }
            TRANSPOSE(a, b, VL)
#pragma unroll
            for (int i = 0; i < VL; i++) STORE_REALS(to + (column + i) * VL, a[i]);
        }
        for (int column = stop; column < columns; column++) STORE_REALS(to + column * VL, (realv)(0));
    }
}

// Transforms the source tiles of tile rows [first, first + count), numbered over all images, into V, for the channels
// [first_channel, last_channel). `tiles` is V's number of tiles; b_h, b_w the source position of the first output pixel.
void transform_source(global real *V, local real *pixels, global const stored *x, const int batch, const int channels,
                      const int first_channel, const int last_channel, const int ch, const int cw, const int bh, const int bw,
                      const int tile_h, const int tile_w, const int tiles, const int first, const int count) {
    const int columns = tile_w * 4 + 2;
    const long plane = (long)ch * cw, all = batch * channels * plane;
    const long e_size = (long)((channels + WC - 1) / WC) * tiles * WC + PAD;
    for (int channel = first_channel; channel < last_channel; channel += VL) {
        global real *to = V + (long)(channel / WC) * tiles * WC + channel % WC;
        for (int row = 0; row < count;) {
            const int image = (first + row) / tile_h, h = (first + row) % tile_h;
            const int group = min(min(count - row, tile_h - h), ROWS);
            const long from = ((long)image * channels + channel) * plane;
            load_pixels(pixels, x + from, all - from, min(channels - channel, VL), ch, cw, h * 4 + bh, bw, group * 4 + 2, columns);
            for (int tile = 0; tile < group * tile_w; tile++) {
                local const real *corner = pixels + (tile / tile_w * 4 * columns + tile % tile_w * 4) * VL;
                realv m[36];
#pragma unroll
                for (int j = 0; j < 6; j++) {
                    realv d[6], out[6];
#pragma unroll
                    for (int i = 0; i < 6; i++) d[i] = LOAD_REALS(corner + (i * columns + j) * VL);
                    TRANSFORM_SOURCE(d, 1, out)
#pragma unroll
                    for (int i = 0; i < 6; i++) m[i * 6 + j] = out[i];
                }
                global real *element = to + (row * tile_w + tile) * WC;
#pragma unroll
                for (int i = 0; i < 6; i++) {
                    realv out[6];
                    TRANSFORM_SOURCE(m + i * 6, 1, out)
#pragma unroll
                    for (int j = 0; j < 6; j++) STORE_REALS(element + (i * 6 + j) * e_size, out[j]);
                }
            }
            row += group;
        }
    }
}
