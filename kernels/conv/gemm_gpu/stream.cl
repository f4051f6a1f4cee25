// The product of forward and backward data of kernels of one tap, stride 1 and no padding on NVIDIA's matrix units, by
// work-groups that walk over tiles of pixels and keep copies to local memory on their way all the time.
//
// A work-group has TILE_M rows of a group (and a part of the depth), and every so many tiles of TILE_N pixels. Its steps
// of TILE_K channels, tile after tile, pass STAGES places in local memory, copied STAGES - 1 steps ahead: pixels of the
// next tile arrive while the sums of this one are stored. Weights lie there in the order in which lanes feed them
// (conv/gemm_gpu/layout.cl): those of all steps with HELD_STEPS, else those of STAGES steps.
//
// A warp makes 8 * ITEM_M rows of 4 * ITEM_N pixels with mma.sync.m16n8k8. Lane (g, t) of 8 * 4 feeds four neighbouring
// pixels of each 32, a vector of local memory, one to each of four products: their column c is pixel 4 * (c / 2 + c % 2 * 4)
// and what follows it. So a lane gets the sums of pixels 4 * t and 16 + 4 * t, four neighbours each, of rows g and g + 8.

// Steps whose weights are in local memory as long as the work-group runs; 0: they pass the same places as the pixels.
#ifndef HELD_STEPS
#define HELD_STEPS 0
#endif

#define ROW_BLOCKS (ITEM_M / 2)  // of 16 rows, of a warp
#define COLUMN_BLOCKS (ITEM_N / 8)  // of 32 pixels
#define PRODUCTS (4 * COLUMN_BLOCKS)
#define PIXEL_ROW ((TILE_N + PAD) / 4)  // vectors
#define PIXEL_ROWS (THREADS / (TILE_N / 4))  // channels that all work-items copy at once
#if TILE_K % 16 || TILE_K % PIXEL_ROWS || THREADS % (TILE_N / 4)
#error the work-items do not divide the tiles
#endif
// Whether the program is built for the units of Hopper, in the way of core/runtime/ptx.py: no other has as much local memory.
#if EMULATED || defined(UNMARKED)
#define MARKED
#else
#define MARKED asm volatile("//sm_90a: bar.warp.sync 0xffffffff;" ::: "memory")
#endif
#define SLICES (TF32 ? 1 : 2)  // of 8 elements of the depth, summed in the units before they are added to the sums

typedef struct {
    global const real *source, *pixels;           // the group's; the work-item's first vector of the step that is copied next
    global const realv *first_weights, *weights;  // of the part, and of the step that is copied next
    int step, column;                             // of this tile; the work-item's first pixel in the next tile
    int slot;
    bool aligned;
} Copies;

// Moves on to the next tile.
IN_PLACE void open_tile(Copies *copies, const int columns, const int plane, const int next, const long image_step) {
    const int column = min(copies->column, columns - 4);  // others are not stored
    copies->pixels = copies->source + column / plane * image_step + column % plane;
    copies->weights = copies->first_weights;
    copies->column += next;
    copies->step = 0;
}

// Starts the copies of a step.
IN_PLACE void copy_step(Copies *copies, local realv *weights, local realv *tiles, const int plane) {
    const int id = get_local_id(0);
    local realv *const to = tiles + copies->slot * B_TILE + id / (TILE_N / 4) * PIXEL_ROW + id % (TILE_N / 4);
    if (copies->aligned) {
#pragma unroll
        for (int i = 0; i < TILE_K / PIXEL_ROWS; i++)
            COPY_VECTOR(to + i * PIXEL_ROWS * PIXEL_ROW, copies->pixels + (long)(i * PIXEL_ROWS) * plane);
    } else {
#pragma unroll
        for (int i = 0; i < TILE_K / PIXEL_ROWS; i++)
            to[i * PIXEL_ROWS * PIXEL_ROW] = vload4(0, copies->pixels + (long)(i * PIXEL_ROWS) * plane);
    }
#if !HELD_STEPS
#pragma unroll
    for (int i = 0; i < A_TILE; i += THREADS)
        if (A_TILE % THREADS == 0 || i + id < A_TILE)
            COPY_VECTOR(weights + copies->slot * A_TILE + i + id, (global const real *)(copies->weights + i + id));
    copies->weights += A_TILE;
#endif
    copies->pixels += (long)TILE_K * plane;
    copies->slot = copies->slot + 1 == STAGES ? 0 : copies->slot + 1;
}

