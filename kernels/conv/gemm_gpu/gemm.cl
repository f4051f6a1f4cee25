// Convolution for GPUs in all directions: one product of matrices per group, C (rows, columns) = A (rows, depth) * B
// (depth, columns).
//
//                   rows              columns                  depth                    loader             target
// forward           output channels   pixels of y              channels of x * taps     gather             pixels
// backward data     input channels    pixels of dx, a phase    channels of dy * taps    gather             pixels
// backward filter   output channels   channels of x * taps     pixels of dy             pixels             filter
//
// The products of Winograd's convolution (conv/winograd_gpu) are those of matrices in memory, whose loader is `matrices`.
// conv/gemm_gpu/stream.cl is another kernel for kernels of one tap on Hopper's matrix units.
//
// A work-group makes a tile of C: tiles of A and B pass through local memory, two or three at a time, and a work-item
// keeps a register tile of scalars. Micro kernels multiply tiles: one in plain OpenCL C, two for NVIDIA's matrix units,
// which give float32's accuracy (mma.cl). The depth can be split into parts, whose sums conv_sum adds in a fixed order.

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

// Tile of C that a work-item makes, in registers: multiples of 4; ITEM_N is 2 with conv/gemm_gpu/wgmma.cl.
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

// What multiplies: 1: conv/gemm_gpu/tile.cl, 2: conv/gemm_gpu/mma.cl, 3: conv/gemm_gpu/wgmma.cl.
#ifndef MICRO_KERNEL
#define MICRO_KERNEL 1
#endif

// 1: fix the size of a work-group for the compiler. Without, NVIDIA's compiler is bound by the options' register count
// alone.
#ifndef FIXED_GROUP
#define FIXED_GROUP 1
#endif

// 1: keep the compiler from making vectors of work-items. Intel's for CPUs gets the pixels loader wrong, or crashes.
#ifndef SCALAR_ITEMS
#define SCALAR_ITEMS 0
#endif

// LOADER   1: gather, 2: pixels, 3 and 4: matrices. TARGET   1: pixels, 2: filter.
#ifndef LOADER
#define LOADER 1
#endif
#ifndef TARGET
#define TARGET 1
#endif

// 1: conv/gemm_gpu/stream.cl is the product.
#ifndef STREAM
#define STREAM 0
#endif

// 1: a work-group leaves its sums in the workspace for conv_sum.
#ifndef SPLIT
#define SPLIT 0
#endif

// 1: all phases of a strided backward data in one launch (conv/gemm_gpu/phases.cl).
#ifndef PHASES
#define PHASES 0
#endif

// 0: no tap ever falls into the padding, and there is no rest of the depth.
#ifndef BOUNDED
#define BOUNDED 1
#endif

// 1: kernels of one tap, stride 1 and no padding, of planes whose elements are a multiple of 4: four neighbouring pixels
// are one vector. The gather loader also needs whole steps.
#ifndef PIXEL_VECTORS
#define PIXEL_VECTORS 0
#endif

// Spatial axes that have taps or strides, counted from the innermost.
#ifndef AXES
#define AXES 3
#endif

// Whether the program holds the product, or only what packs weights and adds sums: a compiler takes long over it.
#ifndef PRODUCT
#define PRODUCT 1
#endif

#define THREADS (TILE_M / ITEM_M * (TILE_N / ITEM_N))

// Neighbouring columns that are stored at once.
#if ITEM_N % 4
#define COLUMNS_AT_ONCE 2
#else
#define COLUMNS_AT_ONCE 4
#endif

#include "conv/gemm_gpu/layout.cl"
#include "conv/gemm_gpu/positions.cl"
#include "conv/gemm_gpu/target.cl"
#include "conv/gemm_gpu/phases.cl"

#if (LOADER == 1 && !STREAM) || LOADER == 3
#include "conv/gemm_gpu/vectors_of_rows.cl"
#elif LOADER == 4 || (LOADER == 2 && PIXEL_VECTORS)
#include "conv/gemm_gpu/vectors_of_columns.cl"
#endif

// Where sums of a part lie; conv/gemm_gpu/matrices.cl has another way.
#if LOADER < 3
#define TOGETHER 1
#define MATRIX_AT(matrix, size, column) ((long)(matrix) * (size) + (column))
#endif
#define SUMS_OF_PART(groups) (((groups) + TOGETHER - 1) / TOGETHER * TOGETHER)

