// Loader of forward and backward data. A: packed weights (groups, depth, padded rows); B: implicit im2col of the
// source.
//
// packed and taps are what conv_pack_weights (pack.cl) left in the workspace. A work-item keeps its
// column, a pixel.

#if PIXEL_VECTORS
#define COLUMNS 1
#define VECTORS_OF_ROW (TILE_N / 4)
#define B_FETCHES (TILE_N * TILE_K / 4 / THREADS)
#define B_STRIDE (THREADS / VECTORS_OF_ROW)
#if TILE_N * TILE_K / 4 % THREADS || THREADS % VECTORS_OF_ROW || !TAP_MAJOR
#error a work-item fetches from the same columns of several rows
#endif
#else
#define B_FETCHES (TILE_N * TILE_K / THREADS)
#if THREADS >= TILE_N
#define COLUMNS 1
#define B_STRIDE (THREADS / TILE_N)
#else
#define COLUMNS (TILE_N / THREADS)
#define B_STRIDE 1
#endif
#endif
#if (!A_TRANSPOSED && TILE_M * TILE_K / 4 % THREADS) || TILE_N * TILE_K % THREADS || \
    (!PIXEL_VECTORS && THREADS % TILE_N && TILE_N % THREADS)
#error the work-items do not divide the tiles
#endif

#if PHASES
#define LOADER_TENSORS TENSOR_OF(const real, packed), CONST_TENSOR(source)
#define TAPS_SPACE local
#define TAPS taps, tap_numbers, (phases.kernel_d * phases.kernel_h * phases.kernel_w)
#else
#define LOADER_TENSORS TENSOR_OF(const real, packed), TENSOR_OF(const int4, taps), CONST_TENSOR(source)
#define TAPS_SPACE global
#define TAPS OPEN(taps), 0, (grid.taps_d * grid.taps_h * grid.taps_w)
#endif

// Whether vectors of pixels go to local memory without passing registers: up to 10 % faster (H200).
#define ASYNC_PIXELS (ASYNC && PIXEL_VECTORS && STORAGE != 16)

typedef struct {
    global const real *a;
    int a_step;  // elements from depth to depth; with A_IMAGES, of a tile
#if A_IMAGES
    global const real *a_fetched;  // the tile of A that belongs to what was fetched last
#endif
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
#if !A_IMAGES
    realv a[A_FETCHES];
#endif
#if PIXEL_VECTORS && !ASYNC_PIXELS
    raw_quad b[B_FETCHES];
#elif !PIXEL_VECTORS
    raw b[B_FETCHES];
#elif A_IMAGES
    int unused;  // there is no other field
#endif
} Fetched;

#define LOADER_OPEN(loader)                                                                                          \
    loader_open(loader, OPEN(packed), TAPS, OPEN(source), rows, columns, depth, first, row_tile, column_tile, group, \
                groups, grid)
#define LOADER_FETCH(loader, fetched, b_tile, more) loader_fetch(loader, fetched, b_tile, more, grid)
#if A_IMAGES
#define LOADER_COPY_A(loader, a_tile) loader_copy_a(loader, a_tile)
#else
#define LOADER_COPY_A(loader, a_tile)
#endif
#define LOADER_LOCALS

#if PIXEL_VECTORS
#define ITEMS_OF_ROW VECTORS_OF_ROW
#else
#define ITEMS_OF_ROW TILE_N
#endif

// Elements of the depth that a_step passes.
#if A_IMAGES
#define A_DEPTH TILE_K
#else
#define A_DEPTH 1
#endif

