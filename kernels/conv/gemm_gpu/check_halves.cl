// Tells whether a micro kernel for operands of 16 bits works on a device: c (TILE_M, TILE_N) = a (TILE_M, 64) * b (64,
// TILE_N), by one work-group. Rows of A's tile are those of C, rows of B's the depth: both ways in which units read.

#include "conv/gemm_gpu/constants.cl"

#define SHIFT 3  // rows from the tile's beginning to A's
#define A_BY_DEPTH 0
#define B_BY_DEPTH 1
#ifdef BRAIN
#define OPERANDS BFLOAT16
#else
#define OPERANDS FLOAT16
#endif

#include "conv/gemm_gpu/micro/halves.cl"

OF_WAVES __attribute__((reqd_work_group_size(THREADS, 1, 1))) kernel void check_halves(CONST_TENSOR(a), CONST_TENSOR(b),
                                                                                       TENSOR_OF(float, c)) {
    const int id = get_local_id(0);
    local ushort rows[(TILE_M + 8) * HALVES_DEPTH] TILE_ALIGNMENT, columns[TILE_N * HALVES_DEPTH] TILE_ALIGNMENT;
    DECLARE_EXCHANGE
    for (int i = id; i < TILE_M * HALVES_DEPTH; i += THREADS)
        rows[A_AT(SHIFT + i / HALVES_DEPTH, i % HALVES_DEPTH)] = ((global const ushort *)OPEN(a))[i];
    for (int i = id; i < TILE_N * HALVES_DEPTH; i += THREADS)
        columns[B_AT(i % TILE_N, i / TILE_N)] = ((global const ushort *)OPEN(b))[i];
    FENCE_TILES;
    barrier(CLK_LOCAL_MEM_FENCE);
    float sums[SUMS];
    for (int e = 0; e < SUMS; e++) sums[e] = 0;
    MULTIPLY(sums, rows, SHIFT, columns);
    PRODUCTS_WAIT(sums, 0);
    for (int e = 0; e < SUMS; e++) OPEN(c)[SUM_ROW(e) * TILE_N + SUM_COLUMN(e) + e % 2] = sums[e];
}
