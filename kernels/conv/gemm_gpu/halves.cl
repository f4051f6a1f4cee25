// Convolution in channels last by matrix units whose operands are of 16 bits, both from local memory: one product of
// matrices per group, C (rows, columns) = A (rows, depth) * B (depth, columns), with sums in float32.
//
// OPERATION   rows              columns                  depth
// FORWARD     pixels of y       output channels          taps * channels of x
// DATA        pixels of dx, a   input channels           taps * channels of dy
//             phase of strides
// FILTER      output channels   taps * input channels    pixels of dy
//
// STAGES tiles of 64 elements of the depth are in local memory at the same time, and the products of PENDING steps
// still run when the next step's begin. MICRO says which micro kernel multiplies them, loaders/halves.cl how operands
// get there, store/halves.cl where sums go. row_step: elements from pixel to pixel of dy in FILTER.
//
// SPLIT: the depth is split into parts, whose sums are added in a fixed order: by conv_sum_halves, or, with JOINED
// parts, by the last one of a tile's work-groups that has its own. Each tile has a counter, 0 before and after; `sums`
// has the parts of a tile as work-items have them.
//
// BULK: where addresses allow it, tiles are boxes of both operands' maps that one work-item more asks for
// (micro/bulk.cl): matrices in place, of one group. WEIGHT_BOXES: the tiles of weights alone are boxes, for which the
// first work-item asks: DATA of one group, and WHOLE.
//
// With STATISTICS the forward product leaves the sums of a batch norm, with GRADIENT_SUMS the product of backward data
// those of a norm's gradient (store/sums.cl).
//
// Global: work-groups for tiles, innermost the axis with fewer of them: neighbours in time read the same part of the
// larger operand; parts; groups.

#include "conv/gemm_gpu/halves_product.cl"

#ifdef MICRO
#define PHASES 0
#ifndef BULK
#define BULK 0
#endif
#include "conv/gemm_gpu/loaders/halves.cl"

#if BULK || WEIGHT_BOXES
#include "conv/gemm_gpu/micro/bulk.cl"
#endif
#if BULK
#define MAPS_PARAMETERS const TensorMap a_map, const TensorMap b_map,
#define ITEMS (THREADS + BULK_WARP)
#define BOX_ROWS(size) ((size) % 128 ? (size) : 128)  // of the boxes of a tile whose rows are not the depth
#else
#define ITEMS THREADS
#if WEIGHT_BOXES
#define MAPS_PARAMETERS const TensorMap b_map,
#else
#define MAPS_PARAMETERS
#endif
#endif

#define LOCAL_BYTES (TILES_BYTES > STAGED_BYTES ? TILES_BYTES : STAGED_BYTES)

#ifndef JOINED
#define JOINED 0
#endif
#if JOINED
#define STORE_TENSORS TENSOR_OF(real, sums), CONST_TENSOR(bias), TENSOR(target)
#define COUNTERS_PARAMETER , volatile global int *counters
#elif SPLIT
#define STORE_TENSORS TENSOR_OF(real, sums)
#define COUNTERS_PARAMETER
#else
#define STORE_TENSORS CONST_TENSOR(bias), TENSOR(target)
#define COUNTERS_PARAMETER
#endif

