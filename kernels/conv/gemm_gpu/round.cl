// Rounds the operands of conv/gemm_gpu/halo.cl to halves and arranges them as they lie in local memory there.
//
// Halves have as many bits as TF32's numbers, but few exponents. So operands are multiplied with powers of two first, and
// the product is divided by them in the end: each row of weights has one, so that its largest number is below 2^15; each
// image of a group has one. That comes from SAMPLES of the image's numbers, of which the largest is to be below
// 2^(SAMPLED + 1): it holds if the largest number of all is below 2^15 then, which conv_round_again finds out. Where it is
// not, that kernel rounds the image once more, as it does weights. NaN and infinity stay what they are and do not count.
//
// packed   (groups, tiles of rows, chunks of TILE_K channels, taps) weights of TILE_M rows, TILE_K halves each
// pixels   (groups, chunks, held) virtual pixels of conv/gemm_gpu/halo.cl, TILE_K halves each; after the last image: zeros
// factors  what to multiply products with: of each row of each group; of each group of each image
// largest  (images, groups, chunks, blocks) bits of the largest number of BLOCK pixels of a chunk
//
// The eight vectors of a row are permuted by the last three bits of its number (the swizzle of 128 bytes).

#define ITEMS 256  // of a work-group
#define BLOCK 64   // virtual pixels of a work-group
#define SAMPLES ITEMS
#define SAMPLED 4   // exponent of the largest sample
#define VECTORS (TILE_K / 8)

// Work-groups that round an image of a group once more.
#ifndef SHARES
#define SHARES 8
#endif

#ifndef HALO_TAPS
#define HALO_TAPS 9
#endif
#ifndef TILE_M
#define TILE_M 64
#endif
#ifndef TILE_K
#define TILE_K 64
#endif

#ifndef EMULATED
#define EMULATED 0
#endif

#define IN_PLACE __attribute__((always_inline))

#include "conv/gemm_gpu/halves.cl"
#include "conv/gemm_gpu/positions.cl"

// The largest of all work-items' bits. in_warps: ITEMS / 32 numbers in local memory.
IN_PLACE uint largest_of_all(uint bits, local uint *in_warps) {
    const int id = get_local_id(0);
#if EMULATED
    if (id < ITEMS / 32) in_warps[id] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    atomic_max(in_warps + id / 32, bits);
#else
    asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(bits) : "r"(bits));
    if (id % 32 == 0) in_warps[id / 32] = bits;
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < ITEMS / 32; i++) bits = max(bits, in_warps[i]);
    barrier(CLK_LOCAL_MEM_FENCE);
    return bits;
}

#define ROW_LOADS 4  // of the row's numbers that a work-item has under way at the same time

// Packs a row of weights, zeros where it is none of the group's. at: a number of local memory for each tap.
IN_PLACE void round_row(global const stored *from, global uint4 *to, global float *factor, const bool known,
                        const int row, const int channels, const long channel_step, const Taps met, const Grid grid,
                        local int *at, local uint *in_warps) {
    const int id = get_local_id(0), chunks = (channels + TILE_K - 1) / TILE_K, count = channels * HALO_TAPS;
    for (int tap = id; tap < HALO_TAPS; tap += ITEMS) {
        const int w = tap % grid.taps_w, h = tap / grid.taps_w % grid.taps_h, d = tap / grid.taps_w / grid.taps_h;
        const int at_d = met.first_d + d * met.step_d, at_h = met.first_h + h * met.step_h;
        at[tap] = (at_d * met.kernel_h + at_h) * met.kernel_w + met.first_w + w * met.step_w;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    uint bits = 0;
    for (int i = id; known && i < count; i += ITEMS * ROW_LOADS)
#pragma unroll
        for (int j = 0; j < ROW_LOADS; j++) {
            const int k = min(i + j * ITEMS, count - 1);
            bits = larger(bits, LOAD(from, k / HALO_TAPS * channel_step + at[k % HALO_TAPS]));
        }
    const int exponent = exponent_for(largest_of_all(bits, in_warps), LARGEST);
    if (id == 0 && known) *factor = power_of(-exponent);
    for (int i = id; i < chunks * VECTORS * HALO_TAPS; i += ITEMS) {
        const int tap = i % HALO_TAPS, vector = i / HALO_TAPS;
        float values[8];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int channel = vector * 8 + j;
            const float value = known ? LOAD(from, min(channel, channels - 1) * channel_step + at[tap]) : 0;
            values[j] = channel < channels ? value : 0;
        }
        to[(long)(vector / VECTORS * HALO_TAPS + tap) * TILE_M * VECTORS + (vector % VECTORS ^ row & 7)] =
            rounded(values, power_of(exponent));
    }
}

