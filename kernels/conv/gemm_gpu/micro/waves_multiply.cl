// The products of a step by waves (micro/waves.cl): on the units, or as their documents say where a lane's fragments
// and sums belong.

#if WARP_M % BLOCK_M || WARP_N % BLOCK_N || HALVES_DEPTH % BLOCK_K || WARPS_M * WARPS_N * LANES != THREADS
#error waves divide the tile into blocks
#endif

#if EMULATED
#if OPERANDS == BFLOAT16
#define ELEMENT_OF(fragment, e) as_float((uint)((const ushort *)&(fragment))[e] << 16)
#else
#define ELEMENT_OF(fragment, e) vload_half(e, (const half *)&(fragment))
#endif
__attribute__((always_inline)) void MULTIPLY(float *sums, local const ushort *a, const int shift,
                                             local const ushort *b) {
    const int lane = LANE;
    for (int e = 0; e < SUMS; e++) {
        const int m = shift + ROW_OF_BLOCK(e / BLOCK_SUMS / BLOCKS_N), n = COLUMN_OF_BLOCK(e / BLOCK_SUMS % BLOCKS_N);
        const int i = UNITS_ROW(e % BLOCK_SUMS, lane), j = UNITS_COLUMN(e % BLOCK_SUMS, lane);
        float sum = sums[e];
        for (int depth = 0; depth < HALVES_DEPTH; depth += UNITS_K) {
            const int product = depth % BLOCK_K / UNITS_K, first_k = depth / BLOCK_K * BLOCK_K;
            for (int k = 0; k < UNITS_K; k++) {
                const Columns columns = read_columns(b, n, first_k, FIRST_LANE(i, k));
                const Rows rows = read_rows(a, m, first_k, SECOND_LANE(k, j));
                sum += ELEMENT_OF(columns, product * FIRST_STEP + FIRST_ELEMENT(i, k)) *
                       ELEMENT_OF(rows, product * SECOND_STEP + SECOND_ELEMENT(k, j));
            }
        }
        sums[e] = sum;
    }
}
#else
__attribute__((always_inline)) void MULTIPLY(float *sums, local const ushort *a, const int shift,
                                             local const ushort *b) {
    const int lane = LANE;
#pragma unroll
    for (int k = 0; k < HALVES_DEPTH; k += BLOCK_K) {
        Rows rows[BLOCKS_M];
#pragma unroll
        for (int i = 0; i < BLOCKS_M; i++) rows[i] = read_rows(a, shift + ROW_OF_BLOCK(i), k, lane);
#pragma unroll
        for (int j = 0; j < BLOCKS_N; j++) {
            const Columns columns = read_columns(b, COLUMN_OF_BLOCK(j), k, lane);
#pragma unroll
            for (int i = 0; i < BLOCKS_M; i++) ADD_BLOCK(sums + (i * BLOCKS_N + j) * BLOCK_SUMS, columns, rows[i]);
        }
    }
}
#endif
