// What products of matrices need around them where a convolution in channels last has few input channels.
//
// MAKES 0: conv_unfold_rows   the taps of a row as channels
//       1: conv_block_weights, conv_spread_blocks   blocks of dx's pixels as channels of a forward convolution of dy

#ifndef MAKES
#define MAKES 1
#endif
#ifndef CHANNELS
#define CHANNELS 3  // of x
#define KW 7
#define SW 2
#define PW 3
#define DW 1
#endif

#if MAKES == 0
#define RUN (KW * CHANNELS)  // elements that a row of taps meets
#define VECTORS ((RUN + 7) / 8)
// x (rows, width, CHANNELS) becomes (rows, pixels, VECTORS * 8): what the taps of a row meet, and zeros.
// Global: vectors of the result, fewer than 2**32: divisions of 64 bits would take longer than all the rest.
kernel void conv_unfold_rows(CONST_TENSOR(x), TENSOR(to), const int width, const int pixels) {
    const uint id = get_global_id(0), pixel = id / VECTORS, row = pixel / (uint)pixels;
    const int first = id % VECTORS * 8, column = (int)(pixel - row * pixels) * SW - PW;
    global const ushort *const from = (global const ushort *)OPEN(x) + (long)row * width * CHANNELS;
    ushort all[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
#if DW == 1  // the taps' elements lie side by side
        const int at = column * CHANNELS + first + i;
        const bool there = at >= 0 && at < width * CHANNELS;
#else
        const int q = column + (first + i) / CHANNELS * DW, at = q * CHANNELS + (first + i) % CHANNELS;
        const bool there = q >= 0 && q < width;
#endif
        all[i] = first + i < RUN && there ? from[at] : 0;
    }
    *(global ushort8 *)(OPEN(to) + (long)id * 8) =
        (ushort8)(all[0], all[1], all[2], all[3], all[4], all[5], all[6], all[7]);
}
#else
#include "conv/grid.cl"
#include "pointwise/quads.cl"

// The tap of the kernel with which pixel `a` of a block meets offset `i` in dy; -1: none.
int tap_of(const int a, const int i, const int first, const int kernel_size, const int stride, const int pad,
           const int dilate) {
    const int reach = a + pad - stride * (first + i);
    return reach >= 0 && reach % dilate == 0 && reach / dilate < kernel_size ? reach / dilate : -1;
}

// w (outputs, kh, kw, channels) becomes the weights (block_h * block_w * channels, taps_h, taps_w, outputs) of a
// convolution of dy. Global: elements of the result.
kernel void conv_block_weights(CONST_TENSOR(w), TENSOR(to), const int outputs, const int channels,
                               const BlockTaps met) {
    const int id = get_global_id(0), output = id % outputs;
    int rest = id / outputs;
    const int j = rest % met.taps_w;
    rest /= met.taps_w;
    const int i = rest % met.taps_h;
    rest /= met.taps_h;
    const int channel = rest % channels;
    rest /= channels;
    const int tap_h = tap_of(rest / met.block_w, i, met.first_h, met.kernel_h, met.stride_h, met.pad_h, met.dilate_h);
    const int tap_w = tap_of(rest % met.block_w, j, met.first_w, met.kernel_w, met.stride_w, met.pad_w, met.dilate_w);
    global const ushort *const from = (global const ushort *)OPEN(w);
    const int tap = (output * met.kernel_h + tap_h) * met.kernel_w + tap_w;
    ((global ushort *)OPEN(to))[id] = tap_h >= 0 && tap_w >= 0 ? from[tap * channels + channel] : 0;
}

// blocks (batch, blocks_h, blocks_w, block_h, run) becomes dx (batch, height, pitch), run and pitch in elements of
// rows. Global: quads of a row of dx; rows.
kernel void conv_spread_blocks(CONST_TENSOR(blocks), TENSOR(dx), const int accumulate, const int height,
                               const int pitch, const int blocks_h, const int blocks_w, const int block_h,
                               const int run) {
    const int first = get_global_id(0) * 4, line = get_global_id(1), row = line % height;
    if (first >= pitch) return;
    const long image = line / height, of_row = (image * blocks_h + row / block_h) * blocks_w;
    global stored *const to = OPEN(dx) + (long)line * pitch;
    global const stored *const from = OPEN(blocks) + row % block_h * run;
#define BLOCKS_AT(e) (((of_row + (e) / run) * block_h) * run + (e) % run)
    global const stored *const quad = from + BLOCKS_AT(first);
    if (!accumulate && run % 4 == 0 && pitch % 4 == 0 && QUAD_ALIGNED_stored(to) && QUAD_ALIGNED_stored(quad)) {
        *(global uint2 *)(to + first) = *(global const uint2 *)quad;
        return;
    }
    for (int e = first; e < min(first + 4, pitch); e++) {
        const real value = LOAD(from, BLOCKS_AT(e));
        STORE(to, e, accumulate ? LOAD(to, e) + value : value);
    }
}
#endif
