// The product of forward and backward data of kernels of one tap, stride 1 and no padding on Hopper's matrix units, by
// work-groups that walk over tiles of pixels and keep copies to local memory on their way all the time.
//
// A work-group has TILE_M rows of a group and every so many tiles of TILE_N pixels. The weights of all HELD_STEPS
// steps of TILE_K channels are rounded once and stay in local memory. The steps' pixels, tile after tile, pass STAGES
// places there, and are copied as many steps ahead: pixels of the next tiles arrive while sums are stored.

#include "conv/gemm_gpu/product.cl"
#include "conv/gemm_gpu/micro/wgmma.cl"
#include "conv/gemm_gpu/loaders/positions.cl"
#include "conv/gemm_gpu/store/tile.cl"

// Steps of the depth.
#ifndef HELD_STEPS
#define HELD_STEPS 1
#endif

// 1: neighbouring weights in memory are rows of the product (backward data); 0: they are channels (forward).
#ifndef WEIGHTS_BY_ROWS
#define WEIGHTS_BY_ROWS 0
#endif

#define PIXEL_VECTORS_OF_ROW (TILE_N / 4)
#define PIXEL_ROWS (THREADS / PIXEL_VECTORS_OF_ROW)  // channels that all work-items copy at once
#if THREADS % PIXEL_VECTORS_OF_ROW || TILE_K % PIXEL_ROWS
#error the work-items do not divide the tiles
#endif

// Keeps the compiler from computing what depends on a number once for all tiles, which takes too many registers.
#if EMULATED
#define NEW_VALUE(number)
#else
#define NEW_VALUE(number) asm volatile("" : "+r"(number))
#endif

typedef struct {
    global const real *source, *pixels;  // the group's; the work-item's first vector of the step that is copied next
    int step, column, slot;  // of this tile; the work-item's first pixel in the next tile; place of the copy
    bool aligned;
} Copies;

// Starts the copies of a step. next: pixels from this tile to the next one.
IN_PLACE void copy_pixels(Copies *copies, local realv *tiles, const int columns, const int plane, const int next,
                          const long image_step) {
    if (copies->step == 0) {
        const int column = min(copies->column, columns - 4);  // others are not stored
        copies->pixels = copies->source + column / plane * image_step + column % plane;
        copies->column += next;
    }
    const int id = get_local_id(0);
    local realv *const to =
        tiles + copies->slot * B_TILE + B_ELEMENT(id / PIXEL_VECTORS_OF_ROW, id % PIXEL_VECTORS_OF_ROW * 4) / 4;
#pragma unroll
    for (int i = 0; i < TILE_K; i += PIXEL_ROWS) {
        global const real *const from = copies->pixels + (long)i * plane;
        if (copies->aligned)
            COPY_VECTOR(to + B_ELEMENT(i, 0) / 4, from);
        else
            to[B_ELEMENT(i, 0) / 4] = vload4(0, from);
    }
    copies->pixels += (long)TILE_K * plane;
    copies->step = copies->step + 1 == HELD_STEPS ? 0 : copies->step + 1;
    copies->slot = copies->slot + 1 == STAGES ? 0 : copies->slot + 1;
}

// Rounds weights of so many rows, and zeros, and puts them where the units read them.
IN_PLACE void hold_weights(local realv *held, global const real *weights, const int rows, const int row_stride,
                           const int channel_stride) {
    const bool aligned = (ulong)weights % sizeof(realv) == 0;
#pragma unroll 4
    for (int i = get_local_id(0); i < HELD_STEPS * TILE_K / 4 * TILE_M; i += THREADS) {
#if WEIGHTS_BY_ROWS
        const int row = i % TILE_M, k = i / TILE_M * 4;
#else
        const int row = i / (HELD_STEPS * TILE_K / 4), k = i % (HELD_STEPS * TILE_K / 4) * 4;
#endif
        realv four = 0;
        if (row < rows) {
            global const real *const from = weights + (long)row * row_stride + (long)k * channel_stride;
#if WEIGHTS_BY_ROWS
            four = (realv)(from[0], from[channel_stride], from[2 * channel_stride], from[3 * channel_stride]);
#else
            four = aligned ? VECTOR_AT(from) : vload4(0, from);
#endif
        }
        A_PUT_DEPTH(held + k / TILE_K * A_TILE, k % TILE_K, row, four);
    }
}

// Stores the sums of two pixels. target: the first one, of row 0, which is element `at`; row: the work-item's first
// one.
IN_PLACE void store_sums(const real sums[ITEM_M][2], global real *target, const int first_channel, int row,
                         const int rows, long at, const int plane, global const stored *bias, const int has_bias,
                         const int accumulate, const bool aligned TAKE_EPILOGUE) {
    NEW_VALUE(row);
    target += (long)row * plane;
    at += (long)row * plane;
    bias += first_channel + row;
#pragma unroll
    for (int i = 0; i < ITEM_M; i++) {
        const int further = i / 2 * 8 + i % 2;
        if (further < rows - row) {
            Pair sum = (Pair)(sums[i][0], sums[i][1]);
            if (has_bias) sum += LOAD(bias, further);
            sum.s0 = EPILOGUE_ELEMENT(sum.s0, first_channel + row + further, at);
            sum.s1 = EPILOGUE_ELEMENT(sum.s1, first_channel + row + further, at + 1);
            if (accumulate) sum += (Pair)(target[0], target[1]);
            if (aligned) {
                *(global Pair *)target = sum;
            } else {
                target[0] = sum.s0;
                target[1] = sum.s1;
            }
        }
        target += i % 2 ? 7L * plane : plane;
        at += i % 2 ? 7L * plane : plane;
    }
}