#if JOINED
#if EMULATED
#define JOIN_FENCE mem_fence(CLK_GLOBAL_MEM_FENCE)
#else
#define JOIN_FENCE asm volatile("fence.acq_rel.gpu;" ::: "memory")
#endif
#if SUMS % 4
#error a work-item has vectors of sums
#endif
// Leaves a part's sums of a tile in `all`, its memory, and returns whether it is the last part: then `sums` are those
// of all parts.
ALWAYS_INLINE bool join_parts(float sums[SUMS], global float *all, volatile global int *counter, local int *arrived,
                              const int part) {
    const int id = get_local_id(0);
    global float4 *const tile = (global float4 *)all + id;
#define OF_PART(part, e) tile[((part) * (SUMS / 4) + (e) / 4) * THREADS]
#pragma unroll
    for (int e = 0; e < SUMS; e += 4) OF_PART(part, e) = (float4)(sums[e], sums[e + 1], sums[e + 2], sums[e + 3]);
    JOIN_FENCE;
    barrier(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE);
    if (id == 0) {
        const int before = atomic_inc(counter);
        if (before == JOINED - 1) atomic_xchg(counter, 0);
        *arrived = before;
    }
    barrier(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE);
    if (*arrived != JOINED - 1) return false;
    JOIN_FENCE;
#if JOINED > 2  // two have one order
#pragma unroll
    for (int e = 0; e < SUMS; e++) sums[e] = 0;
#endif
#pragma unroll 1
    for (int i = 0; i < JOINED; i++) {
        if (JOINED == 2 && i == part) continue;
#pragma unroll
        for (int e = 0; e < SUMS; e += 4) {
            const float4 four = OF_PART(i, e);
            sums[e] += four.x;
            sums[e + 1] += four.y;
            sums[e + 2] += four.z;
            sums[e + 3] += four.w;
        }
    }
    return true;
}
#endif
#if WEIGHT_BOXES
#define TAKE_BOXES , local ulong *barriers, BULK_MAP boxes
#define PASS_BOXES_OF_WEIGHTS , BULK_STATE(barriers), b_boxes
#define OPEN_BOXES                      \
    if (aligned) {                      \
        BULK_OPEN(barriers, STAGES, 1); \
        barrier(CLK_LOCAL_MEM_FENCE);   \
    }
#if EMULATED
#define ASKS true
#define AWAIT_WEIGHTS
#else
#define ASKS (get_local_id(0) == 0)
#define AWAIT_WEIGHTS \
    if (aligned) bulk_wait(ARRIVED(barriers, now), phase)
#endif
// Asks for the weights of the step that the loader copies next. Columns that are not there are those of the first box
// again: a box that lies wholly beyond its matrix is a fault on the device.
#define ASK_FOR_WEIGHTS(stage)                                                                                   \
    if (aligned && ASKS) {                                                                                       \
        BULK_ASK(barriers, stage, B_TILE * 2);                                                                   \
        const int first_column = kernel_tap(loader.walk, met) * columns + column_tile;                           \
        for (int block = 0; block < TILE_N; block += 64)                                                         \
            BULK_COPY(B_STAGE(stage) + block * HALVES_DEPTH, boxes, b,                                           \
                      first_column + (column_tile + block < columns ? block : 0), loader.walk.channel, barriers, \
                      stage);                                                                                    \
    }
#else
#define TAKE_BOXES
#define PASS_BOXES_OF_WEIGHTS
#define OPEN_BOXES
#define AWAIT_WEIGHTS
#define ASK_FOR_WEIGHTS(stage)
#endif
// Adds the products of `steps` steps of the depth from step `first` on.
ALWAYS_INLINE void multiply_steps(
    float sums[SUMS], local ushort *tiles, global const stored *a, global const stored *b, const int rows,
    const int columns, const int depth, const int channels, const int row_step, const int groups, const int group,
    const int row_tile, const int column_tile, const int first, const int steps, const bool aligned, const Grid grid,
    const Taps met, const Divisors by TAKE_BOXES TAKE_EXCHANGE) {
    if (steps <= 0) return;
#if WEIGHT_BOXES
    uint phase = 0;
#endif
    OPEN_BOXES
    Loader loader;
    loader_open(&loader, a, b, rows, columns, depth, channels, row_step, groups, group, row_tile, column_tile, first,
                grid, met, by);
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        if (i < steps) {
            ASK_FOR_WEIGHTS(i)
            COPY_STEP(i, grid, met);
        }
        COPIES_COMMIT;
    }
    int now = 0, next = AHEAD % STAGES;
    for (int step = 0; step < steps; step++) {
        COPIES_WAIT(AHEAD - 1);
        FENCE_TILES;
        barrier(CLK_LOCAL_MEM_FENCE);  // the step's tiles are there, and those of `next` are not read any more
        AWAIT_WEIGHTS;
        MULTIPLY(sums, A_STAGE(now), 0, B_STAGE(now));
        if (step + AHEAD < steps) {
            ASK_FOR_WEIGHTS(next)
            COPY_STEP(next, grid, met);
        }
        COPIES_COMMIT;
        PRODUCTS_WAIT(sums, PENDING);
#if WEIGHT_BOXES
        phase ^= now + 1 == STAGES;
#endif
        now = now + 1 == STAGES ? 0 : now + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    PRODUCTS_WAIT(sums, 0);
    COPIES_WAIT(0);
}