// What a lane feeds of a number: rounded to TF32, without care for the bits that the units ignore.
uint fed_of(const float x) {
#if EMULATED
    return tf32_of(x);
#else
    return as_uint(x) + (fabs(x) < INFINITY ? 0x1000u : 0u);
#endif
}

// Adds the products of a step. a, b: the lane's first vectors.
IN_PLACE void multiply_step(local const realv *a, local const realv *b, float sums[ROW_BLOCKS][PRODUCTS][4] TAKE_OPERANDS) {
#pragma unroll
    for (int k = 0; k < TILE_K / 8; k += SLICES) {
        uint high[SLICES][PRODUCTS][2];
#if !TF32
        uint low[SLICES][PRODUCTS][2];
#endif
#pragma unroll
        for (int s = 0; s < SLICES; s++)
#pragma unroll
            for (int block = 0; block < COLUMN_BLOCKS; block++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const realv pixels = b[(8 * (k + s) + 4 * e) * PIXEL_ROW + 8 * block];
                    const float four[4] = {pixels.s0, pixels.s1, pixels.s2, pixels.s3};
#pragma unroll
                    for (int j = 0; j < 4; j++) {
#if TF32
                        high[s][4 * block + j][e] = fed_of(four[j]);
#else
                        high[s][4 * block + j][e] = high_of(four[j]);
                        low[s][4 * block + j][e] = as_uint(LOW_OF(four[j]));
#endif
                    }
                }
        MMA_LOOP
        for (int i = 0; i < ROW_BLOCKS; i++) {
#define FEED(c, rows, columns)                                                                          \
    MMA_LOOP for (int j = 0; j < PRODUCTS; j++)                                                         \
        mma(c[j], rows.s0, rows.s1, rows.s2, rows.s3, columns[j][0], columns[j][1] PASS_OPERANDS)
#if TF32
            const uint4 rows = as_uint4(a[(i * (TILE_K / 8) + k) * 32]);
            FEED(sums[i], rows, high[0]);
#else
            float c[PRODUCTS][4];
#pragma unroll
            for (int j = 0; j < PRODUCTS; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) c[j][e] = 0;
            MMA_LOOP
            for (int s = 0; s < SLICES; s++) {
                const uint4 rows = as_uint4(a[(i * (TILE_K / 8) + k + s) * 32]);
                const uint4 rests = as_uint4(a[A_HALF / 4 + (i * (TILE_K / 8) + k + s) * 32]);
                FEED(c, rests, high[s]);
                FEED(c, rows, low[s]);
                FEED(c, rows, high[s]);
            }
#pragma unroll
            for (int j = 0; j < PRODUCTS; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) sums[i][j][e] += c[j][e];
#endif
        }
    }
}

