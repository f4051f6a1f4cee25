// How tiles lie in local memory for micro/wgmma.cl.

#include "conv/gemm_gpu/micro/tf32.cl"

// The units read A themselves: rows of 32 elements of the depth, whose eight vectors are permuted by the row's last
// three bits (the swizzle of 128 bytes); first the tile of the upper parts, then that of the lower ones. With
// DEPTH_INNER, the depth's order in the row is the one in which work-items read B.
#if COLUMN_LOADER
#define DEPTH_INNER 1
#define DEPTH_SLOT(k) ((k) % 4 * 8 + (k) / 16 * 4 + (k) / 4 % 4)
#else
#define DEPTH_INNER 0
#define DEPTH_SLOT(k) (k)
#endif
#define A_SLOT(slot, m) ((m) * TILE_K + ((slot) ^ ((m) & 7) << 2))
#define A_ELEMENT(k, m) A_SLOT(DEPTH_SLOT(k), m)
#define A_HALF (TILE_K * TILE_M)
#define A_TRANSPOSED 1
#define A_IMAGES (LOADER == GATHER)
#define A_TILE (A_ELEMENTS / 4)
#if OPERANDS == TF32
#define A_ELEMENTS A_HALF
#define A_PUT(a, k, m, value) (a)[A_ELEMENT(k, m)] = as_float(tf32_of(value))
#define A_PUT_DEPTH(a, k, m, value)                                                                 \
    {                                                                                               \
        const float4 put = (value);                                                                 \
        (a)[A_ELEMENT(k, m) / 4] =                                                                  \
            as_float4((uint4)(tf32_of(put.s0), tf32_of(put.s1), tf32_of(put.s2), tf32_of(put.s3))); \
    }
#else
#define A_ELEMENTS (2 * A_HALF)
#define A_PUT(a, k, m, value)                          \
    {                                                  \
        const real put = (value);                      \
        (a)[A_ELEMENT(k, m)] = as_float(high_of(put)); \
        (a)[A_HALF + A_ELEMENT(k, m)] = LOW_OF(put);   \
    }
// The same for a vector of the depth's neighbours.
#define A_PUT_DEPTH(a, k, m, value)                                                                                 \
    {                                                                                                               \
        const float4 put = (value);                                                                                 \
        const float4 high = as_float4((uint4)(high_of(put.s0), high_of(put.s1), high_of(put.s2), high_of(put.s3))); \
        (a)[A_ELEMENT(k, m) / 4] = high;                                                                            \
        (a)[(A_HALF + A_ELEMENT(k, m)) / 4] = put - high;                                                           \
    }
#endif

#if COLUMN_LOADER
// Neighbours of the depth are neighbours in memory; every second pair of rows has its halves swapped.
#define B_ELEMENT(k, n) ((n) * TILE_K + ((k) ^ ((n) >> 1 & 1) << 4))
#define B_TILE (TILE_K * TILE_N / 4)
#else
#define B_ELEMENT(k, n) ((k) * (TILE_N + UNITS_PAD) + (n))
#define B_TILE (TILE_K * (TILE_N + UNITS_PAD) / 4)
#endif
