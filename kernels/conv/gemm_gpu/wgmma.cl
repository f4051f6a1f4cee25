// The micro kernel for Hopper's matrix units (compute capability 9.0): wgmma.mma_async on TF32 operands.
//
// Float32 accuracy from three products, as in conv/gemm_gpu/mma.cl. The sums of each step, 32 elements of the depth,
// are added to float32 registers. A warpgroup of 128 work-items makes all rows of the tile and 64 of its columns: the
// units' rows are columns here. They read A from local memory, where both its parts lie; B comes from registers.
//
// Lane (g, t) of 8 * 4 in warp w feeds columns 16 * w + 2 * g and the next one, and gets their sums for rows
// 8 * j + 2 * t and the next one.
//
// NVIDIA's compiler for OpenCL C targets sm_90, without the a that these instructions need. So they are comments in the
// program's PTX, which core/runtime/toolchains/nvidia.py uncomments before it builds the program once more.

#if HALO
#if TILE_K != 64 || TILE_M % 64 || TILE_N % (ITEM_N * 4) || ITEM_N % 8 || ITEM_N > 64 || ITEM_M != 2 || !TF32
#error a warpgroup makes 64 rows and up to 256 columns, 64 elements of the depth at a time
#endif
#elif TILE_K != 32 || ITEM_N != 2 || ITEM_M * 4 != TILE_M || (TILE_M != 64 && TILE_M != 128 && TILE_M != 256)
#error a warpgroup makes 64, 128 or 256 rows and 64 columns, 32 elements of the depth at a time
#endif

// Products of so many steps are summed in the units before they are added to the sums in float32; 0: all of them. TF32
// rounds operands by far more than the units round sums of moderate length.
#ifndef PROMOTE
#define PROMOTE (TF32 ? 16 : 1)
#endif

// Tiles in local memory at the same time: two do for products of two steps.
#ifndef STAGES
#define STAGES (A_IMAGES ? 4 : 3)
#endif
#define TILE_ALIGNMENT __attribute__((aligned(1024)))

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

// The size of a product's second side, which is in local memory: with conv/gemm_gpu/halo.cl the columns of a
// warpgroup, else the tile's rows.
#if HALO
#define UNITS_N (4 * ITEM_N)
#else
#define UNITS_N TILE_M
#endif

// Sums of a step: element 4 * j + 2 * c + r is row r of the two of block j, column c of the two.
#define SUMS (UNITS_N / 2)

#if EMULATED
#define WGMMA_LOOP _Pragma("unroll 1")
#define FENCE_TILES
#define WARPGROUP_BARRIER
#define WARP_BARRIER barrier(CLK_LOCAL_MEM_FENCE)
#define COPY_WAIT(arrived, phase)
#define WGMMA_BEGIN
#define WGMMA_COMMIT
#define WGMMA_WAIT(sums)
#define WGMMA_WAIT_EARLIER
#if HALO
typedef local const half *Tile;
#define AT_SLOT(address, slot, m) vload_half(A_SLOT(slot, (address).row + (m)), (address).tile)
#else
typedef local const float *Tile;
#define AT_SLOT(address, slot, m) as_float(as_uint((address).tile[A_SLOT(slot, (address).row + (m))]) & 0xffffe000u)
#endif
typedef struct {
    Tile tile;
    int row;
} TileAddress;
#define TILE_ADDRESS(tile) TILE_ROW_ADDRESS(tile, 0)
#define TILE_ROW_ADDRESS(tile, row) ((TileAddress){(Tile)(tile), row})

