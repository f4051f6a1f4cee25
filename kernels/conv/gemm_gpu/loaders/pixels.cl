// Loader of backward filter: the depth is the pixels of dy. A: dy; B: what each tap of each channel of x meets
// there.
//
// A work-item has one pixel of every step, so that neighbours read neighbouring pixels; it writes a column of each
// tile. With PIXEL_VECTORS it has four.

#define LOADER_TENSORS CONST_TENSOR(source), CONST_TENSOR(dy)
#define LOADER_COPY_A(loader, a_tile)

#if PIXEL_VECTORS
#include "conv/gemm_gpu/loaders/pixel_vectors.cl"
#else
#define LANES (THREADS / TILE_K)  // work-items that share a pixel
#define A_FETCHES (TILE_M / LANES)
#define B_FETCHES (TILE_N / LANES)
#if THREADS % TILE_K || TILE_M % LANES || TILE_N % LANES
#error the work-items do not divide the tiles
#endif

#define LOADER_LOCALS local int4 column_taps[TILE_N]

typedef struct {
    // of the pixel: channel 0 at tap (0, 0, 0), which may lie outside of the source, and the item's first row of dy
    global const stored *source, *dy;
    local const int4 *taps;  // of this work-item's columns: as pack.cl's
    int pixel, row;
    // the pixel's position, and by how much a step moves it before carries; the same in images
    Position u, advance;
    int images;
    // elements of a plane of dy; of the source from row to row and from plane to plane; from image to image
    int plane, row_step, plane_step;
    long dy_step, source_step;
} Loader;

typedef struct {
    raw a[A_FETCHES], b[B_FETCHES];
} Fetched;

#define LOADER_OPEN(loader)                                                                                          \
    loader_open(loader, OPEN(source), OPEN(dy), column_taps, rows, columns, (first) * TILE_K, row_tile, column_tile, \
                group, groups, grid)
#define LOADER_FETCH(loader, fetched, b_tile, more) loader_fetch(loader, fetched, rows, depth, grid)

void loader_open(Loader *loader, global const stored *source, global const stored *dy, local int4 *taps, const int rows,
                 const int columns, const int first, const int row_tile, const int column_tile, const int group,
                 const int groups, const Grid grid) {
    const int id = get_local_id(0), channels = columns / (grid.taps_d * grid.taps_h * grid.taps_w);
    for (int i = id; i < TILE_N; i += THREADS) {
        const int column = min(column_tile + i, columns - 1);  // columns beyond the last one are not stored
        const int w = column % grid.taps_w, rest = column / grid.taps_w;
        const int h = rest % grid.taps_h, channel_d = rest / grid.taps_h;
        const int d = channel_d % grid.taps_d, channel = channel_d / grid.taps_d;
        taps[i] =
            (int4)(channel * SOURCE_PLANE + TAP_DISTANCE(d, h, w), d * grid.step_d, h * grid.step_h, w * grid.step_w);
    }
    loader->taps = taps + id / TILE_K;
    loader->row = row_tile + id / TILE_K;
    loader->pixel = first + id % TILE_K;
    const int rest = loader->pixel / grid.size_w, image_d = rest / grid.size_h;
    const Position u = {image_d % grid.size_d, rest % grid.size_h, loader->pixel % grid.size_w};
    const long image = (long)(image_d / grid.size_d) * groups + group;
    const int rows_of_step = TILE_K / grid.size_w, planes_of_step = rows_of_step / grid.size_h;
    const Position advance = {planes_of_step % grid.size_d, rows_of_step % grid.size_h, TILE_K % grid.size_w};
    loader->u = u;
    loader->advance = advance;
    loader->images = planes_of_step / grid.size_d;
    loader->plane = grid.size_d * grid.size_h * grid.size_w;
    loader->row_step = grid.stride_h * grid.source_w;
    loader->plane_step = grid.stride_d * grid.source_h * grid.source_w;
    loader->dy_step = ((long)groups * rows - 1) * loader->plane;
    loader->source_step = (long)groups * channels * SOURCE_PLANE;
    loader->dy = dy + (image * rows + loader->row) * loader->plane + (u.d * grid.size_h + u.h) * grid.size_w + u.w;
    loader->source = source + image * channels * SOURCE_PLANE +
                     ((long)(u.d * grid.stride_d + grid.begin_d) * grid.source_h + u.h * grid.stride_h + grid.begin_h) *
                         grid.source_w +
                     u.w * grid.stride_w + grid.begin_w;
    barrier(CLK_LOCAL_MEM_FENCE);
}

// Moves on by a step: addition with carry, of digits that are computed once.
void loader_advance(Loader *loader, const Grid grid) {
    const Position old = loader->u, advance = loader->advance;
    Position u = old;
    u.w += advance.w;
    int carry = u.w >= grid.size_w;
    u.w -= carry ? grid.size_w : 0;
    u.h += advance.h + carry;
    carry = u.h >= grid.size_h;
    u.h -= carry ? grid.size_h : 0;
    u.d += advance.d + carry;
    carry = u.d >= grid.size_d;
    u.d -= carry ? grid.size_d : 0;
    const int images = loader->images + carry;
    loader->u = u;
    loader->pixel += TILE_K;
    loader->dy += TILE_K + images * loader->dy_step;
    loader->source += (u.d - old.d) * loader->plane_step + (u.h - old.h) * loader->row_step +
                      (u.w - old.w) * grid.stride_w + images * loader->source_step;
}

IN_PLACE void loader_fetch(Loader *loader, Fetched *fetched, const int rows, const int depth, const Grid grid) {
    const Position at = {loader->u.d * grid.stride_d + grid.begin_d, loader->u.h * grid.stride_h + grid.begin_h,
                         loader->u.w * grid.stride_w + grid.begin_w};
    const bool any = loader->pixel < depth;
    global const stored *dy = loader->dy, *source = loader->source;
#pragma unroll
    for (int i = 0; i < A_FETCHES; i++) {
        fetched->a[i] = any && loader->row + i * LANES < rows ? LOAD_RAW(dy, 0) : (raw)0;
        dy += LANES * loader->plane;
    }
#pragma unroll
    for (int i = 0; i < B_FETCHES; i++) {
        const int4 tap = loader->taps[i * LANES];
        fetched->b[i] = any && inside(at, tap, grid) ? LOAD_RAW(source, tap.x) : (raw)0;
    }
    loader_advance(loader, grid);
}

IN_PLACE void loader_store(const Fetched *fetched, local realv *a, local realv *b) {
    const int k = get_local_id(0) % TILE_K, lane = get_local_id(0) / TILE_K;
    local real *to_a = (local real *)a, *to_b = (local real *)b;
#pragma unroll
    for (int i = 0; i < A_FETCHES; i++) A_PUT(to_a, k, lane + i * LANES, REAL_OF(fetched->a[i]));
#pragma unroll
    for (int i = 0; i < B_FETCHES; i++) to_b[B_ELEMENT(k, lane + i * LANES)] = REAL_OF(fetched->b[i]);
}
#endif
