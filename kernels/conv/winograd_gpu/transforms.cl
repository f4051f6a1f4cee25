// Winograd's convolution F(TILE x TILE, TAPS x TAPS) on GPUs: the transforms of weights, source and products.
//
// Forward and backward data are four launches: winograd_weights, winograd_source, the products
// (conv/gemm_gpu/product.cl), winograd_result; backward filter has its own last one (conv/winograd_gpu/filter.cl).
// A work-item transforms one tile of one channel, so that neighbours read neighbouring pixels and write side by side.
// Lavin and Gray, Fast algorithms for convolutional neural networks (2015); the points are those of CPU devices.
//
// VL        lanes of a row of a tile of the result: TILE

#include "conv/winograd_gpu/tiles.cl"
#include "common/aligned.cl"
#include "common/epilogue.cl"
#include "common/raw.cl"

// V of x. Global: tiles, channels, groups. The first `filled` channels of each group are written, those from `channels`
// on with zeros; a group of V has `padded` channels. All pieces of a channel are counted.
kernel void winograd_source(CONST_TENSOR(x), TENSOR_OF(real, V), const int channels, const int filled, const int padded,
                            const Grid grid, const TilePart part) {
    const int tile = get_global_id(0), channel = get_global_id(1), group = get_global_id(2),
              groups = get_global_size(2);
    if (tile >= part.filled || channel >= filled) return;
    const TilePlace place = place_of_tile(part.first + tile, grid);
    const int planes = channels / ALL_PIECES, piece = ALL_PIECES > 1 ? channel / planes : 0;
    const int top = place.h + grid.begin_h + piece / PIECES * TAPS;
    const int left = place.w + grid.begin_w + piece % PIECES * TAPS;
    const int height = tile < part.count && channel < channels ? grid.source_h : 0;
    // of the tile's first pixel, which may lie outside
    global const stored *from =
        OPEN(x) +
        (((long)place.image * groups + group) * planes + (channel - piece * planes)) *
            ((long)grid.source_h * grid.source_w) +
        (long)top * grid.source_w + left;
    const long next = (long)groups * padded * part.pitch;
    global real *to = OPEN(V) + ((long)group * padded + channel) * part.pitch + tile;
#define PIXEL(i, j)                                                                      \
    REAL_OF((uint)(top + (i)) < (uint)height && (uint)(left + (j)) < (uint)grid.source_w \
                ? LOAD_RAW(from, (i) * grid.source_w + (j))                              \
                : (raw)0)
#define PUT(i, j, value) to[((i) * SIDE + (j)) * next] = value;
    TRANSFORM_2D(TRANSFORM_SOURCE, SIDE, SIDE, PIXEL, PUT)
#undef PIXEL
#undef PUT
}

// U of w. Global: outputs, channels, groups. A group of U has `padded` channels, zeros from `channels` on, of
// `padded_outputs`. All pieces of a channel are counted. With `flip`, w is (channels, outputs, taps) in each group
// and its kernels are turned by 180 degrees, as backward data needs them; else it is (outputs, channels, taps).
kernel void winograd_weights(CONST_TENSOR(w), TENSOR_OF(real, U), const int channels, const int outputs,
                             const int padded, const int padded_outputs, const int flip) {
    const int output = get_global_id(0), channel = get_global_id(1), group = get_global_id(2);
    if (output >= outputs || channel >= padded) return;
    const long next = (long)get_global_size(2) * padded * padded_outputs;
    const int whole = channels / ALL_PIECES, piece = ALL_PIECES > 1 ? channel / whole : 0, of = channel - piece * whole;
    const long row =
        flip ? ((long)group * whole + of) * outputs + output : ((long)group * outputs + output) * whole + of;
    global const stored *from = OPEN(w) + (channel < channels ? row * ALL_TAPS : 0);
    global real *to = OPEN(U) + ((long)group * padded + channel) * padded_outputs + output;
    real taps[FILTER_TAPS];
#pragma unroll
    for (int i = 0; i < FILTER_TAPS; i++) {
        const int h = piece / PIECES * TAPS + i / TAPS, w = piece % PIECES * TAPS + i % TAPS;
        const int tap = flip ? ALL_TAPS - 1 - h * KERNEL_TAPS - w : h * KERNEL_TAPS + w;
        const bool met = channel < channels && h < KERNEL_TAPS && w < KERNEL_TAPS;
        taps[i] = met ? LOAD(from, tap) : 0;
    }
#define TAP(i, j) taps[(i) * TAPS + (j)]
#define PUT(i, j, value) to[((i) * SIDE + (j)) * next] = value;
    TRANSFORM_2D(TRANSFORM_WEIGHTS, TAPS, SIDE, TAP, PUT)
#undef TAP
#undef PUT
}

// y of M. Global: tiles, outputs, groups. A group of M has `padded` outputs.
kernel void winograd_result(TENSOR_OF(const real, M), CONST_TENSOR(bias), TENSOR(y), const int has_bias,
                            const int accumulate, const int outputs, const int padded, const Grid grid,
                            const TilePart part EPILOGUE_PARAMETERS) {
    const int tile = get_global_id(0), output = get_global_id(1), group = get_global_id(2), groups = get_global_size(2);
    if (tile >= part.count || output >= outputs) return;
    OPEN_EPILOGUE
    const TilePlace place = place_of_tile(part.first + tile, grid);
    const long next = (long)groups * padded * part.pitch;
    global const real *from = OPEN(M) + ((long)group * padded + output) * part.pitch + tile;
    const int channel = group * outputs + output, ow = grid.size_w;
    const real start = has_bias ? LOAD(OPEN(bias), channel) : 0;
    global stored *target = OPEN(y);
    const long first =
        ((long)place.image * groups * outputs + channel) * ((long)grid.size_h * ow) + (long)place.h * ow + place.w;
    real rows[TILE][TILE];
#define PRODUCT(i, j) from[((i) * SIDE + (j)) * next]
#define PUT(i, j, value) rows[i][j] = value + start;
    TRANSFORM_2D(TRANSFORM_PRODUCT, SIDE, TILE, PRODUCT, PUT)
#undef PRODUCT
#undef PUT
#pragma unroll
    for (int i = 0; i < TILE; i++) {
        if (place.h + i >= grid.size_h) continue;
        const long at = first + (long)i * ow;
        if (place.w + TILE <= ow && IS_ALIGNED(TILE, target + at)) {
#if TILE == 4
            realv value = (realv)(rows[i][0], rows[i][1], rows[i][2], rows[i][3]);
#else
            realv value = (realv)(rows[i][0], rows[i][1]);
#endif
            value = EPILOGUE_VECTOR(value, channel, at);
            if (accumulate) value += LOAD_ALIGNED(VL, target + at);
            STORE_ALIGNED(VL, target + at, value);
            continue;
        }
#pragma unroll
        for (int j = 0; j < TILE; j++) {
            if (place.w + j >= ow) continue;
            real value = EPILOGUE_ELEMENT(rows[i][j], channel, at + j);
            if (accumulate) value += LOAD(target, at + j);
            STORE(target, at + j, value);
        }
    }
}
