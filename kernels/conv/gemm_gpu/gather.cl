// Loader of forward and backward data. A: packed weights (groups, depth, padded rows); B: implicit im2col of the
// source.
//
// packed and taps are what conv_pack_weights (conv/gemm_gpu/pack.cl) left in the workspace. A work-item keeps its
// column, a pixel.

// 1: all of a step's depth is channels of one tap (conv/gemm_gpu/pack.cl).
#ifndef TAP_MAJOR
#define TAP_MAJOR 0
#endif

#define B_FETCHES (TILE_N * TILE_K / THREADS)
#if THREADS >= TILE_N
#define COLUMNS 1
#define B_STRIDE (THREADS / TILE_N)
#else
#define COLUMNS (TILE_N / THREADS)
#define B_STRIDE 1
#endif
#if (!A_TRANSPOSED && TILE_M * TILE_K / 4 % THREADS) || TILE_N * TILE_K % THREADS || \
    (THREADS % TILE_N && TILE_N % THREADS)
#error the work-items do not divide the tiles
#endif

#if PHASES
#define LOADER_TENSORS TENSOR_OF(const real, packed), CONST_TENSOR(source)
#define TAPS_SPACE local
#define TAPS taps, tap_numbers, phases.kernel_d * phases.kernel_h * phases.kernel_w
#else
#define LOADER_TENSORS TENSOR_OF(const real, packed), TENSOR_OF(const int4, taps), CONST_TENSOR(source)
#define TAPS_SPACE global
#define TAPS OPEN(taps), 0, grid.taps_d * grid.taps_h * grid.taps_w
#endif

typedef struct {
    global const real *a;
    int a_step;
    TAPS_SPACE const int4 *taps;
#if PHASES
    global const real *a_start;
    local const int *tap_numbers;
#endif
    global const stored *pixel[COLUMNS];  // channel 0 at tap (0, 0, 0), wherever that is
    Position at[COLUMNS];
#if TAP_MAJOR
    int plane, channel, channels;
    global const stored *from[COLUMNS];
    bool valid[COLUMNS];
#endif
} Loader;

typedef struct {
    realv a[A_FETCHES];
    real b[B_FETCHES];
} Fetched;

#define LOADER_OPEN(loader)                                                                                                   \
    loader_open(loader, OPEN(packed), TAPS, OPEN(source), rows, columns, depth, first, row_tile, column_tile, group,    \
                groups, grid)
#define LOADER_FETCH(loader, fetched, b_tile, more) loader_fetch(loader, fetched, more, grid)
#define LOADER_LOCALS

#if TAP_MAJOR
void loader_next_tap(Loader *loader, const Grid grid) {
    const int4 tap = loader->taps[0];
#if PHASES
    loader->a = loader->a_start + (long)loader->tap_numbers[0] * loader->channels * loader->a_step;
    loader->taps++;
    loader->tap_numbers++;
#endif
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        loader->valid[i] = inside(loader->at[i], tap, grid);
        loader->from[i] = loader->pixel[i] + (tap.x + (int)get_local_id(0) / TILE_N * loader->plane);
    }
}
#endif

// packed_taps: how many taps are packed, of which tap_numbers lists those that are met in phases.
void loader_open(Loader *loader, global const real *packed, TAPS_SPACE const int4 *taps, local const int *tap_numbers,
                 const int packed_taps, global const stored *source, const int rows, const int columns, const int depth,
                 const int first, const int row_tile, const int column_tile, const int group, const int groups,
                 const Grid grid) {
    const int id = get_local_id(0), channels = depth / (grid.taps_d * grid.taps_h * grid.taps_w);
    const int padded_rows = (rows + TILE_M - 1) / TILE_M * TILE_M;
    const long padded_depth = (channels * packed_taps + TILE_K - 1) / TILE_K * TILE_K;
    loader->a_step = padded_rows;
    loader->a = packed + (group * padded_depth + first * TILE_K + A_FIRST_DEPTH(id)) * padded_rows + row_tile +
                A_FIRST_ROW(id);
#if PHASES
    loader->a_start = loader->a;
    loader->taps = taps;
    loader->tap_numbers = tap_numbers;
#else
    loader->taps = taps + first * TILE_K + (TAP_MAJOR ? 0 : id / TILE_N);
#endif
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        // columns beyond the last one are not stored
        const int column = min(column_tile + id % TILE_N + i * THREADS, columns - 1);
        const int w = column % grid.size_w, rest = column / grid.size_w;
        const int h = rest % grid.size_h, image_d = rest / grid.size_h;
        const int d = image_d % grid.size_d, image = image_d / grid.size_d;
        const Position at = {d * grid.stride_d + grid.begin_d, h * grid.stride_h + grid.begin_h,
                             w * grid.stride_w + grid.begin_w};
        loader->at[i] = at;
        loader->pixel[i] = source + ((long)image * groups + group) * channels * SOURCE_PLANE +
                           ((long)at.d * grid.source_h + at.h) * grid.source_w + at.w;
    }
#if TAP_MAJOR
    loader->plane = SOURCE_PLANE;
    loader->channels = channels;
    loader->channel = first * TILE_K % channels;
    loader_next_tap(loader, grid);
#endif
}

// more: whether there is another step.
IN_PLACE void loader_fetch(Loader *loader, Fetched *fetched, const bool more, const Grid grid) {
    fetch_rows(fetched->a, loader->a, loader->a_step);
    loader->a += TILE_K * (long)loader->a_step;
#if TAP_MAJOR
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        global const stored *from = loader->from[c];
#pragma unroll
        for (int i = c; i < B_FETCHES; i += COLUMNS) {
            fetched->b[i] = loader->valid[c] ? LOAD(from, 0) : 0;
            from += B_STRIDE * loader->plane;
        }
    }
    loader->channel += TILE_K;
#if !PHASES
    loader->taps += TILE_K;
#endif
    if (loader->channel == loader->channels) {
        loader->channel = 0;
        if (more) loader_next_tap(loader, grid);
    } else {
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) loader->from[c] += TILE_K * loader->plane;
    }
#else
#pragma unroll
    for (int i = 0; i < B_FETCHES; i++) {
        const int4 tap = loader->taps[i / COLUMNS * B_STRIDE];
        fetched->b[i] = inside(loader->at[i % COLUMNS], tap, grid)
                            ? LOAD(loader->pixel[i % COLUMNS], tap.x)
                            : 0;
    }
    loader->taps += TILE_K;
#endif
}

IN_PLACE void loader_store(const Fetched *fetched, local realv *a, local realv *b) {
    const int id = get_local_id(0);
    store_rows(fetched->a, a);
    local real *to = (local real *)b;
#pragma unroll
    for (int i = 0; i < B_FETCHES; i++)
        to[B_ELEMENT(id / TILE_N + i / COLUMNS * B_STRIDE, id % TILE_N + i % COLUMNS * THREADS)] = fetched->b[i];
}
