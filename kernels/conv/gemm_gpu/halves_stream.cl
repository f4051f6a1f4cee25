// Products of pixels with few weights in channels last, by matrix units whose operands are of 16 bits: forward, and
// backward data of kernels of one tap with stride 1. Work-groups walk over tiles of pixels.
//
// A work-group has TILE_N columns of a group and every `walkers`-th tile of TILE_M rows. The weights of all HELD_STEPS
// steps of the depth stay in local memory. The steps' pixels, tile after tile, pass STAGES places there and are copied
// STAGES - 1 steps ahead: those of the next tiles arrive while sums are stored, by way of memory of their own. ROUNDED:
// nothing follows the sums, neither a bias nor an epilogue, so that they are rounded before that, unless they are added
// to the target.
//
// Kernels with several taps look for them once: where the first taps of the next tile's rows are, and the taps of each
// step's vectors, is in local memory.
//
// OPERATION is FORWARD or DATA, as in halves.cl. Global: work-groups for columns, innermost, and walkers; 1; groups.

#ifndef ROUNDED
#define ROUNDED 0
#endif
#if ROUNDED  // the usual sums take half the memory; those that are added to the target are stored in more parts
#define STAGED_COLUMNS 32
#else
#define STAGED_COLUMNS 64
#define UNROLLED_ROWS _Pragma("unroll 4")
#endif

#include "conv/gemm_gpu/halves_product.cl"

#define HELD_BYTES (HELD_STEPS * B_TILE * 2)
#define PIXELS_BYTES (STAGES * A_TILE * 2)
#define PIXELS_AHEAD (STAGES - 1)

#if PLAIN
#define GRID_PARAMETERS
#define TAKE_PLACES
#define PASS_PLACES
#define DEPTH_OF(channels) (channels)
#else
#define PHASES 0
#define WHOLE 0
#include "conv/gemm_gpu/loaders/halves.cl"
#define GRID_PARAMETERS , const Grid grid, const Divisors by
#define TAKE_PLACES GRID_PARAMETERS, local Walk *walks, local RowPlace *places
#define PASS_PLACES , grid, by, walks, places
#define DEPTH_OF(channels) ((channels) * grid.taps_d * grid.taps_h * grid.taps_w)
// Where the first tap of a tile's row is.
typedef struct {
    global const stored *from;
    Position at;
} RowPlace;
#endif

// Copies 64 elements of the depth, from element `first` on, of all columns. columns_left: from the tile's first one on.
ALWAYS_INLINE void copy_weights(local ushort *to, global const stored *weights, const int first, const int depth,
                                const int columns, const int columns_left, const bool aligned) {
    const int vector = get_local_id(0) % 8 * 8, row = get_local_id(0) / 8;
#if OPERATION == FORWARD
#pragma unroll
    for (int i = 0; i < B_COPIES; i++) {
        const int column = row + i * ROWS_AT_ONCE;
        COPY_OR_LOAD(to + HALVES_SLOT(vector, column), weights + (long)column * depth + first + vector,
                     column < columns_left && first + vector < depth);
    }
#else
#pragma unroll
    for (int i = 0; i < DEPTH_COPIES; i++) {
        const int channel = first + row + i * ROWS_AT_ONCE;
#pragma unroll
        for (int j = 0; j < TILE_N / 64; j++)
            COPY_OR_LOAD(
                to + j * HALVES_BLOCK + HALVES_SLOT(vector, row + i * ROWS_AT_ONCE),
                weights + (long)channel * columns + 64 * j + vector, channel < depth && 64 * j + vector < columns_left);
    }
#endif
}

// The step that is copied next: of a tile, and the work-item's vectors there.
typedef struct {
    int tile, step;
#if PLAIN
    global const stored *from;  // the first one
#else
    RowPlace rows[A_COPIES];
    int list;  // of `places`: 0 or 1, the tile's
#endif
} Copied;

#if !PLAIN
// Fills a list of the places of a tile's rows.
ALWAYS_INLINE void find_places(local RowPlace *places, global const stored *source, const int first, const int rows,
                               const int pixel_step, const Grid grid, const Divisors by) {
    for (int row = get_local_id(0); row < TILE_M; row += THREADS) {
        const GridPixel pixel = grid_pixel(within(first + row, rows), grid, by);
        const Position at = first_tap(pixel, grid);
        places[row].at = at;
        places[row].from = source + elements_to(at, pixel.image, pixel_step, grid);
    }
}
#endif