void WGMMA_TILES(float *sums, const TileAddress a, const TileAddress b, const int slice) {
    const int id = get_local_id(0), g = id % 32 / 4, t = id % 4;
    for (int e = 0; e < SUMS; e++) {
        const int row = id % 128 / 32 * 16 + e / 2 % 2 * 8 + g, column = e / 4 * 8 + 2 * t + e % 2;
        float sum = sums[e];
        for (int k = 16 * slice; k < 16 * slice + 16; k++) sum += AT_SLOT(a, k, row) * AT_SLOT(b, k, column);
        sums[e] = sum;
    }
}

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
#define WGMMA_LOOP _Pragma("unroll")
#define MICRO_LOCALS
#define FENCE_TILES asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
// Copies that one work-item starts: the address of a number in local memory, which COPY_OPEN prepares, says when all bytes
// are there. COPY_WAIT waits for the first copy with phase 0, for the second one with phase 1, for the third one with 0.
#define LOCAL_ADDRESS(pointer) "r"((uint)(size_t)(pointer))
#define COPY_OPEN(arrived) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::LOCAL_ADDRESS(arrived) : "memory")
#define COPY_BYTES(to, from, bytes, arrived)                                                                        \
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%3], %2; "                                          \
                 "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::       \
                     LOCAL_ADDRESS(to), "l"(from), "r"(bytes), LOCAL_ADDRESS(arrived)                               \
                 : "memory")
#define COPY_WAIT(arrived, phase)                                                                                   \
    for (uint done = 0; !done;)                                                                                     \
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"      \
                 : "=r"(done)                                                                                       \
                 : LOCAL_ADDRESS(arrived), "r"(phase)                                                               \
                 : "memory")
#define WARP_BARRIER asm volatile("bar.warp.sync 0xffffffff;" ::: "memory")
// Waits for the work-items of a warpgroup.
#define WARPGROUP_BARRIER asm volatile("bar.sync %0, 128;" ::"r"(1 + (int)get_local_id(0) / 128) : "memory")
#define WGMMA_BEGIN asm volatile("//sm_90a: wgmma.fence.sync.aligned;" ::: "memory")
#define WGMMA_COMMIT asm volatile("//sm_90a: wgmma.commit_group.sync.aligned;" ::: "memory")
#define SUMS4(s, i) "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3])
#define SUMS16(s, i) SUMS4(s, i), SUMS4(s, i + 4), SUMS4(s, i + 8), SUMS4(s, i + 12)
#define SUMS_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define SUMS_1 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SUMS_2 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define SUMS_3 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SUMS_4 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define SUMS_5 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SUMS_6 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define SUMS_7 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
// The instruction with numbers of operands: sums, what work-items feed, the address of the tile, and whether there are sums
// to add to; or sums and the addresses of both sides' tiles, of halves.
#define FED_PRODUCT(size, sums, a, b, c, d, tile, add) \
    "//sm_90a: {.reg .pred p; setp.ne.b32 p, %" add ", 0; wgmma.mma_async.sync.aligned.m64n" size \
    "k8.f32.tf32.tf32 {" sums "}, {%" a ", %" b ", %" c ", %" d "}, %" tile ", p, 1, 1;}"
#define TILES_PRODUCT(size, sums, a, b, add, unused_1, unused_2, unused_3) \
    "//sm_90a: {.reg .pred p; setp.ne.b32 p, %" add ", 0; wgmma.mma_async.sync.aligned.m64n" size \
    "k16.f32.f16.f16 {" sums "}, %" a ", %" b ", p, 1, 1, 0, 0;}"
#if UNITS_N == 64
#define ALL_SUMS(s) \
    SUMS16(s, 0), SUMS16(s, 16)
#define PRODUCT_OF(TEXT) \
    TEXT("64", SUMS_0 ", " SUMS_1, \
             "32", "33", "34", "35", "36", "37")
#elif UNITS_N == 96
#define ALL_SUMS(s) \
    SUMS16(s, 0), SUMS16(s, 16), SUMS16(s, 32)
#define PRODUCT_OF(TEXT) \
    TEXT("96", SUMS_0 ", " SUMS_1 ", " SUMS_2, \
             "48", "49", "50", "51", "52", "53")
#elif UNITS_N == 128
#define ALL_SUMS(s) \
    SUMS16(s, 0), SUMS16(s, 16), SUMS16(s, 32), SUMS16(s, 48)
#define PRODUCT_OF(TEXT) \
    TEXT("128", SUMS_0 ", " SUMS_1 ", " SUMS_2 ", " SUMS_3, \
             "64", "65", "66", "67", "68", "69")
