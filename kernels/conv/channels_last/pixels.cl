// Convolution in channels last on CPU devices, and its backward data with stride 1: a product of matrices in place.
//
//     y[pixel][output]  =  bias[output] + sum over taps and channels of x[pixel + tap][channel] *
//         weights[tap][channel][output]
//
// x         real, (batch, source_d, source_h, source_w, groups * channels): every tap of every pixel lies inside. The
//           tensor itself, or what pad_pixels makes of it
// weights   real, [group][tile of COLS outputs][tap][channel][COLS], made by pack_taps or
//           pack_turned_taps; zeros beyond
// y         (batch, pixels..., groups * outputs)
//
// Vectors run along outputs; each element of x is broadcast from where it lies, so that nothing of x is packed. Taps of
// a kernel's row whose channels are neighbours in memory are one run. A work-group is one work-item: a block of pixels,
// a range of tiles of outputs, one group. It takes `chunk` terms of the sums at a time, whose weights stay in the
// core's cache for all pixels of the block.
//
// PAST_CACHES  y is too large to be found in a cache again

#include "common/column_blocks.cl"
#include "common/epilogue.cl"
#include "common/register_tile.cl"
#include "conv/grid.cl"

// Copies x, (batch, source..., channels), into zeros: (batch, size..., channels), of which it begins at -begin.
SINGLE void pad_pixels(CONST_TENSOR(x), TENSOR_OF(real, padded), const int channels, const int item_rows,
                       const Grid grid) {
    const long rows = (long)grid.batch * grid.size_d * grid.size_h, first = (long)get_global_id(0) * item_rows;
    const long length = (long)grid.source_w * channels, before = -(long)grid.begin_w * channels;
    const long pitch = (long)grid.size_w * channels;
    for (long row = first; row < min(first + item_rows, rows); row++) {
        global real *out = OPEN(padded) + row * pitch;
        const long slice = row / grid.size_h, image = slice / grid.size_d;
        const int h = (int)(row - slice * grid.size_h) + grid.begin_h,
                  d = (int)(slice - image * grid.size_d) + grid.begin_d;
        const bool inside = h >= 0 && h < grid.source_h && d >= 0 && d < grid.source_d;
        const long begin = inside ? before : pitch, end = inside ? before + length : pitch;
        for (long i = 0; i < begin; i++) out[i] = 0;
        global const stored *from = OPEN(x) + ((image * grid.source_d + d) * grid.source_h + h) * length - before;
        long i = begin;
        for (; i + VL <= end; i += VL) STORE_REALS(out + i, VLOAD(from, i));
        for (; i < end; i++) out[i] = LOAD(from, i);
        for (; i < pitch; i++) out[i] = 0;
    }
}

// Packs w, (groups * outputs, depth), whose rows hold all taps and channels; a work-item takes `range` of them.
SINGLE void pack_taps(CONST_TENSOR(w), TENSOR_OF(real, packed), const int outputs, const int depth, const int range) {
    const int from = get_global_id(0) * range, to = min(from + range, depth), tile = get_global_id(1),
              group = get_global_id(2);
    global real *out = OPEN(packed) + ((long)group * get_global_size(1) + tile) * depth * COLS;
    global const stored *ws = OPEN(w) + ((long)group * outputs + tile * COLS) * depth;
    pack_block(ws, out, outputs - tile * COLS, depth, from, to);
}

// Packs w, (groups * channels, taps, outputs), for backward data: taps in the opposite order, [tap][channel][COLS].
SINGLE void pack_turned_taps(CONST_TENSOR(w), TENSOR_OF(real, packed), const int outputs, const int channels,
                             const int taps, const int range) {
    const int depth = taps * channels, tile = get_global_id(1), group = get_global_id(2);
    const int from = get_global_id(0) * range, to = min(from + range, depth);
    global real *out = OPEN(packed) + ((long)group * get_global_size(1) + tile) * depth * COLS;
    for (int k = from; k < to; k++) {
        const int tap = k / channels, channel = k - tap * channels, column = tile * COLS;
        global const stored *ws =
            OPEN(w) + (((long)group * channels + channel) * taps + taps - 1 - tap) * outputs + column;
        for (int lane = 0; lane < COLS; lane += VL) {
            if (column + lane + VL <= outputs) {
                STORE_REALS(out + (long)k * COLS + lane, VLOAD(ws, lane));
            } else {
                for (int i = lane; i < lane + VL; i++) out[(long)k * COLS + i] = column + i < outputs ? LOAD(ws, i) : 0;
            }
        }
    }
}