WORK_GROUP
kernel void conv_gemm_stream(CONST_TENSOR(weights), CONST_TENSOR(source), TARGET_TENSORS, const int has_bias,
                             const int accumulate, const int rows, const int columns, const int depth, const int parts,
                             const int steps_of_part, const int groups, const Grid grid, const Target target,
                             const int row_stride, const int channel_stride STORE_PARAMETERS) {
    const int row_tiles = (rows + TILE_M - 1) / TILE_M, column_tiles = (columns + TILE_N - 1) / TILE_N;
    // neighbours in time have the same pixels
    const int lines = row_tiles * groups, line = get_group_id(0) % lines, next = get_num_groups(0) / lines;
    const int row_tile = line % row_tiles * TILE_M, group = line / row_tiles;
    const int first_tile = get_group_id(0) / lines, plane = SOURCE_PLANE, id = get_local_id(0);
    const long image_step = (long)groups * depth * plane;
    OPEN_STORE
    local realv held[HELD_STEPS * A_TILE + STAGES * B_TILE] TILE_ALIGNMENT;
    local realv *const tiles = held + HELD_STEPS * A_TILE;
    MICRO_LOCALS;

    Copies copies;
    copies.source = OPEN(source) + ((long)group * depth + id / PIXEL_VECTORS_OF_ROW) * plane;
    copies.column = first_tile * TILE_N + id % PIXEL_VECTORS_OF_ROW * 4;
    copies.step = copies.slot = 0;
    copies.aligned = (ulong)OPEN(source) % sizeof(realv) == 0;
    int left = (column_tiles - first_tile + next - 1) / next * HELD_STEPS, to_copy = left;
#define COPY_NEXT                                                                                 \
    if (--to_copy >= 0) copy_pixels(&copies, tiles, columns, plane, (next) * TILE_N, image_step); \
    COPIES_COMMIT
    for (int i = 0; i < STAGES; i++) {
        COPY_NEXT;
    }
    hold_weights(held, OPEN(weights) + (long)group * rows * depth + (long)row_tile * row_stride, rows - row_tile,
                 row_stride, channel_stride);
    COPIES_WAIT(STAGES - 1);
    FENCE_TILES;
    barrier(CLK_LOCAL_MEM_FENCE);

    const Place place = place_of_item();
    float fed[4][4];
    READ_FED(fed, (local const float *)tiles, place);
    float sums[SUMS];
    real sums_of_item[ITEM_M][2];
    const bool plain = (ulong)OPEN(target) % sizeof(Pair) == 0 && !accumulate;
    int slot = 0, step = 0, column_tile = first_tile * TILE_N;
    for (; left > 0; left--) {
        MULTIPLY_FED(sums, fed, held + step * A_TILE, OPERANDS == TF32 ? step : 0);
        COPIES_WAIT(STAGES - 2);
        barrier(CLK_LOCAL_MEM_FENCE);  // the next step is there, and this one is in registers
        COPY_NEXT;
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        READ_FED(fed, (local const float *)(tiles + slot * B_TILE), place);  // not used after the last step
        WGMMA_WAIT(sums);
#if OPERANDS == FLOAT32
        if (step == 0)
#pragma unroll
            for (int i = 0; i < ITEM_M; i++)
#pragma unroll
                for (int j = 0; j < 2; j++) sums_of_item[i][j] = 0;
        ADD_SUMS(sums_of_item, sums);
#endif
        if (++step < HELD_STEPS) continue;
        step = 0;
#if OPERANDS == TF32
#pragma unroll
        for (int i = 0; i < ITEM_M; i++) {
            sums_of_item[i][0] = sums[i / 2 * 4 + i % 2];
            sums_of_item[i][1] = sums[i / 2 * 4 + 2 + i % 2];
        }
#endif
        const int column = column_tile + place.n;
        column_tile += next * TILE_N;
        if (column >= columns) continue;
        const long first = destination_of(column, group, groups, rows, columns, target).first[0];
        if (plain)
            store_sums(sums_of_item, OPEN(target) + first, group * rows, row_tile + place.m, rows, first, plane,
                       OPEN(bias), has_bias, 0, true PASS_EPILOGUE);
        else
            store_sums(sums_of_item, OPEN(target) + first, group * rows, row_tile + place.m, rows, first, plane,
                       OPEN(bias), has_bias, accumulate, false PASS_EPILOGUE);
    }
}
