// The product of forward and backward data with stride 1 on Hopper's matrix units, with operands rounded to as many bits
// as TF32 has: what all taps of a tile's pixels meet in a chunk of TILE_K channels is in local memory once.
//
// Operands are halves, which conv/gemm_gpu/round.cl has multiplied with powers of two: the units take twice as many of
// them in a cycle as of TF32's numbers. The sums are multiplied with the factors of their row and image.
//
// Columns are virtual pixels: those of images (virtual_h, virtual_w), one after the other, of which the grid's pixels
// are the first ones of each row and the first rows. The source lies in them from (-begin_h, -begin_w) on, between
// zeros, so that a pixel meets tap (h, w) at its own number plus h * step_h * virtual_w + w * step_w, whatever falls
// into the padding: the zeros in front of a row or an image are also those after the one before. (So there are
// virtual_w - size_w columns of each row that nobody needs.) A tile's pixels and what they meet are HALO_ROWS rows in
// local memory, of TILE_K channels each; for a tap, the units read TILE_N of them from another row on.
//
// A warpgroup makes 64 rows of the tile and UNITS_N of its columns. The depth is chunks of channels, of those the taps,
// of those the chunk's channels: TILE_K of one tap are a step. The units read both operands from local memory, where
// copies bring them that run while the units multiply. The weights are in STAGES places, copied STAGES - 2 steps ahead:
// while a step's products are issued, those of the step before may still run. Pixels are in HALO_BUFFERS places, a
// chunk ahead. Kernels of one tap have nothing between pixels; these are in STAGES places, as the weights are, and have
// a factor for each pixel (conv/gemm_gpu/round_columns.cl).

// Rows of a chunk in local memory, a multiple of 8, taps of the kernel, and chunks in local memory.
#ifndef HALO_ROWS
#define HALO_ROWS 8
#endif
#ifndef HALO_TAPS
#define HALO_TAPS 9
#endif
#ifndef HALO_BUFFERS
#define HALO_BUFFERS 2
#endif

#define ROW_VECTORS (TILE_K / 8)  // of 16 bytes
#define HALO_CHUNK (HALO_ROWS * ROW_VECTORS)
#define HALO_WEIGHTS (64 * ROW_VECTORS)  // of 64 rows, in a step
#define STEP_WEIGHTS (TILE_M * ROW_VECTORS)
// A warpgroup's place among those of the tile.
#define ROWS_PLACE ((int)get_local_id(0) / 128 % (TILE_M / 64))
#define COLUMNS_PLACE ((int)get_local_id(0) / 128 / (TILE_M / 64))
#define TURNED_ROW 40  // elements of a row of sums on its way to memory: lanes that write two of four rows meet all banks

// Copies vectors to local memory; of the work-items that call it, one starts that. arrived: see COPY_WAIT.
#if EMULATED
#define COPY_VECTORS(to, from, count, arrived, item, items) \
    for (int i = (item); i < (count); i += (items)) (to)[i] = (from)[i]
#else
#define COPY_VECTORS(to, from, count, arrived, item, items) \
    if ((item) == 0) COPY_BYTES(to, from, (count) * 16, arrived)
#endif

typedef struct {
    global const uint4 *packed;  // the weights of the warpgroup's rows that are copied next
    global const uint4 *pixels;  // the chunk that is copied next
    long chunk_vectors;          // from chunk to chunk of pixels
    int virtual_w;
    int tap, tap_w, shift;  // of this step; its distance in rows
    int chunk, chunks;
    int stage, free_stage, phase;  // where this step's weights are, and those that are copied next; see COPY_WAIT
} Halo;

// Copies the weights of 64 rows and a step. arrived: that they are there, of each stage.
IN_PLACE void copy_weights(Halo *halo, local uint4 *weights, local ulong *arrived) {
    const int item = get_local_id(0) % 128 + COLUMNS_PLACE * 128;
    COPY_VECTORS(weights + halo->free_stage * STEP_WEIGHTS + ROWS_PLACE * HALO_WEIGHTS, halo->packed, HALO_WEIGHTS,
                 arrived + halo->free_stage * (TILE_M / 64) + ROWS_PLACE, item, THREADS / (TILE_M / 64));
    halo->packed += STEP_WEIGHTS;
    halo->free_stage = halo->free_stage + 1 == STAGES ? 0 : halo->free_stage + 1;
}