#ifdef PAST_CACHES
#include "common/past_caches.cl"
#define STORE_RESULT(to, value)    \
    if (ON_VECTORS(to))            \
        PAST_stored(to, 0, value); \
    else                           \
        VSTORE((to), 0, value);
#else
#define STORE_RESULT(to, value) VSTORE((to), 0, value);
#endif

kernel void multiply_pixels(TENSOR_OF(const real, x), TENSOR_OF(const real, weights), CONST_TENSOR(bias), TENSOR(y),
                            const int has_bias, const int accumulate, const int channels, const int outputs,
                            const int item_pixels, const int item_tiles, const int chunk, const int run,
                            const Grid grid, local long *places, local long *shifts,
                            local real *kept EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    const int group = get_global_id(2), groups = get_global_size(2), all = channels * groups;
    const int taps_w = run > channels ? 1 : grid.taps_w, runs = grid.taps_d * grid.taps_h * taps_w, depth = runs * run;
    const long pixels = (long)grid.batch * grid.size_d * grid.size_h * grid.size_w;
    const long first = (long)get_global_id(0) * item_pixels;
    const int count = (int)min((long)item_pixels, pixels - first);
    for (int i = 0; i < count; i++) {
        const long pixel = first + i, row = pixel / grid.size_w, slice = row / grid.size_h, image = slice / grid.size_d;
        const long d = (slice - image * grid.size_d) * grid.stride_d, h = (row - slice * grid.size_h) * grid.stride_h;
        const long w = (pixel - row * grid.size_w) * grid.stride_w;
        places[i] = (((image * grid.source_d + d) * grid.source_h + h) * grid.source_w + w) * all + group * channels;
    }
    for (int i = 0; i < runs; i++) {
        const int row = i / taps_w, slice = row / grid.taps_h;
        const long d = slice * grid.step_d, h = (row - slice * grid.taps_h) * grid.step_h,
                   w = (i - row * taps_w) * grid.step_w;
        shifts[i] = ((d * grid.source_h + h) * grid.source_w + w) * all;
    }
    const int tiles = (outputs + COLS - 1) / COLS, begin = get_global_id(1) * item_tiles;
    for (int tile = begin; tile < min(begin + item_tiles, tiles); tile++) {
        for (int from = 0; from < depth; from += chunk) {
            const int to = min(from + chunk, depth);
            for (int p = 0; p < count; p += MR) {
                global const real *w = OPEN(weights) + (((long)group * tiles + tile) * depth + from) * COLS;
                local real *sums = kept + p * COLS;
                realv acc[MR][NV];
                if (from) {
                    TILE_LOAD(acc, sums, COLS)
                } else {
                    TILE_SET(acc, (realv)(0))
                }
                for (int k = from; k < to;) {
                    const int tap = k / run, inside = k - tap * run, length = min(run - inside, to - k);
                    global const real *xs[MR];
                    TILE_ROWS xs[i_] = OPEN(x) + places[min(p + i_, count - 1)] + shifts[tap] + inside;
                    for (int j = 0; j < length; j++) {
                        TILE_STEP(acc, xs[i_][j], vector_[v_] = LOAD_REALS(w + v_ * VL))
                        w += COLS;
                    }
                    k += length;
                }
                TILE_STORE(acc, sums, COLS)
                if (to < depth) continue;
                for (int i = 0; i < min(MR, count - p); i++) {
                    for (int v = 0; v < NV; v++) {
                        const int column = tile * COLS + v * VL, left = outputs - column,
                                  channel = group * outputs + column;
                        if (left <= 0) break;
                        const long at = (first + p + i) * groups * outputs + channel;
                        local const real *sum = sums + i * COLS + v * VL;
                        if (left >= VL) {
                            realv value = LOAD_REALS(sum);
                            if (has_bias) value += VLOAD(OPEN(bias), channel);
                            value = EPILOGUE_CHANNELS(value, channel, at);
                            if (accumulate) value += VLOAD(OPEN(y), at);
                            STORE_RESULT(OPEN(y) + at, value)
                        } else {
                            for (int lane = 0; lane < left; lane++) {
                                real value = sum[lane];
                                if (has_bias) value += LOAD(OPEN(bias), channel + lane);
                                value = EPILOGUE_ELEMENT(value, channel + lane, at + lane);
                                if (accumulate) value += LOAD(OPEN(y), at + lane);
                                STORE(OPEN(y), at + lane, value);
                            }
                        }
                    }
                }
            }
        }
    }
}