#if LOADER == 1
#include "conv/gemm_gpu/pack.cl"
#endif
#if STREAM
#elif LOADER == 1
#include "conv/gemm_gpu/gather.cl"
#elif LOADER > 2
#include "conv/gemm_gpu/matrices.cl"
#else
#include "conv/gemm_gpu/pixels.cl"
#endif

#if MICRO_KERNEL == 1
#include "conv/gemm_gpu/tile.cl"
#elif MICRO_KERNEL == 2
#include "conv/gemm_gpu/mma.cl"
#else
#include "conv/gemm_gpu/wgmma.cl"
#endif
#ifndef MICRO_LOCALS
#define MICRO_LOCALS
#endif
#ifndef TILE_ALIGNMENT
#define TILE_ALIGNMENT
#endif
#ifndef STAGES  // tiles in local memory at the same time
#define STAGES 2
#endif

// With SPLIT the epilogue is conv_sum's.
#if SPLIT
#define STORE_PARAMETERS
#define OPEN_STORE
#define TARGET_TENSORS TENSOR_OF(real, sums)
#else
#define STORE_PARAMETERS EPILOGUE_PARAMETERS
#define OPEN_STORE OPEN_EPILOGUE
#define TARGET_TENSORS CONST_TENSOR(bias), TENSOR(target)
#endif

// The tile of a work-group, its part of the depth and its group. Rows are innermost: neighbours in time then read the same
// pixels.
#define FIND_TILE                                                      \
    uint place_ = get_group_id(0);                                     \
    const int row_tile = place_ % row_tiles * TILE_M;                  \
    place_ /= row_tiles;                                               \
    const int column_tile = place_ % column_tiles * TILE_N;            \
    place_ /= column_tiles;                                            \
    const int part = place_ % parts, group = place_ / parts;

