// The convolution's backward filter on CPU devices, as a product of matrices whose long axis is the pixels.
//
//     partial[split][group][tile of COLS out channels][k][COLS]  =  sum over a split's pixels p of
//         panel[k][p] * dy[p][out channel]
//
// k is (channel, tap). The panel is filled as for the forward convolution, with a pixel's taps apart by PITCH; dy is
// transposed block by block into local memory, so that both streams of the register tile are contiguous. Work-items,
// which are work-groups, share items by tickets: a split of the pixels (innermost), a range of source rows, a range of
// out channels in one group. partial_sums.cl adds the splits.
//
// Where a kernel has one tap and no stride, what the next block is filled with is asked for while this one is
// multiplied, evenly spread over the products.
//
// Where operands are pairs, these are neighbouring pixels of a block, whose size is even: the panel holds numbers as
// they are stored, the transposed dy pairs, and both have a zero after an odd number of pixels.
//
// AMX  the processor's matrix unit multiplies, common/amx.cl: 32 rows of the panel as they lie with 32 out channels.
//      Pixels are zeros after the last one up to a whole block of steps. After the sums of all splits partial has a
//      tile of them for each work-item: those of which some are not stored

#ifndef PITCH
#define PITCH 208  // elements of a panel row: a block's pixels and slack of one vector; no multiple of a cache way
#endif
#define PLANES 1
#define AMX_SUMS global
#define AMX_A local

#include "common/tickets.cl"
#include "conv/gemm_cpu/gradient.cl"
#include "conv/gemm_cpu/panel.cl"

#define LINE (64 / (int)sizeof(stored))  // elements of a cache line

#if AMX
// Sets pixels that fill the last block of steps to zeros.
void end_rows(local cell *panel, const int rows, const int count) {
    const int filled = (count + VL - 1) / VL * VL;
    for (int k = 0; filled % (TILE_STEPS * NUMBERS) && k < rows; k++)
        STORE_OPERANDS(panel + k * PITCH + filled, (cells)(0));
}

void copy_sums(global real *to, global const real *from, const int rows) {
    for (int i = 0; i < rows * COLS; i += VL) STORE_REALS(to + i, LOAD_REALS(from + i));
}
#endif

