// Tiles of operands of 16 bits in local memory, and the sums of a work-item: what micro kernels for them share.
//
// A tile has rows of 64 elements, 128 bytes, whose eight vectors are permuted by the row's last three bits (the swizzle
// of 128 bytes of Hopper's units, without conflicts for ldmatrix, too). A row is a row of C (a column for B) and its
// elements are the depth; or with A_BY_DEPTH (B_BY_DEPTH) a row is an element of the depth and its elements are 64 rows
// of C, and blocks of 64 rows of C follow each other.
//
// A micro kernel has sums[SUMS]; sums e and e + 1, e even, are those of row SUM_ROW(e) of the work-group's tile and of
// columns SUM_COLUMN(e) and the next one. MULTIPLY(sums, a, shift, b) adds the products of a step, where A begins
// `shift` rows after its tile does (0 with A_BY_DEPTH); PRODUCTS_WAIT(sums, n) waits until at most n steps are under
// way.

#if OPERANDS != FLOAT16 && OPERANDS != BFLOAT16
#error operands are of 16 bits
#endif

#ifndef A_BY_DEPTH
#define A_BY_DEPTH 0
#endif
#ifndef B_BY_DEPTH
#define B_BY_DEPTH 0
#endif

#define HALVES_BLOCK (64 * HALVES_DEPTH)  // elements of 64 rows

// Element `slot` of a tile's row.
#define HALVES_SLOT(slot, row) ((row) * HALVES_DEPTH + ((slot) ^ ((row) & 7) << 3))
#define BY_DEPTH_SLOT(m, k) ((m) / 64 * HALVES_BLOCK + HALVES_SLOT((m) % 64, k))
#if A_BY_DEPTH
#define A_AT(m, k) BY_DEPTH_SLOT(m, k)
#else
#define A_AT(m, k) HALVES_SLOT(k, m)
#endif
#if B_BY_DEPTH
#define B_AT(n, k) BY_DEPTH_SLOT(n, k)
#else
#define B_AT(n, k) HALVES_SLOT(k, n)
#endif

#if EMULATED || MICRO > MMA_UNITS  // copies pass registers, and products are there when the work-item goes on
#define COPIES_COMMIT
#define COPIES_WAIT(groups)
#define PRODUCTS_WAIT(sums, steps)
#define COPY_HALVES(to, from, valid) \
    *(local ushort8 *)(to) = (valid) ? vload8(0, (global const ushort *)(from)) : (ushort8)(0)
#endif

#if OPERANDS == BFLOAT16
#define HALF_AT(tile, at) as_float((uint)(tile)[at] << 16)
#else
#define HALF_AT(tile, at) vload_half(at, (local const half *)(tile))
#endif

#if EMULATED && MICRO <= MMA_UNITS
#define MULTIPLY(sums, a, shift, b)                                                                           \
    for (int e = 0; e < SUMS; e++) {                                                                          \
        const int row = (shift) + SUM_ROW(e), column = SUM_COLUMN(e) + e % 2;                                 \
        float sum = sums[e];                                                                                  \
        for (int k = 0; k < HALVES_DEPTH; k++) sum += HALF_AT(a, A_AT(row, k)) * HALF_AT(b, B_AT(column, k)); \
        sums[e] = sum;                                                                                        \
    }
#elif !EMULATED && MICRO <= MMA_UNITS
#define COPIES_COMMIT asm volatile("cp.async.commit_group;" ::: "memory")
#define COPIES_WAIT(groups) asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory")
// Copies a vector of 16 bytes to local memory, or zeros, while the work-item goes on.
#define COPY_HALVES(to, from, valid)                                                                                \
    asm volatile(                                                                                                   \
        "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint)(size_t)(to)), "l"(from), "r"((valid) ? 16 : 0) \
        : "memory")
#endif

#if MICRO == WGMMA_UNITS
#include "conv/gemm_gpu/micro/wgmma_halves.cl"
#elif MICRO == MMA_UNITS
#include "conv/gemm_gpu/micro/mma_halves.cl"
#endif
#if MICRO > MMA_UNITS
#include "conv/gemm_gpu/micro/waves.cl"
#endif
#if MICRO == DPAS8_UNITS || MICRO == DPAS16_UNITS
#include "conv/gemm_gpu/micro/dpas_halves.cl"
#elif MICRO == WMMA_UNITS
#include "conv/gemm_gpu/micro/wmma_halves.cl"
#elif MICRO == MFMA_UNITS
#include "conv/gemm_gpu/micro/mfma_halves.cl"
#elif MICRO == DOT2_UNITS
#include "conv/gemm_gpu/micro/dot2_halves.cl"
#endif
#if MICRO > MMA_UNITS
#include "conv/gemm_gpu/micro/waves_multiply.cl"
#else
#define DECLARE_EXCHANGE
#define TAKE_EXCHANGE
#define PASS_EXCHANGE
#endif

// Attributes of kernels whose work-items multiply in waves.
#ifndef OF_WAVES
#define OF_WAVES
#endif