#if BULK
// Does what multiply_steps does, with boxes. Returns false to work-items that take no part in products.
ALWAYS_INLINE bool multiply_boxes(float sums[SUMS], local ushort *tiles, local ulong *barriers, BULK_MAP a_map,
                                  BULK_MAP b_map, global const stored *a, global const stored *b, const int rows,
                                  const int columns, const int row_tile, const int column_tile, const int first,
                                  const int steps) {
    BULK_OPEN(barriers, STAGES, THREADS / 32);
    barrier(CLK_LOCAL_MEM_FENCE);
// Copies both tiles of a step. Rows of A and columns of B that are not there are those of the first box again: a box
// that lies wholly beyond its matrix is a fault on the device.
#define COPY_BY_DEPTH(to, map, from, begin, end, size, stage, step)                                    \
    for (int block = 0; block < size; block += 64)                                                     \
    BULK_COPY((to) + block * HALVES_DEPTH, map, from, (begin) + ((begin) + block < (end) ? block : 0), \
              (first + (step)) * 64, barriers, stage)
#define COPY_BY_ROWS(to, map, from, begin, end, size, stage, step)           \
    for (int block = 0; block < size; block += BOX_ROWS(size))               \
    BULK_COPY((to) + block * HALVES_DEPTH, map, from, (first + (step)) * 64, \
              (begin) + ((begin) + block < (end) ? block : 0), barriers, stage)
#if A_BY_DEPTH
#define COPY_A(stage, step) COPY_BY_DEPTH(A_STAGE(stage), a_map, a, row_tile, rows, TILE_M, stage, step)
#else
#define COPY_A(stage, step) COPY_BY_ROWS(A_STAGE(stage), a_map, a, row_tile, rows, TILE_M, stage, step)
#endif
#if B_BY_DEPTH
#define COPY_B(stage, step) COPY_BY_DEPTH(B_STAGE(stage), b_map, b, column_tile, columns, TILE_N, stage, step)
#else
#define COPY_B(stage, step) COPY_BY_ROWS(B_STAGE(stage), b_map, b, column_tile, columns, TILE_N, stage, step)
#endif
#define COPY_BOXES(stage, step)                       \
    BULK_ASK(barriers, stage, (A_TILE + B_TILE) * 2); \
    COPY_A(stage, step);                              \
    COPY_B(stage, step)
    int now = 0;
#if EMULATED
#define AWAIT_BOXES(step)         \
    barrier(CLK_LOCAL_MEM_FENCE); \
    COPY_BOXES(now, step);        \
    barrier(CLK_LOCAL_MEM_FENCE)
#define PASS_BOXES(step)
#else
    uint phase = 0;
    if (get_local_id(0) >= THREADS) {
        if (get_local_id(0) > THREADS) return false;
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            if (step >= STAGES) bulk_wait(PASSED(barriers, now), phase ^ 1);
            COPY_BOXES(now, step);
            if (++now == STAGES) {
                now = 0;
                phase ^= 1;
            }
        }
        return false;
    }
#define AWAIT_BOXES(step) bulk_wait(ARRIVED(barriers, now), phase)
#define PASS_BOXES(step) \
    if ((step) >= PENDING) BULK_PASS(barriers, PENDING ? (now ? now - 1 : STAGES - 1) : now)
#endif
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        AWAIT_BOXES(step);
        MULTIPLY(sums, A_STAGE(now), 0, B_STAGE(now));
        PRODUCTS_WAIT(sums, PENDING);
        PASS_BOXES(step);
        if (++now == STAGES) {
            now = 0;
#if !EMULATED
            phase ^= 1;
#endif
        }
    }
    PRODUCTS_WAIT(sums, 0);
    return true;
}
#endif

