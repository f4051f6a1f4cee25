// Convolution of few channels on CPU devices, as the first layer of a net is: a product of matrices whose vectors run
// along outputs.
//
//     y[image][output][pixel]  =  bias[output] + sum over (channel, tap) of lines[channel][pixel, tap] *
//         weights[channel, tap][output]
//
// weights  operands, [tile of COLS outputs][channel, tap][COLS], made by pack_outputs; zeros beyond
// lines    local, operands, [channel][row][pitch], what a block of rows of pixels meets, with the padding
// places   local, where the lines of each pixel of a part begin
// sums     local, [pixel of a part][COLS], which are transposed where they are stored
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

// Stores the sums of `count` pixels for the outputs of a tile from `first_output` on; ys is the first pixel of that
// output.
void store_part(global stored *y, global stored *ys, global const stored *bias, local const real *sums,
                local real *ends, const int count, const int pixels, const int first_output, const int outputs,
                const bool has_bias, const bool add TAKE_EPILOGUE) {
    for (int lane = 0; lane < min(COLS, outputs - first_output); lane += VL) {
        const int output = first_output + lane, there = min(outputs - output, VL);
        for (int p = 0; p < count; p += VL) {
            global stored *to = ys + (long)lane * pixels + p;
            const bool past = GOES_PAST(to, !add && pixels % VL == 0);
            realv a[VL], b[VL];
#pragma unroll
            for (int i = 0; i < VL; i++) a[i] = LOAD_REALS(sums + (p + i) * COLS + lane);
            TRANSPOSE(a, b, VL)
            if (p + VL <= count) {
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
                continue;
            }
#pragma unroll
            for (int i = 0; i < VL; i++) STORE_REALS(ends + i * VL, a[i]);
            for (int i = 0; i < there; i++) {
                local real *values = ends + i * VL;
                if (has_bias) STORE_REALS(values, LOAD_REALS(values) + LOAD(bias, output + i));
                finish_run(values, count - p, output + i, to - y PASS_EPILOGUE);
                store_run(to, values, count - p, add);
                to += pixels;
            }
        }
    }
}

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
                for (int first = 0; first < channels; first += chunk) {
                    const int last = min(first + chunk, channels);
                    for (int p = 0; p < count; p += MR) {
                        local const operand *xs[MR];
                        TILE_ROWS xs[i_] = lines + places[p + i_];
                        global const operand *w = OPEN(weights) + ((long)output * channels + first * COLS) * row_taps;
                        realv acc[MR][NV];
                        if (first) {
                            TILE_LOAD(acc, sums + p * COLS, COLS)
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
                        TILE_STORE(acc, sums + p * COLS, COLS)
                    }
                }
                global stored *ys = OPEN(y) + ((long)image * outputs + output) * pixels + row * grid.size_w + from;
                store_part(OPEN(y), ys, OPEN(bias), sums, ends, count, pixels, output, outputs, has_bias,
                           accumulate PASS_EPILOGUE);
            }
        }
    }
}