#elif UNITS_N == 160
#define ALL_SUMS(s) \
    SUMS16(s, 0), SUMS16(s, 16), SUMS16(s, 32), SUMS16(s, 48), SUMS16(s, 64)
#define PRODUCT_OF(TEXT) \
    TEXT("160", SUMS_0 ", " SUMS_1 ", " SUMS_2 ", " SUMS_3 ", " SUMS_4, \
             "80", "81", "82", "83", "84", "85")
#elif UNITS_N == 192
#define ALL_SUMS(s) \
    SUMS16(s, 0), SUMS16(s, 16), SUMS16(s, 32), SUMS16(s, 48), SUMS16(s, 64), SUMS16(s, 80)
#define PRODUCT_OF(TEXT) \
    TEXT("192", SUMS_0 ", " SUMS_1 ", " SUMS_2 ", " SUMS_3 ", " SUMS_4 ", " SUMS_5, \
             "96", "97", "98", "99", "100", "101")
#elif UNITS_N == 224
#define ALL_SUMS(s) \
    SUMS16(s, 0), SUMS16(s, 16), SUMS16(s, 32), SUMS16(s, 48), SUMS16(s, 64), SUMS16(s, 80), SUMS16(s, 96)
#define PRODUCT_OF(TEXT) \
    TEXT("224", SUMS_0 ", " SUMS_1 ", " SUMS_2 ", " SUMS_3 ", " SUMS_4 ", " SUMS_5 ", " SUMS_6, \
             "112", "113", "114", "115", "116", "117")
#elif UNITS_N == 256
#define ALL_SUMS(s) \
    SUMS16(s, 0), SUMS16(s, 16), SUMS16(s, 32), SUMS16(s, 48), \
    SUMS16(s, 64), SUMS16(s, 80), SUMS16(s, 96), SUMS16(s, 112)
#define PRODUCT_OF(TEXT) \
    TEXT("256", SUMS_0 ", " SUMS_1 ", " SUMS_2 ", " SUMS_3 ", " SUMS_4 ", " SUMS_5 ", " SUMS_6 ", " SUMS_7, \
             "128", "129", "130", "131", "132", "133")
#endif
#define WGMMA_WAIT(s) asm volatile("//sm_90a: wgmma.wait_group.sync.aligned 0;" : ALL_SUMS(s)::"memory")
// Waits for all products but those of the last step.
#define WGMMA_WAIT_EARLIER asm volatile("//sm_90a: wgmma.wait_group.sync.aligned 1;" ::: "memory")
// A descriptor of a tile: its address, and 1024 bytes from eight rows to the next, with the swizzle of 128 bytes.
typedef ulong TileAddress;
#define TILE_ADDRESS(tile) \
    (((ulong)1 << 62) | ((ulong)64 << 32) | ((ulong)1 << 16) | (ulong)(((uint)(size_t)(tile) & 0x3ffffu) >> 4))
// From another row of the tile on: the swizzle goes by addresses.
#define TILE_ROW_ADDRESS(tile, row) (TILE_ADDRESS(tile) + (ulong)(8 * (row)))
#define WGMMA(s, b, tile, slice, add)                   \
    asm volatile(PRODUCT_OF(FED_PRODUCT)                \
                 : ALL_SUMS(s)                          \
                 : "r"((b)[0]), "r"((b)[1]), "r"((b)[2]), "r"((b)[3]), "l"((tile) + 2 * (slice)), "r"(add) \
                 : "memory")
// Adds the product of 64 rows of a tile and UNITS_N columns of another one, a slice of 16 of the depth.
#define WGMMA_TILES(s, a, b, slice)                                       \
    asm volatile(PRODUCT_OF(TILES_PRODUCT)                                \
                 : ALL_SUMS(s)                                            \
                 : "l"((a) + 2 * (slice)), "l"((b) + 2 * (slice)), "r"(1) \
                 : "memory")
#endif

