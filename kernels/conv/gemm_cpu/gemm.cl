// Convolution, and its backward data where the stride is 1, on CPU devices, as a product of matrices over a panel that
// stays in the cache.
//
//     y[image][group][m][u]  =  bias[m] + sum over (channel, tap) of weights[m][channel, tap] * panel[channel, tap][u]
//
// weights   operands, [group][m][channel, tap], the convolution's own in place; or packed, see weights.cl, and with AMX
//           pack_amx.cl
// panel     local, [tile of COLS pixels][channel, tap][COLS], one block of pixels, a part of the channels at a time
// y         (batch, groups * m_count, od, oh, ow), the grid's pixels
//
// PAST_CACHES  y is too large to be found in a cache again: whole tiles are stored past them
// AMX          tiles of bfloat16 are multiplied by the processor's matrix unit: common/amx.cl
//
// Work-items, which are work-groups, share items by tickets: one block of pixels (innermost), one block of rows m, one
// group. Tiles are MR x NV vectors.

#include "conv/gemm_cpu/weights.cl"
#include "conv/gemm_cpu/panel.cl"
#include "conv/gemm_cpu/block.cl"
#include "common/amx.cl"

#if AMX
#define PANEL_STEPS(steps) WHOLE_BLOCKS(steps)
#define FINISHED 4                        // rows of a tile that are finished together
#define LINE (64 / (int)sizeof(stored))   // elements of a cache line
#define MOST_LINES (8 * COLS / LINE + 1)  // of a row of a block, whose tiles are at most 8

// Sets the steps of a panel that fill the last block to zeros.
void end_panel(local operand *panel, const int pitch, const int tiles, const int steps) {
    for (int tile = 0; tile < tiles; tile++) {
        for (int i = steps * COLS; i < WHOLE_BLOCKS(steps) * COLS; i += VL)
            STORE_OPERANDS(panel + tile * pitch + i, (operandv)(0));
    }
}
#else
#define PANEL_STEPS(steps) (steps)
#endif