ALWAYS_INLINE void copy_pixels(local ushort *to, Copied *next, global const stored *source, const int rows,
                               const int channels, const int pixel_step, const int walkers,
                               const bool aligned TAKE_PLACES) {
    const int vector = get_local_id(0) % 8 * 8, row = get_local_id(0) / 8, first = next->tile * TILE_M;
    if (first >= rows) return;
#if PLAIN
    if (next->step == 0) next->from = source + (long)(first + row) * pixel_step + vector;
#pragma unroll
    for (int i = 0; i < A_COPIES; i++)
        COPY_OR_LOAD(
            to + HALVES_SLOT(vector, row + i * ROWS_AT_ONCE), next->from + (long)(i * ROWS_AT_ONCE) * pixel_step,
            first + row + i * ROWS_AT_ONCE < rows && next->step * HALVES_DEPTH + vector < channels);
    next->from += HALVES_DEPTH;
#else
    if (next->step == 0) {
#pragma unroll
        for (int i = 0; i < A_COPIES; i++) next->rows[i] = places[next->list * TILE_M + row + i * ROWS_AT_ONCE];
        next->list ^= 1;  // other work-items read it after the next barrier
        if (first + walkers * TILE_M < rows)
            find_places(places + next->list * TILE_M, source, first + walkers * TILE_M, rows, pixel_step, grid, by);
    }
    const Walk walk = walks[next->step * 8 + get_local_id(0) % 8];
    const bool there = has_tap(walk, channels, grid);
#pragma unroll
    for (int i = 0; i < A_COPIES; i++)
        COPY_OR_LOAD(
            to + HALVES_SLOT(vector, row + i * ROWS_AT_ONCE), next->rows[i].from + (walk.distance + walk.channel),
            there && meets(next->rows[i].at, walk.d, walk.h, walk.w, grid));
#endif
    if (++next->step == HELD_STEPS) {
        next->step = 0;
        next->tile += walkers;
    }
}

#if ROUNDED
// Where a row's columns are in local memory as numbers of 16 bits: eight rows' vectors are in different banks.
#define ROUNDED_COLUMNS 64
#define ROUNDED_AT(row, column) ((row) * ROUNDED_COLUMNS + ((column) / 8 ^ ((row) & 7)) * 8 + (column) % 8)
#define ROUNDED_ROWS (THREADS / (ROUNDED_COLUMNS / 8))
#define ROUNDED_BYTES (TILE_M * ROUNDED_COLUMNS * 2)
#ifdef PTX
#define ROUND_TWO(to, first, second) *(local ushort2 *)(to) = narrow2((float2)(first, second))
#else
#define ROUND_TWO(to, first, second)            \
    {                                           \
        STORE((local stored *)(to), 0, first);  \
        STORE((local stored *)(to), 1, second); \
    }
#endif

