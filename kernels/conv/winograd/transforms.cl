// The parts that Winograd's convolutions on CPU devices share: their layouts, the transforms, and pixels in and out.
//
// F(2x2, 3x3) has the points 0, 1, -1, F(4x4, 3x3) 0, P, -P, Q, -Q; both have the one at infinity as well. The
// transforms of one axis are written out for both; all else follows from TILE. The register tile's rows are tiles, or
// channels in the backward filter; its vectors are output channels.

#define PAD 48  // elements between a transform's elements, so that they do not share the sets of a cache
#ifndef TILE
#define TILE 4  // outputs of a tile along an axis, 2 or 4
#endif
#define SIDE (TILE + 2)  // and of the source that it meets
#define ELEMENTS (SIDE * SIDE)
#define WC 64  // channels of a row of V; a constant, so that a register tile's rows need one address

#include "common/register_tile.cl"
#include "conv/grid.cl"

// Tiles are numbered along the tile rows of all images: TILES_H of them in an image, of TILES_W tiles each.
#define TILES_H ((grid.size_h + TILE - 1) / TILE)
#define TILES_W ((grid.size_w + TILE - 1) / TILE)

// Tile rows [first_row, first_row + rows) of all images, whose transforms lie in a part of the workspace of `tiles`
// tiles. A work-item takes block_rows of them. The fields are the table in core/operators/conv/arguments.py.
typedef struct {
    TILE_ROWS_FIELDS
} TileRows;

#if TILE == 4

// Points of which each is close to the other's inverse, and all whose powers here are exact: 1 and 2 would round three
// times as much.
#define P REAL(0.75)
#define Q REAL(1.5)
#define P_NORM (REAL(0.5) / (P * P * (P * P - Q * Q)))
#define Q_NORM (REAL(0.5) / (Q * Q * (Q * Q - P * P)))
#define ZERO_NORM (1 / (P * P * Q * Q))

// B^T d, the source's transform of one axis: SIDE to SIDE.
#define TRANSFORM_SOURCE(d, out) \
    { \
        const realv a_ = (d)[4] - Q * Q * (d)[2], b_ = (d)[3] - Q * Q * (d)[1]; \
        const realv c_ = (d)[4] - P * P * (d)[2], e_ = (d)[3] - P * P * (d)[1]; \
        out[0] = P * P * Q * Q * (d)[0] - (P * P + Q * Q) * (d)[2] + (d)[4]; \
        out[1] = a_ + P * b_; \
        out[2] = a_ - P * b_; \
        out[3] = c_ + Q * e_; \
        out[4] = c_ - Q * e_; \
        out[5] = P * P * Q * Q * (d)[1] - (P * P + Q * Q) * (d)[3] + (d)[5]; \
    }

// A^T m, the products' transform: SIDE to TILE.
#define TRANSFORM_PRODUCT(m, out) \
    { \
        const realv a_ = (m)[1] + (m)[2], b_ = P * ((m)[1] - (m)[2]); \
        const realv c_ = (m)[3] + (m)[4], e_ = Q * ((m)[3] - (m)[4]); \
        out[0] = (m)[0] + a_ + c_; \
        out[1] = b_ + e_; \
        out[2] = P * P * a_ + Q * Q * c_; \
        out[3] = P * P * b_ + Q * Q * e_ + (m)[5]; \
    }

// A y, the gradients' transform: TILE to SIDE.
#define TRANSFORM_GRADIENT(y, out) \
    { \
        const realv a_ = (y)[0] + P * P * (y)[2], b_ = (y)[1] + P * P * (y)[3]; \
        const realv c_ = (y)[0] + Q * Q * (y)[2], e_ = (y)[1] + Q * Q * (y)[3]; \
        out[0] = (y)[0]; \
        out[1] = a_ + P * b_; \
        out[2] = a_ - P * b_; \
        out[3] = c_ + Q * e_; \
        out[4] = c_ - Q * e_; \
        out[5] = (y)[3]; \
    }

// G w, the weights' transform: three to SIDE.
#define TRANSFORM_WEIGHTS(w, out) \
    { \
        const realv a_ = P_NORM * ((w)[0] + P * P * (w)[2]), b_ = P_NORM * P * (w)[1]; \
        const realv c_ = Q_NORM * ((w)[0] + Q * Q * (w)[2]), e_ = Q_NORM * Q * (w)[1]; \
        out[0] = (w)[0] * ZERO_NORM; \
        out[1] = a_ + b_; \
        out[2] = a_ - b_; \
        out[3] = c_ + e_; \
        out[4] = c_ - e_; \
        out[5] = (w)[2]; \
    }

// G^T m, the transform of the weights' gradients: SIDE to three.
#define TRANSFORM_FILTER(m, out) \
    { \
        const realv a_ = P_NORM * ((m)[1] + (m)[2]), b_ = P_NORM * ((m)[1] - (m)[2]); \
        const realv c_ = Q_NORM * ((m)[3] + (m)[4]), e_ = Q_NORM * ((m)[3] - (m)[4]); \
        out[0] = (m)[0] * ZERO_NORM + a_ + c_; \
        out[1] = P * b_ + Q * e_; \
        out[2] = P * P * a_ + Q * Q * c_ + (m)[5]; \
    }

#else

