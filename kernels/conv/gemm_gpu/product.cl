// Convolution for GPUs in all directions: one product of matrices per group, C (rows, columns) = A (rows, depth) * B
// (depth, columns).
//
//                   rows              columns                  depth                    loader             target
// forward           output channels   pixels of y              channels of x * taps     gather             pixels
// backward data     input channels    pixels of dx, a phase    channels of dy * taps    gather             pixels
// backward filter   output channels   channels of x * taps     pixels of dy             pixels             filter
//
// The products of Winograd's convolution (conv/winograd_gpu) and of Fourier transforms (conv/fft) are those of
// matrices in memory.
//
// A kernel combines a loader, a micro kernel and a store; this file is what they share. There is one for each form,
// which includes this file, its micro kernel, loaders/loader.cl and store/tile.cl:
//
//   portable.cl   micro/fma.cl     plain OpenCL C
//   mma.cl        micro/mma.cl     mma.sync, compute capability 8.0 and above
//   wgmma.cl      micro/wgmma.cl   wgmma.mma_async, compute capability 9.0
//   stream.cl     micro/wgmma.cl   work-groups walk over tiles of pixels of one tap
//
// In the first three a work-group makes a tile of C: tiles of A and B pass through local memory, two or more at a
// time, and a work-item keeps a register tile of scalars. The depth can be split into parts, whose sums sum.cl adds
// in a fixed order. pack.cl packs weights for the loader gather.
//
// A micro kernel says how tiles lie in local memory: the sizes A_TILE and B_TILE in vectors, B_ELEMENT (k, n),
// A_ELEMENT (k, m), and A_PUT, which stores an element of A. DEPTH_INNER: neighbours of the depth are neighbours in
// B. A_TRANSPOSED: they are in A. A_IMAGES: A lies in memory as its tiles lie in local memory. STAGES: tiles of so many
// steps are in local memory at the same time, with TILE_ALIGNMENT and next to MICRO_LOCALS. ASYNC: a loader may send
// vectors to local memory by copies that run while a work-item goes on. place_of_item, row_of and column_of say which
// sums a work-item has. A loader has LOADER_TENSORS and LOADER_LOCALS, LOADER_OPEN, LOADER_FETCH, which reads a step,
// LOADER_COPY_A, and loader_store, which puts what was fetched into local memory.

#include "conv/gemm_gpu/constants.cl"

// Tile of C that a work-group makes, and the depth of one step. All are multiples of 4.
#ifndef TILE_M
#define TILE_M 64
#endif
#ifndef TILE_N
#define TILE_N 64
#endif
#ifndef TILE_K
#define TILE_K 16
#endif

// Tile of C that a work-item makes, in registers: multiples of 4; ITEM_N is 2 with micro/wgmma.cl.
#ifndef ITEM_M
#define ITEM_M 4
#endif
#ifndef ITEM_N
#define ITEM_N 4
#endif

// Arrangement of the work-items that run in lockstep: they read PATCH_M + PATCH_N different vectors of local memory.
#ifndef PATCH_M
#define PATCH_M 8
#endif
#ifndef PATCH_N
#define PATCH_N 4
#endif

// 1: fix the size of a work-group for the compiler. Without, the options' register count alone binds it.
#ifndef FIXED_GROUP
#define FIXED_GROUP 1
#endif

// 1: keep the compiler from making vectors of work-items: it gets the pixels loader wrong, or crashes.
#ifndef SCALAR_ITEMS
#define SCALAR_ITEMS 0
#endif

#ifndef LOADER
#define LOADER GATHER
#endif
#ifndef TARGET
#define TARGET TO_PIXELS
#endif
#ifndef OPERANDS
#define OPERANDS FLOAT32
#endif

// 1: a work-group leaves its sums in the workspace for sum.cl.
#ifndef SPLIT
#define SPLIT 0
#endif

// 1: all phases of a strided backward data in one launch (loaders/phases.cl).
#ifndef PHASES
#define PHASES 0
#endif

// 0: no tap ever falls into the padding, and there is no rest of the depth.
#ifndef BOUNDED
#define BOUNDED 1
#endif

// 1: all of a step's depth is channels of one tap.
#ifndef TAP_MAJOR
#define TAP_MAJOR 0
#endif

// 1: kernels of one tap, stride 1 and no padding, of planes whose elements are a multiple of 4: four neighbouring
// pixels are one vector. The gather loader also needs whole steps.
#ifndef PIXEL_VECTORS
#define PIXEL_VECTORS 0
#endif

// Spatial axes that have taps or strides, counted from the innermost.
#ifndef AXES
#define AXES 3
#endif

// 1: compute what the matrix units compute through local memory, so that any device can run their kernels, slowly.
#ifndef EMULATED
#define EMULATED 0
#endif

// Whether a loader writes columns, neighbours of the depth: the pixels loader, and that of matrices with the depth
// inside.
#define COLUMN_LOADER (LOADER == PIXELS || LOADER == BY_COLUMNS)

#define VECTOR_AT(p) (*(global const realv *)(p))

#define ALWAYS_INLINE __attribute__((always_inline))

#define THREADS (TILE_M / ITEM_M * (TILE_N / ITEM_N))

// What stands in front of a kernel.
#if FIXED_GROUP
#define WORK_GROUP ONE_BY_ONE __attribute__((reqd_work_group_size(THREADS, 1, 1)))
#else
#define WORK_GROUP ONE_BY_ONE
#endif

// The parameters of a kernel, and its work-group's tile, part of the depth and group. Rows are innermost: neighbours in
// time then read the same pixels.
#if PHASES
#define PRODUCT_PARAMETERS                                                                                        \
    LOADER_TENSORS, TARGET_TENSORS, const int has_bias, const int accumulate, const int rows, const int channels, \
        const PhaseGrid phases
#define FIND_TILE FIND_TILE_OF_PHASE
#else
#define PRODUCT_PARAMETERS                                                                                       \
    LOADER_TENSORS, TARGET_TENSORS, const int has_bias, const int accumulate, const int rows, const int columns, \
        const int depth, const int parts, const int steps_of_part, const int groups, const Grid grid,            \
        const Target target STORE_PARAMETERS
#define FIND_TILE                                                                                       \
    const int row_tiles = (rows + TILE_M - 1) / TILE_M, column_tiles = (columns + TILE_N - 1) / TILE_N; \
    uint place_ = get_group_id(0);                                                                      \
    const int row_tile = place_ % row_tiles * TILE_M;                                                   \
    place_ /= row_tiles;                                                                                \
    const int column_tile = place_ % column_tiles * TILE_N;                                             \
    place_ /= column_tiles;                                                                             \
    const int part = place_ % parts, group = place_ / parts, first = part * steps_of_part;              \
    const int steps = min((depth + TILE_K - 1) / TILE_K - first, steps_of_part);
#endif

// How a kernel begins that makes a tile of C: with its place, local memory, and sums of 0.
#define BEGIN_TILE                                                                 \
    LOADER_LOCALS;                                                                 \
    FIND_TILE                                                                      \
    OPEN_STORE                                                                     \
    local realv a_tiles[STAGES * A_TILE] TILE_ALIGNMENT, b_tiles[STAGES * B_TILE]; \
    MICRO_LOCALS;                                                                  \
    real sums_of_item[ITEM_M][ITEM_N];                                             \
    clear_sums(sums_of_item);                                                      \
    const Place place = place_of_item()

// How its loader begins: with the first step.
#define FETCH_FIRST       \
    Loader loader;        \
    Fetched fetched;      \
    LOADER_OPEN(&loader); \
    LOADER_FETCH(&loader, &fetched, b_tiles, 1 < steps)
