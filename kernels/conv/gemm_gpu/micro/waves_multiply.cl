// The products of a step by waves (micro/waves.cl).

#if WARP_M % BLOCK_M || WARP_N % BLOCK_N || HALVES_DEPTH % BLOCK_K || WARPS_M * WARPS_N * LANES != THREADS
#error waves divide the tile into blocks
#endif

#if EMULATED
// Returns what the units add to sums, of which each lane has some, by the lanes' fragments.
__attribute__((always_inline)) UNITS_SUMS added_by_units(const UNITS_FIRST first, const UNITS_SECOND second,
                                                         UNITS_SUMS sums TAKE_EXCHANGE) {
    const int lane = LANE;
    local ushort *const wave = exchanged + WARP * LANES * EXCHANGED;
    *(local UNITS_FIRST *)(wave + lane * EXCHANGED) = first;
    *(local UNITS_SECOND *)(wave + lane * EXCHANGED + EXCHANGED / 2) = second;
    barrier(CLK_LOCAL_MEM_FENCE);
    float *const each = (float *)&sums;
    for (int e = 0; e < (int)(sizeof(UNITS_SUMS) / sizeof(float)); e++) {
        const int i = UNITS_ROW(e, lane), j = UNITS_COLUMN(e, lane);
        for (int k = 0; k < UNITS_K; k++)
            each[e] += HALF_AT(wave, FIRST_LANE(i, k) * EXCHANGED + FIRST_ELEMENT(i, k)) *
                       HALF_AT(wave, SECOND_LANE(k, j) * EXCHANGED + EXCHANGED / 2 + SECOND_ELEMENT(k, j));
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return sums;
}
#define UNROLLED
#else
#define UNROLLED _Pragma("unroll")
#endif

__attribute__((always_inline)) void multiply_by_waves(float *sums, local const ushort *a, const int shift,
                                                      local const ushort *b TAKE_EXCHANGE) {
    const int lane = LANE;
    UNROLLED
    for (int k = 0; k < HALVES_DEPTH; k += BLOCK_K) {
        Rows rows[BLOCKS_M];
        UNROLLED
        for (int i = 0; i < BLOCKS_M; i++) rows[i] = read_rows(a, shift + ROW_OF_BLOCK(i), k, lane);
        UNROLLED
        for (int j = 0; j < BLOCKS_N; j++) {
            const Columns columns = read_columns(b, COLUMN_OF_BLOCK(j), k, lane);
            UNROLLED
            for (int i = 0; i < BLOCKS_M; i++) ADD_BLOCK(sums + (i * BLOCKS_N + j) * BLOCK_SUMS, columns, rows[i]);
        }
    }
}
