// Winograd's gradient of the weights on GPUs: the transform of dy, and that of the products, which are sums over tiles.

#include "conv/winograd_gpu/tiles.cl"
#include "common/raw.cl"

// Y of dy. Global: tiles, outputs, groups. A group of Y has `padded` outputs.
kernel void winograd_gradient(CONST_TENSOR(dy), TENSOR_OF(real, Y), const int outputs, const int padded,
                              const Grid grid, const TilePart part) {
    const int tile = get_global_id(0), output = get_global_id(1), group = get_global_id(2), groups = get_global_size(2);
    if (tile >= part.filled || output >= outputs) return;
    const TilePlace place = place_of_tile(part.first + tile, grid);
    const int rows = tile < part.count ? grid.size_h - place.h : 0, columns = grid.size_w - place.w;
    global const stored *from =
        OPEN(dy) + (((long)place.image * groups + group) * outputs + output) * ((long)grid.size_h * grid.size_w) +
        (long)place.h * grid.size_w + place.w;
    const long next = (long)groups * padded * part.pitch;
    global real *to = OPEN(Y) + ((long)group * padded + output) * part.pitch + tile;
#define PIXEL(i, j) REAL_OF((i) < rows && (j) < columns ? LOAD_RAW(from, (i) * grid.size_w + (j)) : (raw)0)
#define PUT(i, j, value) to[((i) * SIDE + (j)) * next] = value;
    TRANSFORM_2D(TRANSFORM_GRADIENT, TILE, SIDE, PIXEL, PUT)
#undef PIXEL
#undef PUT
}

// Channels of a work-group. It has CHANNELS * SIDE work-items.
#ifndef CHANNELS
#define CHANNELS 32
#endif

// dw of the products, which are [part][element][group][padded rows][padded columns]; the parts are added in order. A
// work-group takes CHANNELS channels of one output: a work-item adds up a column of elements and transforms it, then
// TAPS of SIDE transform a row. Channels count all pieces. Global: work-items of all blocks of channels, outputs,
// groups.
kernel __attribute__((reqd_work_group_size(CHANNELS * SIDE, 1, 1))) void winograd_filter(
    TENSOR_OF(const real, products), TENSOR(dw), const int accumulate, const int channels, const int padded_rows,
    const int padded_columns, const int parts) {
    local real columns[TAPS * SIDE * CHANNELS], taps[FILTER_TAPS * CHANNELS];
    const int id = get_local_id(0), at = id % CHANNELS, side = id / CHANNELS;
    const int first = get_group_id(0) * CHANNELS, count = min(channels - first, CHANNELS);
    const int output = get_global_id(1), outputs = get_global_size(1), group = get_global_id(2),
              groups = get_global_size(2);
    const long next = (long)groups * padded_rows * padded_columns;
    if (at < count) {
        global const real *from =
            OPEN(products) + side * next + ((long)group * padded_rows + output) * padded_columns + first + at;
        real sums[SIDE], out[TAPS];
#pragma unroll
        for (int i = 0; i < SIDE; i++) sums[i] = from[i * SIDE * next];
        for (int part = 1; part < parts; part++) {
            from += ELEMENTS * next;
#pragma unroll
            for (int i = 0; i < SIDE; i++) sums[i] += from[i * SIDE * next];
        }
        TRANSFORM_FILTER(sums, out)
#pragma unroll
        for (int i = 0; i < TAPS; i++) columns[(i * SIDE + side) * CHANNELS + at] = out[i];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (at < count && side < TAPS) {
        real row[SIDE], out[TAPS];
#pragma unroll
        for (int j = 0; j < SIDE; j++) row[j] = columns[(side * SIDE + j) * CHANNELS + at];
        TRANSFORM_FILTER(row, out)
#pragma unroll
        for (int j = 0; j < TAPS; j++) taps[at * FILTER_TAPS + side * TAPS + j] = out[j];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int whole = channels / ALL_PIECES;
    global stored *to = OPEN(dw) + ((long)group * outputs + output) * whole * ALL_TAPS;
    for (int i = id; i < count * FILTER_TAPS; i += CHANNELS * SIDE) {
        const int channel = first + i / FILTER_TAPS, piece = ALL_PIECES > 1 ? channel / whole : 0;
        const int h = piece / PIECES * TAPS + i % FILTER_TAPS / TAPS, w = piece % PIECES * TAPS + i % TAPS;
        if (ALL_PIECES > 1 && (h >= KERNEL_TAPS || w >= KERNEL_TAPS)) continue;
        const int where = (channel - piece * whole) * ALL_TAPS + h * KERNEL_TAPS + w;
        real value = taps[i];
        if (accumulate) value += LOAD(to, where);
        STORE(to, where, value);
    }
}
