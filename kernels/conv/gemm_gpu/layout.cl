// How the tiles of A and B lie in local memory: loaders write them by these macros, micro kernels read them.
//
// Rows of the depth (MICRO_KERNEL 1; 2 and 3 with the gather loader): element (k, m) is k * (TILE_M + PAD) + m. The
// matrix units' micro kernels read vectors at four neighbouring depths at once; with PAD 8, those of a quarter of a
// warp are in different banks.
//
// A_PUT stores an element of A. What a work-item of the gather loader fetches of A is four neighbours in m.

// Whether a loader writes columns, neighbours of the depth: the pixels loader, and that of matrices with the depth inside.
#define COLUMN_LOADER (LOADER == 2 || LOADER == 4)

// For the matrix units, 1: one product of operands rounded to TF32 instead of three (CLGRAFT_PRECISION=tf32).
#ifndef TF32
#define TF32 0
#endif

// 1: compute what the matrix units compute through local memory, so that any device can run their kernels, slowly.
#ifndef EMULATED
#define EMULATED 0
#endif

#if MICRO_KERNEL > 1
// The bits of a number rounded to TF32.
uint tf32_of(const float x) {
#if EMULATED
    return isnan(x) ? as_uint(x) : (as_uint(x) + 0x1000u) & 0xffffe000u;
#else
    uint bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
#endif
}

// The bits of the nearest number that TF32 has, and the rest. The units ignore the last 13 bits of what they get. What
// rounds to infinity becomes TF32's largest number, with an infinite rest if it is infinite: products of an infinity and
// a rest of zero would be NaN.
uint high_of(const float x) {
    const uint rounded = (as_uint(x) + 0x1000u) & 0xffffe000u;
    return fabs(as_float(rounded)) == INFINITY ? rounded - 0x2000u : rounded;
}
#define LOW_OF(x) ((x) - as_float(high_of(x)))
#endif

// The matrix units' kernels call these functions several times, and keep arrays in registers.
#if MICRO_KERNEL > 1
#define IN_PLACE __attribute__((always_inline))
#else
#define IN_PLACE
#endif

// Whether a loader may send vectors to local memory without passing registers, by copies that run while a work-item
// goes on. Copies of single elements are slower than loads and stores.
#define ASYNC (MICRO_KERNEL == 3)
#define VECTOR_AT(p) (*(global const realv *)(p))
#if ASYNC && !EMULATED
#define COPIES_COMMIT asm volatile("cp.async.commit_group;" ::: "memory")
#define COPIES_WAIT(groups) asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory")
#define COPY_VECTOR(to, from) \
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint)(size_t)(to)), "l"(from) : "memory")
#else
#define COPIES_COMMIT
#define COPIES_WAIT(groups)
#define COPY_VECTOR(to, from) *(to) = VECTOR_AT(from)
#endif

#if MICRO_KERNEL == 1
#if COLUMN_LOADER
#define PAD 4
#else
#define PAD 0
#endif
#else
#define PAD 8
#endif

#if MICRO_KERNEL == 2 && COLUMN_LOADER
// Neighbours of the depth are neighbours in memory, because this loader has the pixels of a row at hand. Every fourth
// pair of rows is swapped, so that rows 4 * g and 4 * g + 4 are in different banks.
#define DEPTH_INNER 1
#define B_ELEMENT(k, n) (((n) ^ ((n) >> 2 & 1)) * TILE_K + (k))
#define B_ELEMENTS (TILE_K * TILE_N)
#elif MICRO_KERNEL == 3 && COLUMN_LOADER
// As before, with 32 neighbours: every second pair of rows has its halves swapped.
#define DEPTH_INNER 1
#define B_ELEMENT(k, n) ((n) * TILE_K + ((k) ^ ((n) >> 1 & 1) << 4))
#define B_ELEMENTS (TILE_K * TILE_N)
#else
#define DEPTH_INNER 0
#define B_ELEMENT(k, n) ((k) * (TILE_N + PAD) + (n))
#define B_ELEMENTS (TILE_K * (TILE_N + PAD))
#endif

#if MICRO_KERNEL == 3
// wgmma reads A itself: rows of 32 elements of the depth, whose eight vectors are permuted by the row's last three bits
// (the swizzle of 128 bytes); first the tile of the upper parts, then that of the lower ones. With DEPTH_INNER, the
// depth's order in the row is the one in which conv/gemm_gpu/wgmma.cl reads B.
#if DEPTH_INNER
#define DEPTH_SLOT(k) ((k) % 4 * 8 + (k) / 16 * 4 + (k) / 4 % 4)
#else
#define DEPTH_SLOT(k) (k)
#endif
#define A_HALF (TILE_K * TILE_M)
#define A_SLOT(slot, m) ((m) * TILE_K + ((slot) ^ ((m) & 7) << 2))
#define A_ELEMENT(k, m) A_SLOT(DEPTH_SLOT(k), m)
#define A_TRANSPOSED 1
// Whether A lies in memory as its tiles lie in local memory, one after the other: conv/gemm_gpu/pack.cl puts it there.
#define A_IMAGES (LOADER == 1)
#if TF32
#define A_ELEMENTS A_HALF
#define A_PUT(a, k, m, value) (a)[A_ELEMENT(k, m)] = as_float(tf32_of(value))
#define A_PUT_DEPTH(a, k, m, value)                                                                             \
    {                                                                                                           \
        const float4 put = (value);                                                                             \
        (a)[A_ELEMENT(k, m) / 4] =                                                                              \
            as_float4((uint4)(tf32_of(put.s0), tf32_of(put.s1), tf32_of(put.s2), tf32_of(put.s3)));             \
    }
#else
#define A_ELEMENTS (2 * A_HALF)
#define A_PUT(a, k, m, value)                                                               \
    {                                                                                       \
        const real put = (value);                                                           \
        (a)[A_ELEMENT(k, m)] = as_float(high_of(put));                                      \
        (a)[A_HALF + A_ELEMENT(k, m)] = LOW_OF(put);                                        \
    }
// The same for a vector of the depth's neighbours.
#define A_PUT_DEPTH(a, k, m, value)                                                                     \
    {                                                                                                   \
        const float4 put = (value);                                                                     \
        const float4 high =                                                                             \
            as_float4((uint4)(high_of(put.s0), high_of(put.s1), high_of(put.s2), high_of(put.s3)));     \
        (a)[A_ELEMENT(k, m) / 4] = high;                                                                \
        (a)[(A_HALF + A_ELEMENT(k, m)) / 4] = put - high;                                               \
    }
#endif
#else
#define A_TRANSPOSED 0
#define A_IMAGES 0
#if DEPTH_INNER
#define A_ELEMENT(k, m) (((m) ^ ((m) >> 2 & 1)) * TILE_K + (k))
#define A_ELEMENTS (TILE_K * TILE_M)
#else
#define A_ELEMENT(k, m) ((k) * (TILE_M + PAD) + (m))
#define A_ELEMENTS (TILE_K * (TILE_M + PAD))
#endif
#define A_PUT(a, k, m, value) (a)[A_ELEMENT(k, m)] = (value)
#endif

#define A_TILE (A_ELEMENTS / 4)  // in vectors
#define B_TILE (B_ELEMENTS / 4)
