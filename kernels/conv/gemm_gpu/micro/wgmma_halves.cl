// The micro kernel for Hopper's matrix units on operands of 16 bits, both from local memory.
//
// A warpgroup makes 64 rows and UNITS_N columns, 64 elements of the depth at a time. Columns may begin at any row of
// their tile, so that what several taps of a convolution meet can be there once. Lane (g, t) of 8 * 4 in warp w gets
// the sums of rows 16 * w + g and the eighth one after it: element 4 * j + 2 * i + c is row i of the two, column 8 *
// j + 2 * t + c.

#if TILE_K != HALVES_DEPTH || (OPERANDS != FLOAT16 && OPERANDS != BFLOAT16)
#error a warpgroup multiplies 64 elements of 16 bits of the depth at a time
#endif

#define UNITS_ELEMENT ushort

#include "conv/gemm_gpu/micro/wgmma_units.cl"

// Element `slot` of the depth of row m of a tile.
#define HALVES_SLOT(slot, m) ((m) * TILE_K + ((slot) ^ ((m) & 7) << 3))

#if EMULATED
#if OPERANDS == BFLOAT16
#define HALF_AT(address, slot, m) as_float((uint)(address).tile[HALVES_SLOT(slot, (address).row + (m))] << 16)
#else
#define HALF_AT(address, slot, m) vload_half(HALVES_SLOT(slot, (address).row + (m)), (local const half *)(address).tile)
#endif

void WGMMA_TILES(float *sums, const TileAddress a, const TileAddress b, const int slice) {
    const int id = get_local_id(0), g = id % 32 / 4, t = id % 4;
    for (int e = 0; e < SUMS; e++) {
        const int row = id % 128 / 32 * 16 + e / 2 % 2 * 8 + g, column = e / 4 * 8 + 2 * t + e % 2;
        float sum = sums[e];
        for (int k = 16 * slice; k < 16 * slice + 16; k++) sum += HALF_AT(a, k, row) * HALF_AT(b, k, column);
        sums[e] = sum;
    }
}
#else
#if OPERANDS == BFLOAT16
#define HALVES "bf16.bf16"
#else
#define HALVES "f16.f16"
#endif
// The instruction with numbers of operands: sums, the addresses of both sides' tiles, and whether there are sums to
// add to.
#define TILES_PRODUCT(size, sums, a, b, add, unused_1, unused_2, unused_3)                                          \
    "//sm_90a: {.reg .pred p; setp.ne.b32 p, %" add ", 0; wgmma.mma_async.sync.aligned.m64n" size "k16.f32." HALVES \
    " {" sums "}, %" a ", %" b ", p, 1, 1, 0, 0;}"
// Adds the product of 64 rows of a tile and UNITS_N columns of another one, a slice of 16 of the depth.
#define WGMMA_TILES(s, a, b, slice)                                       \
    asm volatile(PRODUCT_OF(TILES_PRODUCT)                                \
                 : ALL_SUMS(s)                                            \
                 : "l"((a) + 2 * (slice)), "l"((b) + 2 * (slice)), "r"(1) \
                 : "memory")
#endif
