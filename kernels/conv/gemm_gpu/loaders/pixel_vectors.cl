// The pixels loader where four neighbouring pixels are a vector of dy and of x: a work-item has four pixels of every
// step and stores four neighbours of the depth in each tile.

#define LOADER_LOCALS

typedef struct {
    global const real *source, *dy;  // the item's four pixels, in its first column and row
    int pixel, row, column;
    int at, plane;              // the pixel's place in its plane; elements of a plane
    long dy_step, source_step;  // from the end of an image to the next one
} Loader;

typedef struct {
    realv a[A_FETCHES];
#if !ASYNC
    realv b[B_FETCHES];
#endif
} Fetched;

#define LOADER_OPEN(loader) \
    loader_open(            \
        loader, OPEN(source), OPEN(dy), rows, columns, (first) * TILE_K, row_tile, column_tile, group, groups, grid)
#define LOADER_FETCH(loader, fetched, b_tile, more) loader_fetch(loader, fetched, b_tile, rows, columns, depth)

void loader_open(Loader *loader, global const real *source, global const real *dy, const int rows, const int columns,
                 const int first, const int row_tile, const int column_tile, const int group, const int groups,
                 const Grid grid) {
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

realv vector_of_pixels(global const real *from) {
    return (ulong)from % sizeof(realv) == 0 ? VECTOR_AT(from) : vload4(0, from);
}

IN_PLACE void loader_fetch(Loader *loader, Fetched *fetched, local realv *b_tile, const int rows, const int columns,
                           const int depth) {
    const bool any = loader->pixel < depth;
    const long step = (long)LANES * loader->plane;
#pragma unroll
    for (int i = 0; i < A_FETCHES; i++)
        fetched->a[i] = any && loader->row + i * LANES < rows ? vector_of_pixels(loader->dy + i * step) : 0;
#pragma unroll
    for (int i = 0; i < B_FETCHES; i++) {
        global const real *from = loader->source + i * step;
        const bool there = any && loader->column + i * LANES < columns;
#if ASYNC
        const int id = get_local_id(0);
        local realv *to = b_tile + B_ELEMENT(FIRST_DEPTH(id), FIRST_LANE(id) + i * LANES) / 4;
        if (there && (ulong)from % sizeof(realv) == 0)
            COPY_VECTOR(to, from);
        else
            *to = there ? vload4(0, from) : 0;
#else
        fetched->b[i] = there ? vector_of_pixels(from) : 0;
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
    store_columns_a(fetched->a, (local real *)a);
#if !ASYNC
    store_columns_b(fetched->b, b);
#endif
}
