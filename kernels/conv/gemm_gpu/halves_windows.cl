// Convolution in channels last with stride 1 by matrix units whose operands are of 16 bits: the pixels that all taps
// meet are in local memory once for 64 channels, and each tap's products begin at another row of them.
//
// Rows of C are positions of planes with room for the padding: `pitch` positions for a row of pixels and `lines` rows
// for an image. What follows a row's or an image's last pixel is zero, and is what lies before the first pixel of the
// next one, too: a tap is the same distance away from every position. Sums of positions that are no pixels are dropped.
//
// OPERATION is FORWARD or DATA, as in halves.cl. SOURCE_ROWS positions are in local memory: those of the tile, and as
// many as from the first to the last tap. SOURCES: 1 or 2 such planes at the same time; with 2 there
// are at least STAGES - 1 taps. STATISTICS, GRADIENT_SUMS: see store/sums.cl.

#include "conv/gemm_gpu/halves_product.cl"
#include "conv/gemm_gpu/loaders/positions.cl"

#define SOURCE_TILE (SOURCE_ROWS * HALVES_DEPTH)
#define TILES_BYTES ((SOURCES * SOURCE_TILE + STAGES * B_TILE) * 2)
#define LOCAL_BYTES (TILES_BYTES > STAGED_BYTES ? TILES_BYTES : STAGED_BYTES)
#define AHEAD (STAGES - 1 - PENDING)

// Copies rows [begin, end) of the source's tile, with the channels from `channel` on.
ALWAYS_INLINE void copy_source(local ushort *to, global const stored *source, local const int *pixels, const int begin,
                               const int end, const int channel, const int channels, const long pixel_step,
                               const bool aligned) {
    const int id = get_local_id(0), vector = id % 8 * 8;
    for (int row = begin + id / 8; row < end; row += ROWS_AT_ONCE) {
        const int pixel = pixels[row];
        const bool valid = pixel >= 0 && channel + vector < channels;
        COPY_OR_LOAD(to + HALVES_SLOT(vector, row), source + max(pixel, 0) * pixel_step + channel + vector, valid);
    }
}

// Where a work-item's vectors of weights are, at the kernel's first tap and the first channel.
typedef struct {
#if OPERATION == FORWARD
    global const stored *from[B_COPIES];  // of columns
#else
    global const stored *from[DEPTH_COPIES];  // of channels
#endif
} Weights;

ALWAYS_INLINE void open_weights(Weights *weights, global const stored *first, const int taps, const int channels,
                                const int columns_left, const int columns) {
    const int id = get_local_id(0), vector = id % 8 * 8, row = id / 8;
#if OPERATION == FORWARD
#pragma unroll
    for (int i = 0; i < B_COPIES; i++) {
        int column = row + i * ROWS_AT_ONCE;
        if (column >= columns_left) {  // not stored: any will do, but each another one, or they wait for each other
            const uint other = (uint)(columns - columns_left + column) % (uint)columns;
            column = (int)other - (columns - columns_left);
        }
        weights->from[i] = first + (long)column * taps * channels + vector;
    }
#else
#pragma unroll
    for (int i = 0; i < DEPTH_COPIES; i++)
        weights->from[i] = first + (long)(row + i * ROWS_AT_ONCE) * taps * columns + vector;
#endif
}

// Copies a tap's weights for 64 channels. tap: of the kernel.
ALWAYS_INLINE void copy_weights(local ushort *to, const Weights *weights, const int tap, const int taps,
                                const int channel, const int channels, const int columns_left, const int columns,
                                const bool aligned) {
    const int id = get_local_id(0), vector = id % 8 * 8, row = id / 8;
#if OPERATION == FORWARD
    const bool valid = channel + vector < channels;
    const long further = (long)tap * channels + channel;
#pragma unroll
    for (int i = 0; i < B_COPIES; i++)
        COPY_OR_LOAD(to + HALVES_SLOT(vector, row + i * ROWS_AT_ONCE), weights->from[i] + further, valid);
#else
    const long further = ((long)channel * taps + tap) * columns;
#pragma unroll
    for (int i = 0; i < DEPTH_COPIES; i++) {
        const bool there = channel + row + i * ROWS_AT_ONCE < channels;
#pragma unroll
        for (int j = 0; j < TILE_N / 64; j++)
            COPY_OR_LOAD(to + j * HALVES_BLOCK + HALVES_SLOT(vector, row + i * ROWS_AT_ONCE),
                         weights->from[i] + further + 64 * j, there && 64 * j + vector < columns_left);
    }
#endif
}

