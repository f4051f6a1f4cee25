// Convolution of few channels on CPU devices, as the first layer of a net is: a product of matrices whose vectors run
// along outputs.
//
//     y[image][output][pixel]  =  bias[output] + sum over (channel, tap) of lines[channel][pixel, tap] *
//         weights[channel, tap][output]
//
// weights  operands, [tile of COLS outputs][channel, tap][COLS], made by pack_outputs; zeros beyond
// lines    local, operands, [channel][row][pitch], what a block of rows of pixels meets, with the padding
// places   local, where the lines of each pixel of a part begin
// sums     local, [part][pixel of a part][COLS], which are transposed where they are stored; two parts with PAST_CACHES
// x        (batch, channels, source_h, source_w)   y (batch, outputs, size_h, size_w)
//
// Where operands are pairs of bfloat16, these are two channels, the last of an odd number with zeros, and `channels` in
// the kernel are pairs of them.
//
// Each element of x is broadcast from where it lies, for every tap that meets it. A panel of pixels would hold it once
// for each of these taps, and few outputs would not make up for the time to fill it.
//
// KW           taps of a row of the kernel, if the compiler is to unroll them; without it one program serves all
// PAST_CACHES  y is too large to be found in a cache again
//
// Work-items, which are work-groups, share items by tickets: a block of rows of pixels of one image. It is multiplied
// in parts of pixels, and `chunk` channels at a time, whose weights stay in the core's cache for a part of the pixels.

#include "common/column_blocks.cl"
#include "common/tickets.cl"
#include "conv/few_channels_lines.cl"

#ifdef KW
#define ROW_TAPS KW
#define UNROLL _Pragma("unroll")
#else
#define ROW_TAPS grid.taps_w
#define UNROLL _Pragma("unroll 1")
#endif

// Packs w, (outputs, depth), whose rows hold all channels and taps; a work-item takes `range` of them.
#if PAIRED
SINGLE void pack_outputs(CONST_TENSOR(w), TENSOR_OF(uint, packed), const int outputs, const int depth, const int taps,
                         const int range) {
    const int pairs = (depth / taps + 1) / 2 * taps, tile = get_global_id(1);
    const int from = get_global_id(0) * range, to = min(from + range, pairs);
    global const stored *rows = OPEN(w) + (long)tile * COLS * depth;
    global uint *packs = OPEN(packed) + (long)tile * pairs * COLS;
    for (int d = from; d < to; d++) {
        const int first = d / taps * (2 * taps) + d % taps;
        for (int i = 0; i < COLS; i++) {
            global const stored *row = rows + (long)i * depth + first;
            const bool there = tile * COLS + i < outputs;
            const uint low = there ? row[0] : 0, high = there && first + taps < depth ? row[taps] : 0;
            packs[d * COLS + i] = low | high << 16;
        }
    }
}
#else
SINGLE void pack_outputs(CONST_TENSOR(w), TENSOR_OF(real, packed), const int outputs, const int depth,
                         const int range) {
    const int from = get_global_id(0) * range, to = min(from + range, depth), tile = get_global_id(1);
    global const stored *rows = OPEN(w) + (long)tile * COLS * depth;
    pack_block(rows, OPEN(packed) + (long)tile * depth * COLS, outputs - tile * COLS, depth, from, to);
}
#endif

// A part whose sums are stored. What goes past the caches is stored block by block between the tiles of the next part:
// memory takes as many lines at once as wait in a core's buffers, and a core would wait for the others.
typedef struct {
    global stored *ys;  // the first pixel of the first output
    local const real *sums;
    int count, output, outputs;  // pixels; the first output, and how many there are
    int left, lane, p;           // blocks of VL pixels and outputs that are not stored; the next one's output and pixel
} Part;