ONE_BY_ONE OF_WAVES __attribute__((reqd_work_group_size(ITEMS, 1, 1))) kernel void conv_gemm_halves(
    MAPS_PARAMETERS CONST_TENSOR(a), CONST_TENSOR(b), STORE_TENSORS, const int has_bias, const int accumulate,
    const int rows, const int columns, const int depth, const int channels, const int row_step, const int steps_of_part,
    const int groups, const Grid grid, const Target place, const Taps met,
    const Divisors by COUNTERS_PARAMETER EPILOGUE_PARAMETERS STATISTICS_PARAMETERS) {
    const uint row_tiles = (uint)(rows + TILE_M - 1) / TILE_M, column_tiles = (uint)(columns + TILE_N - 1) / TILE_N;
    const uint tile = get_group_id(0), inner_tiles = min(row_tiles, column_tiles), outer = tile / inner_tiles;
    const uint inner = tile - outer * inner_tiles;
    const int row_tile = (row_tiles < column_tiles ? inner : outer) * TILE_M;
    const int column_tile = (row_tiles < column_tiles ? outer : inner) * TILE_N;
    const int group = get_group_id(2), part = SPLIT ? get_group_id(1) : 0, first = part * steps_of_part;
    const int steps = min((depth + HALVES_DEPTH - 1) / HALVES_DEPTH - first, steps_of_part);
#if WEIGHT_BOXES
    const bool aligned = (ulong)OPEN(a) % 16 == 0 && BULK_REACHES(OPEN(b));
    BULK_BARRIERS(barriers, STAGES)
    OPEN_MAP(b_boxes, conv_gemm_halves, 0, b_map);
#elif !BULK
    const bool aligned = ((ulong)OPEN(a) | (ulong)OPEN(b)) % 16 == 0;
#endif
    local uchar memory[LOCAL_BYTES] TILE_ALIGNMENT;
    DECLARE_EXCHANGE
    local ushort *const tiles = (local ushort *)memory;
    float sums[SUMS];
#pragma unroll
    for (int e = 0; e < SUMS; e++) sums[e] = 0;

    // a loop for each kind of addresses: loads that pass registers would keep copies from running ahead
#if BULK
    BULK_BARRIERS(barriers, STAGES)
    if (BULK_REACHES(OPEN(a)) && BULK_REACHES(OPEN(b))) {
        OPEN_MAP(a_boxes, conv_gemm_halves, 0, a_map);
        OPEN_MAP(b_boxes, conv_gemm_halves, 1, b_map);
        if (!multiply_boxes(sums, tiles, BULK_STATE(barriers), a_boxes, b_boxes, OPEN(a), OPEN(b), rows, columns,
                            row_tile, column_tile, first, steps))
            return;
    } else if (get_local_id(0) >= THREADS) {
        return;
    } else
#else
    if (aligned)
        multiply_steps(sums, tiles, OPEN(a), OPEN(b), rows, columns, depth, channels, row_step, groups, group, row_tile,
                       column_tile, first, steps, true, grid, met, by PASS_BOXES_OF_WEIGHTS PASS_EXCHANGE);
    else
#endif
        multiply_steps(sums, tiles, OPEN(a), OPEN(b), rows, columns, depth, channels, row_step, groups, group, row_tile,
                       column_tile, first, steps, false, grid, met, by PASS_BOXES_OF_WEIGHTS PASS_EXCHANGE);

#if SPLIT && !JOINED
    global real *const to = OPEN(sums) + ((long)part * groups + group) * rows * columns;
#pragma unroll
    for (int e = 0; e < SUMS; e += 2) {
        const int row = row_tile + SUM_ROW(e), column = column_tile + SUM_COLUMN(e);
        if (row < rows) {
            global real *const at = to + (long)row * columns + column;
            if (column + 1 < columns && (ulong)at % 8 == 0) {
                *(global float2 *)at = (float2)(sums[e], sums[e + 1]);
            } else {
                if (column < columns) at[0] = sums[e];
                if (column + 1 < columns) at[1] = sums[e + 1];
            }
        }
    }
#else
#if JOINED
    local int arrived;
    const long of_tile = (long)group * get_num_groups(0) + tile;
    if (!join_parts(sums, OPEN(sums) + of_tile * (JOINED * SUMS * THREADS), counters + of_tile, &arrived, part)) return;
#endif
    OPEN_EPILOGUE
    local float *const staged = (local float *)memory;
    barrier(CLK_LOCAL_MEM_FENCE);  // nobody reads tiles any more
    stage_sums(sums, staged, 0);
    barrier(CLK_LOCAL_MEM_FENCE);
#define OF_ROW(row) \
    (row_tile + (row) < rows ? first_of_row(row_tile + (row), columns, groups, group, rows, place, by) : -1)
#ifdef STATISTICS
    STORE_WITH_STATISTICS(OF_ROW, row_tile / TILE_M, (rows + TILE_M - 1) / TILE_M, 0, min(rows - row_tile, TILE_M));
#elif defined(GRADIENT_SUMS)
    STORE_WITH_GRADIENT_SUMS(OF_ROW, row_tile / TILE_M)
#else
    STORE_STAGED(OF_ROW, 0)
#endif
#endif
}
#endif

