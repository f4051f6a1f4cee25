// The micro kernel for matrix units of compute capability 8.0 and above: mma.sync.m16n8k8 on TF32 operands.
//
// Float32 accuracy from three products: x = hi + lo, where hi has TF32's 11 bits and lo the rest, and a * b is
// lo * hi + hi * lo + hi * hi. The matrix units round their sums towards zero, so that only the products of 16 elements
// of the depth are summed there; these sums are added to float32 registers.
//
// A warp makes PATCH_M * ITEM_M rows of PATCH_N * ITEM_N columns, in blocks of 32. Lane (g, t) of 8 * 4 feeds rows and
// columns 4 * g + (0 to 3) of each block, one vector of local memory, and gets the sums of these rows and of columns
// 8 * t + (0 to 7). So the units' row g of product 2 * v + h is row 32 * v + 4 * g + 2 * h of the tile, their row g + 8
// is the next one, and their column c of product 4 * u + w is column 32 * u + 4 * c + w. The depth's order in a product
// does not matter as long as it is the same for A and B.

#if PATCH_M != 8 || PATCH_N != 4 || ITEM_M % 4 || ITEM_N % 8 || TILE_K != MMA_DEPTH
#error a warp of 8 * 4 lanes makes blocks of 32 rows and columns, 16 elements of the depth at a time
#endif
#if OPERANDS != FLOAT32 && OPERANDS != TF32
#error operands are float32, in one part of TF32 or in two
#endif

#include "conv/gemm_gpu/micro/tf32.cl"

// Functions are called several times, and keep arrays in registers.
#define IN_PLACE ALWAYS_INLINE
#define ASYNC 0
#define A_TRANSPOSED 0
#define A_IMAGES 0
#define STAGES 2
#define TILE_ALIGNMENT

#if COLUMN_LOADER
// Neighbours of the depth are neighbours in memory, because this loader has the pixels of a row at hand. Every fourth
// pair of rows is swapped, so that rows 4 * g and 4 * g + 4 are in different banks.
#define DEPTH_INNER 1
#define A_ELEMENT(k, m) (((m) ^ ((m) >> 2 & 1)) * TILE_K + (k))
#define B_ELEMENT(k, n) (((n) ^ ((n) >> 2 & 1)) * TILE_K + (k))
#define A_TILE (TILE_K * TILE_M / 4)
#define B_TILE (TILE_K * TILE_N / 4)
#else
// Rows of the depth, of which vectors at four neighbouring depths are read at once.
#define DEPTH_INNER 0
#define A_ELEMENT(k, m) ((k) * (TILE_M + UNITS_PAD) + (m))
#define B_ELEMENT(k, n) ((k) * (TILE_N + UNITS_PAD) + (n))
#define A_TILE (TILE_K * (TILE_M + UNITS_PAD) / 4)
#define B_TILE (TILE_K * (TILE_N + UNITS_PAD) / 4)
#endif
#define A_PUT(a, k, m, value) (a)[A_ELEMENT(k, m)] = (value)

#define WARPS_M (TILE_M / ITEM_M / PATCH_M)

// First row and column of a work-item in the tile, and of what it feeds.
typedef struct {
    int m, n, fed_m, fed_n, depth;
} Place;

Place place_of_item(void) {
    const int id = get_local_id(0), warp = id / 32, g = id % 32 / 4, t = id % 4;
    const int m = warp % WARPS_M * (PATCH_M * ITEM_M), n = warp / WARPS_M * (PATCH_N * ITEM_N);
    const Place place = {m + 4 * g, n + 8 * t, m + 4 * g, n + 4 * g, t};
    return place;
}

int row_of(const Place *place, const int i) { return place->m + i / 4 * 32 + i % 4; }

int column_of(const Place *place, const int j) { return place->n + j / 8 * 32 + j % 8; }

#if EMULATED
#define MMA_LOOP _Pragma("unroll 1")
#define MICRO_LOCALS local uint mma_operands[THREADS * 6]
#define MICRO_OPERANDS , mma_operands
#define TAKE_OPERANDS , local uint *operands
#define PASS_OPERANDS , operands