kernel void conv_gather(CONST_TENSOR(x), TENSOR_OF(const operand, weights), const WeightStrides strides,
                        CONST_TENSOR(bias), TENSOR(y), const int has_bias, const int accumulate, const int channels,
                        const int m_count, const Grid grid, const int groups, const int block_tiles,
                        const int block_rows, const int part, volatile global int *tickets, local cell *panel,
                        local real *tile_out, local int *runs, local real *kept EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    const long pixels = (long)grid.size_d * grid.size_h * grid.size_w;
    const int m_tiles = (m_count + MR - 1) / MR;
    const int taps = grid.taps_d * grid.taps_h * grid.taps_w;
    const int source_rows = channels * grid.taps_d * grid.taps_h;
    const int pitch = PANEL_STEPS(part * grid.taps_w) * COLS + VL;  // of a tile
    const long source = (long)grid.source_d * grid.source_h * grid.source_w,
               image_size = groups * channels * PLANES * source;
    const Blocks blocks = blocks_of(grid.batch * pixels, block_tiles, m_tiles, block_rows);
    const int items = blocks.across * blocks.down * groups, workers = get_global_size(0);

#if AMX
    // each pixel meets the source element of its own number, and perhaps its neighbours
    const bool in_place = pixels == source && grid.stride_d * grid.stride_h * grid.stride_w == 1;
    set_tiles();
#endif
    FOR_ITEMS(share) {
        const Block block = block_of(&blocks, share.item);
        const int group = block.group, count = block.count;
        const long first = block.first;
        global const stored *xs = OPEN(x) + group * channels * PLANES * source;
        const long left = grid.batch * image_size - group * channels * PLANES * source;
        cut_runs(runs, first, count, grid);
#if AMX
        // what the next block's panel is filled with is asked for meanwhile, evenly spread over the products
        const int products = (block.m_last - block.m_first) * ((count + COLS - 1) / COLS);
        const int asked = (channels * PLANES + products - 1) / products;
        const int lines = in_place && part >= source_rows && share.item < share.last && first + count < blocks.all
                              ? (blocks.pixels + LINE - 1) / LINE
                              : 0;
        long next[MOST_LINES];
        for (int i = 0; i < lines; i++) {
            const long pixel = min(first + count + i * LINE, blocks.all - 1), image = pixel / pixels;
            next[i] = image * image_size + pixel - image * pixels;
        }
#endif
        for (int from = 0; from < max(source_rows, 1); from += part) {
            const int to = min(from + part, source_rows);
            const int k_count = (to - from) * grid.taps_w;
#if KEEP_SUMS
            const bool add = accumulate;
#else
            const bool add = accumulate || from;
#endif
            const bool once = (KEEP_SUMS || part >= source_rows) && !accumulate;  // no part is added to another's in y
            fill_panel(
                panel, COLS, COLS, taps * COLS, COLS, pitch, runs, count, count, xs, image_size, left, from, to, grid);
#if AMX
            end_panel(panel, pitch, (count + COLS - 1) / COLS, k_count);
#endif
            for (int m_tile = block.m_first; m_tile < block.m_last; m_tile++) {
                const int m = m_tile * MR, m_rows = min(MR, m_count - m);
#if AMX
                global const operand *a = OPEN(weights) + group * strides.group + m_tile * strides.tile +
                                          (long)from * grid.taps_w * strides.step;
#else
                TILE_WEIGHTS(a, OPEN(weights), strides, group, m_tile, m_rows, (long)from * grid.taps_w)
#endif
                for (int tile = 0; tile * COLS < count; tile++) {
                    local const cell *b = panel + tile * pitch;
                    const int number = (m_tile - block.m_first) * block_tiles + tile;
                    const long p = first + tile * COLS, image = p / pixels;
                    const bool whole = m_rows == MR && p + COLS <= (image + 1) * pixels;
                    global stored *ys =
                        OPEN(y) + ((image * groups + group) * m_count + m) * pixels + (p - image * pixels);
#if AMX
                    local real *sums = part < source_rows ? kept + number * MR * COLS : tile_out;
#ifndef PAST_CACHES
                    if (whole && to == source_rows) {  // as is the next tile
                        global stored *next_ys = (tile + 1) * COLS < count ? ys + COLS : ys + MR * pixels - tile * COLS;
                        for (int i = 0; i < MR; i++) PREFETCH_TO_WRITE(next_ys + i * pixels);
                    }
#endif
                    for (int i = 0; i < asked; i++) {
                        global const stored *row = xs + (number * asked + i) * source;
                        for (int l = 0; l < lines; l++) PREFETCH_FAR(row + next[l]);
                    }
                    multiply_tiles(
                        sums, from > 0, a, TILE_STEPS, MR * TILE_STEPS, b, PANEL_STEPS(k_count) / TILE_STEPS);
                    if (to < source_rows) continue;
                    for (int lower = 0; lower < MR; lower += FINISHED) {
                        realv acc[FINISHED][NV];
                        local real *row_sums = sums + lower * COLS;
                        global const stored *biases = OPEN(bias) + group * m_count + m;
                        SET_ROWS(FINISHED, acc, LOAD_REALS(row_sums + i_ * COLS + v_ * VL))
                        if (has_bias) {
                            SET_ROWS(FINISHED, acc, LOAD(biases, min(lower + i_, m_rows - 1)) + acc[i_][v_])
                        }
                        if (whole) {
                            STORE_WHOLE_ROWS(
                                FINISHED, acc, ys + lower * pixels, pixels, group * m_count + m + lower, add, once)
                        } else {
                            STORE_ROWS(FINISHED, acc, row_sums, COLS)
                        }
                    }
                    if (whole) continue;
#else
                    local real *sums = tile_out;
                    realv acc[MR][NV];
                    START_TILE(acc, has_bias && from == 0, OPEN(bias) + group * m_count + m, m_rows)
#if KEEP_SUMS
                    local real *kept_sums = kept + number * MR * COLS;
                    if (from > 0) {
                        TILE_LOAD(acc, kept_sums, COLS)
                    }
#endif
                    long at = 0;
                    for (int k = 0; k < k_count; k++) {
                        TILE_STEP(acc, a[i_][at], vector_[v_] = LOAD_OPERANDS(b + v_ * VL))
                        at += strides.step;
                        b += COLS;
                    }
#if KEEP_SUMS
                    if (to < source_rows) {
                        TILE_STORE(acc, kept_sums, COLS)
                        continue;
                    }
#endif
                    if (whole) {
                        STORE_TILE(acc, ys, pixels, group * m_count + m, add, once)
                        continue;
                    }
                    TILE_STORE(acc, sums, COLS)
#endif
                    const int columns = min(COLS, count - tile * COLS);
                    store_columns(
                        OPEN(y), sums, p, columns, pixels, group, groups, m_count, m, m_rows, add PASS_EPILOGUE);
                }
            }
        }
    }
#if AMX
    release_tiles();
#endif
}