#if PRODUCT && STREAM
#include "conv/gemm_gpu/stream.cl"
#elif PRODUCT
#if SCALAR_ITEMS
__attribute__((intel_vec_len_hint(1)))
#endif
#if FIXED_GROUP
__attribute__((reqd_work_group_size(THREADS, 1, 1)))
#endif
#if PHASES
kernel void conv_gemm(LOADER_TENSORS, TARGET_TENSORS, const int has_bias, const int accumulate, const int rows,
                      const int channels, const PhaseGrid phases) {
    local int4 taps[PHASE_TAPS];
    local int tap_numbers[PHASE_TAPS];
    const int count_h = min(phases.stride_h, phases.target_h), count_w = min(phases.stride_w, phases.target_w);
    const int count = min(phases.stride_d, phases.target_d) * count_h * count_w;
    const int largest = phases.batch * ((phases.target_d + phases.stride_d - 1) / phases.stride_d) *
                        ((phases.target_h + phases.stride_h - 1) / phases.stride_h) *
                        ((phases.target_w + phases.stride_w - 1) / phases.stride_w);
    const int row_tiles = (rows + TILE_M - 1) / TILE_M, column_tiles = (largest + TILE_N - 1) / TILE_N;
    uint id = get_group_id(0);
    const int row_tile = id % row_tiles * TILE_M;
    id /= row_tiles;
    const int phase = id % count;
    id /= count;
    const int column_tile = id % column_tiles * TILE_N, group = id / column_tiles, groups = phases.groups;

    const int phase_d = phase / count_w / count_h, phase_h = phase / count_w % count_h, phase_w = phase % count_w;
#define PHASE_AXIS(a) \
    phase_axis(phase_##a, phases.target_##a, phases.kernel_##a, phases.stride_##a, phases.pad_##a, phases.dilate_##a, \
               phases.distance_##a)
    const PhaseAxis axis_d = PHASE_AXIS(d), axis_h = PHASE_AXIS(h), axis_w = PHASE_AXIS(w);
    Grid grid;
    Target target;
    grid.batch = phases.batch;
#define SET_AXIS(a) \
    grid.size_##a = target.pixels_##a = axis_##a.size; \
    grid.source_##a = phases.source_##a; \
    grid.taps_##a = axis_##a.taps; \
    grid.stride_##a = 1; \
    grid.begin_##a = axis_##a.begin; \
    grid.step_##a = phases.dilate_##a * phases.distance_##a / phases.stride_##a; \
    target.size_##a = phases.target_##a; \
    target.stride_##a = phases.stride_##a; \
    target.begin_##a = phase_##a;
    SET_AXIS(d)
    SET_AXIS(h)
    SET_AXIS(w)
    const int columns = grid.batch * grid.size_d * grid.size_h * grid.size_w;
    const int depth = channels * grid.taps_d * grid.taps_h * grid.taps_w;
    if (column_tile >= columns) return;
    list_taps(taps, tap_numbers, axis_d, axis_h, axis_w, grid, phases);
    const int first = 0, steps = depth / TILE_K;
#else
kernel void conv_gemm(LOADER_TENSORS, TARGET_TENSORS, const int has_bias, const int accumulate, const int rows,
                      const int columns, const int depth, const int parts, const int steps_of_part, const int groups,
                      const Grid grid, const Target target STORE_PARAMETERS) {
    LOADER_LOCALS;
    const int row_tiles = (rows + TILE_M - 1) / TILE_M, column_tiles = (columns + TILE_N - 1) / TILE_N;
    FIND_TILE
    const int first = part * steps_of_part;
    const int steps = min((depth + TILE_K - 1) / TILE_K - first, steps_of_part);
#endif
    OPEN_STORE
    local realv a_tiles[STAGES * A_TILE] TILE_ALIGNMENT, b_tiles[STAGES * B_TILE];
    MICRO_LOCALS;

    real sums_of_item[ITEM_M][ITEM_N];
#pragma unroll
    for (int i = 0; i < ITEM_M; i++)
#pragma unroll
        for (int j = 0; j < ITEM_N; j++) sums_of_item[i][j] = 0;

    const Place place = place_of_item();
    if (steps > 0) {
        Loader loader;
        Fetched fetched;
        LOADER_OPEN(&loader);
        LOADER_FETCH(&loader, &fetched, b_tiles, 1 < steps);
        LOADER_COPY_A(&loader, a_tiles);
        COPIES_COMMIT;
        loader_store(&fetched, a_tiles, b_tiles);
#if MICRO_KERNEL == 3
        if (1 < steps) {
            LOADER_FETCH(&loader, &fetched, b_tiles + B_TILE, 2 < steps);
            LOADER_COPY_A(&loader, a_tiles + A_TILE);
            loader_store(&fetched, a_tiles + A_TILE, b_tiles + B_TILE);
        }
        COPIES_COMMIT;
#if STAGES > 2
        if (2 < steps) {
            LOADER_FETCH(&loader, &fetched, b_tiles + 2 * B_TILE, 3 < steps);
#if STAGES > 3
            LOADER_COPY_A(&loader, a_tiles + 2 * A_TILE);
#endif
        }
        COPIES_COMMIT;
        COPIES_WAIT(2);
#else
        COPIES_WAIT(1);
#endif
        FENCE_TILES;
#endif
        barrier(CLK_LOCAL_MEM_FENCE);
        int now = 0;
#if MICRO_KERNEL == 1
        local const realv *const a_start = a_tiles + place.m, *const b_start = b_tiles + place.n;
        local const realv *a = a_start, *b = b_start;
        Fragment even, odd;
        read_fragment(&even, a, b, 0);
        for (int step = 1; step <= steps; step++) {
            if (step < steps) LOADER_FETCH(&loader, &fetched, 0, step + 1 < steps);
#pragma unroll
            for (int k = 0; k < TILE_K - 2; k += 2) {
                read_fragment(&odd, a, b, k + 1);
                multiply(&even, sums_of_item);
                read_fragment(&even, a, b, k + 2);
                multiply(&odd, sums_of_item);
            }
            read_fragment(&odd, a, b, TILE_K - 1);
            multiply(&even, sums_of_item);
            now ^= 1;
            if (step < steps) loader_store(&fetched, a_tiles + now * A_TILE, b_tiles + now * B_TILE);
            barrier(CLK_LOCAL_MEM_FENCE);
            // a step's last products hide the wait for the next tiles; what this reads after the last step is not used
            a = a_start + now * A_TILE;
            b = b_start + now * B_TILE;
            read_fragment(&even, a, b, 0);
            multiply(&odd, sums_of_item);
        }
#elif MICRO_KERNEL == 3
        // While a step's products run, B of the step after the next is stored, which was fetched a step ago. So is A
        // where it passes registers; else the last free tile gets it by copies.
        float fed[4][4];
        int next = 1, last = STAGES > 2 ? 2 : 0;
        READ_FED(fed, (local const float *)b_tiles, place);
#if PROMOTE != 1
        float sums[SUMS];
        int summed = 0;  // steps in sums
#endif
        for (int left = steps; left > 0; left--) {
#if PROMOTE == 1
            float sums[SUMS];
            const int summed = 0;
#endif
            MULTIPLY_FED(sums, fed, a_tiles + now * A_TILE, summed);
            COPIES_WAIT(COPIES_AHEAD);
#if A_IMAGES
            FENCE_TILES;
#endif
            barrier(CLK_LOCAL_MEM_FENCE);  // the next tiles are stored, and nobody reads the last ones any more
#if STAGES > 2
            if (left > 2) {
                loader_store(&fetched, a_tiles + last * A_TILE, b_tiles + last * B_TILE);
#if A_IMAGES && STAGES == 3
                LOADER_COPY_A(&loader, a_tiles + last * A_TILE);
#elif !A_IMAGES
                FENCE_TILES;
#endif
            }
            const int free = last + 1 == STAGES ? 0 : last + 1;
            if (left > 3) {
                LOADER_FETCH(&loader, &fetched, b_tiles + free * B_TILE, left > 4);
#if STAGES > 3
                LOADER_COPY_A(&loader, a_tiles + free * A_TILE);
#endif
            }
            COPIES_COMMIT;
#else
            const int free = 0;
#endif
            READ_FED(fed, (local const float *)(b_tiles + next * B_TILE), place);  // not used after the last step
            now = next;
            next = last;
            last = free;
            WGMMA_WAIT(sums);
#if PROMOTE == 1
            ADD_SUMS(sums_of_item, sums);
#elif PROMOTE == 0
            summed = 1;
#else
            if (++summed == PROMOTE || left == 1) {
                ADD_SUMS(sums_of_item, sums);
                summed = 0;
            }
#endif
        }
#if PROMOTE == 0
        ADD_SUMS(sums_of_item, sums);
#endif
#else
        for (int step = 1; step <= steps; step++) {
            if (step < steps) LOADER_FETCH(&loader, &fetched, 0, step + 1 < steps);
            multiply_tiles(&place, a_tiles + now * A_TILE, b_tiles + now * B_TILE, sums_of_item MICRO_OPERANDS);
            now ^= 1;
            if (step < steps) loader_store(&fetched, a_tiles + now * A_TILE, b_tiles + now * B_TILE);
            barrier(CLK_LOCAL_MEM_FENCE);
        }
#endif
    }

#pragma unroll
    for (int j = 0; j < ITEM_N; j += COLUMNS_AT_ONCE) {
        const int column = column_tile + column_of(&place, j);
        if (column >= columns) continue;
#if SPLIT
        const int matrix = part * SUMS_OF_PART(groups) + group;
        global real *to = OPEN(sums) + MATRIX_AT(matrix, (long)rows * columns, column);
#else
        const Destination to = destination_of(column, group, groups, rows, columns, target);
#endif
#pragma unroll
        for (int i = 0; i < ITEM_M; i++) {
            const int row = row_tile + row_of(&place, i);
            if (row >= rows) continue;
#if COLUMNS_AT_ONCE == 4
            const realv sum = (realv)(sums_of_item[i][j], sums_of_item[i][j + 1], sums_of_item[i][j + 2],
                                      sums_of_item[i][j + 3]);
#else
            const realv sum = (realv)(sums_of_item[i][j], sums_of_item[i][j + 1], 0, 0);
#endif
#if SPLIT
            leave4(sum, to + (long)row * TOGETHER * columns, min(columns - column, COLUMNS_AT_ONCE));
#else
            finish4(sum, &to, row, group * rows + row, OPEN(bias), OPEN(target), has_bias, accumulate PASS_EPILOGUE);
#endif
        }
    }
}
#endif

// Adds the parts' sums in order and finishes as conv_gemm does without a split. Global: columns, rows, groups.
kernel void conv_sum(TENSOR_OF(const real, sums), CONST_TENSOR(bias), TENSOR(target), const int has_bias, const int accumulate,
                     const int rows, const int columns, const int parts, const int groups, const Target target
                     EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    const int column = get_global_id(0), row = get_global_id(1), group = get_global_id(2);
    global const real *from = OPEN(sums) + ((long)group * rows + row) * columns + column;
    const long next = (long)groups * rows * columns;
    real sum = 0;
    for (int part = 0; part < parts; part++) sum += from[part * next];
    if (has_bias) sum += LOAD(OPEN(bias), group * rows + row);
    const Destination to = destination_of(column, group, groups, rows, columns, target);
    finish(sum, OPEN(target), group * rows + row, to.first[0] + row * to.row_step, accumulate PASS_EPILOGUE);
}
