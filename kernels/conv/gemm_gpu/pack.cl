// Weights as loaders/gather.cl reads them: packed (groups, padded depth, padded rows), and what is where in the depth.
//
// IMAGES    1: packed (groups, tiles of rows, steps of the depth) are the tiles of A as they lie in local memory
//           (micro/wgmma_layout.cl), and the first two numbers of the global size change places; a work-item packs
//           ROWS_OF_ITEM rows, a work-group's rows apart.
//
// depth k is channel * taps + tap, or with TAP_MAJOR tap * channels + channel. taps[k] is (offset, d, h, w): the
// distance of the source element from the pixel's first one, in elements and per axis. After the depth there are zeros,
// and a distance that lies outside every source. `met` says which taps of the kernel they are. Global: rows up to a
// multiple of TILE_M, padded depth / taps rounded up, groups * (taps / TAPS_OF_ITEM rounded up).

#include "conv/gemm_gpu/product.cl"
#include "conv/gemm_gpu/loaders/positions.cl"

#if IMAGES
#include "conv/gemm_gpu/micro/wgmma_layout.cl"
#define ROWS ROWS_OF_ITEM
#else
#define ROWS 1
#endif

kernel void conv_pack_weights(CONST_TENSOR(w), TENSOR_OF(real, packed), TENSOR_OF(int4, taps), const int rows,
                              const int channels, const long row_step, const long channel_step, const long group_step,
                              const Taps met, const Grid grid) {
    const int padded_rows = (rows + TILE_M - 1) / TILE_M * TILE_M;
    const int count = grid.taps_d * grid.taps_h * grid.taps_w, depth = channels * count;
    const int pieces = (count + TAPS_OF_ITEM - 1) / TAPS_OF_ITEM;
#if IMAGES
    const int channel = get_global_id(0), next = get_local_size(1);
    const int row = get_group_id(1) * next * ROWS + get_local_id(1);
#else
    const int row = get_global_id(0), channel = get_global_id(1), next = 0;
#endif
    const int group = get_global_id(2) / pieces;
    const int start = get_global_id(2) % pieces * TAPS_OF_ITEM;
    const int padded_depth = (depth + TILE_K - 1) / TILE_K * TILE_K;
    global const stored *from = OPEN(w) + group * group_step + row * row_step + channel * channel_step;
#if IMAGES
    // rows of a work-item are in one tile
    const long tile = (long)group * (padded_rows / TILE_M) + row / TILE_M;
    global real *to = OPEN(packed) + tile * (padded_depth / TILE_K) * A_ELEMENTS;
#else
    global real *to = OPEN(packed) + (long)group * padded_depth * padded_rows + row;
#endif
    for (int tap = start; tap < min(start + TAPS_OF_ITEM, count); tap++) {
        const int k = TAP_MAJOR ? tap * channels + channel : channel * count + tap;
        if (k >= padded_depth) return;
        const int w = tap % grid.taps_w, h = tap / grid.taps_w % grid.taps_h, d = tap / grid.taps_w / grid.taps_h;
        const int at_d = met.first_d + d * met.step_d, at_h = met.first_h + h * met.step_h;
        const int at = (at_d * met.kernel_h + at_h) * met.kernel_w + met.first_w + w * met.step_w;
        real weights[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            weights[i] = row + i * next < rows && channel < channels ? LOAD(from, i * next * row_step + at) : 0;
#if IMAGES
        global real *step = to + (long)(k / TILE_K) * A_ELEMENTS;
#pragma unroll
        for (int i = 0; i < ROWS; i++) A_PUT(step, k % TILE_K, (row + i * next) % TILE_M, weights[i]);
#else
        to[(long)k * padded_rows] = weights[0];
#endif
        if (row == 0 && group == 0) OPEN(taps)
        [k] = channel < channels ? (int4)(channel * SOURCE_PLANE + TAP_DISTANCE(d, h, w), d * grid.step_d,
                                          h * grid.step_h, w * grid.step_w)
                                 : (int4)(0, 0, 0, OUTSIDE);
    }
}
