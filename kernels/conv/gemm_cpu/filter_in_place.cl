// Kernels of one pixel, backward filter on CPU devices: a product of matrices whose long axis is the pixels, in place.
//
//     partial[split][group][tile of COLS columns][row][COLS]  =  sum over a split's pixels p of
//         a[row][p] * b[column][p]
//
// One of a and b is x, the other one dy; rows are the channels of a group in a, columns those in b. a is read where it
// lies: a step multiplies with one pixel of each of MR rows, from cache lines that the next steps use. Numbers of 16
// bits are converted into local memory, a line of each row just before the first tile's products, for all tiles of
// columns. b is transposed block by block into local memory. So the tensor with fewer channels should be b. A block's
// pixels are numbered over all images. Operands that are pairs are of two neighbours of an image, which has an even
// number of pixels.
//
// Work-items, which are work-groups, share items by tickets: a split of the pixels (innermost), a range of row tiles, a
// range of column tiles in one group. What the next block reads is asked for while this one is multiplied, evenly
// spread over the products. partial_sums.cl adds the splits; where there is one and a is dy, `direct`, the last block's
// products store or add to dw themselves.

// IN_GRID  b's pixels lie in a larger tensor, the source of `grid`, STRIDE elements from each other in a row: they are
//          collected where they are transposed

#ifndef MOST_PIXELS
#define MOST_PIXELS 256  // of a block
#endif

#include "common/tickets.cl"
#include "conv/gemm_cpu/gradient.cl"
#include "conv/grid.cl"

#define LINE (64 / (int)sizeof(stored))  // elements of a cache line

#if STORAGE == 16 && !PAIRED
#define CONVERTED 1
#define ROW_OPERAND(i, p) rows_of_block[(i) * pitch + (p)]
#else
#define CONVERTED 0
#define ROW_OPERAND(i, p) OPERAND_AT(a_of[i] + at, 0)
#endif

#ifdef IN_GRID
#define GRID_PARAMETERS , const Grid grid
#define PASS_GRID_PARAMETERS , grid
// Where a pixel of an image is in a plane of the source; `*length` becomes the rest of its row, or stays if it is less.
long place_of(const long pixel, int *length, const Grid grid) {
    const long row = pixel / grid.size_w;
    const int w = (int)(pixel - row * grid.size_w), h = (int)(row % grid.size_h), d = (int)(row / grid.size_h);
    *length = min(*length, grid.size_w - w);
    const long source_row = (d * grid.stride_d + grid.begin_d) * (long)grid.source_h + h * grid.stride_h + grid.begin_h;
    return source_row * grid.source_w + w * STRIDE + grid.begin_w;
}
#define PLACE_OF(pixel, length) place_of(pixel, length, grid)
#else
#define GRID_PARAMETERS
#define PASS_GRID_PARAMETERS
#define PLACE_OF(pixel, length) (pixel)
#endif

// to[i] = from[i] for i < count, and for some after these of the `room` that there are.
void convert_run(local real *to, global const stored *from, const int count, const int room) {
    int i = 0;
    for (; i < count && i + VL <= room; i += VL) STORE_REALS(to + i, VLOAD(from, i));
    for (; i < count; i++) to[i] = LOAD(from, i);
}

typedef struct {
    FILTER_SPLIT_FIELDS  // block: pixels of a block; blocks: of a split; rows and tiles: register tiles of an item
} FilterSplit;