#define TRANSFORM_SOURCE(d, out) \
    { \
        out[0] = (d)[0] - (d)[2]; \
        out[1] = (d)[1] + (d)[2]; \
        out[2] = (d)[2] - (d)[1]; \
        out[3] = (d)[3] - (d)[1]; \
    }
#define TRANSFORM_PRODUCT(m, out) \
    { \
        out[0] = (m)[0] + ((m)[1] + (m)[2]); \
        out[1] = (m)[1] - (m)[2] + (m)[3]; \
    }
#define TRANSFORM_GRADIENT(y, out) \
    { \
        out[0] = (y)[0]; \
        out[1] = (y)[0] + (y)[1]; \
        out[2] = (y)[0] - (y)[1]; \
        out[3] = (y)[1]; \
    }
#define TRANSFORM_WEIGHTS(w, out) \
    { \
        const realv a_ = ((w)[0] + (w)[2]) * REAL(0.5), b_ = (w)[1] * REAL(0.5); \
        out[0] = (w)[0]; \
        out[1] = a_ + b_; \
        out[2] = a_ - b_; \
        out[3] = (w)[2]; \
    }
#define TRANSFORM_FILTER(m, out) \
    { \
        const realv a_ = ((m)[1] + (m)[2]) * REAL(0.5); \
        out[0] = (m)[0] + a_; \
        out[1] = ((m)[1] - (m)[2]) * REAL(0.5); \
        out[2] = a_ + (m)[3]; \
    }

#endif

// Both axes: F on the columns of from x from elements, then on the rows. in(i, j) is what is transformed, put(i, j,
// value) takes the to x to results.
#define TRANSFORM_2D(F, from, to, in, put) \
    { \
        realv half_done[(to) * (from)]; \
        _Pragma("unroll") for (int j = 0; j < (from); j++) { \
            realv column_[from], out_[to]; \
            _Pragma("unroll") for (int i = 0; i < (from); i++) column_[i] = in(i, j); \
            F(column_, out_) \
            _Pragma("unroll") for (int i = 0; i < (to); i++) half_done[i * (from) + j] = out_[i]; \
        } \
        _Pragma("unroll") for (int i = 0; i < (to); i++) { \
            realv out_[to]; \
            F(half_done + i * (from), out_) \
            _Pragma("unroll") for (int j = 0; j < (to); j++) { put(i, j, out_[j]) } \
        } \
    }

// Loads VL elements of a row, the last ones of a tensor one by one.
realv load_row(global const stored *row, const long left, const int wanted) {
    if (left >= VL) return VLOAD(row, 0);
    real values[VL];
    for (int i = 0; i < VL; i++) values[i] = i < wanted ? LOAD(row, i) : 0;
    return LOAD_REALS(values);
}

// pixels[row][column][lane] = x[channel + lane][top + row][left_column + column], 0 outside of the plane. x starts at
// the first of `lanes` channels' planes; `left` elements may be read. VL more vectors are written at the end.
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
// [first_channel, last_channel). `tiles` is V's number of tiles.
void transform_source(global real *V, local real *pixels, global const stored *x, const int channels, const Grid grid,
                      const int first_channel, const int last_channel, const int tiles, const int first, const int count) {
    const int tile_h = TILES_H, tile_w = TILES_W, columns = tile_w * TILE + 2;
    const long plane = (long)grid.source_h * grid.source_w, all = (long)grid.batch * channels * plane;
    const long e_size = (long)((channels + WC - 1) / WC) * tiles * WC + PAD;
    for (int channel = first_channel; channel < last_channel; channel += VL) {
        global real *to = V + (long)(channel / WC) * tiles * WC + channel % WC;
        for (int row = 0; row < count;) {
            const int image = (first + row) / tile_h, h = (first + row) % tile_h;
            const int group = min(min(count - row, tile_h - h), ROWS);
            const long from = ((long)image * channels + channel) * plane;
            load_pixels(pixels, x + from, all - from, min(channels - channel, VL), grid.source_h, grid.source_w,
                        h * TILE + grid.begin_h, grid.begin_w, group * TILE + 2, columns);
            for (int tile = 0; tile < group * tile_w; tile++) {
                local const real *corner = pixels + (tile / tile_w * TILE * columns + tile % tile_w * TILE) * VL;
                global real *element = to + (row * tile_w + tile) * WC;
#define PIXEL(i, j) LOAD_REALS(corner + ((i) * columns + (j)) * VL)
#define PUT(i, j, value) STORE_REALS(element + ((i) * SIDE + (j)) * e_size, value);
                TRANSFORM_2D(TRANSFORM_SOURCE, SIDE, SIDE, PIXEL, PUT)
#undef PIXEL
#undef PUT
            }
            row += group;
        }
    }
}

// V of a part's tile rows; one work-item transforms block_rows of them in VL channels.
SINGLE void winograd_source(CONST_TENSOR(x), TENSOR_OF(real, V), const int channels, const Grid grid,
                            const TileRows part, local real *pixels) {
    const int row = get_global_id(0) * part.block_rows, channel = get_global_id(1) * VL;
    transform_source(OPEN(V) + (long)row * TILES_W * WC, pixels, OPEN(x), channels, grid, channel,
                     min(channel + VL, channels), part.tiles, part.first_row + row, min(part.block_rows, part.rows - row));
}