// Copies the pixels of a chunk.
IN_PLACE void copy_pixels(Halo *halo, const int chunk, local uint4 *tiles, local ulong *arrived) {
    COPY_VECTORS(tiles + chunk % HALO_BUFFERS * HALO_CHUNK, halo->pixels, HALO_CHUNK, arrived + chunk % HALO_BUFFERS,
                 (int)get_local_id(0), THREADS);
    halo->pixels += halo->chunk_vectors;
}

// Multiplies a step; copies the weights of a later one and the pixels of the next chunk meanwhile.
IN_PLACE void halo_step(Halo *halo, float *sums, const int left, local uint4 *weights, local uint4 *tiles,
                        local ulong *weights_arrived, local ulong *pixels_arrived, const Grid grid) {
    COPY_WAIT(weights_arrived + halo->stage * (TILE_M / 64) + ROWS_PLACE, halo->phase);
    if (halo->tap == 0) COPY_WAIT(pixels_arrived + halo->chunk % HALO_BUFFERS, halo->chunk / HALO_BUFFERS % 2);
    // The products of the step before the last one are done, with tap 1 those of all warpgroups with the last chunk.
    if (EMULATED || TILE_N > UNITS_N || HALO_TAPS == 1 || halo->tap == 1)
        barrier(CLK_LOCAL_MEM_FENCE);
    else
        WARPGROUP_BARRIER;
    const TileAddress a = TILE_ADDRESS(weights + halo->stage * STEP_WEIGHTS + ROWS_PLACE * HALO_WEIGHTS);
    const TileAddress b =
        TILE_ROW_ADDRESS(tiles + halo->chunk % HALO_BUFFERS * HALO_CHUNK, halo->shift + COLUMNS_PLACE * UNITS_N);
    WGMMA_BEGIN;
    WGMMA_LOOP
    for (int s = 0; s < TILE_K / 16; s++) WGMMA_TILES(sums, a, b, s);
    WGMMA_COMMIT;
    if (left > STAGES - 2) {
        copy_weights(halo, weights, weights_arrived);
        if (HALO_TAPS == 1) copy_pixels(halo, halo->chunk + STAGES - 2, tiles, pixels_arrived);
    }
    if (halo->tap == 1 && halo->chunk > 0 && halo->chunk + 1 < halo->chunks)
        copy_pixels(halo, halo->chunk + 1, tiles, pixels_arrived);
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
    }
    WGMMA_WAIT_EARLIER;
}

// A sum of products without their powers of two, whose product may be no number: the smaller factor is first.
#define WITHOUT_POWERS(sum, factor, other) ((sum) * fmin(factor, other) * fmax(factor, other))

