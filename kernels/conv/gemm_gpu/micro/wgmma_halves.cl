// The micro kernel for Hopper's matrix units on operands of 16 bits, both from local memory (micro/halves.cl).
//
// A warpgroup of 128 work-items makes BLOCKS_M times 64 rows and all columns of the tile. Lane (g, t) of 8 * 4 in warp
// w of a warpgroup has the sums of rows 16 * w + g of each 64, and of the eighth one after it: element 4 * j + 2 * i +
// c is row i of the two, column 8 * j + 2 * t + c.

#define UNITS_N TILE_N
#define UNITS_ELEMENT ushort
#define BLOCKS_M (TILE_M * 2 / THREADS)
#define SUMS_OF_BLOCK (TILE_N / 2)
#define SUMS (BLOCKS_M * SUMS_OF_BLOCK)

#include "conv/gemm_gpu/micro/wgmma_units.cl"

#define WARPGROUP ((int)get_local_id(0) / 128)
#define OF_WARPGROUP ((uint)get_local_id(0) % 128)
#define SUM_ROW(e)                                                                                               \
    ((WARPGROUP * BLOCKS_M + (e) / SUMS_OF_BLOCK) * 64 + (int)(OF_WARPGROUP / 32 * 16 + OF_WARPGROUP % 32 / 4) + \
     (e) / 2 % 2 * 8)
#define SUM_COLUMN(e) ((e) % SUMS_OF_BLOCK / 4 * 8 + (int)(OF_WARPGROUP % 4 * 2))

#if BLOCKS_M != 1 && BLOCKS_M != 2
#error a warpgroup makes 64 or 128 rows
#endif

#if !EMULATED
#if OPERANDS == BFLOAT16
#define HALVES "bf16.bf16"
#else
#define HALVES "f16.f16"
#endif
// Descriptors of tiles: their address, in units of 16 bytes the distance of blocks of 64 rows of C where rows are the
// depth, and that of eight rows; and the swizzle of 128 bytes. A product has 16 elements of the depth.
#define TILE_OF(tile, blocks) \
    (((ulong)1 << 62) | ((ulong)64 << 32) | ((ulong)(blocks) << 16) | (ulong)(((uint)(size_t)(tile) & 0x3ffffu) >> 4))
#define BLOCK_UNITS (HALVES_BLOCK / 8)
#if A_BY_DEPTH
#define A_DESCRIPTOR(tile) TILE_OF(tile, BLOCK_UNITS)
#define A_SLICE 128
#define A_TURNED "1"
#else
#define A_DESCRIPTOR(tile) TILE_OF(tile, 1)
#define A_SLICE 2
#define A_TURNED "0"
#endif
#if B_BY_DEPTH
#define B_DESCRIPTOR(tile) TILE_OF(tile, BLOCK_UNITS)
#define B_SLICE 128
#define B_TURNED "1"
#else
#define B_DESCRIPTOR(tile) TILE_OF(tile, 1)
#define B_SLICE 2
#define B_TURNED "0"
#endif
// The instruction with numbers of operands: sums, both descriptors, and whether there are sums to add to.
#define TILES_PRODUCT(size, sums, a, b, add, unused_1, unused_2, unused_3)                                          \
    "//sm_90a: {.reg .pred p; setp.ne.b32 p, %" add ", 0; wgmma.mma_async.sync.aligned.m64n" size "k16.f32." HALVES \
    " {" sums "}, %" a ", %" b ", p, 1, 1, " A_TURNED ", " B_TURNED ";}"
#define WGMMA_SLICE(s, a, b, slice)                                                   \
    asm volatile(PRODUCT_OF(TILES_PRODUCT)                                            \
                 : ALL_SUMS(s)                                                        \
                 : "l"((a) + A_SLICE * (slice)), "l"((b) + B_SLICE * (slice)), "r"(1) \
                 : "memory")
#define WGMMA_SLICES(sums, a, b) \
    WGMMA_SLICE(sums, a, b, 0);  \
    WGMMA_SLICE(sums, a, b, 1);  \
    WGMMA_SLICE(sums, a, b, 2);  \
    WGMMA_SLICE(sums, a, b, 3)
#define MULTIPLY(sums, a, shift, b)                                                                               \
    {                                                                                                             \
        const ulong a_units = A_DESCRIPTOR((a) + WARPGROUP * BLOCKS_M * HALVES_BLOCK + (shift) * HALVES_DEPTH),   \
                    b_units = B_DESCRIPTOR(b);                                                                    \
        WGMMA_BEGIN;                                                                                              \
        WGMMA_SLICES(sums, a_units, b_units);                                                                     \
        if (BLOCKS_M == 2) {                                                                                      \
            WGMMA_SLICES(sums + (BLOCKS_M - 1) * SUMS_OF_BLOCK, a_units + (BLOCKS_M - 1) * BLOCK_UNITS, b_units); \
        }                                                                                                         \
        WGMMA_COMMIT;                                                                                             \
    }
#if UNITS_N == 32
#define SUMS_COUNT "16"
#elif UNITS_N == 64
#define SUMS_COUNT "32"
#elif UNITS_N == 128
#define SUMS_COUNT "64"
#elif UNITS_N == 192
#define SUMS_COUNT "96"
#else
#define SUMS_COUNT "128"
#endif
#define PRODUCTS_WAIT(s, steps)                                                                                     \
    asm volatile("//sm_90a: wgmma.wait_group.sync.aligned %" SUMS_COUNT ";" : ALL_SUMS(s) : "n"(steps) : "memory"); \
    asm volatile("" : ALL_SUMS((s) + (BLOCKS_M - 1) * SUMS_OF_BLOCK)::"memory")
#endif