// Stores a tile's sums. first: the target's element of the tile's first row and column.
ALWAYS_INLINE void store_rounded(const float *sums, local ushort *staged, global stored *first, const int rows_left,
                                 const int columns_left, const int row_step) {
    const int id = get_local_id(0), vector = id % (ROUNDED_COLUMNS / 8) * 8, row = id / (ROUNDED_COLUMNS / 8);
    global stored *const to = first + (long)row * row_step + vector;
#pragma unroll
    for (int begin = 0; begin < TILE_N; begin += ROUNDED_COLUMNS) {
        if (begin) barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
        for (int e = 0; e < SUMS; e += 2) {
            const uint of_tile = SUM_ROW(e), column = SUM_COLUMN(e) - begin;
            if (column < ROUNDED_COLUMNS) ROUND_TWO(staged + ROUNDED_AT(of_tile, column), sums[e], sums[e + 1]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (begin + vector < columns_left) {
#pragma unroll
            for (int i = 0; i < TILE_M / ROUNDED_ROWS; i++)
                if (row + i * ROUNDED_ROWS < rows_left)
                    *(global ushort8 *)(to + begin + (long)(i * ROUNDED_ROWS) * row_step) =
                        *(local const ushort8 *)(staged + ROUNDED_AT(row + i * ROUNDED_ROWS, vector));
        }
    }
}
#else
#define ROUNDED_BYTES 0
#endif
#define ALL_STAGED_BYTES (ROUNDED_BYTES > STAGED_BYTES ? ROUNDED_BYTES : STAGED_BYTES)

// Multiplies and stores every `walkers`-th tile of rows from tile `walker` on.
ALWAYS_INLINE void multiply_tiles(
    local ushort *held, local ushort *pixels, local float *staged, const int walker, const int walkers,
    global const stored *source, global const stored *weights, CONST_TENSOR(bias), TENSOR(target), const int has_bias,
    const int accumulate, const int rows, const int columns, const int channels, const int groups, const int group,
    const int column_tile, const bool aligned TAKE_PLACES TAKE_EXCHANGE TAKE_EPILOGUE) {
    const int pixel_step = groups * channels;
    Copied next;
    next.tile = walker;
    next.step = 0;
#if !PLAIN
    next.list = 0;
    for (int i = get_local_id(0); i < HELD_STEPS * 8; i += THREADS)
        walks[i] = walk_from(i * 8, channels, pixel_step, grid);
    if (walker * TILE_M < rows) find_places(places, source, walker * TILE_M, rows, pixel_step, grid, by);
#endif
#pragma unroll
    for (int step = 0; step < HELD_STEPS; step++)
        copy_weights(held + step * B_TILE, weights, step * HALVES_DEPTH, DEPTH_OF(channels), columns,
                     columns - column_tile, aligned);
#define COPY_PIXELS(place) \
    copy_pixels(pixels + (place) * A_TILE, &next, source, rows, channels, pixel_step, walkers, aligned PASS_PLACES)
#pragma unroll
    for (int i = 0; i < PIXELS_AHEAD; i++) {
#if !PLAIN
        barrier(CLK_LOCAL_MEM_FENCE);  // the tile's places are there
#endif
        COPY_PIXELS(i);
        COPIES_COMMIT;
    }
    int now = 0, free = PIXELS_AHEAD;
#pragma unroll 1
    for (int row_tile = walker * TILE_M; row_tile < rows; row_tile += walkers * TILE_M) {
        float sums[SUMS];
#pragma unroll
        for (int e = 0; e < SUMS; e++) sums[e] = 0;
#pragma unroll 1
        for (int step = 0; step < HELD_STEPS; step++) {
            COPIES_WAIT(PIXELS_AHEAD - 1);
            FENCE_TILES;
            barrier(CLK_LOCAL_MEM_FENCE);  // the step's pixels are there, and what is in `free` is not read any more
            MULTIPLY(sums, pixels + now * A_TILE, 0, held + step * B_TILE);
            COPY_PIXELS(free);
            COPIES_COMMIT;
            PRODUCTS_WAIT(sums, 0);
            now = now + 1 == STAGES ? 0 : now + 1;
            free = free + 1 == STAGES ? 0 : free + 1;
        }
#if ROUNDED
        if (!accumulate && columns % 8 == 0 && (ulong)OPEN(target) % 16 == 0) {
            store_rounded(
                sums, (local ushort *)staged, OPEN(target) + ((long)row_tile * groups + group) * columns + column_tile,
                rows - row_tile, columns - column_tile, groups * columns);
            continue;
        }
#endif
#define OF_PIXEL(row) (row_tile + (row) < rows ? ((long)(row_tile + (row)) * groups + group) * columns : -1)
#pragma unroll
        for (int begin = 0; begin < TILE_N; begin += STAGED_COLUMNS) {
            if (begin) barrier(CLK_LOCAL_MEM_FENCE);  // nobody reads the columns before; a tile's steps have such, too
            stage_sums(sums, staged, begin);
            barrier(CLK_LOCAL_MEM_FENCE);
            STORE_STAGED(OF_PIXEL, begin)
        }
    }
    COPIES_WAIT(0);
}

ONE_BY_ONE OF_WAVES __attribute__((reqd_work_group_size(THREADS, 1, 1))) kernel void conv_stream_halves(
    CONST_TENSOR(a), CONST_TENSOR(b), CONST_TENSOR(bias), TENSOR(target), const int has_bias, const int accumulate,
    const int rows, const int columns, const int channels, const int groups,
    const int walkers GRID_PARAMETERS EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    const int column_tiles = (columns + TILE_N - 1) / TILE_N, walker = (uint)get_group_id(0) / (uint)column_tiles;
    const int column_tile = ((int)get_group_id(0) - walker * column_tiles) * TILE_N, group = get_group_id(2);
    global const stored *const source = OPEN(a) + (long)group * channels;
#if OPERATION == FORWARD
    global const stored *const weights = OPEN(b) + ((long)group * columns + column_tile) * DEPTH_OF(channels);
#else
    global const stored *const weights = OPEN(b) + (long)group * channels * columns + column_tile;
#endif
    const bool aligned = ((ulong)OPEN(a) | (ulong)OPEN(b)) % 16 == 0;
    local uchar memory[HELD_BYTES + PIXELS_BYTES + ALL_STAGED_BYTES] TILE_ALIGNMENT;
#if !PLAIN
    local Walk walks[HELD_STEPS * 8];
    local RowPlace places[2 * TILE_M];
#endif
    DECLARE_EXCHANGE
    local ushort *const held = (local ushort *)memory, *const pixels = (local ushort *)(memory + HELD_BYTES);
    local float *const staged = (local float *)(memory + HELD_BYTES + PIXELS_BYTES);
    if (aligned)
        multiply_tiles(held, pixels, staged, walker, walkers, source, weights, bias_base, bias_offset, target_base,
                       target_offset, has_bias, accumulate, rows, columns, channels, groups, group, column_tile,
                       true PASS_PLACES PASS_EXCHANGE PASS_EPILOGUE);
    else
        multiply_tiles(held, pixels, staged, walker, walkers, source, weights, bias_base, bias_offset, target_base,
                       target_offset, has_bias, accumulate, rows, columns, channels, groups, group, column_tile,
                       false PASS_PLACES PASS_EXCHANGE PASS_EPILOGUE);
}
