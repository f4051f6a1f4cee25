// Part of the convolutions for CPU devices: the im2col panel of a block of pixels, and the register tile.
//
// Pixels are numbered over all images: p = (image * size_d + d) * size_h * size_w + ... A block of pixels is cut into
// runs, pieces of one row of the output grid that lie in one tile. A row of the panel holds what one tap of one channel
// meets:
//     panel row (channel, tap j) at pixel u  =  x[channel][u * stride + begin + j * step]   or 0 outside of x, on each axis.
// Forward, begin is -pad and step the dilation; the other directions put in their own numbers.
// Each work-group is one work-item: local memory is its cache-resident scratch.

#include "common/epilogue.cl"
#include "common/register_tile.cl"
#include "conv/grid.cl"
#include "conv/past_caches.cl"

// 1: sums are kept in local memory between the parts of a panel: half precision would lose bits each time, and an
// epilogue has to come after the last one.
#if STORAGE == 16 || defined(EPILOGUE)
#define KEEP_SUMS 1
#else
#define KEEP_SUMS 0
#endif

#define AHEAD 4  // channels, how far ahead pieces of planes are asked for: they are too short for the hardware's prefetch

// One run: where it starts in a row of the panel, its length, its piece of scratch, its image and its first source
// element.
enum { RUN_AT, RUN_LENGTH, RUN_PIECE, RUN_IMAGE, RUN_D, RUN_H, RUN_W, RUN_FIELDS };

// Cuts pixels [first, first + count) into runs; tiles of `width` pixels lie `pitch` elements apart. Returns the number
// of runs.
int cut_runs(local int *runs, const long first, const int count, const int width, const int pitch, const Grid grid) {
    int found = 0, piece = 0;
    const int reach = (grid.taps_w - 1) * grid.step_w, phases = min(grid.stride_w, reach + 1);
    for (int at = 0; at < count;) {
        const long p = first + at;
        const int column = (int)(p % grid.size_w);
        const long row = p / grid.size_w;
        const int h = (int)(row % grid.size_h), d = (int)((row / grid.size_h) % grid.size_d);
        const int lane = at % width;
        const int length = min(min(grid.size_w - column, width - lane), count - at);
        local int *run = runs + found * RUN_FIELDS;
        run[RUN_AT] = at / width * pitch + lane;
        run[RUN_LENGTH] = length;
        run[RUN_PIECE] = piece;
        run[RUN_IMAGE] = (int)(row / grid.size_h / grid.size_d);
        run[RUN_D] = d * grid.stride_d + grid.begin_d;
        run[RUN_H] = h * grid.stride_h + grid.begin_h;
        run[RUN_W] = column * grid.stride_w + grid.begin_w;
        piece += phases * (length + reach / grid.stride_w + VL);
        at += length;
        found++;
    }
    return found;
}

// to[i] = row[start + i * step] or 0 outside [0, size), for i < length; up to VL elements more are written, too. `left`
// elements may be read from row on; what lies `ahead` elements further is asked for, to be there for a later call.
void gather_row(local real *to, global const stored *row, const long left, const long ahead, int start, const int step,
                const int size, const int length) {
    int begin = start < 0 ? min((-start + step - 1) / step, length) : 0;
    int end = start < size ? clamp((size - start + step - 1) / step, begin, length) : begin;
    for (int i = 0; i < begin; i += VL) STORE_REALS(to + i, (realv)(0));
    int i = begin;
    if (step == 1) {
        if (start + end + VL <= left) {
            for (; i < end; i += VL) {
                __builtin_prefetch(row + start + i + ahead);
                STORE_REALS(to + i, VLOAD(row, start + i));
            }
        }
    } else if (step == 2) {
        for (; i < end && start + 2 * (i + VL) <= left; i += VL) {
            __builtin_prefetch(row + start + 2 * i + ahead);
            __builtin_prefetch(row + start + 2 * i + VL + ahead);
            const realv a = VLOAD(row, start + 2 * i), b = VLOAD(row, start + 2 * i + VL);
            CAT(vstore, HALF_VL)(a.even, 0, to + i);
            CAT(vstore, HALF_VL)(b.even, 0, to + i + HALF_VL);
        }
    }
    for (; i < end; i++) to[i] = LOAD(row, start + i * step);
    for (i = end; i < length; i += VL) STORE_REALS(to + i, (realv)(0));
}

