// The product of forward and backward data with stride 1 on Hopper's matrix units, in TF32: what all taps of a tile's
// pixels meet in a chunk of TILE_K channels is in local memory once.
//
// Columns are virtual pixels: those of images (virtual_h, virtual_w), one after the other, of which the grid's pixels
// are the first ones of each row and the first rows. The source lies in them from (-begin_h, -begin_w) on, between
// zeros, so that a pixel meets tap (h, w) at its own number plus h * step_h * virtual_w + w * step_w, whatever falls
// into the padding: the zeros in front of a row or an image are also those after the one before. (So there are
// virtual_w - size_w columns in vain in a row.) A tile's pixels and what they meet are HALO_ROWS rows in local memory,
// of TILE_K channels each; for a tap, the units read TILE_N of them from another row on.
//
// A warpgroup makes 64 rows of the tile and all of its columns. The depth is chunks of channels, of those the taps, of
// those the chunk's channels: TILE_K of one tap are a step. The units read both operands from local memory. The weights
// of a warpgroup's rows are in STAGES places, where its work-items copy them, STAGES - 2 steps ahead: while a step's
// products are issued, those of the step before may still run. While a chunk's taps are multiplied, the next chunk is
// loaded in pieces, one with a tap; a piece is stored HALO_DISTANCE taps after it is loaded.

// Rows of a chunk in local memory, a multiple of 8, and taps of the kernel.
#ifndef HALO_ROWS
#define HALO_ROWS 8
#endif
#ifndef HALO_TAPS
#define HALO_TAPS 2
#endif

// Steps from loading a piece to storing it: fewer than taps, or at least one.
#ifndef HALO_DISTANCE
#define HALO_DISTANCE 1
#endif

#define HALO_VECTORS (HALO_ROWS * TILE_K / 4)  // of a chunk, of four channels each
#define HALO_LOADS ((HALO_VECTORS + THREADS - 1) / THREADS)
#if HALO_TAPS == 1
#define HALO_PIECE HALO_LOADS
#define HALO_BUFFERS 3  // chunks in local memory: two steps' products run, and the next chunk is stored
#else
#define HALO_PIECE ((HALO_LOADS + HALO_TAPS - HALO_DISTANCE - 1) / (HALO_TAPS - HALO_DISTANCE))
#define HALO_BUFFERS 2
#endif
// Vectors of the first chunk that a work-item loads at once.
#define HALO_BATCHES ((HALO_LOADS + 15) / 16)
#define HALO_BATCH ((HALO_LOADS + HALO_BATCHES - 1) / HALO_BATCHES)
#define HALO_WEIGHTS (64 * TILE_K)  // of a warpgroup, in a step
#define HALO_CHUNK (HALO_ROWS * TILE_K)

#ifdef HALO_UNROUNDED
#define HALO_BITS as_uint
#else
#define HALO_BITS tf32_of
#endif

// Loads a work-item's vector of a chunk. at: of the pixel of each row, a negative number for zeros, which only
// store_vector puts in: so nothing waits for what is loaded before.
IN_PLACE float4 load_vector(global const stored *source, local const long *at, const int load, const int plane) {
    const int vector = get_local_id(0) + load * THREADS;
    const long from = vector < HALO_VECTORS ? at[vector % HALO_ROWS] : -1;
    const long step = plane;
    source += from < 0 ? 0 : from + vector / HALO_ROWS * 4 * step;
    return (float4)(LOAD(source, 0), LOAD(source, step), LOAD(source, 2 * step), LOAD(source, 3 * step));
}

IN_PLACE void store_vector(local float *chunk, local const long *at, const float4 loaded, const int load) {
    const int vector = get_local_id(0) + load * THREADS, row = vector % HALO_ROWS;
    const float4 value = at[row] < 0 ? (float4)(0) : loaded;
    if (vector < HALO_VECTORS)
        *(local uint4 *)(chunk + A_SLOT(vector / HALO_ROWS * 4, row)) =
            (uint4)(HALO_BITS(value.s0), HALO_BITS(value.s1), HALO_BITS(value.s2), HALO_BITS(value.s3));
}

typedef struct {
    global const real *packed;    // the work-item's part of the weights that are copied next
    global const stored *source;  // the chunk that is loaded
    int plane, virtual_w;
    int tap, tap_w, shift;  // of this step; its distance in rows
    int chunk, chunks, buffer;
    int stage, free_stage;  // where this step's weights are, and those that are copied next
} Halo;

// Copies a warpgroup's weights of a step.
IN_PLACE void copy_weights(Halo *halo, local float *weights) {
    local float *const to = weights + halo->free_stage * A_ELEMENTS + get_local_id(0) / 128 * HALO_WEIGHTS;
    const int id = get_local_id(0) % 128;
#pragma unroll
    for (int i = 0; i < HALO_WEIGHTS / 4 / 128; i++)
        COPY_VECTOR((local realv *)to + id + i * 128, halo->packed + 4 * 128 * i);
    halo->packed += A_ELEMENTS;
    halo->free_stage = halo->free_stage + 1 == STAGES ? 0 : halo->free_stage + 1;
}

