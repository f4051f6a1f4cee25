// Rounds both operands of a product of one tap to halves and arranges them as they lie in local memory for
// conv/gemm_gpu/halo.cl.
//
// Each pixel and each row of weights is multiplied with a power of two, so that its largest number is below 2^15; the
// product is divided by both powers in the end. NaN and infinity stay what they are and do not count.
//
// packed   (groups, tiles of rows, chunks of TILE_K channels) weights of TILE_M rows, TILE_K halves each
// pixels   (groups, chunks, held) pixels of all images, TILE_K halves each; after the last one: zeros
// factors  what to multiply products with: of each row of each group; of each pixel of each group
//
// The eight vectors of a row are permuted by the last three bits of its number (the swizzle of 128 bytes).

#define ITEMS 512  // of a work-group

// Neighbouring rows or pixels of a work-group, a power of two from 8 to 64, and vectors of eight channels of a work-item.
#ifndef COLUMNS
#define COLUMNS 64
#endif
#ifndef VECTORS
#define VECTORS 4
#endif

#ifndef TILE_M
#define TILE_M 64
#endif
#define TILE_K 64

#ifndef EMULATED
#define EMULATED 0
#endif

#define IN_PLACE __attribute__((always_inline))
#define CHUNK_VECTORS (COLUMNS * TILE_K / 8)  // of a work-group, in a chunk

#include "conv/gemm_gpu/halves.cl"

// Rounds COLUMNS columns, of which a work-item has one: zeros if it is not known. step: from channel to channel.
// chunk_step: vectors from chunk to chunk of what is stored.
IN_PLACE void round_columns(global const stored *from, const long step, const bool known, const int channels,
                            global uint4 *to, const long chunk_step, global float *factor, local uint4 *turned,
                            local uint *largest) {
    const int id = get_local_id(0), column = id % COLUMNS, chunks = (channels + TILE_K - 1) / TILE_K;
    float values[VECTORS][8];
    uint bits = 0;
    if (id < COLUMNS) largest[id] = 0;
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int channel = (id / COLUMNS + i * (ITEMS / COLUMNS)) * 8 + j;
            // no branch around what is loaded
            const float value = LOAD(from, (channel < channels ? channel : 0) * step);
            values[i][j] = known && channel < channels ? value : 0;
        }
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) bits = larger(bits, values[i][j]);
    barrier(CLK_LOCAL_MEM_FENCE);
    atomic_max(largest + column, bits);
    barrier(CLK_LOCAL_MEM_FENCE);
    const int exponent = exponent_for(largest[column], LARGEST);
    if (id < COLUMNS && known) *factor = power_of(-exponent);
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int vector = id / COLUMNS + i * (ITEMS / COLUMNS);
        turned[vector / 8 * CHUNK_VECTORS + column * 8 + (vector % 8 ^ column & 7)] =
            rounded(values[i], power_of(exponent));
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int at = id + i * ITEMS, chunk = at / CHUNK_VECTORS;
        if (chunk < chunks) to[chunk * chunk_step + at % CHUNK_VECTORS] = turned[at];
    }
}

// Groups: rows up to a multiple of TILE_M for each group, then `held` pixels for each group; COLUMNS of them each.
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void conv_round_columns(
    CONST_TENSOR(w), TENSOR_OF(uint4, packed), TENSOR_OF(float, row_factors), const int rows, const long row_step,
    const long channel_step, const long group_step, CONST_TENSOR(source), TENSOR_OF(uint4, pixels),
    TENSOR_OF(float, pixel_factors), const int channels, const int groups, const int held, const int columns,
    const int plane) {
    local uint4 turned[ITEMS * VECTORS];
    local uint largest[COLUMNS];
    const int row_tiles = (rows + TILE_M - 1) / TILE_M, padded_rows = row_tiles * TILE_M;
    const int chunks = (channels + TILE_K - 1) / TILE_K, of_rows = groups * (padded_rows / COLUMNS);
    const int all = get_group_id(0), column = get_local_id(0) % COLUMNS;
    const bool weights = all < of_rows;
    const int blocks = (weights ? padded_rows : held) / COLUMNS, block = weights ? all : all - of_rows;
    const int first = block % blocks * COLUMNS, group = block / blocks, known = weights ? rows : columns;
    const int at = min(first + column, known - 1), image = at / plane;
    global const stored *const from =
        weights ? OPEN(w) + group * group_step + at * row_step
                : OPEN(source) + (long)(image * groups + group) * channels * plane + at % plane;
    const long tile = (long)(group * row_tiles + first / TILE_M) * chunks * TILE_M + first % TILE_M;
    global uint4 *const to = weights ? OPEN(packed) + tile * (TILE_K / 8)
                                     : OPEN(pixels) + ((long)group * chunks * held + first) * (TILE_K / 8);
    global float *const factors = weights ? OPEN(row_factors) : OPEN(pixel_factors);
    round_columns(from, weights ? channel_step : plane, first + column < known, channels, to,
                  (weights ? TILE_M : (long)held) * (TILE_K / 8), factors + (long)group * known + at, turned, largest);
}
