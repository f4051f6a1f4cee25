// The form for matrix units of compute capability 8.0 and above. While a step is multiplied, the next one is
// fetched.

#include "conv/gemm_gpu/product.cl"
#include "conv/gemm_gpu/micro/mma.cl"
#include "conv/gemm_gpu/loaders/loader.cl"
#include "conv/gemm_gpu/store/tile.cl"

WORK_GROUP
kernel void conv_gemm_mma(PRODUCT_PARAMETERS) {
    BEGIN_TILE;
    if (steps > 0) {
        FETCH_FIRST;
        loader_store(&fetched, a_tiles, b_tiles);
        barrier(CLK_LOCAL_MEM_FENCE);
        int now = 0;
        for (int step = 1; step <= steps; step++) {
            if (step < steps) LOADER_FETCH(&loader, &fetched, 0, step + 1 < steps);
            multiply_tiles(&place, a_tiles + now * A_TILE, b_tiles + now * B_TILE, sums_of_item MICRO_OPERANDS);
            now ^= 1;
            if (step < steps) loader_store(&fetched, a_tiles + now * A_TILE, b_tiles + now * B_TILE);
            barrier(CLK_LOCAL_MEM_FENCE);
        }
    }
    STORE_TILE;
}