kernel void conv_filter(CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR_OF(real, partial), const int channels,
                        const int out_count, const int groups, const Grid grid, const int block,
                        const int blocks_of_split, const int rows_of_item, const int tiles_of_item, const int part,
                        volatile global int *tickets, local cell *panel, local operand *gradient, local int *runs) {
    const int out_tiles = (out_count + COLS - 1) / COLS, out_items = (out_tiles + tiles_of_item - 1) / tiles_of_item;
    const int source_rows = channels * grid.taps_d * grid.taps_h;
    const int row_items = (source_rows + rows_of_item - 1) / rows_of_item;
    const long pixels = (long)grid.size_d * grid.size_h * grid.size_w, all = grid.batch * pixels;
    const long split_size = (long)blocks_of_split * block;
    const long source = (long)grid.source_d * grid.source_h * grid.source_w, image_size = groups * channels * source;
    const long dy_size = grid.batch * groups * out_count * pixels;
    const int gradient_pitch = (block / NUMBERS + VL) * COLS;
    const int splits = (int)((all + split_size - 1) / split_size), workers = get_global_size(0);
    const int items = splits * row_items * out_items * groups;

    // each pixel meets the source element of its own number: where the next block's pixels lie needs no runs
    const bool in_place = grid.taps_d * grid.taps_h * grid.taps_w == 1 && pixels == source && grid.begin_d == 0 &&
                          grid.begin_h == 0 && grid.begin_w == 0 && grid.stride_d * grid.stride_h * grid.stride_w == 1;
#if AMX
    const long split_sums = (long)groups * out_tiles * source_rows * grid.taps_w * COLS;
    global real *spare = OPEN(partial) + splits * split_sums + get_global_id(0) * MR * COLS;
    set_tiles();
#endif
    long next_x[PITCH / LINE + 1], next_dy[PITCH / LINE + 1];

    FOR_ITEMS(share) {
        const int split = share.item % splits, row_item = share.item / splits % row_items;
        const int out_item = share.item / splits / row_items % out_items,
                  group = share.item / splits / row_items / out_items;
        const int first_tile = out_item * tiles_of_item, tile_count = min(tiles_of_item, out_tiles - first_tile);
        const int first_row = row_item * rows_of_item, last_row = min(first_row + rows_of_item, source_rows);
        const long first_pixel = split * split_size, last_pixel = min(first_pixel + split_size, all);
        global const stored *xs = OPEN(x) + group * channels * source;
        const long left = grid.batch * image_size - group * channels * source;
        global real *sums = OPEN(partial) + ((split * groups + group) * out_tiles + first_tile) * (long)source_rows *
                                                grid.taps_w * COLS;
        for (long first = first_pixel; first < last_pixel; first += block) {
            const bool asks = in_place && first + block < last_pixel;
            for (int i = 0; asks && i < (block + LINE - 1) / LINE; i++) {
                const long pixel = min(first + block + i * LINE, last_pixel - 1), image = pixel / pixels;
                next_x[i] = image * image_size + pixel - image * pixels;
                next_dy[i] = (image * groups + group) * out_count * pixels + pixel - image * pixels;
            }
            const int count = (int)min(last_pixel - first, (long)block);
            cut_runs(runs, first, count, grid);
            for (int at = 0; at < count;) {
                const long image = (first + at) / pixels, rest = first + at - image * pixels;
                const int length = (int)min((long)count - at, pixels - rest);
                for (int lane = 0; lane < tile_count * COLS; lane += VL) {
                    const int out = first_tile * COLS + lane, lanes = min(out_count - out, VL);
                    const long from = ((image * groups + group) * out_count + out) * pixels + rest;
                    if (lanes > 0) {
                        transpose_pixels(gradient + lane / COLS * gradient_pitch + lane % COLS, at, OPEN(dy) + from,
                                         pixels, dy_size - from, lanes, length);
                    }
                }
                at += length;
            }
#if PAIRED
            for (int lane = 0; lane < tile_count * COLS; lane += VL)
                end_pixels(gradient + lane / COLS * gradient_pitch + lane % COLS, count);
#endif
            for (int from = first_row; from < last_row; from += part) {
                const int to = min(from + part, last_row), k_count = (to - from) * grid.taps_w;
                fill_panel(panel, block, block, grid.taps_d * grid.taps_h * grid.taps_w * PITCH, PITCH, 0, runs, count,
                           count, xs, image_size, left, from, to, grid);
#if AMX
                end_rows(panel, k_count, count);
#endif
                for (int tile = 0; tile < tile_count; tile++) {
                    const int asked = (COLS * MR + k_count - 1) / k_count;  // rows of dy that a tile's products ask for
                    global real *tile_sums = sums + ((long)tile * source_rows + from) * grid.taps_w * COLS;
                    for (int k = 0; k < k_count; k += MR) {
#if !AMX
                        realv acc[MR][NV];
#pragma unroll
                        for (int i = 0; i < MR; i++) {
                            const bool old = first > first_pixel && k + i < k_count;
#pragma unroll
                            for (int v = 0; v < NV; v++) {
                                acc[i][v] = old ? LOAD_REALS(tile_sums + (k + i) * COLS + v * VL) : (realv)(0);
                            }
                        }
#endif
                        local const cell *a = panel + k * PITCH;
                        local const operand *b = gradient + tile * gradient_pitch;
                        for (int p = 0; p < count;) {
                            const int stop = asks ? min(p + LINE, count) : count;
                            if (asks) {
                                const int i = p / LINE, out = (first_tile + tile) * COLS + k / MR * asked;
                                global const stored *x_row = xs + next_x[i] + (from + k) * source;
                                global const stored *dy_row = OPEN(dy) + next_dy[i] + out * pixels;
#pragma unroll
                                for (int j = 0; j < MR; j++) {
                                    if (i % tile_count == tile) __builtin_prefetch(x_row + j * source, 0, 2);
                                }
                                for (int j = 0; j < asked; j++) __builtin_prefetch(dy_row + j * pixels, 0, 2);
                            }
#if AMX
                            p = stop;
#else
                            for (; p < stop; p += NUMBERS) {
                                TILE_STEP(acc, PANEL_OPERAND(a + i_ * PITCH), vector_[v_] = LOAD_OPERANDS(b + v_ * VL))
                                a += NUMBERS;
                                b += COLS;
                            }
#endif
                        }
#if AMX
                        global real *all_sums = tile_sums + k * COLS,
                                    *whole_sums = k + MR <= k_count ? all_sums : spare;
                        const bool old = first > first_pixel;
                        if (old && whole_sums == spare) copy_sums(spare, all_sums, k_count - k);
                        multiply_tiles(whole_sums, old, (local const operand *)a, PITCH / NUMBERS, TILE_STEPS, b,
                                       WHOLE_BLOCKS((count + 1) / NUMBERS) / TILE_STEPS);
                        if (whole_sums == spare) copy_sums(all_sums, spare, k_count - k);
#else
#pragma unroll
                        for (int i = 0; i < MR; i++) {
                            if (k + i < k_count) {
#pragma unroll
                                for (int v = 0; v < NV; v++)
                                    STORE_REALS(tile_sums + (k + i) * COLS + v * VL, acc[i][v]);
                            }
                        }
#endif
                    }
                }
            }
        }
    }
#if AMX
    release_tiles();
#endif
}