#if FIXED_GROUP
__attribute__((reqd_work_group_size(THREADS, 1, 1)))
#endif
kernel void conv_gemm(TENSOR_OF(const real, packed), CONST_TENSOR(source), TARGET_TENSORS, const int has_bias,
                      const int accumulate, const int rows, const int columns, const int depth, const int parts,
                      const int steps_of_part, const int groups, const Grid grid, const Target target STORE_PARAMETERS) {
    const int row_tiles = (rows + TILE_M - 1) / TILE_M, column_tiles = (columns + TILE_N - 1) / TILE_N;
    // work-groups at the same time have the same pixels
    const int lines = row_tiles * parts * groups, line = get_group_id(0) % lines, next = get_num_groups(0) / lines;
    const int row_tile = line % row_tiles * TILE_M, part = line / row_tiles % parts, group = line / row_tiles / parts;
    const int first = part * steps_of_part, steps = min(depth / TILE_K - first, steps_of_part);
    const int first_tile = get_group_id(0) / lines, plane = SOURCE_PLANE;
    OPEN_STORE
    local realv tiles[STAGES * B_TILE + (HELD_STEPS ? HELD_STEPS : STAGES) * A_TILE] TILE_ALIGNMENT;
    local realv *const weights = tiles + STAGES * B_TILE;
    MICRO_LOCALS;
    MARKED;

    const int id = get_local_id(0), warp = id / 32, lane = id % 32, g = lane / 4, t = lane % 4;
    const long image_step = (long)groups * depth * plane;
    Copies copies;
    copies.source = OPEN(source) + ((long)group * depth + first * TILE_K + id / (TILE_N / 4)) * plane;
    copies.first_weights =
        (global const realv *)OPEN(packed) + (((long)group * row_tiles + row_tile / TILE_M) * (depth / TILE_K) + first) * A_TILE;
    copies.column = first_tile * TILE_N + id % (TILE_N / 4) * 4;
    copies.slot = 0;
    copies.aligned = (ulong)OPEN(source) % sizeof(realv) == 0;
    open_tile(&copies, columns, plane, next * TILE_N, image_step);
#if HELD_STEPS
    for (int i = id; i < steps * A_TILE; i += THREADS)
        COPY_VECTOR(weights + i, (global const real *)(copies.first_weights + i));
#endif

    int left = (column_tiles - first_tile + next - 1) / next * steps, to_copy = left;
#define COPY_NEXT                                                                              \
    if (to_copy > 0) {                                                                         \
        if (copies.step == steps) open_tile(&copies, columns, plane, next * TILE_N, image_step); \
        copy_step(&copies, weights, tiles, plane);                                             \
        copies.step++;                                                                         \
        to_copy--;                                                                             \
    }                                                                                          \
    COPIES_COMMIT
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++) {
        COPY_NEXT;
    }

    const int warp_m = warp % WARPS_M * (PATCH_M * ITEM_M), warp_n = warp / WARPS_M * (PATCH_N * ITEM_N);
    local const realv *const a = weights + warp_m / 16 * (TILE_K / 8) * 32 + lane;
    local const realv *const b = tiles + t * PIXEL_ROW + warp_n / 4 + g / 2 + g % 2 * 4;
    float sums[ROW_BLOCKS][PRODUCTS][4];
#define CLEAR_SUMS                                                 \
    _Pragma("unroll") for (int i = 0; i < ROW_BLOCKS; i++)         \
        _Pragma("unroll") for (int j = 0; j < PRODUCTS; j++)       \
            _Pragma("unroll") for (int e = 0; e < 4; e++) sums[i][j][e] = 0
    CLEAR_SUMS;
#if !SPLIT
    const bool target_aligned = (ulong)OPEN(target) % sizeof(realv) == 0;
#endif
    int slot = 0, step = 0, column = first_tile * TILE_N + warp_n + 4 * t;
    for (; left > 0; left--) {
        COPIES_WAIT(STAGES - 2);
        barrier(CLK_LOCAL_MEM_FENCE);  // the step is there, and nobody reads the one before any more
        COPY_NEXT;
        multiply_step(a + (HELD_STEPS ? step : slot) * A_TILE, b + slot * B_TILE, sums MICRO_OPERANDS);
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        if (++step < steps) continue;
        step = 0;
#pragma unroll
        for (int part_of_row = 0; part_of_row < 2 * COLUMN_BLOCKS; part_of_row++) {
            const int at = column + 16 * part_of_row, block = part_of_row / 2, half_ = part_of_row % 2;
            if (at >= columns) continue;
#if SPLIT
            global real *const to = OPEN(sums) + (long)(part * SUMS_OF_PART(groups) + group) * rows * columns + at;
#else
            const int row_at = row_tile + warp_m + g;
            long to = (((long)(at / plane) * groups + group) * rows + row_at) * plane + at % plane;
#endif
#pragma unroll
            for (int i = 0; i < 2 * ROW_BLOCKS; i++) {
                const int row = row_tile + warp_m + 8 * i + g, e = i % 2 * 2 + half_;
                if (row < rows) {
                realv sum = (realv)(sums[i / 2][4 * block][e], sums[i / 2][4 * block + 1][e],
                                          sums[i / 2][4 * block + 2][e], sums[i / 2][4 * block + 3][e]);
#if SPLIT
                    leave4(sum, to + (long)row * columns, 4);
#else
                    const int channel = group * rows + row;
                    if (has_bias) sum += LOAD(OPEN(bias), channel);
                    sum = EPILOGUE_VECTOR(sum, channel, to);
                    global real *const vector = OPEN(target) + to;
                    if (accumulate) sum += target_aligned ? VECTOR_AT(vector) : vload4(0, vector);
                    if (target_aligned)
                        *(global realv *)vector = sum;
                    else
                        vstore4(sum, 0, vector);
#endif
                }
#if !SPLIT
                to += 8L * plane;
#endif
            }
        }
        column += next * TILE_N;
        CLEAR_SUMS;
    }
}
