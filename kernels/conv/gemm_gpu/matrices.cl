// Loaders of matrices that are padded to whole tiles in all directions, so that nothing is checked.
//
// LOADER 3: A (groups, depth, rows) and B (groups, depth, columns). LOADER 4: A (groups, rows, depth) and B (groups,
// columns, depth).

#if LOADER == 4
// A vector is four neighbours of the depth.
#define A_FETCHES (TILE_M * TILE_K / 4 / THREADS)
#define A_FIRST_DEPTH(id) ((id) % (TILE_K / 4) * 4)
#define A_FIRST_ROW(id) ((id) / (TILE_K / 4))
#endif
#define B_FETCHES (TILE_N * TILE_K / 4 / THREADS)
#if TILE_N * TILE_K / 4 % THREADS || (!A_TRANSPOSED && TILE_M * TILE_K / 4 % THREADS)
#error the work-items do not divide the tiles
#endif

#define LOADER_TENSORS TENSOR_OF(const real, matrices_a), TENSOR_OF(const real, matrices_b)
#define LOADER_LOCALS

typedef struct {
    global const real *a, *b;  // the work-item's first vectors
    int a_pitch, b_pitch;      // elements from row to row of the matrices in memory
} Loader;

// Whether vectors of B go to local memory without passing registers: 5 to 8 % faster where they are of the depth, not
// elsewhere (H200).
#define ASYNC_VECTORS (ASYNC_B && LOADER == 4)
#if ASYNC_VECTORS && !EMULATED
#define COPY_VECTOR(to, from) \
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint)(size_t)(to)), "l"(from) : "memory")
#else
#define COPY_VECTOR(to, from) *(to) = VECTOR_AT(from)
#endif
#define VECTOR_AT(p) (*(global const realv *)(p))

typedef struct {
    realv a[A_FETCHES];
#if !ASYNC_VECTORS
    realv b[B_FETCHES];
#endif
} Fetched;

// Work-item id's vector number i of B: where it is stored, and by how many rows it lies behind the first one in memory.
#if LOADER == 4
#define B_PLACE(id, i) (B_ELEMENT((id) % (TILE_K / 4) * 4, (id) / (TILE_K / 4) + (i) * (THREADS / (TILE_K / 4))) / 4)
#define B_DISTANCE(i) ((i) * (THREADS / (TILE_K / 4)))
#else
#define B_PLACE(id, i) (B_ELEMENT(((id) + (i) * THREADS) / (TILE_N / 4), ((id) + (i) * THREADS) % (TILE_N / 4) * 4) / 4)
#define B_DISTANCE(i) ((i) * (THREADS / (TILE_N / 4)))
#if THREADS % (TILE_N / 4)
#error a work-item fetches from the same columns of several rows
#endif
#endif

#define LOADER_OPEN(loader) \
    loader_open(loader, OPEN(matrices_a), OPEN(matrices_b), rows, columns, depth, first * TILE_K, row_tile, column_tile, group)
#define LOADER_FETCH(loader, fetched, b_tile, more) loader_fetch(loader, fetched, b_tile)

void loader_open(Loader *loader, global const real *a, global const real *b, const int rows, const int columns,
                 const int depth, const int first, const int row_tile, const int column_tile, const int group) {
    const int id = get_local_id(0);
    a += (long)group * depth * rows;
    b += (long)group * depth * columns;
#if LOADER == 4
    loader->a_pitch = loader->b_pitch = depth;
    loader->a = a + (long)(row_tile + A_FIRST_ROW(id)) * depth + first + A_FIRST_DEPTH(id);
    loader->b = b + (long)(column_tile + id / (TILE_K / 4)) * depth + first + id % (TILE_K / 4) * 4;
#else
    loader->a_pitch = rows;
    loader->b_pitch = columns;
    loader->a = a + (long)(first + A_FIRST_DEPTH(id)) * rows + row_tile + A_FIRST_ROW(id);
    loader->b = b + (long)(first + id / (TILE_N / 4)) * columns + column_tile + id % (TILE_N / 4) * 4;
#endif
}

IN_PLACE void loader_fetch(Loader *loader, Fetched *fetched, local realv *b_tile) {
#if LOADER == 4
#pragma unroll
    for (int i = 0; i < A_FETCHES; i++)
        fetched->a[i] = VECTOR_AT(loader->a + (long)(i * (THREADS / (TILE_K / 4))) * loader->a_pitch);
#else
    fetch_rows(fetched->a, loader->a, loader->a_pitch);
#endif
#pragma unroll
    for (int i = 0; i < B_FETCHES; i++) {
        global const real *from = loader->b + (long)B_DISTANCE(i) * loader->b_pitch;
#if ASYNC_VECTORS
        COPY_VECTOR(b_tile + B_PLACE((int)get_local_id(0), i), from);
#else
        fetched->b[i] = VECTOR_AT(from);
#endif
    }
#if LOADER == 4
    loader->a += TILE_K;
    loader->b += TILE_K;
#else
    loader->a += TILE_K * (long)loader->a_pitch;
    loader->b += TILE_K * (long)loader->b_pitch;
#endif
}

IN_PLACE void loader_store(const Fetched *fetched, local realv *a, local realv *b) {
    const int id = get_local_id(0);
#if LOADER == 4
    const int k = id % (TILE_K / 4) * 4;
    local real *to_a = (local real *)a, *to_b = (local real *)b;
#pragma unroll
    for (int i = 0; i < A_FETCHES; i++) {
        const int m = id / (TILE_K / 4) + i * (THREADS / (TILE_K / 4));
        A_PUT(to_a, k, m, fetched->a[i].s0);
        A_PUT(to_a, k + 1, m, fetched->a[i].s1);
        A_PUT(to_a, k + 2, m, fetched->a[i].s2);
        A_PUT(to_a, k + 3, m, fetched->a[i].s3);
    }
#if !DEPTH_INNER
#pragma unroll
    for (int i = 0; i < B_FETCHES; i++) {
        const int n = id / (TILE_K / 4) + i * (THREADS / (TILE_K / 4));
        to_b[B_ELEMENT(k, n)] = fetched->b[i].s0;
        to_b[B_ELEMENT(k + 1, n)] = fetched->b[i].s1;
        to_b[B_ELEMENT(k + 2, n)] = fetched->b[i].s2;
        to_b[B_ELEMENT(k + 3, n)] = fetched->b[i].s3;
    }
#endif
#else
    store_rows(fetched->a, a);
#endif
#if (LOADER == 3 || DEPTH_INNER) && !ASYNC_VECTORS
#pragma unroll
    for (int i = 0; i < B_FETCHES; i++) b[B_PLACE(id, i)] = fetched->b[i];
#endif
}
