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
// A warpgroup makes 64 rows of the tile and all of its columns. The weights come from registers, where each work-item
// loads its own (A_ELEMENT in conv/gemm_gpu/layout.cl) for the next step. The depth is chunks of channels, of those the
// taps, of those the chunk's channels. While a chunk's taps are multiplied, the next chunk is loaded, a piece with each
// of them but the last; of one tap, a step ahead.

// Rows of a chunk in local memory, a multiple of 8, and taps of the kernel.
#ifndef HALO_ROWS
#define HALO_ROWS 8
#endif
#ifndef HALO_TAPS
#define HALO_TAPS 2
#endif

#define HALO_VECTORS (HALO_ROWS * TILE_K / 4)  // of a chunk, of four channels each
#define HALO_LOADS ((HALO_VECTORS + THREADS - 1) / THREADS)
#if HALO_TAPS == 1
#define HALO_PIECE HALO_LOADS
#else
#define HALO_PIECE ((HALO_LOADS + HALO_TAPS - 2) / (HALO_TAPS - 1))  // of a work-item, with each tap but the last
#endif
#define HALO_CHUNK (HALO_ROWS * TILE_K)

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

// The work-item's weights of a step: four slices of the depth, as the units take them.
IN_PLACE void load_weights(uint4 *weights, global const real *packed) {
#pragma unroll
    for (int s = 0; s < 4; s++) weights[s] = *(global const uint4 *)(packed + s * 128);
}

typedef struct {
    global const real *packed;    // the weights of the next step
    global const stored *source;  // the chunk that is loaded
    int plane, virtual_w;
    int tap, tap_w, shift;  // of this step; its distance in rows
    int chunk, chunks;
    float4 pieces[HALO_PIECE];
} Halo;

// Multiplies a step with now_weights and loads next_weights meanwhile, and a piece of the next chunk.
IN_PLACE void halo_step(Halo *halo, float *sums, const uint4 *now_weights, uint4 *next_weights, const int left,
                        local float *tiles, local const long *at, const Grid grid MICRO_PARAMETERS) {
    local float *const chunk = tiles + halo->chunk % 2 * HALO_CHUNK;
    local float *const next_chunk = tiles + (halo->chunk + 1) % 2 * HALO_CHUNK;
    const bool more = halo->chunk + 1 < halo->chunks;
    const TileAddress address = TILE_ROW_ADDRESS(chunk, halo->shift);
    WGMMA_BEGIN;
    WGMMA_LOOP
    for (int s = 0; s < 4; s++) {
        const uint fed[4] = {now_weights[s].s0, now_weights[s].s1, now_weights[s].s2, now_weights[s].s3};
        WGMMA(sums, fed, address, s, 1);
    }
    WGMMA_COMMIT;
    WGMMA_WAIT_EARLIER;
    if (left > 1) load_weights(next_weights, halo->packed);
    halo->packed += A_ELEMENTS;
    // nobody reads the last chunk any more
    if (EMULATED || HALO_TAPS == 1 || halo->tap == 1) barrier(CLK_LOCAL_MEM_FENCE);
    if (more && (HALO_TAPS == 1 || halo->tap > 0)) {
#pragma unroll
        for (int i = 0; i < HALO_PIECE; i++)
            store_vector(next_chunk, at, halo->pieces[i], (HALO_TAPS == 1 ? 0 : halo->tap - 1) * HALO_PIECE + i);
    }
    if (HALO_TAPS == 1 ? halo->chunk + 2 < halo->chunks : more && halo->tap < HALO_TAPS - 1) {
#pragma unroll
        for (int i = 0; i < HALO_PIECE; i++)
            halo->pieces[i] = load_vector(halo->source, at, halo->tap * HALO_PIECE + i, halo->plane);
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
#if !EMULATED
        FENCE_TILES;
        barrier(CLK_LOCAL_MEM_FENCE);  // the next chunk is stored
#endif
    }
#if EMULATED  // compilers for CPUs take long over barriers under conditions
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
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
    local float tiles[2 * HALO_CHUNK] TILE_ALIGNMENT;
    local long at[HALO_ROWS], to[TILE_N];
    MICRO_LOCALS;

    // where the pixels of the source and of the target are, or -1
    for (int i = id; i < HALO_ROWS; i += THREADS) {
        const int pixel = column_tile + i, w = pixel % virtual_w + grid.begin_w, rest = pixel / virtual_w;
        const int h = rest % virtual_h + grid.begin_h, image = rest / virtual_h;
        const bool valid =
            image < grid.batch && (uint)h < (uint)grid.source_h && (uint)w < (uint)grid.source_w;
        at[i] = valid ? ((long)image * groups + group) * channels * SOURCE_PLANE + h * grid.source_w + w : -1;
    }
    for (int i = id; i < TILE_N; i += THREADS) {
        const int pixel = column_tile + i, w = pixel % virtual_w, rest = pixel / virtual_w;
        const int h = rest % virtual_h, image = rest / virtual_h;
        const int column = (image * grid.size_h + h) * grid.size_w + w;
        const bool valid = image < grid.batch && h < grid.size_h && w < grid.size_w;
        to[i] = !valid ? -1 : SPLIT ? column : destination_of(column, group, groups, rows, columns, target).first[0];
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    Halo halo;
    const long tile = (long)group * row_tiles + row_tile / TILE_M;
    halo.packed = OPEN(packed) + (tile * (depth / TILE_K) + first) * A_ELEMENTS + id / 32 * 512 + id % 32 * 4;
    halo.plane = SOURCE_PLANE;
    halo.virtual_w = virtual_w;
    halo.source = OPEN(source) + first / HALO_TAPS * TILE_K * (long)SOURCE_PLANE;
    halo.tap = halo.tap_w = halo.shift = halo.chunk = 0;
    halo.chunks = steps / HALO_TAPS;
    uint4 even[4];
#if !EMULATED
    uint4 odd[4];
#endif
    if (steps > 0) {
        load_weights(even, halo.packed);
        halo.packed += A_ELEMENTS;
        for (int i = 0; i < HALO_LOADS; i += 4) {
            float4 vectors[4];
#pragma unroll
            for (int j = 0; j < 4; j++) vectors[j] = load_vector(halo.source, at, i + j, halo.plane);
#pragma unroll
            for (int j = 0; j < 4; j++) store_vector(tiles, at, vectors[j], i + j);
        }
        halo.source += TILE_K * (long)SOURCE_PLANE;
#if HALO_TAPS == 1
#pragma unroll
        for (int i = 0; i < HALO_PIECE; i++)
            if (halo.chunks > 1) halo.pieces[i] = load_vector(halo.source, at, i, halo.plane);
        halo.source += TILE_K * (long)SOURCE_PLANE;
#endif
    }
    FENCE_TILES;
    barrier(CLK_LOCAL_MEM_FENCE);

    float sums[SUMS];
#pragma unroll
    for (int i = 0; i < SUMS; i++) sums[i] = 0;
#define HALO_STEP(now, next, left) halo_step(&halo, sums, now, next, left, tiles, at, grid MICRO_OPERANDS)
#if EMULATED
    for (int left = steps; left > 0; left--) HALO_STEP(even, even, left);
#else
    int left = steps;
    for (; left > 1; left -= 2) {
        HALO_STEP(even, odd, left);
        HALO_STEP(odd, even, left - 1);
    }
    if (left > 0) HALO_STEP(even, odd, 1);
#endif
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