// What a work-item feeds of a tile of B: two columns, of four slices of the depth the elements at t and t + 4.
#if DEPTH_INNER
#define READ_FED(fed, tile, place)                                                                              \
    _Pragma("unroll") for (int c = 0; c < 2; c++) {                                                             \
        const float4 first = *(local const float4 *)((tile) + B_ELEMENT(4 * (place).depth, (place).fed + c));   \
        const float4 second = *(local const float4 *)((tile) + B_ELEMENT(16 + 4 * (place).depth, (place).fed + c)); \
        fed[0][c] = first.s0;                                                                                   \
        fed[1][c] = first.s1;                                                                                   \
        fed[2][c] = first.s2;                                                                                   \
        fed[3][c] = first.s3;                                                                                   \
        fed[0][2 + c] = second.s0;                                                                              \
        fed[1][2 + c] = second.s1;                                                                              \
        fed[2][2 + c] = second.s2;                                                                              \
        fed[3][2 + c] = second.s3;                                                                              \
    }
#else
#define READ_FED(fed, tile, place)                                                                              \
    _Pragma("unroll") for (int s = 0; s < 4; s++) {                                                             \
        const float2 first = *(local const float2 *)((tile) + B_ELEMENT(8 * s + (place).depth, (place).fed));   \
        const float2 second = *(local const float2 *)((tile) + B_ELEMENT(8 * s + 4 + (place).depth, (place).fed)); \
        fed[s][0] = first.s0;                                                                                   \
        fed[s][1] = first.s1;                                                                                   \
        fed[s][2] = second.s0;                                                                                  \
        fed[s][3] = second.s1;                                                                                  \
    }
#endif

// The products of a step: `fed` is what the work-item feeds, `a_tile` a tile of A, and sums are added to where `summed` is
// above 0. They run until WGMMA_WAIT; what is fed has been read before.
#if TF32
#define MULTIPLY_FED(sums, fed, a_tile, summed)                                 \
    uint high[4][4];                                                            \
    _Pragma("unroll") for (int s = 0; s < 4; s++)                               \
        _Pragma("unroll") for (int i = 0; i < 4; i++) {                         \
            high[s][i] = tf32_of(fed[s][i]);                                    \
        }                                                                       \
    const TileAddress a_high = TILE_ADDRESS((local const float *)(a_tile));     \
    WGMMA_BEGIN;                                                                \
    WGMMA_LOOP                                                                  \
    for (int s = 0; s < 4; s++) {                                               \
        const int add = s > 0 || (summed) > 0;                                  \
        WGMMA(sums, high[s], a_high, s, add);                                   \
    }                                                                           \
    WGMMA_COMMIT
#else
#define MULTIPLY_FED(sums, fed, a_tile, summed)                                 \
    uint high[4][4];                                                            \
    uint low[4][4];                                                             \
    _Pragma("unroll") for (int s = 0; s < 4; s++)                               \
        _Pragma("unroll") for (int i = 0; i < 4; i++) {                         \
            high[s][i] = high_of(fed[s][i]);                                    \
            low[s][i] = as_uint(LOW_OF(fed[s][i]));                             \
        }                                                                       \
    const TileAddress a_high = TILE_ADDRESS((local const float *)(a_tile));     \
    const TileAddress a_low = TILE_ADDRESS((local const float *)(a_tile) + A_HALF); \
    WGMMA_BEGIN;                                                                \
    WGMMA_LOOP                                                                  \
    for (int s = 0; s < 4; s++) {                                               \
        const int add = s > 0 || (summed) > 0;                                  \
        WGMMA(sums, low[s], a_high, s, add);                                    \
        WGMMA(sums, high[s], a_low, s, 1);                                      \
        WGMMA(sums, high[s], a_high, s, 1);                                     \
    }                                                                           \
    WGMMA_COMMIT
#endif

#define ADD_SUMS(sums_of_item, sums)                              \
    _Pragma("unroll") for (int i = 0; i < ITEM_M; i++)            \
        _Pragma("unroll") for (int j = 0; j < 2; j++)             \
            sums_of_item[i][j] += sums[i / 2 * 4 + j * 2 + i % 2]

// Groups of copies that may still run when a step's tiles have to be there.
#if A_IMAGES
#define COPIES_AHEAD (STAGES > 3)
#else
#define COPIES_AHEAD (STAGES > 2)
#endif
