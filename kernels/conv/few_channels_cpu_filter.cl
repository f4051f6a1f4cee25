// Filter gradient of a convolution of few channels on CPU devices: a product of matrices whose long axis is the pixels.
//
//     partial[split][tile of COLS outputs][channel, tap][COLS]  =  sum over a split's pixels p of
//         lines[channel][p, tap] * dy[p][output]
//
// lines     local, [channel of an item][row][pitch], what a block of rows of pixels meets, with the padding
// gradient  local, [tile of COLS outputs][pixel of a block][COLS], dy transposed
// x         (batch, channels, source_h, source_w)   dy (batch, outputs, size_h, size_w)
//
// Vectors run along outputs, and elements of x are broadcast from where they lie, as in few_channels_cpu.cl. A register
// tile has the taps of HR rows of the kernel. The blocks of rows of all images are numbered; a split is some of them.
// Work-items, which are work-groups, share items by tickets: a split (innermost), a range of channels. sum_partials of
// gemm_cpu/backward_filter.cl adds the splits in their order.
//
// KW, HR  taps of a row of the kernel, which are neighbours, and rows of a register tile: MR is KW * HR

#include "common/tickets.cl"
#include "conv/few_channels_lines.cl"
#include "conv/gemm_cpu/gradient.cl"

kernel void conv_few_channels_filter(CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR_OF(real, partial), const int channels,
                                     const int outputs, const Grid grid, const int block_rows, const int pitch,
                                     const int split_blocks, const int item_channels, volatile global int *tickets,
                                     local real *lines, local real *gradient) {
    const int pixels = grid.size_h * grid.size_w;
    const long source = (long)grid.source_h * grid.source_w;
    const int reach = (grid.taps_h - 1) * grid.step_h + 1, depth = channels * grid.taps_h * KW;
    const int plane_size = ((block_rows - 1) * grid.stride_h + reach) * pitch;  // of a channel's lines
    const int gradient_size = (block_rows * grid.size_w + VL) * COLS;           // of a tile
    const int tiles = (outputs + COLS - 1) / COLS;
    const long dy_size = (long)grid.batch * outputs * pixels;
    const int blocks = (grid.size_h + block_rows - 1) / block_rows, all = grid.batch * blocks;
    const int splits = (all + split_blocks - 1) / split_blocks, workers = get_global_size(0);
    const int items = splits * ((channels + item_channels - 1) / item_channels);

    FOR_ITEMS(share) {
        const int split = share.item % splits, first = split * split_blocks, last = min(first + split_blocks, all);
        const int first_channel = share.item / splits * item_channels,
                  count = min(item_channels, channels - first_channel);
        global real *sums = OPEN(partial) + (long)split * tiles * depth * COLS;
        for (int block = first; block < last; block++) {
            const int image = block / blocks, row = block % blocks * block_rows;
            const int rows = min(block_rows, grid.size_h - row);
            for (int c = 0; c < count; c++) {
                fill_lines(lines + c * plane_size, OPEN(x) + ((long)image * channels + first_channel + c) * source, 0,
                           row * grid.stride_h + grid.begin_h, (rows - 1) * grid.stride_h + reach, pitch, -grid.begin_w,
                           grid.source_h, grid.source_w);
            }
            for (int output = 0; output < outputs; output += VL) {
                const long from = ((long)image * outputs + output) * pixels + row * grid.size_w;
                transpose_pixels(gradient + output / COLS * gradient_size + output % COLS, 0, OPEN(dy) + from, pixels,
                                 dy_size - from, min(outputs - output, VL), rows * grid.size_w);
            }
            for (int tile = 0; tile < tiles; tile++) {
                for (int c = 0; c < count; c++) {
                    for (int h = 0; h < grid.taps_h; h += HR) {
                        global real *to =
                            sums + (((long)tile * channels + first_channel + c) * grid.taps_h + h) * KW * COLS;
                        const int there = min(grid.taps_h - h, HR) * KW;
                        realv acc[MR][NV];
                        TILE_SET(acc, block > first && i_ < there ? LOAD_REALS(to + i_ * COLS + v_ * VL) : (realv)(0))
                        local const real *b = gradient + tile * gradient_size;
                        for (int u = 0; u < rows; u++) {
                            local const real *a[HR];
#pragma unroll
                            for (int r = 0; r < HR; r++) {
                                const int line = u * grid.stride_h + min(h + r, grid.taps_h - 1) * grid.step_h;
                                a[r] = lines + c * plane_size + line * pitch;
                            }
                            for (int p = 0; p < grid.size_w; p++) {
                                TILE_STEP(acc, a[i_ / KW][i_ % KW], vector_[v_] = LOAD_REALS(b + v_ * VL))
#pragma unroll
                                for (int r = 0; r < HR; r++) a[r] += grid.stride_w;
                                b += COLS;
                            }
                        }
                        TILE_ROWS {
                            if (i_ < there) {
                                TILE_VECTORS STORE_REALS(to + i_ * COLS + v_ * VL, acc[i_][v_]);
                            }
                        }
                    }
                }
            }
        }
    }
}
