// Loaders of matrices that are padded to whole tiles in all directions, so that nothing is checked.
//
// BY_ROWS: A (groups, depth, rows) and B (groups, depth, columns). BY_COLUMNS: A (groups, rows, depth) and B (groups,
// columns, depth).
//
// TWINS    1: rows, 2: columns. Matrices are complex (conv/fft). In memory, eight real parts of a row are followed by
//          their imaginary ones. The depth has a real part, then its imaginary one; with BY_COLUMNS eight of each. Of
//          sixteen rows or columns, the last eight are twins of the others and not in memory: a twin has the imaginary
//          part, then the real one with its sign changed.
#ifndef TWINS
#define TWINS 0
#endif

#if LOADER == BY_COLUMNS
#define A_FIRST_DEPTH(id) FIRST_DEPTH(id)
#define A_FIRST_ROW(id) FIRST_LANE(id)
#else
#define B_FETCHES (TILE_N * TILE_K / 4 / THREADS)
#if TILE_N * TILE_K / 4 % THREADS || (!A_TRANSPOSED && TILE_M * TILE_K / 4 % THREADS)
#error the work-items do not divide the tiles
#endif
#endif

// INTERLEAVED   so many matrices lie together: [row][column / 8][matrices][8 columns], also those of the products; 0:
//               none. What is a column here is the depth with BY_COLUMNS.
#ifndef INTERLEAVED
#define INTERLEAVED 0
#endif
#if INTERLEAVED
#define TOGETHER INTERLEAVED
#define MATRIX_AT(matrix, size, column)                                                                          \
    ((long)((matrix) / TOGETHER) * TOGETHER * (size) + (matrix) % TOGETHER * 8 + (column) / 8 * (8 * TOGETHER) + \
     (column) % 8)
#else
#define TOGETHER 1
#define MATRIX_AT(matrix, size, column) ((long)(matrix) * (size) + (column))
#endif

#define LOADER_TENSORS TENSOR_OF(const real, matrices_a), TENSOR_OF(const real, matrices_b)
#define LOADER_LOCALS

typedef struct {
    global const real *a, *b;  // the work-item's first vectors
    int a_pitch, b_pitch;      // elements from row to row of the matrices in memory
#if TWINS
    real sign;  // of the work-item's vectors; with A_TRANSPOSED, of those at odd depths
    int other;  // elements from even to odd depths with A_TRANSPOSED, with BY_COLUMNS to the other part of a twin, or 0
#endif
} Loader;

// Whether vectors of B go to local memory without passing registers: 5 to 8 % faster where they are of the depth, not
// elsewhere (H200). Signs are changed in registers.
#define ASYNC_VECTORS (ASYNC && LOADER == BY_COLUMNS && TWINS != 2)

typedef struct {
#if TWINS
    real sign;
#endif
    realv a[A_FETCHES];
#if !ASYNC_VECTORS
    realv b[B_FETCHES];
#endif
} Fetched;

// Which row or column in memory a product's row or column is, where some are twins.
#define IN_MEMORY(i, twins) ((twins) ? (i) / 16 * 8 + (i) % 8 : (i))
#define IS_TWIN(i) ((i) / 8 % 2)
// Where a real or imaginary part is in a row of complex numbers.
#define COMPLEX_AT(i, imaginary) ((i) / 8 * 16 + (i) % 8 + 8 * (imaginary))

// Work-item id's vector number i of B: where it is stored, and by how many rows it lies after the first one in memory.
#if LOADER == BY_COLUMNS
#define B_PLACE(id, i) (B_ELEMENT(FIRST_DEPTH(id), FIRST_LANE(id) + (i) * LANES) / 4)
#define B_DISTANCE(i) IN_MEMORY((i) * LANES, TWINS == 2)
#define A_DISTANCE(i) IN_MEMORY((i) * LANES, TWINS == 1)
#if TWINS && LANES % 16
#error a work-item fetches twins or others
#endif
#else
#define B_PLACE(id, i) (B_ELEMENT(((id) + (i) * THREADS) / (TILE_N / 4), ((id) + (i) * THREADS) % (TILE_N / 4) * 4) / 4)
#define B_DISTANCE(i) ((i) * (THREADS / (TILE_N / 4)))
#if THREADS % (TILE_N / 4)
#error a work-item fetches from the same columns of several rows
#endif
#if TWINS && (THREADS / (TILE_N / 4) % 2 || (!A_TRANSPOSED && THREADS / (TILE_M / 4) % 2))
#error a work-item fetches real parts or imaginary ones
#endif
#endif

#define LOADER_OPEN(loader)                                                                                   \
    loader_open(loader, OPEN(matrices_a), OPEN(matrices_b), rows, columns, depth, (first) * TILE_K, row_tile, \
                column_tile, group)
#define LOADER_FETCH(loader, fetched, b_tile, more) loader_fetch(loader, fetched, b_tile)
#define LOADER_COPY_A(loader, a_tile)