// Multiplies a step and copies weights meanwhile, stores `pieces` of the next chunk and loads others.
IN_PLACE void halo_step(Halo *halo, float *sums, float4 *pieces, const int left, local float *weights,
                        local float *tiles, local const long *at, const Grid grid) {
    const int next = halo->buffer + 1 == HALO_BUFFERS ? 0 : halo->buffer + 1;
    // The step's weights are there, and the products of the step before the last one are done. With tap 0 so are the
    // chunk's pixels, and with tap 1 nobody reads the last chunk any more: this concerns all warpgroups.
    COPIES_WAIT(STAGES - 3);
    FENCE_TILES;
    if (EMULATED || HALO_TAPS == 1 || halo->tap < 2)
        barrier(CLK_LOCAL_MEM_FENCE);
    else
        WARPGROUP_BARRIER;
    const TileAddress a = TILE_ADDRESS(weights + halo->stage * A_ELEMENTS + get_local_id(0) / 128 * HALO_WEIGHTS);
    const TileAddress b = TILE_ROW_ADDRESS(tiles + halo->buffer * HALO_CHUNK, halo->shift);
    WGMMA_BEGIN;
    WGMMA_LOOP
    for (int s = 0; s < TILE_K / 8; s++) WGMMA(sums, a, b, s);
    WGMMA_COMMIT;
    if (left > STAGES - 2) copy_weights(halo, weights);
    COPIES_COMMIT;
    const bool more = halo->chunk + 1 < halo->chunks;
    if (more && (HALO_TAPS == 1 || halo->tap >= HALO_DISTANCE)) {
#pragma unroll
        for (int i = 0; i < HALO_PIECE; i++)
            store_vector(tiles + next * HALO_CHUNK, at, pieces[i],
                         (HALO_TAPS == 1 ? 0 : halo->tap - HALO_DISTANCE) * HALO_PIECE + i);
    }
    if (HALO_TAPS == 1 ? halo->chunk + 1 + HALO_DISTANCE < halo->chunks : more && halo->tap < HALO_TAPS - HALO_DISTANCE) {
#pragma unroll
        for (int i = 0; i < HALO_PIECE; i++)
            pieces[i] = load_vector(halo->source, at, halo->tap * HALO_PIECE + i, halo->plane);
    }
    halo->stage = halo->stage + 1 == STAGES ? 0 : halo->stage + 1;
    halo->shift += grid.step_w;
    if (++halo->tap_w == grid.taps_w) {
        halo->tap_w = 0;
        halo->shift += grid.step_h * halo->virtual_w - grid.taps_w * grid.step_w;
    }
    if (++halo->tap == HALO_TAPS) {
        halo->tap = halo->shift = 0;
        halo->chunk++;
        halo->buffer = next;
        halo->source += TILE_K * (long)halo->plane;
    }
    WGMMA_WAIT_EARLIER;
}

