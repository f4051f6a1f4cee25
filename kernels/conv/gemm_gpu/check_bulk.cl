// Tells whether boxes of matrices arrive in local memory (micro/bulk.cl): c (ROWS, 64), the box of a matrix from row Y
// and column X on, of which the matrix has a part.

#include "conv/gemm_gpu/constants.cl"

#define OPERANDS FLOAT16
#include "conv/gemm_gpu/micro/halves.cl"
#include "conv/gemm_gpu/micro/bulk.cl"

OF_WAVES __attribute__((reqd_work_group_size(THREADS, 1, 1))) kernel void check_bulk(const TensorMap map,
                                                                                     CONST_TENSOR(a), TENSOR(c)) {
    const int id = get_local_id(0);
    local ushort tile[ROWS * HALVES_DEPTH] TILE_ALIGNMENT;
    BULK_BARRIERS(barriers, 1)
    BULK_OPEN(barriers, 1, 1);
    OPEN_MAP(from, check_bulk, 0, map);
    for (int i = id; i < ROWS * HALVES_DEPTH; i += THREADS) tile[i] = 1;
    FENCE_TILES;
    barrier(CLK_LOCAL_MEM_FENCE);
#if EMULATED
    BULK_COPY(tile, from, OPEN(a), X, Y, barriers, 0);
    barrier(CLK_LOCAL_MEM_FENCE);
#else
    if (id == 0 && BULK_REACHES(OPEN(a))) {
        BULK_ASK(barriers, 0, ROWS * HALVES_DEPTH * 2);
        BULK_COPY(tile, from, OPEN(a), X, Y, barriers, 0);
    }
    if (BULK_REACHES(OPEN(a))) bulk_wait(ARRIVED(barriers, 0), 0);
#endif
    for (int i = id; i < ROWS * HALVES_DEPTH; i += THREADS)
        ((global ushort *)OPEN(c))[i] = tile[HALVES_SLOT(i % HALVES_DEPTH, i / HALVES_DEPTH)];
}
