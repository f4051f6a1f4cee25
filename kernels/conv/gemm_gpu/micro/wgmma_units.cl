// What the micro kernels for Hopper's wgmma.mma_async share: sums, waiting for products, and addresses of tiles. A
// product has 64 rows, of which a warpgroup of 128 work-items makes UNITS_N columns.
//
// The compiler for OpenCL C targets sm_90, without the a that these instructions need. So they are comments in the
// program's PTX, which the toolchain uncomments before it builds the program once more.

#if UNITS_N != 32 && UNITS_N != 64 && UNITS_N != 128 && UNITS_N != 192 && UNITS_N != 256
#error a product has 32, 64, 128, 192 or 256 columns
#endif

// Tiles in local memory, as the units read them: rows of 128 bytes, whose eight vectors are permuted by the row's
// last three bits (the swizzle of 128 bytes).
#define TILE_ALIGNMENT __attribute__((aligned(1024)))

// A work-item's sums, where it takes part in one product.
#ifndef SUMS
#define SUMS (UNITS_N / 2)
#endif

#if EMULATED
#define WGMMA_LOOP _Pragma("unroll 1")
#define FENCE_TILES
#define WGMMA_BEGIN
#define WGMMA_COMMIT
#define WGMMA_WAIT(sums)
typedef struct {
    local const UNITS_ELEMENT *tile;
    int row;
} TileAddress;
#define TILE_ADDRESS(tile) TILE_ROW_ADDRESS(tile, 0)
#define TILE_ROW_ADDRESS(tile, row) ((TileAddress){(local const UNITS_ELEMENT *)(tile), row})
#else
#define WGMMA_LOOP _Pragma("unroll")
#define FENCE_TILES asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
#define WGMMA_BEGIN asm volatile("//sm_90a: wgmma.fence.sync.aligned;" ::: "memory")
#define WGMMA_COMMIT asm volatile("//sm_90a: wgmma.commit_group.sync.aligned;" ::: "memory")
#define SUMS4(s, i) "+f"((s)[i]), "+f"((s)[i + 1]), "+f"((s)[i + 2]), "+f"((s)[i + 3])
#define SUMS16(s, i) SUMS4(s, i), SUMS4(s, i + 4), SUMS4(s, i + 8), SUMS4(s, i + 12)
#define SUMS_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define SUMS_1 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SUMS_2 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define SUMS_3 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SUMS_4 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define SUMS_5 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SUMS_6 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define SUMS_7 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
// PRODUCT_OF calls TEXT with the number of columns, the sums, and the numbers of the operands that follow these.
#if UNITS_N == 32
#define ALL_SUMS(s) SUMS16(s, 0)
#define PRODUCT_OF(TEXT) TEXT("32", SUMS_0, "16", "17", "18", "19", "20", "21")
#elif UNITS_N == 64
#define ALL_SUMS(s) SUMS16(s, 0), SUMS16(s, 16)
#define PRODUCT_OF(TEXT) TEXT("64", SUMS_0 ", " SUMS_1, "32", "33", "34", "35", "36", "37")
#elif UNITS_N == 128
#define ALL_SUMS(s) SUMS16(s, 0), SUMS16(s, 16), SUMS16(s, 32), SUMS16(s, 48)
#define PRODUCT_OF(TEXT) TEXT("128", SUMS_0 ", " SUMS_1 ", " SUMS_2 ", " SUMS_3, "64", "65", "66", "67", "68", "69")
#elif UNITS_N == 192
#define ALL_SUMS(s) SUMS16(s, 0), SUMS16(s, 16), SUMS16(s, 32), SUMS16(s, 48), SUMS16(s, 64), SUMS16(s, 80)
#define PRODUCT_OF(TEXT)                                                                                           \
    TEXT("192", SUMS_0 ", " SUMS_1 ", " SUMS_2 ", " SUMS_3 ", " SUMS_4 ", " SUMS_5, "96", "97", "98", "99", "100", \
         "101")
#elif UNITS_N == 256
#define ALL_SUMS(s)                                                                                         \
    SUMS16(s, 0), SUMS16(s, 16), SUMS16(s, 32), SUMS16(s, 48), SUMS16(s, 64), SUMS16(s, 80), SUMS16(s, 96), \
        SUMS16(s, 112)
#define PRODUCT_OF(TEXT)                                                                                           \
    TEXT("256", SUMS_0 ", " SUMS_1 ", " SUMS_2 ", " SUMS_3 ", " SUMS_4 ", " SUMS_5 ", " SUMS_6 ", " SUMS_7, "128", \
         "129", "130", "131", "132", "133")
#endif
#define WGMMA_WAIT(s) asm volatile("//sm_90a: wgmma.wait_group.sync.aligned 0;" : ALL_SUMS(s)::"memory")
// A descriptor of a tile: its address, and 1024 bytes from eight rows to the next, with the swizzle of 128 bytes.
typedef ulong TileAddress;
#define TILE_ADDRESS(tile) \
    (((ulong)1 << 62) | ((ulong)64 << 32) | ((ulong)1 << 16) | (ulong)(((uint)(size_t)(tile) & 0x3ffffu) >> 4))
// From another row of the tile on: the swizzle goes by addresses.
#define TILE_ROW_ADDRESS(tile, row) (TILE_ADDRESS(tile) + (ulong)(8 * (row)))
#endif
