// Tells whether conv/gemm_gpu/wgmma.cl works on a device: c (64, 64) = a (64, 32) * b (32, 64), by one work-group. The
// first half of the rows is from b in registers; the second one is from columns in local memory, from row SHIFT of a tile.

#define MICRO_KERNEL 3
#define LOADER 1
#define TILE_M 64
#define TILE_N 64
#define TILE_K 32
#define ITEM_M 16
#define ITEM_N 2
#define THREADS 128
#define SHIFT 3

#include "conv/gemm_gpu/layout.cl"
#include "conv/gemm_gpu/wgmma.cl"

__attribute__((reqd_work_group_size(THREADS, 1, 1)))
kernel void check_wgmma(TENSOR_OF(const float, a), TENSOR_OF(const float, b), TENSOR_OF(float, c)) {
    local realv a_tile[A_TILE] TILE_ALIGNMENT, b_tile[B_TILE];
    local float columns[(TILE_N + 8) * TILE_K] TILE_ALIGNMENT;
    const Place place = place_of_item();
    MICRO_LOCALS;
    for (int i = get_local_id(0); i < TILE_M * TILE_K; i += THREADS) {
        A_PUT((local real *)a_tile, i % TILE_K, i / TILE_K, OPEN(a)[i]);
        ((local real *)b_tile)[B_ELEMENT(i / TILE_N, i % TILE_N)] = OPEN(b)[i];
    }
    for (int i = get_local_id(0); i < (TILE_N + 8) * TILE_K; i += THREADS)
        columns[A_SLOT(i % TILE_K, i / TILE_K)] = OPEN(b)[i % TILE_K * TILE_N + (i / TILE_K + TILE_N - SHIFT) % TILE_N];
    FENCE_TILES;
    barrier(CLK_LOCAL_MEM_FENCE);
    float fed[4][4], sums[SUMS], sums_of_tiles[SUMS];
    uint bits[4][4];
    READ_FED(fed, (local const float *)b_tile, place);
    for (int s = 0; s < 4; s++)
        for (int i = 0; i < 4; i++) bits[s][i] = as_uint(fed[s][i]);
    for (int e = 0; e < SUMS; e++) sums_of_tiles[e] = 0;
    const TileAddress address = TILE_ADDRESS((local const float *)a_tile);
    const TileAddress columns_address = TILE_ROW_ADDRESS((local const float *)columns, SHIFT);
    WGMMA_BEGIN;
    WGMMA_LOOP
    for (int s = 0; s < 4; s++) WGMMA(sums, bits[s], address, s, s > 0);
    WGMMA_COMMIT;
    WGMMA_WAIT(sums);
    WGMMA_BEGIN;
    WGMMA_LOOP
    for (int s = 0; s < 4; s++) WGMMA_TILES(sums_of_tiles, address, columns_address, s);
    WGMMA_COMMIT;
    WGMMA_WAIT(sums_of_tiles);
    for (int i = 0; i < ITEM_M / 2; i++)
        for (int j = 0; j < 2; j++)
            OPEN(c)[row_of(&place, i) * TILE_N + column_of(&place, j)] = sums[i / 2 * 4 + j * 2 + i % 2];
    const int id = get_local_id(0), first = id / 32 * 16 + id % 32 / 4;
    for (int e = 0; e < SUMS; e++) {
        const int row = first + e / 2 % 2 * 8;
        if (row >= TILE_M / 2) OPEN(c)[row * TILE_N + e / 4 * 8 + id % 4 * 2 + e % 2] = sums_of_tiles[e];
    }
}
