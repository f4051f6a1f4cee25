// The form for every device: the portable micro kernel. While a step is multiplied, the next one is fetched.

#include "conv/gemm_gpu/product.cl"
#include "conv/gemm_gpu/micro/fma.cl"
#include "conv/gemm_gpu/loaders/loader.cl"
#include "conv/gemm_gpu/store/tile.cl"

WORK_GROUP
kernel void conv_gemm(PRODUCT_PARAMETERS) {
    BEGIN_TILE;
    if (steps > 0) {
        FETCH_FIRST;
        loader_store(&fetched, a_tiles, b_tiles);
        barrier(CLK_LOCAL_MEM_FENCE);
        int now = 0;
        local const realv *const a_start = a_tiles + place.m, *const b_start = b_tiles + place.n;
        local const realv *a = a_start, *b = b_start;
        Fragment even, odd;
        read_fragment(&even, a, b, 0);
        for (int step = 1; step <= steps; step++) {
            if (step < steps) LOADER_FETCH(&loader, &fetched, 0, step + 1 < steps);
#pragma unroll
            for (int k = 0; k < TILE_K - 2; k += 2) {
                read_fragment(&odd, a, b, k + 1);
                multiply(&even, sums_of_item);
                read_fragment(&even, a, b, k + 2);
                multiply(&odd, sums_of_item);
            }
            read_fragment(&odd, a, b, TILE_K - 1);
            multiply(&even, sums_of_item);
            now ^= 1;
            if (step < steps) loader_store(&fetched, a_tiles + now * A_TILE, b_tiles + now * B_TILE);
            barrier(CLK_LOCAL_MEM_FENCE);
            // a step's last products hide the wait for the next tiles; what this reads after the last step is not used
            a = a_start + now * A_TILE;
            b = b_start + now * B_TILE;
            read_fragment(&even, a, b, 0);
            multiply(&odd, sums_of_item);
        }
    }
    STORE_TILE;
}
