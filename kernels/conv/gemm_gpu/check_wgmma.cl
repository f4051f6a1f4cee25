// Tells whether the micro kernel for Hopper's matrix units on TF32 works on a device: c (64, 64) = a (64, TILE_K) * b
// (TILE_K, 64), by one work-group, whose work-items feed one side from registers (micro/wgmma.cl).

#include "conv/gemm_gpu/constants.cl"

#define TILE_M 64
#define TILE_N 64
#define TILE_K WGMMA_DEPTH
#define ITEM_M 16
#define ITEM_N 2
#define UNITS_N TILE_M
#define UNITS_ELEMENT float

#include "conv/gemm_gpu/product.cl"
#include "conv/gemm_gpu/micro/wgmma_units.cl"

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