// A tap of the grid, as the kernel goes through them.
typedef struct {
    int w, h;
    int chunk;  // 64 channels
} Tap;

ALWAYS_INLINE Tap tap_after(Tap tap, const Grid grid) {
    if (++tap.w == grid.taps_w) {
        tap.w = 0;
        if (++tap.h == grid.taps_h) {
            tap.h = 0;
            tap.chunk++;
        }
    }
    return tap;
}

ALWAYS_INLINE int kernel_tap(const Tap tap, const Taps met) {
    return (met.first_h + tap.h * met.step_h) * met.kernel_w + met.first_w + tap.w * met.step_w;
}

// Adds the products of all taps and channels. pixels: where the source's positions are; see copy_source.
ALWAYS_INLINE void multiply_taps(float sums[SUMS], local ushort *sources, local const int *pixels,
                                 global const stored *from, global const stored *weights, const int channels,
                                 const int columns, const int columns_left, const long pixel_step, const int pitch,
                                 const bool aligned, const Grid grid, const Taps met TAKE_EXCHANGE) {
    const int taps = grid.taps_h * grid.taps_w, kernel_taps = met.kernel_h * met.kernel_w;
    const int chunks = (channels + HALVES_DEPTH - 1) / HALVES_DEPTH, steps = chunks * taps;
    local ushort *const tiles = sources + SOURCES * SOURCE_TILE;
#define COPY_WEIGHTS(stage, tap)                                                                                    \
    copy_weights(tiles + (stage) * B_TILE, &of_item, kernel_tap(tap, met), kernel_taps, (tap).chunk * HALVES_DEPTH, \
                 channels, columns_left, columns, aligned)
#define SHIFT_OF(tap) ((tap).h * grid.step_h * pitch + (tap).w * grid.step_w)
    copy_source(sources, from, pixels, 0, SOURCE_ROWS, 0, channels, pixel_step, aligned);
    Weights of_item;
    open_weights(&of_item, weights, kernel_taps, channels, columns_left, columns);
    Tap copied = {0, 0, 0}, tap = {0, 0, 0};
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        if (copied.chunk < chunks) COPY_WEIGHTS(i, copied);
        copied = tap_after(copied, grid);
        COPIES_COMMIT;
    }
    int now = 0, next = AHEAD % STAGES, of_chunk = 0, plane = 0;
    // the next 64 channels are copied while the first taps are multiplied, so that all of it is there in time
    const int shares = taps - AHEAD - PENDING + 1, share = (SOURCE_ROWS + shares - 1) / shares;
    for (int step = 0; step < steps; step++) {
        COPIES_WAIT(AHEAD - 1);
        FENCE_TILES;
        barrier(CLK_LOCAL_MEM_FENCE);
        MULTIPLY(sums, sources + plane * SOURCE_TILE, SHIFT_OF(tap), tiles + now * B_TILE);
        if (copied.chunk < chunks) COPY_WEIGHTS(next, copied);
        copied = tap_after(copied, grid);
#if SOURCES == 2
        const int part = of_chunk - PENDING;
        if (part >= 0 && part < shares && tap.chunk + 1 < chunks)
            copy_source(
                sources + (1 - plane) * SOURCE_TILE, from, pixels, part * share, min((part + 1) * share, SOURCE_ROWS),
                (tap.chunk + 1) * HALVES_DEPTH, channels, pixel_step, aligned);
#endif
        COPIES_COMMIT;
        PRODUCTS_WAIT(sums, PENDING);
        now = now + 1 == STAGES ? 0 : now + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
        tap = tap_after(tap, grid);
        if (++of_chunk == taps) {
            of_chunk = 0;
            plane = 1 - plane;
        }
    }
    PRODUCTS_WAIT(sums, 0);
    COPIES_WAIT(0);
}

