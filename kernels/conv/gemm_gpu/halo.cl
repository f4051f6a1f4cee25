// The product of forward and backward data with stride 1 on Hopper's matrix units, in TF32: what all taps of a tile's
// pixels meet in a chunk of TILE_K channels is in local memory once.
//
// Columns are virtual pixels: those of images (virtual_h, virtual_w), one after the other, of which the grid's pixels
// are the first ones of each row and the first rows. The source lies in them from (-begin_h, -begin_w) on, between
// zeros, so that a pixel meets tap (h, w) at its own number plus h * step_h * virtual_w + w * step_w, whatever falls
// into the padding: the zeros in front of a row or an image are also those after the one before. (So there are
// virtual_w - size_w columns of each row that nobody needs.) A tile's pixels and what they meet are HALO_ROWS rows in
// local memory, of TILE_K channels each; for a tap, the units read TILE_N of them from another row on.
//
// A warpgroup makes 64 rows of the tile and all of its columns. The depth is chunks of channels, of those the taps, of
// those the chunk's channels: TILE_K of one tap are a step. The units read both operands from local memory. The weights
// of a warpgroup's rows are in STAGES places, where its work-items copy them, STAGES - 2 steps ahead: while a step's
// products are issued, those of the step before may still run. While a chunk's taps are multiplied, the next chunk is
// loaded in pieces, one with a tap; a piece is stored HALO_DISTANCE taps after it is loaded, rounded to TF32 (the units
// would cut it off).

// Rows of a chunk in local memory, a multiple of 8, and taps of the kernel.
#ifndef HALO_ROWS
#define HALO_ROWS 8
#endif
#ifndef HALO_TAPS
#define HALO_TAPS 9
#endif

#define HALO_DISTANCE 2  // steps from loading a piece to storing it, fewer than taps

#define HALO_VECTORS (HALO_ROWS * TILE_K / 4)  // of a chunk, of four channels each
#define HALO_LOADS ((HALO_VECTORS + THREADS - 1) / THREADS)
// Vectors of a piece for a work-item.
#define HALO_PIECE ((HALO_LOADS + HALO_TAPS - HALO_DISTANCE - 1) / (HALO_TAPS - HALO_DISTANCE))
// Vectors of the first chunk that a work-item loads at once.
#define HALO_BATCHES ((HALO_LOADS + 15) / 16)
#define HALO_BATCH ((HALO_LOADS + HALO_BATCHES - 1) / HALO_BATCHES)
#define HALO_WEIGHTS (64 * TILE_K)  // of a warpgroup, in a step
#define HALO_CHUNK (HALO_ROWS * TILE_K)
// A warpgroup's place among those of the tile: 64 rows and UNITS_N columns.
#define ROWS_PLACE ((int)get_local_id(0) / 128 % (TILE_M / 64))
#define COLUMNS_PLACE ((int)get_local_id(0) / 128 / (TILE_M / 64))
#define TURNED_ROW 40  // elements of a row of sums on its way to memory: lanes that write two of four rows meet all banks

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
            (uint4)(tf32_of(value.s0), tf32_of(value.s1), tf32_of(value.s2), tf32_of(value.s3));
}

typedef struct {
    global const real *packed;    // the weights of the warpgroup's rows that are copied next
    global const stored *source;  // the chunk that is loaded
    int plane, virtual_w;
    int tap, tap_w, shift;  // of this step; its distance in rows
    int chunk, chunks;
    int stage, free_stage, phase;  // where this step's weights are, and those that are copied next; see COPY_WAIT
} Halo;

// Copies the weights of 64 rows and a step. arrived: that they are there, of each stage.
IN_PLACE void copy_weights(Halo *halo, local float *weights, local ulong *arrived) {
    local float *const to = weights + halo->free_stage * A_ELEMENTS + ROWS_PLACE * HALO_WEIGHTS;
#if EMULATED
    for (int i = get_local_id(0) % 128; i < HALO_WEIGHTS; i += 128) to[i] = halo->packed[i];
#else
    if (get_local_id(0) % 128 == 0 && COLUMNS_PLACE == 0)
        COPY_BYTES(to, halo->packed, HALO_WEIGHTS * 4, arrived + halo->free_stage * (TILE_M / 64) + ROWS_PLACE);
#endif
    halo->packed += A_ELEMENTS;
    halo->free_stage = halo->free_stage + 1 == STAGES ? 0 : halo->free_stage + 1;
}