void loader_open(Loader *loader, global const real *a, global const real *b, const int rows, const int columns,
                 const int depth, const int first, const int row_tile, const int column_tile, const int group) {
    const int id = get_local_id(0);
    const int a_rows = TWINS == 1 ? rows / 2 : rows, b_columns = TWINS == 2 ? columns / 2 : columns;  // in memory
    const long a_size = (long)a_rows * depth, b_size = (long)b_columns * depth;
#if TWINS
    loader->sign = 1;
    loader->other = 0;
#endif
#if LOADER == BY_COLUMNS
    const int row = row_tile + A_FIRST_ROW(id), column = column_tile + id / (TILE_K / 4);
    int a_first = first + A_FIRST_DEPTH(id), b_first = a_first;
#if TWINS
    if (IS_TWIN(TWINS == 1 ? row : column)) {
        loader->sign = a_first / 8 % 2 ? -1 : 1;
        loader->other = TOGETHER * (a_first / 8 % 2 ? 16 : -16);
        if (TWINS == 1)
            a_first ^= 8;
        else
            b_first ^= 8;
    }
#endif
    loader->a_pitch = TOGETHER * depth;
    loader->b_pitch = TOGETHER * depth;
    loader->a = a + MATRIX_AT(group, a_size, a_first) + (long)IN_MEMORY(row, TWINS == 1) * loader->a_pitch;
    loader->b = b + MATRIX_AT(group, b_size, b_first) + (long)IN_MEMORY(column, TWINS == 2) * loader->b_pitch;
#else
    const int row = IN_MEMORY(row_tile + A_FIRST_ROW(id), TWINS == 1);
    const int column = IN_MEMORY(column_tile + id % (TILE_N / 4) * 4, TWINS == 2);
    int a_first = first + A_FIRST_DEPTH(id), b_first = first + id / (TILE_N / 4);
#if (TWINS || INTERLEAVED) && A_TRANSPOSED && A_FETCHES != 4
#error a work-item fetches from several rows, of which some may be twins, and whose distance in memory is not theirs
#endif
#if TWINS == 1
    if (IS_TWIN(row_tile + A_FIRST_ROW(id))) {
        loader->sign = a_first % 2 || A_TRANSPOSED ? -1 : 1;
        a_first ^= 1;
    }
#elif TWINS == 2
    if (IS_TWIN(column_tile + id % (TILE_N / 4) * 4)) {
        loader->sign = b_first % 2 ? -1 : 1;
        b_first ^= 1;
    }
#endif
    loader->a_pitch = TOGETHER * a_rows;
    loader->b_pitch = TOGETHER * b_columns;
#if TWINS
    loader->other = TOGETHER * (a_first % 2 ? -8 : 8);
    loader->a = a + MATRIX_AT(group, a_size, COMPLEX_AT(row, a_first % 2)) + (long)(a_first / 2 * 2) * loader->a_pitch;
    loader->b =
        b + MATRIX_AT(group, b_size, COMPLEX_AT(column, b_first % 2)) + (long)(b_first / 2 * 2) * loader->b_pitch;
#else
    loader->a = a + MATRIX_AT(group, a_size, row) + (long)a_first * loader->a_pitch;
    loader->b = b + MATRIX_AT(group, b_size, column) + (long)b_first * loader->b_pitch;
#endif
#endif
}

IN_PLACE void loader_fetch(Loader *loader, Fetched *fetched, local realv *b_tile) {
#if LOADER == BY_COLUMNS
#pragma unroll
    for (int i = 0; i < A_FETCHES; i++) fetched->a[i] = VECTOR_AT(loader->a + (long)A_DISTANCE(i) * loader->a_pitch);
#elif TWINS && A_TRANSPOSED
    if (A_LOADERS == THREADS || get_local_id(0) < A_LOADERS) {
#pragma unroll
        for (int i = 0; i < A_FETCHES; i++)
            fetched->a[i] = VECTOR_AT(loader->a + i / 2 * 2 * loader->a_pitch + (i % 2 ? loader->other : 0));
    }
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
#if LOADER == BY_COLUMNS
    loader->a += TOGETHER * TILE_K;
    loader->b += TOGETHER * TILE_K;
#else
    loader->a += TILE_K * (long)loader->a_pitch;
    loader->b += TILE_K * (long)loader->b_pitch;
#endif
#if TWINS
    fetched->sign = loader->sign;
#if LOADER == BY_COLUMNS && TILE_K == 8  // a step has real parts or imaginary ones
    if (loader->other != 0) {
        if (TWINS == 1)
            loader->a += loader->other;
        else
            loader->b += loader->other;
        loader->other = -loader->other;
        loader->sign = -loader->sign;
    }
#endif
#endif
}

#define ALL_SIGNED (LOADER == BY_COLUMNS || !A_TRANSPOSED)

IN_PLACE void loader_store(Fetched *fetched, local realv *a, local realv *b) {
    const int id = get_local_id(0);
#if TWINS == 1
#pragma unroll
    for (int i = 0; i < A_FETCHES; i++)
        if (ALL_SIGNED || i % 2) fetched->a[i] *= fetched->sign;
#elif TWINS == 2
#pragma unroll
    for (int i = 0; i < B_FETCHES; i++) fetched->b[i] *= fetched->sign;
#endif
#if LOADER == BY_COLUMNS
    store_columns_a(fetched->a, (local real *)a);
#if !ASYNC_VECTORS
    store_columns_b(fetched->b, b);
#endif
#else
    store_rows(fetched->a, a);
#endif
#if LOADER == BY_ROWS
#pragma unroll
    for (int i = 0; i < B_FETCHES; i++) b[B_PLACE(id, i)] = fetched->b[i];
#endif
}
