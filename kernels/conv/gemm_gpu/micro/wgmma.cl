// The micro kernel for Hopper's matrix units (compute capability 9.0): wgmma.mma_async on TF32 operands.
//
// Float32 accuracy from three products, as in micro/mma.cl. The sums of each step, 32 elements of the depth,
// are added to float32 registers. A warpgroup of 128 work-items makes all rows of the tile and 64 of its columns: the
// units' rows are columns here. They read A from local memory, where both its parts lie; B comes from registers.
//
// Lane (g, t) of 8 * 4 in warp w feeds columns 16 * w + 2 * g and the next one, and gets their sums for rows
// 8 * j + 2 * t and the next one.

#if TILE_K != WGMMA_DEPTH || ITEM_N != 2 || ITEM_M * 4 != TILE_M || (TILE_M != 64 && TILE_M != 128 && TILE_M != 256)
#error a warpgroup makes 64, 128 or 256 rows and 64 columns, 32 elements of the depth at a time
#endif

#if OPERANDS != FLOAT32 && OPERANDS != TF32
#error operands are float32, in one part of TF32 or in two
#endif

#include "conv/gemm_gpu/micro/wgmma_layout.cl"

// Copies of vectors to local memory that run while a work-item goes on. Copies of single elements are slower than loads
// and stores.
#define ASYNC 1
#if EMULATED
#define COPIES_COMMIT
#define COPIES_WAIT(groups)
#define COPY_VECTOR(to, from) *(to) = VECTOR_AT(from)
#else
#define COPIES_COMMIT asm volatile("cp.async.commit_group;" ::: "memory")
#define COPIES_WAIT(groups) asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory")
#define COPY_VECTOR(to, from) \
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint)(size_t)(to)), "l"(from) : "memory")
#endif

// Functions are called several times, and keep arrays in registers.
#define IN_PLACE ALWAYS_INLINE

// Products of so many steps are summed in the units before they are added to the sums in float32; 0: all of them. TF32
// rounds operands by far more than the units round sums of moderate length.
#ifndef PROMOTE
#define PROMOTE (OPERANDS == TF32 ? SUMMED_STEPS : 1)
#endif

// Tiles in local memory at the same time: two do for products of two steps.
#ifndef STAGES
#define STAGES (A_IMAGES ? MOST_STAGES : MOST_STAGES - 1)
#endif

// The units' columns are rows here. Sums of a step: element 4 * j + 2 * c + r is row r of the two of block j, column
// c of the two.
#define UNITS_N TILE_M
#define UNITS_ELEMENT float

#include "conv/gemm_gpu/micro/wgmma_units.cl"

typedef struct {
    int m, n, fed, depth;
} Place;

Place place_of_item(void) {
    const int id = get_local_id(0), g = id % 32 / 4, t = id % 4, n = id / 32 * 16 + 2 * g;
    const Place place = {2 * t, n, n, t};
    return place;
}

int row_of(const Place *place, const int i) { return place->m + i / 2 * 8 + i % 2; }

int column_of(const Place *place, const int j) { return place->n + j; }

#if EMULATED
#define AT_SLOT(address, slot, m) as_float(as_uint((address).tile[A_SLOT(slot, (address).row + (m))]) & 0xffffe000u)
#define MICRO_LOCALS local uint operands[THREADS * 4]
#define WGMMA(sums, b, tile, slice, add) wgmma(sums, b, tile, slice, add, operands)