// Multiplies a step and copies weights meanwhile, stores `pieces` of the next chunk and loads others.
IN_PLACE void halo_step(Halo *halo, float *sums, float4 *pieces, const int left, local float *weights,
                        local ulong *arrived, local float *tiles, local const long *at, const Grid grid) {
    // The step's weights are there, and the products of the step before the last one are done. With tap 0 so are the
    // chunk's pixels, and with tap 1 nobody reads the last chunk any more: this concerns all warpgroups.
    COPY_WAIT(arrived + halo->stage * (TILE_M / 64) + ROWS_PLACE, halo->phase);
    if (EMULATED || TILE_N > UNITS_N || halo->tap < 2)
        barrier(CLK_LOCAL_MEM_FENCE);
    else
        WARPGROUP_BARRIER;
    const TileAddress a = TILE_ADDRESS(weights + halo->stage * A_ELEMENTS + ROWS_PLACE * HALO_WEIGHTS);
    const TileAddress b =
        TILE_ROW_ADDRESS(tiles + halo->chunk % 2 * HALO_CHUNK, halo->shift + COLUMNS_PLACE * UNITS_N);
    WGMMA_BEGIN;
    WGMMA_LOOP
    for (int s = 0; s < TILE_K / 8; s++) WGMMA_TILES(sums, a, b, s);
    WGMMA_COMMIT;
    if (left > STAGES - 2) copy_weights(halo, weights, arrived);
    const bool more = halo->chunk + 1 < halo->chunks;
    const int stored = (halo->tap - HALO_DISTANCE) * HALO_PIECE, loaded = halo->tap * HALO_PIECE;
    if (more && stored >= 0) {
        local float *const chunk = tiles + (halo->chunk + 1) % 2 * HALO_CHUNK;
#pragma unroll
        for (int i = 0; i < HALO_PIECE; i++)
            if (stored + i < HALO_LOADS) store_vector(chunk, at, pieces[i], stored + i);
        // It waits for all that is loaded, too: so only where the chunk is complete, and nothing is.
        if (halo->tap == HALO_TAPS - 1) FENCE_TILES;
    }
    if (more && halo->tap < HALO_TAPS - HALO_DISTANCE) {
#pragma unroll
        for (int i = 0; i < HALO_PIECE; i++)
            if (loaded + i < HALO_LOADS) pieces[i] = load_vector(halo->source, at, loaded + i, halo->plane);
    }
    if (++halo->stage == STAGES) {
        halo->stage = 0;
        halo->phase ^= 1;
    }
    halo->shift += grid.step_w;
    if (++halo->tap_w == grid.taps_w) {
        halo->tap_w = 0;
        halo->shift += grid.step_h * halo->virtual_w - grid.taps_w * grid.step_w;
    }
    if (++halo->tap == HALO_TAPS) {
        halo->tap = halo->shift = 0;
        halo->chunk++;
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
    FIND_TILE
    const int first = part * steps_of_part, steps = min(depth / TILE_K - first, steps_of_part);
    const int id = get_local_id(0), channels = depth / HALO_TAPS;
    OPEN_STORE
    local float weights[STAGES * A_ELEMENTS] TILE_ALIGNMENT, tiles[2 * HALO_CHUNK] TILE_ALIGNMENT;
    local long at[HALO_ROWS], to[TILE_N];
    local ulong arrived[STAGES * (TILE_M / 64)];
#if !EMULATED
    if (id % 128 == 0 && COLUMNS_PLACE == 0) {
#pragma unroll
        for (int i = 0; i < STAGES; i++) COPY_OPEN(arrived + i * (TILE_M / 64) + ROWS_PLACE);
        FENCE_TILES;
    }
#endif

    Halo halo;
    const long tile = (long)group * row_tiles + row_tile / TILE_M;
    halo.packed = OPEN(packed) + (tile * (depth / TILE_K) + first) * A_ELEMENTS + ROWS_PLACE * HALO_WEIGHTS;
    halo.plane = SOURCE_PLANE;
    halo.virtual_w = virtual_w;
    halo.source = OPEN(source) + first / HALO_TAPS * TILE_K * (long)SOURCE_PLANE;
    halo.tap = halo.tap_w = halo.shift = halo.chunk = halo.stage = halo.free_stage = halo.phase = 0;
    halo.chunks = steps / HALO_TAPS;
#pragma unroll
    for (int i = 0; i < STAGES - 2; i++)
        if (i < steps) copy_weights(&halo, weights, arrived);

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
        FENCE_TILES;
        halo.source += TILE_K * (long)SOURCE_PLANE;
    }

    float sums[SUMS];
#pragma unroll
    for (int i = 0; i < SUMS; i++) sums[i] = 0;
#if EMULATED
    for (int step = 0; step < steps; step++)
        halo_step(&halo, sums, pieces[step % HALO_DISTANCE], steps - step, weights, arrived, tiles, at, grid);
#else
    for (int left = steps; left > 0; left -= HALO_DISTANCE)
#pragma unroll
        for (int d = 0; d < HALO_DISTANCE; d++)
            if (left > d) halo_step(&halo, sums, pieces[d], left - d, weights, arrived, tiles, at, grid);
#endif

    // where the target's pixels are, or -1
    for (int i = id; i < TILE_N; i += THREADS) {
        const int pixel = column_tile + i, w = pixel % virtual_w, rest = pixel / virtual_w;
        const int h = rest % virtual_h, image = rest / virtual_h;
        const int column = (image * grid.size_h + h) * grid.size_w + w;
        const bool valid = image < grid.batch && h < grid.size_h && w < grid.size_w;
        to[i] = !valid ? -1 : SPLIT ? column : destination_of(column, group, groups, rows, columns, target).first[0];
    }
    const int lane = id % 32, first_row = row_tile + ROWS_PLACE * 64 + id % 128 / 32 * 16;
    real added[2] = {0, 0};
#if SPLIT
    global real *const all = OPEN(sums) + (long)(part * SUMS_OF_PART(groups) + group) * rows * columns;
    const long row_step = columns;
#else
    const long row_step = (long)target.size_d * target.size_h * target.size_w;
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (has_bias) added[i] = LOAD(OPEN(bias), group * rows + min(first_row + lane / 4 + 8 * i, rows - 1));
#endif
    WGMMA_WAIT(sums);
    barrier(CLK_LOCAL_MEM_FENCE);

    // 16 rows of 32 columns of a warp pass local memory, so that neighbours are stored together
    local float *const turned = weights + id / 32 * 16 * TURNED_ROW;
#pragma unroll
    for (int block = 0; block < UNITS_N / 32; block++) {
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int sum = 16 * block + 4 * j + 2 * i;
                *(local float2 *)(turned + (lane / 4 + 8 * i) * TURNED_ROW + 8 * j + lane % 4 * 2) =
                    (float2)(sums[sum] + added[i], sums[sum + 1] + added[i]);
            }
        WARP_BARRIER;
        const long column_at = to[COLUMNS_PLACE * UNITS_N + 32 * block + lane];
        const int count = column_at < 0 ? 0 : min(rows - first_row, 16);
        long where = column_at + first_row * row_step;
        real turned_sums[16];
#pragma unroll
        for (int i = 0; i < 16; i++) turned_sums[i] = turned[i * TURNED_ROW + lane];
#pragma unroll
        for (int i = 0; i < 16; i++) {
#if SPLIT
            if (i < count) all[where] = turned_sums[i];
#else
            if (i < count)
                finish(turned_sums[i], OPEN(target), group * rows + first_row + i, where, accumulate PASS_EPILOGUE);
#endif
            where += row_step;
        }
        WARP_BARRIER;
    }
}
