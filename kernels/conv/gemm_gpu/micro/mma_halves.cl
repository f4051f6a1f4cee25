// The micro kernel for matrix units with mma.sync (compute capability 8.0 and above) on operands of 16 bits, both from
// local memory (micro/halves.cl).
//
// WARPS_M * WARPS_N warps of 32 work-items each make a part of the tile: blocks of 16 rows and 8 columns, four sums of
// a work-item each. Lane (g, t) of 8 * 4 has those of rows g and g + 8, columns 2 * t and the next one.

#define WARPS_M (TILE_M / WARP_M)
#define WARPS_N (TILE_N / WARP_N)
#define BLOCKS_M (WARP_M / 16)
#define BLOCKS_N (WARP_N / 8)
#define SUMS (BLOCKS_M * BLOCKS_N * 4)

#if WARP_M % 16 || WARP_N % 16 || WARPS_M * WARPS_N * 32 != THREADS
#error warps divide the tile into blocks of 16 rows and 16 columns
#endif

#define WARP ((int)get_local_id(0) / 32)
#define WARP_ROW (WARP % WARPS_M * WARP_M)
#define WARP_COLUMN (WARP / WARPS_M * WARP_N)
#define SUM_ROW(e) (WARP_ROW + (e) / 4 / BLOCKS_N * 16 + (e) / 2 % 2 * 8 + (int)get_local_id(0) % 32 / 4)
#define SUM_COLUMN(e) (WARP_COLUMN + (e) / 4 % BLOCKS_N * 8 + (int)get_local_id(0) % 4 * 2)

#define TILE_ALIGNMENT __attribute__((aligned(128)))
#define FENCE_TILES

#if !EMULATED
#define PRODUCTS_WAIT(sums, steps)
#if OPERANDS == BFLOAT16
#define HALVES "bf16.bf16"
#else
#define HALVES "f16.f16"
#endif
#if A_BY_DEPTH
#define A_TURNED ".trans"
#else
#define A_TURNED ""
#endif
#if B_BY_DEPTH
#define B_TURNED ".trans"
#else
#define B_TURNED ""
#endif
#define READ_BLOCKS(turned, to, from)                                                         \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" turned ".shared.b16 {%0, %1, %2, %3}, [%4];" \
                 : "=r"((to)[0]), "=r"((to)[1]), "=r"((to)[2]), "=r"((to)[3])                 \
                 : "r"((uint)(size_t)(from))                                                  \
                 : "memory")
#define ADD_BLOCK(s, a, b)                                                \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." HALVES          \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}"      \
                 ", {%0, %1, %2, %3};"                                    \
                 : "+f"((s)[0]), "+f"((s)[1]), "+f"((s)[2]), "+f"((s)[3]) \
                 : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"((b)[0]), "r"((b)[1]))

__attribute__((always_inline)) void MULTIPLY(float *sums, local const ushort *a, const int shift,
                                             local const ushort *b) {
    const int lane = get_local_id(0) % 32, row = lane % 8, first = lane / 8 % 2 * 8, second = lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < HALVES_DEPTH; k += 16) {
        uint left[BLOCKS_M][4], right[BLOCKS_N / 2][4];
#pragma unroll
        for (int i = 0; i < BLOCKS_M; i++) {
            const int m = shift + WARP_ROW + 16 * i;
#if A_BY_DEPTH
            READ_BLOCKS(A_TURNED, left[i], a + A_AT(m + first, k + second + row));
#else
            READ_BLOCKS(A_TURNED, left[i], a + A_AT(m + first + row, k + second));
#endif
        }
#pragma unroll
        for (int j = 0; j < BLOCKS_N / 2; j++) {
            const int n = WARP_COLUMN + 16 * j;
#if B_BY_DEPTH
            READ_BLOCKS(B_TURNED, right[j], b + B_AT(n + second, k + first + row));
#else
            READ_BLOCKS(B_TURNED, right[j], b + B_AT(n + second + row, k + first));
#endif
        }
#pragma unroll
        for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
            for (int j = 0; j < BLOCKS_N; j++)
                ADD_BLOCK(sums + (i * BLOCKS_N + j) * 4, left[i], right[j / 2] + j % 2 * 2);
    }
}
#endif