// Fills panel rows of the source rows [from, to), numbered (channel, tap d, tap h), `pitch` elements a row. x starts at
// the first image's first channel; image_size elements lie between images, `size` elements from x on may be read.
void fill_panel(local real *panel, const int pitch, local real *pieces, local const int *runs, const int count,
                global const stored *x, const long image_size, const long size, const int from, const int to,
                const Grid grid) {
    const int reach = (grid.taps_w - 1) * grid.step_w, phases = min(grid.stride_w, reach + 1);
    const long source = (long)grid.source_d * grid.source_h * grid.source_w;
    const long ahead = (grid.taps_d * grid.taps_h == 1 ? AHEAD : 1) * source;
    for (int r = from; r < to; r++) {
        const int h_tap = r % grid.taps_h * grid.step_h, d_tap = r / grid.taps_h % grid.taps_d * grid.step_d;
        const int channel = r / grid.taps_h / grid.taps_d;
        local real *rows = panel + (r - from) * grid.taps_w * pitch;
        for (int i = 0; i < count; i++) {
            local const int *run = runs + i * RUN_FIELDS;
            const int d = run[RUN_D] + d_tap, h = run[RUN_H] + h_tap;
            const bool inside = d >= 0 && d < grid.source_d && h >= 0 && h < grid.source_h;
            const long row = ((long)channel * grid.source_d + d) * grid.source_h + h;
            const long at = run[RUN_IMAGE] * image_size + row * grid.source_w;
            const int length = run[RUN_LENGTH] + reach / grid.stride_w;
            for (int phase = 0; phase < phases; phase++) {
                local real *to_row =
                    grid.taps_w == 1 ? rows + run[RUN_AT] : pieces + run[RUN_PIECE] + phase * (length + VL);
                gather_row(to_row, x + at, size - at, ahead, run[RUN_W] + phase, grid.stride_w,
                           inside ? grid.source_w : 0, length);
            }
        }
        for (int j = 0; grid.taps_w > 1 && j < grid.taps_w; j++) {
            const int phase = j * grid.step_w % grid.stride_w, shift = j * grid.step_w / grid.stride_w;
            for (int i = 0; i < count; i++) {
                local const int *run = runs + i * RUN_FIELDS;
                const int length = run[RUN_LENGTH];
                local const real *piece =
                    pieces + run[RUN_PIECE] + phase * (length + reach / grid.stride_w + VL) + shift;
                local real *row = rows + j * pitch + run[RUN_AT];
                for (int l = 0; l < length; l += VL) STORE_REALS(row + l, LOAD_REALS(piece + l));
            }
        }
    }
}

// Computes the epilogue of `length` values of a channel, which belong to the result's elements from `at` on.
void finish_run(local real *values, const int length, const long channel, const long at TAKE_EPILOGUE) {
#ifdef EPILOGUE
    int l = 0;
    for (; l + VL <= length; l += VL) STORE_REALS(values + l, EPILOGUE_VECTOR(LOAD_REALS(values + l), channel, at + l));
    for (; l < length; l++) values[l] = EPILOGUE_ELEMENT(values[l], channel, at + l);
#endif
}

// Writes or adds `length` values to every `step`th element from y on.
void store_run(global stored *y, local const real *values, const int length, const int step, const bool add) {
    int l = 0;
    if (step == 1) {
        for (; l + VL <= length; l += VL) {
            const realv old = add ? VLOAD(y, l) : (realv)(0);
            VSTORE(y, l, LOAD_REALS(values + l) + old);
        }
    }
    for (; l < length; l++) {
        const real old = add ? LOAD(y, l * step) : 0;
        STORE(y, l * step, values[l] + old);
    }
}

// Writes or adds a whole register tile: MR rows of VL * NV pixels, the first at ys and of channel `first`, `pitch`
// elements apart. `once` says that nothing is added to them, neither now nor later.
#define STORE_TILE(acc, ys, pitch, first, add, once)                                              \
    {                                                                                             \
        global stored *ys_ = ys;                                                                  \
        const long pitch_ = pitch;                                                                \
        const int first_ = first;                                                                 \
        const bool past_ = GOES_PAST(ys_, (once) && pitch_ % VL == 0);                            \
        TILE_ROWS {                                                                               \
            TILE_VECTORS {                                                                        \
                const realv old_ = (add) ? VLOAD(ys_, v_ * VL) : (realv)(0);                      \
                const realv value_ = EPILOGUE_VECTOR(acc[i_][v_], first_ + i_, ys_ + v_ * VL - OPEN(y)); \
                PUT_VECTOR(past_, ys_, v_ * VL, value_ + old_)                                    \
            }                                                                                     \
            ys_ += pitch_;                                                                        \
        }                                                                                         \
    }