#if FIXED_GROUP
__attribute__((reqd_work_group_size(THREADS, 1, 1)))
#endif
kernel void conv_gemm(TENSOR_OF(const real, packed), TENSOR_OF(const int4, taps), CONST_TENSOR(source), TARGET_TENSORS,
                      const int has_bias, const int accumulate, const int rows, const int columns, const int depth,
                      const int parts, const int steps_of_part, const int groups, const Grid grid, const Target target,
                      const int virtual_h, const int virtual_w STORE_PARAMETERS) {
    const int virtual_columns = grid.batch * virtual_h * virtual_w;
    const int row_tiles = (rows + TILE_M - 1) / TILE_M, column_tiles = (virtual_columns + TILE_N - 1) / TILE_N;
    uint place = get_group_id(0);
    const int row_tile = place % row_tiles * TILE_M;  // innermost: neighbours in time read the same pixels
    place /= row_tiles;
    const int column_tile = place % column_tiles * TILE_N;
    place /= column_tiles;
    const int part = place % parts, group = place / parts;
    const int first = part * steps_of_part, steps = min(depth / TILE_K - first, steps_of_part);
    const int id = get_local_id(0), channels = depth / HALO_TAPS;
    OPEN_STORE
    local float weights[STAGES * A_ELEMENTS] TILE_ALIGNMENT, tiles[HALO_BUFFERS * HALO_CHUNK] TILE_ALIGNMENT;
    local long at[HALO_ROWS], to[TILE_N];

    Halo halo;
    const long tile = (long)group * row_tiles + row_tile / TILE_M;
    halo.packed = OPEN(packed) + (tile * (depth / TILE_K) + first) * A_ELEMENTS + id / 128 * HALO_WEIGHTS + id % 128 * 4;
    halo.plane = SOURCE_PLANE;
    halo.virtual_w = virtual_w;
    halo.source = OPEN(source) + first / HALO_TAPS * TILE_K * (long)SOURCE_PLANE;
    halo.tap = halo.tap_w = halo.shift = halo.chunk = halo.buffer = halo.stage = halo.free_stage = 0;
    halo.chunks = steps / HALO_TAPS;
#pragma unroll
    for (int i = 0; i < STAGES - 2; i++) {
        if (i < steps) copy_weights(&halo, weights);
        COPIES_COMMIT;
    }

    // where the source's pixels are, or -1
    for (int i = id; i < HALO_ROWS; i += THREADS) {
        const int pixel = column_tile + i, w = pixel % virtual_w + grid.begin_w, rest = pixel / virtual_w;
        const int h = rest % virtual_h + grid.begin_h, image = rest / virtual_h;
        const bool valid =
            image < grid.batch && (uint)h < (uint)grid.source_h && (uint)w < (uint)grid.source_w;
        at[i] = valid ? ((long)image * groups + group) * channels * SOURCE_PLANE + h * grid.source_w + w : -1;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float4 pieces[HALO_DISTANCE][HALO_PIECE];
    if (steps > 0) {
        for (int i = 0; i < HALO_LOADS; i += HALO_BATCH) {
            float4 vectors[HALO_BATCH];
#pragma unroll
            for (int j = 0; j < HALO_BATCH; j++) vectors[j] = load_vector(halo.source, at, i + j, halo.plane);
#pragma unroll
            for (int j = 0; j < HALO_BATCH; j++) store_vector(tiles, at, vectors[j], i + j);
        }
        halo.source += TILE_K * (long)SOURCE_PLANE;
#if HALO_TAPS == 1
#pragma unroll
        for (int d = 0; d < HALO_DISTANCE; d++) {
#pragma unroll
            for (int i = 0; i < HALO_PIECE; i++)
                if (d + 1 < halo.chunks) pieces[d][i] = load_vector(halo.source, at, i, halo.plane);
            halo.source += TILE_K * (long)SOURCE_PLANE;
        }
#endif
    }

    float sums[SUMS];
#pragma unroll
    for (int i = 0; i < SUMS; i++) sums[i] = 0;
#if EMULATED
    for (int step = 0; step < steps; step++)
        halo_step(&halo, sums, pieces[step % HALO_DISTANCE], steps - step, weights, tiles, at, grid);
#else
    for (int left = steps; left > 0; left -= HALO_DISTANCE)
#pragma unroll
        for (int d = 0; d < HALO_DISTANCE; d++)
            if (left > d) halo_step(&halo, sums, pieces[d], left - d, weights, tiles, at, grid);
#endif

    // where the target's pixels are, or -1
    for (int i = id; i < TILE_N; i += THREADS) {
        const int pixel = column_tile + i, w = pixel % virtual_w, rest = pixel / virtual_w;
        const int h = rest % virtual_h, image = rest / virtual_h;
        const int column = (image * grid.size_h + h) * grid.size_w + w;
        const bool valid = image < grid.batch && h < grid.size_h && w < grid.size_w;
        to[i] = !valid ? -1 : SPLIT ? column : destination_of(column, group, groups, rows, columns, target).first[0];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    WGMMA_WAIT(sums);

    const int first_row = row_tile + id / 32 * 16 + id % 32 / 4;
#if SPLIT
    global real *const all = OPEN(sums) + (long)(part * SUMS_OF_PART(groups) + group) * rows * columns;
#endif
#pragma unroll
    for (int j = 0; j < TILE_N / 8; j++) {
        const long left_at = to[8 * j + id % 4 * 2], right_at = to[8 * j + id % 4 * 2 + 1];
        if (left_at < 0 && right_at < 0) continue;
        Destination where;
        where.first[0] = left_at < 0 ? right_at : left_at;
        where.first[1] = right_at;
        where.row_step = SPLIT ? columns : (long)target.size_d * target.size_h * target.size_w;
        where.count = left_at < 0 || right_at < 0 ? 1 : 2;
        where.together = where.count == 2 && right_at == left_at + 1;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = first_row + 8 * i;
            if (row >= rows) continue;
            const float sum = sums[4 * j + 2 * i], right_sum = sums[4 * j + 2 * i + 1];
            const realv pair = (realv)(left_at < 0 ? right_sum : sum, right_sum, 0, 0);
#if SPLIT
            global real *const row_sums = all + (long)row * columns;
            row_sums[where.first[0]] = pair.s0;
            if (where.count > 1) row_sums[where.first[1]] = pair.s1;
#else
            finish4(pair, &where, row, group * rows + row, OPEN(bias), OPEN(target), has_bias,
                    accumulate PASS_EPILOGUE);
#endif
        }
    }
}