// Stores the next block of a part; `ends` is scratch.
inline __attribute__((always_inline)) void store_block(global stored *y, Part *part, global const stored *bias,
                                                       local real *ends, const int pixels, const bool has_bias,
                                                       const bool add TAKE_EPILOGUE) {
    const int lane = part->lane, p = part->p;
    const int output = part->output + lane, there = min(part->outputs - lane, VL);
    global stored *to = part->ys + (long)lane * pixels + p;
    const bool past = GOES_PAST(to, !add && pixels % VL == 0);
    realv a[VL], b[VL];
#ifdef PAST_CACHES
#define SUMS_OF(i) (part->sums + (p + (i)) * COLS + lane)
    LOAD_TRANSPOSED(a, b, SUMS_OF)
#else  // next to stores that cross lines such loads are slower
#pragma unroll
    for (int i = 0; i < VL; i++) a[i] = LOAD_REALS(part->sums + (p + i) * COLS + lane);
    TRANSPOSE(a, b, VL)
#endif
    part->left--;
    part->p += VL;
    if (part->p >= part->count) part->p = 0, part->lane += VL;
    if (p + VL <= part->count) {
#pragma unroll
        for (int i = 0; i < VL; i++) {
            if (i < there) {
                realv value = a[i];
                if (has_bias) value += LOAD(bias, output + i);
                value = EPILOGUE_VECTOR(value, output + i, to - y);
                if (add) value += VLOAD(to, 0);
                PUT_VECTOR(past, to, 0, value)
                to += pixels;
            }
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < VL; i++) STORE_REALS(ends + i * VL, a[i]);
    for (int i = 0; i < there; i++) {
        local real *values = ends + i * VL;
        if (has_bias) STORE_REALS(values, LOAD_REALS(values) + LOAD(bias, output + i));
        finish_run(values, part->count - p, output + i, to - y PASS_EPILOGUE);
        store_run(to, values, part->count - p, add);
        to += pixels;
    }
}

// Stores the blocks of a part that are left.
void store_rest(global stored *y, Part part, global const stored *bias, local real *ends, const int pixels,
                const bool has_bias, const bool add TAKE_EPILOGUE) {
    while (part.left > 0) store_block(y, &part, bias, ends, pixels, has_bias, add PASS_EPILOGUE);
}

#define STORED(part) OPEN(y), part, OPEN(bias), ends, pixels, has_bias, accumulate PASS_EPILOGUE

kernel void conv_few_channels(CONST_TENSOR(x), TENSOR_OF(const operand, weights), CONST_TENSOR(bias), TENSOR(y),
                              const int has_bias, const int accumulate, const int planes, const int outputs,
                              const Grid grid, const int block_rows, const int pitch, const int part, const int chunk,
                              volatile global int *tickets, local operand *lines, local int *places, local real *sums,
                              local real *ends EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    const int pixels = grid.size_h * grid.size_w, channels = (planes + NUMBERS - 1) / NUMBERS;
    const long source = (long)grid.source_h * grid.source_w;
    const int row_taps = grid.taps_h * ROW_TAPS, reach = (grid.taps_h - 1) * grid.step_h + 1;
    const int plane_size = ((block_rows - 1) * grid.stride_h + reach) * pitch;  // of a channel's lines
    const int blocks = (grid.size_h + block_rows - 1) / block_rows;
    const int items = grid.batch * blocks, workers = get_global_size(0);
    const int part_size = max((part + MR - 1) / MR * MR, (part + VL - 1) / VL * VL) * COLS;
    const bool past = GOES_PAST(OPEN(y), !accumulate && pixels % VL == 0);
    Part last_part = {0, sums, 0, 0, 0, 0, 0, 0};
    local real *own = sums;

    FOR_ITEMS(share) {
        const int image = share.item / blocks, row = share.item % blocks * block_rows;
        const int rows = min(block_rows, grid.size_h - row), block = rows * grid.size_w;
        for (int c = 0; c < channels; c++) {
            fill_lines(lines + c * plane_size, OPEN(x) + ((long)image * planes + c * NUMBERS) * source,
                       c * NUMBERS + 1 < planes ? source : 0, row * grid.stride_h + grid.begin_h,
                       (rows - 1) * grid.stride_h + reach, pitch, -grid.begin_w, grid.source_h, grid.source_w);
        }
        for (int from = 0; from < block; from += part) {
            const int count = min(part, block - from);
            int line = from / grid.size_w, column = from - line * grid.size_w;
            for (int p = 0; p < count; p++) {
                places[p] = line * grid.stride_h * pitch + column * grid.stride_w;
                if (++column == grid.size_w) column = 0, line++;
            }
            for (int p = count; p < count + MR; p++) places[p] = places[count - 1];
            for (int output = 0; output < outputs; output += COLS) {
#ifdef PAST_CACHES
                int tiles_left = (count + MR - 1) / MR * ((channels + chunk - 1) / chunk);
#endif
                for (int first = 0; first < channels; first += chunk) {
                    const int last = min(first + chunk, channels);
                    for (int p = 0; p < count; p += MR) {
                        local const operand *xs[MR];
                        TILE_ROWS xs[i_] = lines + places[p + i_];
                        global const operand *w = OPEN(weights) + ((long)output * channels + first * COLS) * row_taps;
                        realv acc[MR][NV];
                        if (first) {
                            TILE_LOAD(acc, own + p * COLS, COLS)
                        } else {
                            TILE_SET(acc, (realv)(0))
                        }
                        for (int c = first; c < last; c++) {
                            for (int i = 0; i < grid.taps_h; i++) {
                                const int shift = c * plane_size + i * grid.step_h * pitch;
                                UNROLL
                                for (int j = 0; j < ROW_TAPS; j++) {
                                    TILE_STEP(acc, xs[i_][shift + j], vector_[v_] = LOAD_OPERANDS(w + v_ * VL))
                                    w += COLS;
                                }
                            }
                        }
                        TILE_STORE(acc, own + p * COLS, COLS)
#ifdef PAST_CACHES
                        for (int n = (last_part.left + tiles_left - 1) / tiles_left; n > 0; n--)
                            store_block(STORED(&last_part));
                        tiles_left--;
#endif
                    }
                }
                const int there = min(COLS, outputs - output);
                const int stores = (count + VL - 1) / VL * ((there + VL - 1) / VL);
                global stored *ys = OPEN(y) + ((long)image * outputs + output) * pixels + row * grid.size_w + from;
                last_part = (Part){ys, own, count, output, there, stores, 0, 0};
                if (past) {
                    own = own == sums ? sums + part_size : sums;
                } else {
                    store_rest(STORED(last_part));
                    last_part.left = 0;
                }
            }
        }
    }
    store_rest(STORED(last_part));
}
