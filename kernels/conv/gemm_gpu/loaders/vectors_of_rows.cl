// A in memory by rows of the depth, (depth, rows): fetched in vectors of four rows, for the loaders gather and
// matrices.

#if A_TRANSPOSED
// A work-item fetches four vectors of four rows at neighbouring depths, and stores them as four of the depth.
#define A_LOADERS (THREADS < TILE_M * TILE_K / 16 ? THREADS : TILE_M * TILE_K / 16)
#define A_FETCHES (TILE_M * TILE_K / 4 / A_LOADERS)
#define A_FIRST_DEPTH(id) ((id) % (TILE_K / 4) * 4)
#define A_FIRST_ROW(id) ((id) / (TILE_K / 4) * 4)
#else
#define A_FETCHES (TILE_M * TILE_K / 4 / THREADS)
#define A_FIRST_DEPTH(id) ((id) / (TILE_M / 4))
#define A_FIRST_ROW(id) ((id) % (TILE_M / 4) * 4)
#endif

// from: the work-item's first vector, at A_FIRST_DEPTH and A_FIRST_ROW; step: elements from depth to depth.
IN_PLACE void fetch_rows(realv *fetched, global const real *from, const int step) {
#if A_TRANSPOSED
    if (A_LOADERS == THREADS || get_local_id(0) < A_LOADERS) {
#pragma unroll
        for (int i = 0; i < A_FETCHES; i++)
            fetched[i] = *(global const realv *)(from + i % 4 * step + i / 4 * (A_LOADERS / (TILE_K / 4)) * 4);
    }
#else
#pragma unroll
    for (int i = 0; i < A_FETCHES; i++)
        fetched[i] = *(global const realv *)(from + i * (THREADS / (TILE_M / 4)) * step);
#endif
}

// a: the tile in local memory.
IN_PLACE void store_rows(const realv *fetched, local realv *a) {
    const int id = get_local_id(0);
#if A_TRANSPOSED
    if (A_LOADERS == THREADS || id < A_LOADERS) {
        const int k = id % (TILE_K / 4) * 4;
#pragma unroll
        for (int i = 0; i < A_FETCHES / 4; i++) {
            const int m = (id / (TILE_K / 4) + i * (A_LOADERS / (TILE_K / 4))) * 4;
            const realv *from = fetched + 4 * i;
            A_PUT_DEPTH(a, k, m, (realv)(from[0].s0, from[1].s0, from[2].s0, from[3].s0));
            A_PUT_DEPTH(a, k, m + 1, (realv)(from[0].s1, from[1].s1, from[2].s1, from[3].s1));
            A_PUT_DEPTH(a, k, m + 2, (realv)(from[0].s2, from[1].s2, from[2].s2, from[3].s2));
            A_PUT_DEPTH(a, k, m + 3, (realv)(from[0].s3, from[1].s3, from[2].s3, from[3].s3));
        }
    }
#else
#pragma unroll
    for (int i = 0; i < A_FETCHES; i++) {
        const int vector = id + i * THREADS, k = vector / (TILE_M / 4), m = vector % (TILE_M / 4) * 4;
        a[A_ELEMENT(k, m) / 4] = fetched[i];
    }
#endif
}