#if FIXED_GROUP
__attribute__((reqd_work_group_size(THREADS, 1, 1)))
#endif
kernel void conv_gemm(TENSOR_OF(const uint4, packed), TENSOR_OF(const uint4, pixels),
                      TENSOR_OF(const float, row_factors), TENSOR_OF(const float, image_factors), TARGET_TENSORS,
                      const int has_bias, const int accumulate, const int rows, const int columns, const int depth,
                      const int parts, const int steps_of_part, const int groups, const Grid grid, const Target target,
                      const int held, const int virtual_h, const int virtual_w STORE_PARAMETERS) {
    const int virtual_columns = grid.batch * virtual_h * virtual_w;
    const int row_tiles = (rows + TILE_M - 1) / TILE_M, column_tiles = (virtual_columns + TILE_N - 1) / TILE_N;
    FIND_TILE
    const int all_chunks = (depth / HALO_TAPS + TILE_K - 1) / TILE_K, all_steps = all_chunks * HALO_TAPS;
    const int first = part * steps_of_part, steps = min(all_steps - first, steps_of_part), id = get_local_id(0);
    OPEN_STORE
    // first of all what is copied, on a boundary: pixels, then weights
    local uint4 tiles[HALO_BUFFERS * HALO_CHUNK + STAGES * STEP_WEIGHTS] TILE_ALIGNMENT;
    local uint4 *const weights = tiles + HALO_BUFFERS * HALO_CHUNK;
    local long to[TILE_N];
    local float column_factors[TILE_N];
    local float2 of_rows[TILE_M];  // factor and bias
    local ulong arrived[STAGES * (TILE_M / 64) + HALO_BUFFERS];
    local ulong *const pixels_arrived = arrived + STAGES * (TILE_M / 64);
#if !EMULATED
    if (id == 0) {
#pragma unroll
        for (int i = 0; i < STAGES * (TILE_M / 64) + HALO_BUFFERS; i++) COPY_OPEN(arrived + i);
        FENCE_TILES;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#endif

    Halo halo;
    halo.packed = OPEN(packed) + (((long)group * row_tiles + row_tile / TILE_M) * all_steps + first) * STEP_WEIGHTS +
                  ROWS_PLACE * HALO_WEIGHTS;
    halo.chunk_vectors = (long)held * ROW_VECTORS;
    halo.pixels = OPEN(pixels) + ((long)group * all_chunks + first / HALO_TAPS) * halo.chunk_vectors +
                  (long)column_tile * ROW_VECTORS;
    halo.virtual_w = virtual_w;
    halo.tap = halo.tap_w = halo.shift = halo.chunk = halo.stage = halo.free_stage = halo.phase = 0;
    halo.chunks = steps / HALO_TAPS;
    if (HALO_TAPS > 1) copy_pixels(&halo, 0, tiles, pixels_arrived);
#pragma unroll
    for (int i = 0; i < STAGES - 2; i++)
        if (i < steps) {
            copy_weights(&halo, weights, arrived);
            if (HALO_TAPS == 1) copy_pixels(&halo, i, tiles, pixels_arrived);
        }
    if (HALO_TAPS > 1 && HALO_BUFFERS > 1 && halo.chunks > 1) copy_pixels(&halo, 1, tiles, pixels_arrived);

    // where the target's pixels are, or -1
    for (int i = id; i < TILE_N; i += THREADS) {
        const int pixel = column_tile + i, w = pixel % virtual_w, rest = pixel / virtual_w;
        const int h = rest % virtual_h, image = rest / virtual_h;
        const int column = (image * grid.size_h + h) * grid.size_w + w;
        const bool valid = image < grid.batch && h < grid.size_h && w < grid.size_w;
        to[i] = !valid ? -1 : SPLIT ? column : destination_of(column, group, groups, rows, columns, target).first[0];
        const int factor = HALO_TAPS == 1 ? group * columns + column : image * groups + group;
        column_factors[i] = valid ? OPEN(image_factors)[factor] : 0;
    }
    for (int i = id; i < TILE_M; i += THREADS) {
        const int row = group * rows + min(row_tile + i, rows - 1);
        float added = 0;
#if !SPLIT
        if (has_bias) added = LOAD(OPEN(bias), row);
#endif
        of_rows[i] = (float2)(OPEN(row_factors)[row], added);
    }

    float sums[SUMS];
#pragma unroll
    for (int i = 0; i < SUMS; i++) sums[i] = 0;
    int left = steps;  // 1 at least; with a test before the first one, the driver's compiler makes products wait
    do {
        halo_step(&halo, sums, left, weights, tiles, arrived, pixels_arrived, grid);
    } while (--left > 0);

    const int lane = id % 32, warp_row = ROWS_PLACE * 64 + id % 128 / 32 * 16, first_row = row_tile + warp_row;
#if SPLIT
    global real *const all = OPEN(sums) + (long)(part * SUMS_OF_PART(groups) + group) * rows * columns;
    const long row_step = columns;
#else
    const long row_step = (long)target.size_d * target.size_h * target.size_w;
#endif
    WGMMA_WAIT(sums);
    barrier(CLK_LOCAL_MEM_FENCE);

    // 16 rows of 32 columns of a warp pass local memory, so that neighbours are stored together
    local float *const turned = (local float *)tiles + id / 32 * 16 * TURNED_ROW;
#pragma unroll
    for (int block = 0; block < UNITS_N / 32; block++) {
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int sum = 16 * block + 4 * j + 2 * i;
                *(local float2 *)(turned + (lane / 4 + 8 * i) * TURNED_ROW + 8 * j + lane % 4 * 2) =
                    (float2)(sums[sum], sums[sum + 1]);
            }
        WARP_BARRIER;
        const int column_at = COLUMNS_PLACE * UNITS_N + 32 * block + lane;
        const long first_at = to[column_at];
        const float factor = column_factors[column_at];
        const int count = first_at < 0 ? 0 : min(rows - first_row, 16);
        long where = first_at + first_row * row_step;
        real turned_sums[16];
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const float2 of_row = of_rows[warp_row + i];
            turned_sums[i] = WITHOUT_POWERS(turned[i * TURNED_ROW + lane], of_row.s0, factor) + of_row.s1;
        }
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
