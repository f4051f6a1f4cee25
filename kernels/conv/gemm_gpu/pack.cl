// Weights as conv/gemm_gpu/gather.cl reads them: packed (groups, padded depth, padded rows), and what is where in the
// depth.
//
// depth k is channel * taps + tap, or with TAP_MAJOR tap * channels + channel. taps[k] is (offset, d, h, w): the
// distance of the source element from the pixel's first one, in elements and per axis. After the depth there are zeros,
// and a distance that lies outside every source. `met` says which taps of the kernel they are. Global: rows up to a
// multiple of TILE_M, padded depth / taps rounded up, groups * (taps / TAPS_OF_ITEM rounded up).

#ifndef TAP_MAJOR
#define TAP_MAJOR 0
#endif

// Taps of a channel that a work-item packs: neighbours in memory.
#ifndef TAPS_OF_ITEM
#define TAPS_OF_ITEM 5
#endif

#define OUTSIDE (1 << 30)

kernel void conv_pack_weights(CONST_TENSOR(w), TENSOR_OF(real, packed), TENSOR_OF(int4, taps), const int rows,
                              const int channels, const long row_step, const long channel_step, const long group_step,
                              const Taps met, const Grid grid) {
    const int padded_rows = (rows + TILE_M - 1) / TILE_M * TILE_M;
    const int count = grid.taps_d * grid.taps_h * grid.taps_w, depth = channels * count;
    const int pieces = (count + TAPS_OF_ITEM - 1) / TAPS_OF_ITEM;
    const int row = get_global_id(0), channel = get_global_id(1), group = get_global_id(2) / pieces;
    const int start = get_global_id(2) % pieces * TAPS_OF_ITEM;
    const int padded_depth = (depth + TILE_K - 1) / TILE_K * TILE_K;
    global const stored *from = OPEN(w) + group * group_step + row * row_step + channel * channel_step;
    global real *to = OPEN(packed) + (long)group * padded_depth * padded_rows + row;
    for (int tap = start; tap < min(start + TAPS_OF_ITEM, count); tap++) {
        const int k = TAP_MAJOR ? tap * channels + channel : channel * count + tap;
        if (k >= padded_depth) return;
        const int w = tap % grid.taps_w, h = tap / grid.taps_w % grid.taps_h, d = tap / grid.taps_w / grid.taps_h;
        const int at_d = met.first_d + d * met.step_d, at_h = met.first_h + h * met.step_h;
        const int at = (at_d * met.kernel_h + at_h) * met.kernel_w + met.first_w + w * met.step_w;
        to[(long)k * padded_rows] = row < rows && channel < channels ? LOAD(from, at) : 0;
        if (row == 0 && group == 0)
            OPEN(taps)[k] = channel < channels
                                ? (int4)(channel * SOURCE_PLANE + TAP_DISTANCE(d, h, w), d * grid.step_d,
                                         h * grid.step_h, w * grid.step_w)
                                : (int4)(0, 0, 0, OUTSIDE);
    }
}