// Bits of the largest sample of an image of a group; all work-items call it. size: its elements.
IN_PLACE uint largest_sample(global const stored *image, const int size, local uint *in_warps) {
    // 32 runs of 8 neighbours
    const long run = get_local_id(0) / 8;
    const int at = min((int)(run * size / (SAMPLES / 8)) + (int)get_local_id(0) % 8, size - 1);
    return largest_of_all(larger(0, LOAD(image, at)), in_warps);
}

#define BLOCK_VECTORS (BLOCK * VECTORS / ITEMS)  // of a work-item
typedef struct {
    float values[BLOCK_VECTORS][8];
} Block;

// Loads a block's numbers of a chunk of channels, of `channels` from the chunk on. image: its first channel there.
IN_PLACE Block load_block(global const stored *image, const int block, const int channels, const int virtual_h,
                 const int virtual_w, const Grid grid) {
    Block loaded;
    const int id = get_local_id(0), plane = SOURCE_PLANE, pixel = block * BLOCK + id % BLOCK;
    const int w = pixel % virtual_w + grid.begin_w, h = pixel / virtual_w + grid.begin_h;
    const bool valid = (uint)h < (uint)grid.source_h && (uint)w < (uint)grid.source_w && pixel / virtual_w < virtual_h;
    const int at = valid ? h * grid.source_w + w : 0;
#pragma unroll
    for (int i = 0; i < BLOCK_VECTORS; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int channel = (id / BLOCK + i * (ITEMS / BLOCK)) * 8 + j;
            // no branch around what is loaded
            const float value = LOAD(image, (channel < channels ? channel * plane : 0) + at);
            loaded.values[i][j] = valid && channel < channels ? value : 0;
        }
    return loaded;
}

// Stores a block, the first `count` of its pixels, to their place in memory, where pixel number `first` of all is.
IN_PLACE void store_block(const Block *loaded, const float power, global uint4 *to, local uint4 *turned, const int count,
                 const int first) {
    const int id = get_local_id(0), row = id % BLOCK;
#pragma unroll
    for (int i = 0; i < BLOCK_VECTORS; i++)
        turned[row * VECTORS + (id / BLOCK + i * (ITEMS / BLOCK) ^ (first + row) & 7)] =
            rounded(loaded->values[i], power);
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int i = 0; i < BLOCK_VECTORS; i++)
        if (id + i * ITEMS < count * VECTORS) to[id + i * ITEMS] = turned[id + i * ITEMS];
    barrier(CLK_LOCAL_MEM_FENCE);
}

// Where an image of a group begins, and a block of it among the rounded pixels.
#define IMAGE_OF(image, group) (OPEN(source) + (long)((image) * groups + (group)) * channels * SOURCE_PLANE)
#define PIXELS_OF(group, chunk, first) \
    (OPEN(pixels) + (((long)(group) * chunks + (chunk)) * held + (first)) * VECTORS)

