// Tells whether the micro kernels for Hopper's matrix units work on a device: c (64, 64) = a (64, TILE_K) * b
// (TILE_K, 64), by one work-group. With FROM_TILES both are of 16 bits (micro/wgmma_halves.cl), and the columns of b
// are in local memory, from row SHIFT of a tile; else work-items feed them from registers (micro/wgmma.cl).

#include "conv/gemm_gpu/constants.cl"

#define TILE_M 64
#define TILE_N 64
#define SHIFT 3

#ifndef FROM_TILES
#define FROM_TILES 0  // 1: both operands are of 16 bits, from local memory
#endif
#if FROM_TILES
#ifndef OPERANDS
#define OPERANDS FLOAT16
#endif
#define TILE_K HALVES_DEPTH
#define ITEM_M 2
#define ITEM_N 16
#define UNITS_N TILE_N
#define UNITS_ELEMENT ushort
#else
#define TILE_K WGMMA_DEPTH
#define ITEM_M 16
#define ITEM_N 2
#define UNITS_N TILE_M
#define UNITS_ELEMENT float
#endif

#include "conv/gemm_gpu/product.cl"
#include "conv/gemm_gpu/micro/wgmma_units.cl"

#if FROM_TILES
#include "conv/gemm_gpu/micro/wgmma_halves.cl"

#if OPERANDS == BFLOAT16
#define STORE_HALF(value, at, tile) (tile)[at] = as_uint(value) >> 16  // numbers that are exact
#else
#define STORE_HALF(value, at, tile) vstore_half_rte(value, at, (local half *)(tile))
#endif

WORK_GROUP
kernel void check_wgmma(TENSOR_OF(const float, a), TENSOR_OF(const float, b), TENSOR_OF(float, c)) {
    const int id = get_local_id(0);
    float sums[SUMS];
    local ushort rows[TILE_M * TILE_K] TILE_ALIGNMENT, columns[(TILE_N + 8) * TILE_K] TILE_ALIGNMENT;
    for (int i = id; i < TILE_M * TILE_K; i += THREADS)
        STORE_HALF(OPEN(a)[i], HALVES_SLOT(i % TILE_K, i / TILE_K), rows);
    for (int i = id; i < (TILE_N + 8) * TILE_K; i += THREADS)
        STORE_HALF(OPEN(b)[i % TILE_K * TILE_N + (i / TILE_K + TILE_N - SHIFT) % TILE_N],
                   HALVES_SLOT(i % TILE_K, i / TILE_K), columns);
    FENCE_TILES;
    barrier(CLK_LOCAL_MEM_FENCE);
    const TileAddress address = TILE_ADDRESS(rows), columns_address = TILE_ROW_ADDRESS(columns, SHIFT);
    for (int e = 0; e < SUMS; e++) sums[e] = 0;
    WGMMA_BEGIN;
    WGMMA_LOOP
    for (int s = 0; s < TILE_K / 16; s++) WGMMA_TILES(sums, address, columns_address, s);
    WGMMA_COMMIT;
    WGMMA_WAIT(sums);
    for (int e = 0; e < SUMS; e++) {
        const int row = id / 32 * 16 + id % 32 / 4 + e / 2 % 2 * 8;
        OPEN(c)[row * TILE_N + e / 4 * 8 + id % 4 * 2 + e % 2] = sums[e];
    }
}
#else
#include "conv/gemm_gpu/micro/wgmma.cl"

WORK_GROUP
kernel void check_wgmma(TENSOR_OF(const float, a), TENSOR_OF(const float, b), TENSOR_OF(float, c)) {
    const int id = get_local_id(0);
    float sums[SUMS];
    local realv a_tile[A_TILE] TILE_ALIGNMENT, b_tile[B_TILE];
    const Place place = place_of_item();
    MICRO_LOCALS;
    for (int i = id; i < TILE_M * TILE_K; i += THREADS) {
        A_PUT((local real *)a_tile, i % TILE_K, i / TILE_K, OPEN(a)[i]);
        ((local real *)b_tile)[B_ELEMENT(i / TILE_N, i % TILE_N)] = OPEN(b)[i];
    }
    FENCE_TILES;
    barrier(CLK_LOCAL_MEM_FENCE);
    const TileAddress address = TILE_ADDRESS((local const float *)a_tile);
    float fed[4][4];
    uint bits[4][4];
    READ_FED(fed, (local const float *)b_tile, place);
    for (int s = 0; s < 4; s++)
        for (int i = 0; i < 4; i++) bits[s][i] = as_uint(fed[s][i]);
    WGMMA_BEGIN;
    WGMMA_LOOP
    for (int s = 0; s < 4; s++) WGMMA(sums, bits[s], address, s, s > 0);
    WGMMA_COMMIT;
    WGMMA_WAIT(sums);
    for (int i = 0; i < ITEM_M; i++)
        for (int j = 0; j < 2; j++)
            OPEN(c)[row_of(&place, i) * TILE_N + column_of(&place, j)] = sums[i / 2 * 4 + j * 2 + i % 2];
}
#endif