ONE_BY_ONE OF_WAVES __attribute__((reqd_work_group_size(THREADS, 1, 1))) kernel void conv_windows_halves(
    CONST_TENSOR(source), CONST_TENSOR(weights), CONST_TENSOR(bias), TENSOR(target), const int has_bias,
    const int accumulate, const int positions, const int columns, const int channels, const int pitch, const int lines,
    const int groups, const Grid grid, const Taps met EPILOGUE_PARAMETERS STATISTICS_PARAMETERS) {
    OPEN_EPILOGUE
    const int id = get_local_id(0);
    const uint column_tiles = (uint)(columns + TILE_N - 1) / TILE_N;
    const uint position_tiles = (uint)(positions + TILE_M - 1) / TILE_M;
    uint rest = get_group_id(0);
    const int column_tile = rest % column_tiles * TILE_N;
    rest /= column_tiles;
    const int first = rest % position_tiles * TILE_M, group = rest / position_tiles;
    const int kernel_taps = met.kernel_h * met.kernel_w;
    const int reach = grid.begin_h * pitch + grid.begin_w;  // from a position to its first tap
    const long pixel_step = (long)groups * channels;
    global const stored *const from = OPEN(source) + (long)group * channels;
#if OPERATION == FORWARD
    global const stored *const weights_of_tile =
        OPEN(weights) + ((long)group * columns + column_tile) * kernel_taps * channels;
#else
    global const stored *const weights_of_tile =
        OPEN(weights) + (long)group * channels * kernel_taps * columns + column_tile;
#endif
    const bool aligned = ((ulong)OPEN(source) | (ulong)OPEN(weights)) % 16 == 0;
    local uchar memory[LOCAL_BYTES] TILE_ALIGNMENT;
    local int pixels[SOURCE_ROWS];
#ifdef STATISTICS
    local int first_stored, stored_rows;
    if (id == 0) {
        first_stored = TILE_M - 1;
        stored_rows = 0;
    }
#endif
    DECLARE_EXCHANGE
    local ushort *const sources = (local ushort *)memory;
    float sums[SUMS];
#pragma unroll
    for (int e = 0; e < SUMS; e++) sums[e] = 0;

    for (int row = id; row < SOURCE_ROWS; row += THREADS) {
        // positions before the first one count from the image before it, which has nothing there
        const int at = first + reach + row + pitch * lines;
        const int line = (uint)at / (uint)pitch, w = at - line * pitch, before = (uint)line / (uint)lines;
        const int image = before - 1, h = line - before * lines;
        const bool there = image >= 0 && image < grid.batch && h < grid.source_h && w < grid.source_w;
        pixels[row] = there ? (image * grid.source_h + h) * grid.source_w + w : -1;
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    const int columns_left = columns - column_tile;
    if (aligned)
        multiply_taps(sums, sources, pixels, from, weights_of_tile, channels, columns, columns_left, pixel_step, pitch,
                      true, grid, met PASS_EXCHANGE);
    else
        multiply_taps(sums, sources, pixels, from, weights_of_tile, channels, columns, columns_left, pixel_step, pitch,
                      false, grid, met PASS_EXCHANGE);

    local float *const staged = (local float *)memory;
    barrier(CLK_LOCAL_MEM_FENCE);  // nobody reads tiles any more
    stage_sums(sums, staged, 0);
    for (int row = id; row < TILE_M; row += THREADS) {
        const int at = first + row, line = (uint)at / (uint)pitch, w = at - line * pitch;
        const int image = (uint)line / (uint)lines, h = line - image * lines;
        const bool there = at < positions && h < grid.size_h && w < grid.size_w;
        pixels[row] = there ? (image * grid.size_h + h) * grid.size_w + w : -1;
#ifdef STATISTICS
        if (there) {
            atomic_min(&first_stored, row);
            atomic_inc(&stored_rows);
        }
#endif
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#define OF_PIXEL(row) (pixels[row] < 0 ? -1 : ((long)pixels[row] * groups + group) * columns)
#ifdef STATISTICS
    STORE_WITH_STATISTICS(OF_PIXEL, first / TILE_M, position_tiles, first_stored, stored_rows);
#elif defined(GRADIENT_SUMS)
    STORE_WITH_GRADIENT_SUMS(OF_PIXEL, first / TILE_M)
#else
    STORE_STAGED(OF_PIXEL, 0)
#endif
}