// A work-group packs a row of weights, or rounds a block of pixels of a chunk. Groups: rows up to a multiple of TILE_M for
// each group; blocks of all images and of the zeros after them, chunks, groups.
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void conv_round(
    CONST_TENSOR(w), TENSOR_OF(uint4, packed), TENSOR_OF(float, row_factors), const int rows, const long row_step,
    const long channel_step, const long group_step, const Taps met, CONST_TENSOR(source), TENSOR_OF(uint4, pixels),
    TENSOR_OF(uint, largest), const int channels, const int groups, const int held, const int virtual_h,
    const int virtual_w, const Grid grid) {
    local uint4 turned[BLOCK * VECTORS];
    local uint in_warps[ITEMS / 32];
    local int at[HALO_TAPS];
    const int row_tiles = (rows + TILE_M - 1) / TILE_M, padded_rows = row_tiles * TILE_M;
    const int all = get_group_id(0) - groups * padded_rows;
    const int chunks = (channels + TILE_K - 1) / TILE_K, image_pixels = virtual_h * virtual_w;
    const int blocks = (image_pixels + BLOCK - 1) / BLOCK, zeros = held - grid.batch * image_pixels;
    if (all < 0) {
        const int row = get_group_id(0) % padded_rows, group = get_group_id(0) / padded_rows;
        const long tile = (long)(group * row_tiles + row / TILE_M) * chunks * HALO_TAPS;
        round_row(OPEN(w) + group * group_step + row * row_step,
                  OPEN(packed) + (tile * TILE_M + row % TILE_M) * VECTORS, OPEN(row_factors) + group * rows + row,
                  row < rows, row, channels, channel_step, met, grid, at, in_warps);
        return;
    }
    const int all_blocks = grid.batch * blocks + (zeros + BLOCK - 1) / BLOCK;
    const int place = all / all_blocks, chunk = place % chunks, group = place / chunks;
    const int number = all % all_blocks, image = min(number / blocks, grid.batch);
    const int block = number - image * blocks, left = (image < grid.batch ? image_pixels : zeros) - block * BLOCK;
    const int first = image * image_pixels + block * BLOCK;
    Block loaded;
    int exponent = 0;
    if (image < grid.batch) {
        global const stored *const from = IMAGE_OF(image, group);
        loaded = load_block(from + (long)chunk * TILE_K * SOURCE_PLANE, block, channels - chunk * TILE_K, virtual_h,
                            virtual_w, grid);
        uint bits = 0;
#pragma unroll
        for (int i = 0; i < BLOCK_VECTORS; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) bits = larger(bits, loaded.values[i][j]);
        exponent = exponent_for(largest_sample(from, channels * SOURCE_PLANE, in_warps), SAMPLED);
        bits = largest_of_all(bits, in_warps);
        if (get_local_id(0) == 0)
            OPEN(largest)[((image * groups + group) * (long)chunks + chunk) * blocks + block] = bits;
    } else {
#pragma unroll
        for (int i = 0; i < BLOCK_VECTORS; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) loaded.values[i][j] = 0;
    }
    store_block(&loaded, power_of(exponent), PIXELS_OF(group, chunk, first), turned, min(left, BLOCK), first);
}

// Writes the factor of an image of a group, and rounds its blocks once more where the samples' power does not hold.
// Groups: SHARES, images, groups, in one number.
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void conv_round_again(
    CONST_TENSOR(source), TENSOR_OF(uint4, pixels), TENSOR_OF(uint, largest), TENSOR_OF(float, factors),
    const int channels, const int groups, const int held, const int virtual_h, const int virtual_w, const Grid grid) {
    local uint4 turned[BLOCK * VECTORS];
    local uint in_warps[ITEMS / 32];
    const int chunks = (channels + TILE_K - 1) / TILE_K, image_pixels = virtual_h * virtual_w;
    const int blocks = (image_pixels + BLOCK - 1) / BLOCK, count = chunks * blocks;
    const int share = get_group_id(0) % SHARES, place = get_group_id(0) / SHARES;
    const int image = place % grid.batch, group = place / grid.batch;
    global const stored *const from = IMAGE_OF(image, group);
    global const uint *const all = OPEN(largest) + (image * groups + group) * (long)count;
    uint bits = 0;
    for (int i = get_local_id(0); i < count; i += ITEMS) bits = max(bits, all[i]);
    int exponent = exponent_for(largest_sample(from, channels * SOURCE_PLANE, in_warps), SAMPLED);
    bits = largest_of_all(bits, in_warps);
    const int now = (int)(bits >> 23) - 127 + exponent;
    const bool again = bits && (now > LARGEST || now < SAMPLED);
    if (again) exponent = exponent_for(bits, LARGEST);
    if (share == 0 && get_local_id(0) == 0) OPEN(factors)[image * groups + group] = power_of(-exponent);
    if (!again) return;
    for (int i = share; i < count; i += SHARES) {
        const int chunk = i / blocks, block = i % blocks, first = image * image_pixels + block * BLOCK;
        const Block loaded = load_block(from + (long)chunk * TILE_K * SOURCE_PLANE, block, channels - chunk * TILE_K,
                                        virtual_h, virtual_w, grid);
        store_block(&loaded, power_of(exponent), PIXELS_OF(group, chunk, first), turned,
                    min(image_pixels - block * BLOCK, BLOCK), first);
    }
}