void mma(float c[4], const uint a0, const uint a1, const uint a2, const uint a3, const uint b0, const uint b1,
         local uint *operands) {
    const int id = get_local_id(0), warp = id / 32 * 32, g = id % 32 / 4, t = id % 4;
    local uint *mine = operands + id * 6;
    mine[0] = a0;
    mine[1] = a1;
    mine[2] = a2;
    mine[3] = a3;
    mine[4] = b0;
    mine[5] = b1;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int e = 0; e < 4; e++) {
        const int column = 2 * t + e % 2;
        for (int k = 0; k < 8; k++) {
            const uint a = operands[(warp + g * 4 + k % 4) * 6 + k / 4 * 2 + e / 2];
            const uint b = operands[(warp + column * 4 + k % 4) * 6 + 4 + k / 4];
            c[e] += as_float(a & 0xffffe000u) * as_float(b & 0xffffe000u);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}
#else
#define MMA_LOOP _Pragma("unroll")
#define MICRO_LOCALS
#define MICRO_OPERANDS
#define TAKE_OPERANDS
#define PASS_OPERANDS

void mma(float c[4], const uint a0, const uint a1, const uint a2, const uint a3, const uint b0, const uint b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
#endif

// What a work-item feeds of a tile of A or B: `count` rows or columns, four elements of the depth each.
#define READ_FED(fed, count, tile, start, depth, ELEMENT) \
    for (int v = 0; v < (count); v += 4) READ_FED_BLOCK(fed, tile, (start) + v * 8, depth, v, ELEMENT)

#if DEPTH_INNER
#define READ_FED_BLOCK(fed, tile, at, depth, v, ELEMENT)                                     \
    _Pragma("unroll") for (int e = 0; e < 4; e++) {                                          \
        const float4 row = *(local const float4 *)((tile) + ELEMENT(4 * (depth), (at) + e)); \
        fed[(v) + e][0] = row.s0;                                                            \
        fed[(v) + e][1] = row.s1;                                                            \
        fed[(v) + e][2] = row.s2;                                                            \
        fed[(v) + e][3] = row.s3;                                                            \
    }
#else
#define READ_FED_BLOCK(fed, tile, at, depth, v, ELEMENT)                                   \
    _Pragma("unroll") for (int e = 0; e < 4; e++) {                                        \
        const float4 row = *(local const float4 *)((tile) + ELEMENT((depth) + 4 * e, at)); \
        fed[v][e] = row.s0;                                                                \
        fed[(v) + 1][e] = row.s1;                                                          \
        fed[(v) + 2][e] = row.s2;                                                          \
        fed[(v) + 3][e] = row.s3;                                                          \
    }
#endif

// Adds the product of one step's tiles to the sums.
IN_PLACE void multiply_tiles(const Place *place, local const realv *a_tile, local const realv *b_tile,
                             real sums[ITEM_M][ITEM_N] TAKE_OPERANDS) {
    local const float *a = (local const float *)a_tile, *b = (local const float *)b_tile;
    float rows[ITEM_M][4], columns[ITEM_N / 2][4];
    _Pragma("unroll") READ_FED(columns, ITEM_N / 2, b, place->fed_n, place->depth, B_ELEMENT);
    _Pragma("unroll") READ_FED(rows, ITEM_M, a, place->fed_m, place->depth, A_ELEMENT);
    uint b_high[ITEM_N / 2][4];
#if OPERANDS == FLOAT32
    uint b_low[ITEM_N / 2][4];
#endif
#pragma unroll
    for (int j = 0; j < ITEM_N / 2; j++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
#if OPERANDS == TF32
            b_high[j][k] = tf32_of(columns[j][k]);
#else
            b_high[j][k] = high_of(columns[j][k]);
            b_low[j][k] = as_uint(LOW_OF(columns[j][k]));
#endif
        }
    MMA_LOOP
    for (int i = 0; i < ITEM_M; i += 2) {
        uint a_high[2][4];
        float c[ITEM_N / 2][4];
#pragma unroll
        for (int j = 0; j < ITEM_N / 2; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) c[j][e] = 0;
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int e = 0; e < 2; e++)
#if OPERANDS == TF32
                a_high[e][k] = tf32_of(rows[i + e][k]);
#else
                a_high[e][k] = high_of(rows[i + e][k]);
#endif
#define MMA_ROW(a, b)                                                                     \
    MMA_LOOP for (int k = 0; k < 4; k += 2) MMA_LOOP for (int j = 0; j < ITEM_N / 2; j++) \
        mma(c[j], a[0][k], a[1][k], a[0][k + 1], a[1][k + 1], b[j][k], b[j][k + 1] PASS_OPERANDS)
#if OPERANDS == FLOAT32
        uint a_low[2][4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            a_low[0][k] = as_uint(LOW_OF(rows[i][k]));
            a_low[1][k] = as_uint(LOW_OF(rows[i + 1][k]));
        }
        MMA_ROW(a_low, b_high);
        MMA_ROW(a_high, b_low);
#endif
        MMA_ROW(a_high, b_high);
#pragma unroll
        for (int j = 0; j < ITEM_N / 2; j++) {
            const int column = j / 4 * 8 + j % 4;
            sums[i][column] += c[j][0];
            sums[i][column + 4] += c[j][1];
            sums[i + 1][column] += c[j][2];
            sums[i + 1][column + 4] += c[j][3];
        }
    }
}
