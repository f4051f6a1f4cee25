// Loader of backward filter: the depth is the pixels of dy. A: dy; B: what each tap of each channel of x meets there.
//
// A work-item has one pixel of every step, so that neighbours read neighbouring pixels; it writes a column of each tile.

#define PAD 4
#define LANES (THREADS / TILE_K)  // work-items that share a pixel
#define A_FETCHES (TILE_M / LANES)
#define B_FETCHES (TILE_N / LANES)
#if THREADS % TILE_K || TILE_M % LANES || TILE_N % LANES
#error the work-items do not divide the tiles
#endif

#define LOADER_TENSORS CONST_TENSOR(source), CONST_TENSOR(dy)
#define LOADER_LOCALS local int4 column_taps[TILE_N]

typedef struct {
    global const stored *source, *dy;
    local const int4 *taps;  // of this work-item's columns: as conv_gpu_pack.cl's
    int pixel, image;
    Position u;
} Loader;

typedef struct {
    real a[A_FETCHES], b[B_FETCHES];
} Fetched;

#define LOADER_OPEN(loader) \
    loader_open(loader, OPEN(source), OPEN(dy), column_taps, columns, first * TILE_K, column_tile, GRID_VALUES)
#define LOADER_FETCH(loader, fetched) loader_fetch(loader, fetched, rows, columns, depth, row_tile, group, groups, GRID_VALUES)

void loader_open(Loader *loader, global const stored *source, global const stored *dy, local int4 *taps, const int columns,
                 const int first, const int column_tile, GRID) {
    const int id = get_local_id(0);
    loader->source = source;
    loader->dy = dy;
    loader->taps = taps + id / TILE_K;
    for (int i = id; i < TILE_N; i += THREADS) {
        const int column = min(column_tile + i, columns - 1);  // what lies behind is not stored
        const int w = column % taps_w, rest = column / taps_w, h = rest % taps_h, channel_d = rest / taps_h;
        const int d = channel_d % taps_d, channel = channel_d / taps_d;
        taps[i] = (int4)(channel * SOURCE_PLANE + (d * step_d * source_h + h * step_h) * source_w + w * step_w, d * step_d,
                         h * step_h, w * step_w);
    }
    loader->pixel = first + id % TILE_K;
    const int rest = loader->pixel / size_w, image_d = rest / size_h;
    loader->u.w = loader->pixel % size_w;
    loader->u.h = rest % size_h;
    loader->u.d = image_d % size_d;
    loader->image = image_d / size_d;
    barrier(CLK_LOCAL_MEM_FENCE);
}

// Moves on by a step: addition with carry, whose digits the compiler takes out of the loop.
void loader_advance(Loader *loader, const int size_d, const int size_h, const int size_w) {
    const int step_h = TILE_K / size_w, step_d = step_h / size_h;
    loader->pixel += TILE_K;
    loader->u.w += TILE_K % size_w;
    int carry = loader->u.w >= size_w;
    loader->u.w -= carry ? size_w : 0;
    loader->u.h += step_h % size_h + carry;
    carry = loader->u.h >= size_h;
    loader->u.h -= carry ? size_h : 0;
    loader->u.d += step_d % size_d + carry;
    carry = loader->u.d >= size_d;
    loader->u.d -= carry ? size_d : 0;
    loader->image += step_d / size_d + carry;
}

void loader_fetch(Loader *loader, Fetched *fetched, const int rows, const int columns, const int depth, const int row_tile,
                  const int group, const int groups, GRID) {
    const Position u = loader->u;
    const Position at = {u.d * stride_d + begin_d, u.h * stride_h + begin_h, u.w * stride_w + begin_w};
    const int plane = size_d * size_h * size_w, channels = columns / (taps_d * taps_h * taps_w);
    const int row = row_tile + (int)get_local_id(0) / TILE_K;
    const bool any = loader->pixel < depth;
    const long image = (long)loader->image * groups + group;
    global const stored *dy = loader->dy + (image * rows + row) * plane + (u.d * size_h + u.h) * size_w + u.w;
    const long pixel = image * channels * SOURCE_PLANE + ((long)at.d * source_h + at.h) * source_w + at.w;
#pragma unroll
    for (int i = 0; i < A_FETCHES; i++) fetched->a[i] = any && row + i * LANES < rows ? LOAD(dy, i * LANES * plane) : 0;
#pragma unroll
    for (int i = 0; i < B_FETCHES; i++) {
        const int4 tap = loader->taps[i * LANES];
        fetched->b[i] = any && inside(at, tap, source_d, source_h, source_w) ? LOAD(loader->source, pixel + tap.x) : 0;
    }
    loader_advance(loader, size_d, size_h, size_w);
}

void loader_store(const Fetched *fetched, local realv *a, local realv *b) {
    const int k = get_local_id(0) % TILE_K, lane = get_local_id(0) / TILE_K;
    local real *to_a = (local real *)a + k * (TILE_M + PAD) + lane, *to_b = (local real *)b + k * (TILE_N + PAD) + lane;
#pragma unroll
    for (int i = 0; i < A_FETCHES; i++) to_a[i * LANES] = fetched->a[i];
#pragma unroll
    for (int i = 0; i < B_FETCHES; i++) to_b[i * LANES] = fetched->b[i];
}
