// The pixels loader where four neighbouring pixels are a vector of dy and of x: a work-item has four pixels of every
// step and stores four neighbours of the depth in each tile.

#define LOADER_LOCALS

// Whether vectors of x go to local memory without passing registers.
#define ASYNC_PIXELS (ASYNC && STORAGE != 16)

typedef struct {
    global const stored *source, *dy;  // the item's four pixels, in its first column and row
    int pixel, row, column;
    int at, plane;              // the pixel's place in its plane; elements of a plane
    long dy_step, source_step;  // from the end of an image to the next one
} Loader;

typedef struct {
    raw_quad a[A_FETCHES];
#if !ASYNC_PIXELS
    raw_quad b[B_FETCHES];
#endif
} Fetched;

#define LOADER_OPEN(loader) \
    loader_open(            \
        loader, OPEN(source), OPEN(dy), rows, columns, (first) * TILE_K, row_tile, column_tile, group, groups, grid)
#define LOADER_FETCH(loader, fetched, b_tile, more) loader_fetch(loader, fetched, b_tile, rows, columns, depth)

void loader_open(Loader *loader, global const stored *source, global const stored *dy, const int rows,
                 const int columns, const int first, const int row_tile, const int column_tile, const int group,
                 const int groups, const Grid grid) {
    const int id = get_local_id(0), lane = FIRST_LANE(id), plane = grid.size_d * grid.size_h * grid.size_w;
    const int pixel = first + FIRST_DEPTH(id), at = pixel % plane;
    const long image = (long)(pixel / plane) * groups + group;
    loader->pixel = pixel;
    loader->row = row_tile + lane;
    loader->column = column_tile + lane;
    loader->at = at;
    loader->plane = plane;
    loader->dy_step = ((long)groups * rows - 1) * plane;
    loader->source_step = ((long)groups * columns - 1) * plane;
    loader->dy = dy + (image * rows + loader->row) * plane + at;
    loader->source = source + (image * columns + loader->column) * plane + at;
}

IN_PLACE void loader_fetch(Loader *loader, Fetched *fetched, local realv *b_tile, const int rows, const int columns,
                           const int depth) {
    const bool any = loader->pixel < depth;
    const long step = (long)LANES * loader->plane;
#pragma unroll
    for (int i = 0; i < A_FETCHES; i++)
        fetched->a[i] = any && loader->row + i * LANES < rows ? RAW_VECTOR_AT(loader->dy + i * step) : (raw_quad)(0);
#pragma unroll
    for (int i = 0; i < B_FETCHES; i++) {
        global const stored *from = loader->source + i * step;
        const bool there = any && loader->column + i * LANES < columns;
#if ASYNC_PIXELS
        const int id = get_local_id(0);
        local realv *to = b_tile + B_ELEMENT(FIRST_DEPTH(id), FIRST_LANE(id) + i * LANES) / 4;
        if (there && (ulong)from % sizeof(realv) == 0)
            COPY_VECTOR(to, from);
        else
            *to = there ? vload4(0, from) : 0;
#else
        fetched->b[i] = there ? RAW_VECTOR_AT(from) : (raw_quad)(0);
#endif
    }
    loader->pixel += TILE_K;
    int at = loader->at + TILE_K, images = 0;
    while (at >= loader->plane) {
        at -= loader->plane;
        images++;
    }
    loader->at = at;
    loader->dy += TILE_K + images * loader->dy_step;
    loader->source += TILE_K + images * loader->source_step;
}

IN_PLACE void loader_store(const Fetched *fetched, local realv *a, local realv *b) {
    realv numbers[A_FETCHES > B_FETCHES ? A_FETCHES : B_FETCHES];
#pragma unroll
    for (int i = 0; i < A_FETCHES; i++) numbers[i] = REALS_OF(fetched->a[i]);
    store_columns_a(numbers, (local real *)a);
#if !ASYNC_PIXELS
#pragma unroll
    for (int i = 0; i < B_FETCHES; i++) numbers[i] = REALS_OF(fetched->b[i]);
    store_columns_b(numbers, b);
#endif
}