#ifndef SLICES
#define SLICES 1
#endif
#define SUMMING 128  // work-items of a work-group that adds
#define SUMMED (SUMMING / SLICES)

// Adds the sums of a product's parts in a fixed order and finishes as the product does without a split. A work-item
// adds every SLICES-th part of eight columns, and the first one of them adds those sums. Global: SLICES work-items for
// each eighth of all rows' columns, in whole work-groups; 1; groups. kept, channels: see store/halves.cl; both 1 where
// all columns are kept.
kernel __attribute__((reqd_work_group_size(SUMMING, 1, 1))) void conv_sum_halves(
    TENSOR_OF(const real, sums), CONST_TENSOR(bias), TENSOR(target), const int has_bias, const int accumulate,
    const int rows, const int columns, const int parts, const int groups, const int kept, const int channels,
    const Target place, const Divisors by EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    const uint vectors = (uint)(columns + 7) / 8, vector = get_group_id(0) * SUMMED + get_local_id(0) % SUMMED;
    const int slice = get_local_id(0) / SUMMED, row = vector / vectors, group = get_group_id(2);
    const int column = (vector - row * vectors) * 8;
    const long next = (long)groups * rows * columns;
    global const real *from = OPEN(sums) + ((long)group * rows + row) * columns + column;
    const int there = row < rows ? min(columns - column, 8) : 0;
    float8 sum = 0;
    if (there == 8 && (ulong)from % 16 == 0 && next % 4 == 0) {
#pragma unroll 4
        for (int part = slice; part < parts; part += SLICES) {
            global const float4 *own = (global const float4 *)(from + part * next);
            sum += (float8)(own[0], own[1]);
        }
    } else {
        float all[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        for (int part = slice; part < parts; part += SLICES)
            for (int i = 0; i < there; i++) all[i] += from[part * next + i];
        sum = (float8)(all[0], all[1], all[2], all[3], all[4], all[5], all[6], all[7]);
    }
#if SLICES > 1
    local float8 slices[SUMMED * SLICES];
    slices[get_local_id(0)] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice) return;
    for (int i = 1; i < SLICES; i++) sum += slices[get_local_id(0) + i * SUMMED];
#endif
    int count = there;
    long at = column;
    int width = columns;
    if (kept < channels) {  // eight neighbours are of one tap
        at = column / channels * kept + column % channels;
        count = min(there, kept - column % channels);
        width = columns / channels * kept;
    }
    if (count <= 0) return;
    at += first_of_row(row, width, groups, group, rows, place, by);
    finish8(sum, OPEN(target), at, group * columns + column, count, OPEN(bias), has_bias, accumulate PASS_EPILOGUE);
}

// Copies rows of `channels` elements to rows of `padded`, a multiple of eight, with zeros after them. Global: eighths
// of all rows.
kernel void conv_pad_channels(CONST_TENSOR(from), TENSOR(to), const int channels, const int padded) {
    const long id = get_global_id(0);
    const int vectors = padded / 8, first = id % vectors * 8;
    global const ushort *const row = (global const ushort *)OPEN(from) + id / vectors * channels + first;
    ushort all[8];
#pragma unroll
    for (int i = 0; i < 8; i++) all[i] = first + i < channels ? row[i] : 0;
    *(global ushort8 *)(OPEN(to) + id * 8) = (ushort8)(all[0], all[1], all[2], all[3], all[4], all[5], all[6], all[7]);
}