void wgmma(float *sums, const uint *b, const TileAddress address, const int slice, const int add,
           local uint *operands) {
    const int id = get_local_id(0), warp = id / 32 * 32, g = id % 32 / 4, t = id % 4;
    for (int i = 0; i < 4; i++) operands[id * 4 + i] = b[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int e = 0; e < SUMS; e++) {
        const int row = e / 4 * 8 + 2 * t + e % 2;
        float sum = add ? sums[e] : 0;
        for (int k = 0; k < 8; k++) {
            const uint fed = operands[(warp + g * 4 + k % 4) * 4 + k / 4 * 2 + e / 2 % 2];
            sum += AT_SLOT(address, 8 * slice + k, row) * as_float(fed & 0xffffe000u);
        }
        sums[e] = sum;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}
#else
#define MICRO_LOCALS
// The instruction with numbers of operands: sums, what work-items feed, the address of the tile, and whether there
// are sums to add to.
#define FED_PRODUCT(size, sums, a, b, c, d, tile, add)                                            \
    "//sm_90a: {.reg .pred p; setp.ne.b32 p, %" add ", 0; wgmma.mma_async.sync.aligned.m64n" size \
    "k8.f32.tf32.tf32 {" sums "}, {%" a ", %" b ", %" c ", %" d "}, %" tile ", p, 1, 1;}"
#define WGMMA(s, b, tile, slice, add)                                                                      \
    asm volatile(PRODUCT_OF(FED_PRODUCT)                                                                   \
                 : ALL_SUMS(s)                                                                             \
                 : "r"((b)[0]), "r"((b)[1]), "r"((b)[2]), "r"((b)[3]), "l"((tile) + 2 * (slice)), "r"(add) \
                 : "memory")
#endif

// What a work-item feeds of a tile of B: two columns, of four slices of the depth the elements at t and t + 4.
#if DEPTH_INNER
#define READ_FED(fed, tile, place)                                                                                  \
    _Pragma("unroll") for (int c = 0; c < 2; c++) {                                                                 \
        const float4 first = *(local const float4 *)((tile) + B_ELEMENT(4 * (place).depth, (place).fed + c));       \
        const float4 second = *(local const float4 *)((tile) + B_ELEMENT(16 + 4 * (place).depth, (place).fed + c)); \
        fed[0][c] = first.s0;                                                                                       \
        fed[1][c] = first.s1;                                                                                       \
        fed[2][c] = first.s2;                                                                                       \
        fed[3][c] = first.s3;                                                                                       \
        fed[0][2 + c] = second.s0;                                                                                  \
        fed[1][2 + c] = second.s1;                                                                                  \
        fed[2][2 + c] = second.s2;                                                                                  \
        fed[3][2 + c] = second.s3;                                                                                  \
    }
#else
#define READ_FED(fed, tile, place)                                                                                 \
    _Pragma("unroll") for (int s = 0; s < 4; s++) {                                                                \
        const float2 first = *(local const float2 *)((tile) + B_ELEMENT(8 * s + (place).depth, (place).fed));      \
        const float2 second = *(local const float2 *)((tile) + B_ELEMENT(8 * s + 4 + (place).depth, (place).fed)); \
        fed[s][0] = first.s0;                                                                                      \
        fed[s][1] = first.s1;                                                                                      \
        fed[s][2] = second.s0;                                                                                     \
        fed[s][3] = second.s1;                                                                                     \
    }
#endif

// The products of a step: `fed` is what the work-item feeds, `a_tile` a tile of A, and sums are added to where
// `summed` is above 0. They run until WGMMA_WAIT; what is fed has been read before.
#if OPERANDS == TF32
#define MULTIPLY_FED(sums, fed, a_tile, summed)                                                   \
    uint high[4][4];                                                                              \
    _Pragma("unroll") for (int s = 0; s < 4; s++) _Pragma("unroll") for (int i = 0; i < 4; i++) { \
        high[s][i] = tf32_of(fed[s][i]);                                                          \
    }                                                                                             \
    const TileAddress a_high = TILE_ADDRESS((local const float *)(a_tile));                       \
    WGMMA_BEGIN;                                                                                  \
    WGMMA_LOOP                                                                                    \
    for (int s = 0; s < 4; s++) {                                                                 \
        const int add = s > 0 || (summed) > 0;                                                    \
        WGMMA(sums, high[s], a_high, s, add);                                                     \
    }                                                                                             \
    WGMMA_COMMIT
#else
#define MULTIPLY_FED(sums, fed, a_tile, summed)                                                   \
    uint high[4][4];                                                                              \
    uint low[4][4];                                                                               \
    _Pragma("unroll") for (int s = 0; s < 4; s++) _Pragma("unroll") for (int i = 0; i < 4; i++) { \
        high[s][i] = high_of(fed[s][i]);                                                          \
        low[s][i] = as_uint(LOW_OF(fed[s][i]));                                                   \
    }                                                                                             \
    const TileAddress a_high = TILE_ADDRESS((local const float *)(a_tile));                       \
    const TileAddress a_low = TILE_ADDRESS((local const float *)(a_tile) + A_HALF);               \
    WGMMA_BEGIN;                                                                                  \
    WGMMA_LOOP                                                                                    \
    for (int s = 0; s < 4; s++) {                                                                 \
        const int add = s > 0 || (summed) > 0;                                                    \
        WGMMA(sums, low[s], a_high, s, add);                                                      \
        WGMMA(sums, high[s], a_low, s, 1);                                                        \
        WGMMA(sums, high[s], a_high, s, 1);                                                       \
    }                                                                                             \
    WGMMA_COMMIT
#endif

#define ADD_SUMS(sums_of_item, sums)                                                                 \
    _Pragma("unroll") for (int i = 0; i < ITEM_M; i++) _Pragma("unroll") for (int j = 0; j < 2; j++) \
        sums_of_item[i][j] += sums[i / 2 * 4 + j * 2 + i % 2]

// Groups of copies that may still run when a step's tiles have to be there.
#if A_IMAGES
#define COPIES_AHEAD (STAGES > 3)
#else
#define COPIES_AHEAD (STAGES > 2)
#endif
