// The form for Hopper's matrix units. Tiles of up to STAGES steps are in local memory at the same time.

#include "conv/gemm_gpu/product.cl"
#include "conv/gemm_gpu/micro/wgmma.cl"
#include "conv/gemm_gpu/loaders/loader.cl"
#include "conv/gemm_gpu/store/tile.cl"

WORK_GROUP
kernel void conv_gemm_wgmma(PRODUCT_PARAMETERS) {
    BEGIN_TILE;
    if (steps > 0) {
        FETCH_FIRST;
        LOADER_COPY_A(&loader, a_tiles);
        COPIES_COMMIT;
        loader_store(&fetched, a_tiles, b_tiles);
        if (1 < steps) {
            LOADER_FETCH(&loader, &fetched, b_tiles + B_TILE, 2 < steps);
            LOADER_COPY_A(&loader, a_tiles + A_TILE);
            loader_store(&fetched, a_tiles + A_TILE, b_tiles + B_TILE);
        }
        COPIES_COMMIT;
#if STAGES > 2
        if (2 < steps) {
            LOADER_FETCH(&loader, &fetched, b_tiles + 2 * B_TILE, 3 < steps);
#if STAGES > 3
            LOADER_COPY_A(&loader, a_tiles + 2 * A_TILE);
#endif
        }
        COPIES_COMMIT;
        COPIES_WAIT(2);
#else
        COPIES_WAIT(1);
#endif
        FENCE_TILES;
        barrier(CLK_LOCAL_MEM_FENCE);
        int now = 0;
        // While a step's products run, B of the step after the next is stored, which was fetched a step ago. So is A
        // where it passes registers; else the last free tile gets it by copies.
        float fed[4][4];
        int next = 1, last = STAGES > 2 ? 2 : 0;
        READ_FED(fed, (local const float *)b_tiles, place);
#if PROMOTE != 1
        float sums[SUMS];
        int summed = 0;  // steps in sums
#endif
        for (int left = steps; left > 0; left--) {
#if PROMOTE == 1
            float sums[SUMS];
            const int summed = 0;
#endif
            MULTIPLY_FED(sums, fed, a_tiles + now * A_TILE, summed);
            COPIES_WAIT(COPIES_AHEAD);
#if A_IMAGES
            FENCE_TILES;
#endif
            barrier(CLK_LOCAL_MEM_FENCE);  // the next tiles are stored, and nobody reads the last ones any more
#if STAGES > 2
            if (left > 2) {
                loader_store(&fetched, a_tiles + last * A_TILE, b_tiles + last * B_TILE);
#if A_IMAGES && STAGES == 3
                LOADER_COPY_A(&loader, a_tiles + last * A_TILE);
#elif !A_IMAGES
                FENCE_TILES;
#endif
            }
            const int free = last + 1 == STAGES ? 0 : last + 1;
            if (left > 3) {
                LOADER_FETCH(&loader, &fetched, b_tiles + free * B_TILE, left > 4);
#if STAGES > 3
                LOADER_COPY_A(&loader, a_tiles + free * A_TILE);
#endif
            }
            COPIES_COMMIT;
#else
            const int free = 0;
#endif
            READ_FED(fed, (local const float *)(b_tiles + next * B_TILE), place);  // not used after the last step
            now = next;
            next = last;
            last = free;
            WGMMA_WAIT(sums);
#if PROMOTE == 1
            ADD_SUMS(sums_of_item, sums);
#elif PROMOTE == 0
            summed = 1;
#else
            if (++summed == PROMOTE || left == 1) {
                ADD_SUMS(sums_of_item, sums);
                summed = 0;
            }
#endif
        }
#if PROMOTE == 0
        ADD_SUMS(sums_of_item, sums);
#endif
    }
    STORE_TILE;
}
