// Rows of A and columns of B with the depth inside, (rows, depth) and (columns, depth): fetched in vectors of four
// neighbours of the depth, for the loaders pixels and matrices. A work-item has the same four of every LANES-th row and
// column.
#define LANES (THREADS * 4 / TILE_K)
#define FIRST_DEPTH(id) ((id) % (TILE_K / 4) * 4)
#define FIRST_LANE(id) ((id) / (TILE_K / 4))
#define A_FETCHES (TILE_M / LANES)
#define B_FETCHES (TILE_N / LANES)
#if THREADS * 4 % TILE_K || TILE_M % LANES || TILE_N % LANES
#error the work-items do not divide the tiles
#endif

// Stores the work-item's vectors of A.
IN_PLACE void store_columns_a(const realv *fetched, local real *a) {
    const int id = get_local_id(0), k = FIRST_DEPTH(id);
#pragma unroll
    for (int i = 0; i < A_FETCHES; i++) {
        const int m = FIRST_LANE(id) + i * LANES;
        A_PUT(a, k, m, fetched[i].s0);
        A_PUT(a, k + 1, m, fetched[i].s1);
        A_PUT(a, k + 2, m, fetched[i].s2);
        A_PUT(a, k + 3, m, fetched[i].s3);
    }
}

// The same of B, if they were not copied.
IN_PLACE void store_columns_b(const realv *fetched, local realv *b) {
    const int id = get_local_id(0), k = FIRST_DEPTH(id);
    local real *to = (local real *)b;
#pragma unroll
    for (int i = 0; i < B_FETCHES; i++) {
        const int n = FIRST_LANE(id) + i * LANES;
#if DEPTH_INNER
        b[B_ELEMENT(k, n) / 4] = fetched[i];
#else
        to[B_ELEMENT(k, n)] = fetched[i].s0;
        to[B_ELEMENT(k + 1, n)] = fetched[i].s1;
        to[B_ELEMENT(k + 2, n)] = fetched[i].s2;
        to[B_ELEMENT(k + 3, n)] = fetched[i].s3;
#endif
    }
}