#if TAP_MAJOR
void loader_next_tap(Loader *loader, const Grid grid) {
    const int4 tap = loader->taps[0];
#if PHASES
    loader->a = loader->a_start + (long)loader->tap_numbers[0] * (loader->channels / A_DEPTH) * loader->a_step;
    loader->taps++;
    loader->tap_numbers++;
#endif
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        loader->valid[i] = inside(loader->at[i], tap, grid);
        loader->from[i] = loader->pixel[i] + (tap.x + (int)get_local_id(0) / ITEMS_OF_ROW * loader->plane);
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
#if A_IMAGES
    loader->a_step = A_ELEMENTS;
    const long tile = (long)group * (padded_rows / TILE_M) + row_tile / TILE_M;
    loader->a = packed + (tile * (padded_depth / TILE_K) + first) * A_ELEMENTS;
#else
    loader->a_step = padded_rows;
    loader->a =
        packed + (group * padded_depth + first * TILE_K + A_FIRST_DEPTH(id)) * padded_rows + row_tile + A_FIRST_ROW(id);
#endif
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
#if PIXEL_VECTORS
        const int column = min(column_tile + id % VECTORS_OF_ROW * 4, columns - 4);
#else
        const int column = min(column_tile + id % TILE_N + i * THREADS, columns - 1);
#endif
        const int w = column % grid.size_w, rest = column / grid.size_w;
        const int h = rest % grid.size_h, image_d = rest / grid.size_h;
        const int d = image_d % grid.size_d, image = image_d / grid.size_d;
        const Position at = {
            d * grid.stride_d + grid.begin_d, h * grid.stride_h + grid.begin_h, w * grid.stride_w + grid.begin_w};
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
IN_PLACE void loader_fetch(Loader *loader, Fetched *fetched, local realv *b_tile, const bool more, const Grid grid) {
#if A_IMAGES
    loader->a_fetched = loader->a;
#else
    fetch_rows(fetched->a, loader->a, loader->a_step);
#endif
    loader->a += TILE_K / A_DEPTH * (long)loader->a_step;
#if PIXEL_VECTORS
    global const stored *from = loader->from[0];
#pragma unroll
    for (int i = 0; i < B_FETCHES; i++) {
#if ASYNC_PIXELS
        const int id = get_local_id(0);
        local realv *to = b_tile + B_ELEMENT(id / VECTORS_OF_ROW + i * B_STRIDE, id % VECTORS_OF_ROW * 4) / 4;
        if ((ulong)from % sizeof(realv) == 0)
            COPY_VECTOR(to, from);
        else
            *to = vload4(0, from);
#else
        fetched->b[i] = RAW_VECTOR_AT(from);
#endif
        from += B_STRIDE * loader->plane;
    }
    loader->from[0] += TILE_K * (long)loader->plane;
#elif TAP_MAJOR
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        global const stored *from = loader->from[c];
#pragma unroll
        for (int i = c; i < B_FETCHES; i += COLUMNS) {
            fetched->b[i] = loader->valid[c] ? LOAD_RAW(from, 0) : (raw)0;
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
        const bool there = inside(loader->at[i % COLUMNS], tap, grid);
        fetched->b[i] = there ? LOAD_RAW(loader->pixel[i % COLUMNS], tap.x) : (raw)0;
    }
    loader->taps += TILE_K;
#endif
}

#if A_IMAGES
// Copies the tile of A that belongs to what was fetched last.
IN_PLACE void loader_copy_a(const Loader *loader, local realv *a_tile) {
#pragma unroll
    for (int i = get_local_id(0); i < A_TILE; i += THREADS) COPY_VECTOR(a_tile + i, loader->a_fetched + 4 * i);
}
#endif

IN_PLACE void loader_store(const Fetched *fetched, local realv *a, local realv *b) {
    const int id = get_local_id(0);
#if !A_IMAGES
    store_rows(fetched->a, a);
#endif
#if PIXEL_VECTORS
#if !ASYNC_PIXELS
#pragma unroll
    for (int i = 0; i < B_FETCHES; i++)
        b[B_ELEMENT(id / VECTORS_OF_ROW + i * B_STRIDE, id % VECTORS_OF_ROW * 4) / 4] = REALS_OF(fetched->b[i]);
#endif
#else
    local real *to = (local real *)b;
#pragma unroll
    for (int i = 0; i < B_FETCHES; i++)
        to[B_ELEMENT(id / TILE_N + i / COLUMNS * B_STRIDE, id % TILE_N + i % COLUMNS * THREADS)] =
            REAL_OF(fetched->b[i]);
#endif
}