kernel void filter_in_place(CONST_TENSOR(a), CONST_TENSOR(b), TENSOR_OF(real, partial), TENSOR(dw),
                            const int accumulate, const int batch, const int row_count, const int column_count,
                            const int groups, const long pixels, const FilterSplit cut, volatile global int *tickets,
                            local operand *turned, local real *rows_of_block GRID_PARAMETERS) {
    const int row_tiles = (row_count + MR - 1) / MR, column_tiles = (column_count + COLS - 1) / COLS;
    const int row_items = (row_tiles + cut.rows - 1) / cut.rows,
              column_items = (column_tiles + cut.tiles - 1) / cut.tiles;
    const long all = batch * pixels, split_size = (long)cut.blocks * cut.block;
#ifdef IN_GRID
    const long b_plane = (long)grid.source_d * grid.source_h * grid.source_w;
#else
    const long b_plane = pixels;
#endif
    const long a_image = groups * row_count * pixels, b_image = groups * column_count * b_plane;
    const int splits = (int)((all + split_size - 1) / split_size), workers = get_global_size(0);
    const int items = splits * row_items * column_items * groups;
    const int turned_pitch = (cut.block / NUMBERS + VL) * COLS, pitch = cut.block + VL;
    long next_a[MOST_PIXELS / LINE + 1], next_b[MOST_PIXELS / LINE + 1];  // where lines of the next block begin

    FOR_ITEMS(share) {
        const int split = share.item % splits, row_item = share.item / splits % row_items;
        const int column_item = share.item / splits / row_items % column_items,
                  group = share.item / splits / row_items / column_items;
        const int first_row = row_item * cut.rows * MR, last_row = min(first_row + cut.rows * MR, row_count);
        const int first_tile = column_item * cut.tiles, tile_count = min(cut.tiles, column_tiles - first_tile);
        const int first_column = first_tile * COLS, last_column = min(first_column + tile_count * COLS, column_count);
        const long first_pixel = split * split_size, last_pixel = min(first_pixel + split_size, all);
        global const stored *as = OPEN(a) + group * row_count * pixels;
        global const stored *bs = OPEN(b) + group * column_count * b_plane;
        const int row_turns = (last_row - first_row + MR - 1) / MR;
        const int asked = (COLS * MR + last_row - first_row - 1) / (last_row - first_row);  // columns for each product
        for (long first = first_pixel; first < last_pixel; first += cut.block) {
            const int count = (int)min(last_pixel - first, (long)cut.block);
            const bool asks = first + cut.block < last_pixel, ends = cut.direct && !asks;
            for (int i = 0; asks && i < (cut.block + LINE - 1) / LINE; i++) {
                const long pixel = min(first + cut.block + i * LINE, last_pixel - 1), image = pixel / pixels;
                next_a[i] = image * a_image + pixel - image * pixels;
                int length = LINE;
                next_b[i] = image * b_image + PLACE_OF(pixel - image * pixels, &length);
            }
            const long image = first / pixels, begin = first - image * pixels;
            for (int p = 0, length; p < count; p += length) {
                const long of = (first + p) / pixels, pixel = first + p - of * pixels;
                length = (int)min((long)count - p, pixels - pixel);
                const long b_at = of * b_image + PLACE_OF(pixel, &length);
                for (int column = first_column; column < last_column; column += VL) {
                    const long from = b_at + column * b_plane;
                    const int lane = column - first_column;
                    transpose_pixels(
                        turned + lane / COLS * turned_pitch + lane % COLS, p, bs + from, b_plane,
                        batch * b_image - group * column_count * b_plane - from, min(last_column - column, VL), length);
                }
            }
            for (int turn = 0; turn < row_turns * tile_count; turn++) {
                const int tile = CONVERTED ? turn % tile_count : turn / row_turns;
                const int row = first_row + (CONVERTED ? turn / tile_count : turn % row_turns) * MR;
                const int rows = min(last_row - row, MR);
                global real *sums = OPEN(partial) + ((split * groups + group) * column_tiles + first_tile + tile) *
                                                        (long)row_count * COLS;
                global const stored *a_of[MR];
                realv acc[MR][NV];
                TILE_ROWS {
                    a_of[i_] = as + (row + min(i_, rows - 1)) * pixels;
                    TILE_VECTORS {
                        acc[i_][v_] = first > first_pixel && i_ < rows ? LOAD_REALS(sums + (row + i_) * COLS + v_ * VL)
                                                                       : (realv)(0);
                    }
                }
                long at = image * a_image + begin;
                int end = (int)min((long)count, pixels - begin);  // of an image's pixels
                local const operand *vectors = turned + tile * turned_pitch;
                for (int p = 0; p < count;) {
                    const bool converts = CONVERTED && tile == 0;
                    const int stop = asks || converts ? min(p / LINE * LINE + LINE, end) : end;
                    if (asks) {
                        global const stored *a_next = as + next_a[p / LINE] + row * pixels;
                        global const stored *b_next =
                            bs + next_b[p / LINE] +
                            (first_column + tile * COLS + (row - first_row) / MR * asked) * b_plane;
                        if (p / LINE % tile_count == tile) {
                            TILE_ROWS __builtin_prefetch(a_next + i_ * pixels, 0, 2);
                        }
                        for (int i = 0; i < asked; i++) {
#pragma unroll
                            for (int v = 0; v < MOST_ASKED; v++)
                                __builtin_prefetch(b_next + i * b_plane + v * LINE, 0, 2);
                        }
                    }
                    if (converts)
                        TILE_ROWS convert_run(rows_of_block + i_ * pitch + p, a_of[i_] + at, stop - p, end - p);
                    for (; p < stop; p += NUMBERS) {
                        TILE_STEP(acc, ROW_OPERAND(i_, p), vector_[v_] = LOAD_OPERANDS(vectors + v_ * VL))
                        at += NUMBERS;
                        vectors += COLS;
                    }
                    if (p == end) {
                        at += a_image - pixels;
                        end = (int)min((long)count, end + pixels);
                    }
                }
                const int column = first_column + tile * COLS, columns = min(column_count - column, COLS);
                global stored *dws = OPEN(dw) + (group * row_count + row) * (long)column_count + column;
                if (ends && columns == COLS) {
                    TILE_ROWS {
                        if (i_ < rows) {
                            TILE_VECTORS {
                                const realv old_ = accumulate ? VLOAD(dws, v_ * VL) : (realv)(0);
                                VSTORE(dws, v_ * VL, acc[i_][v_] + old_);
                            }
                        }
                        dws += column_count;
                    }
                    continue;
                }
                TILE_ROWS {
                    if (i_ < rows) {
                        TILE_VECTORS STORE_REALS(sums + (row + i_) * COLS + v_ * VL, acc[i_][v_]);
                    }
                }
                for (int i = 0; ends && i < rows; i++) {
                    for (int j = 0; j < columns; j++)
                        STORE(dws, j, sums[(row + i) * COLS + j] + (accumulate ? LOAD(dws, j) : 0));
                    dws += column_count;
                }
            }
        }
    }
}
