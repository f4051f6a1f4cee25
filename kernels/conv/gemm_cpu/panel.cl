// Part of the convolutions for CPU devices: the im2col panel of a block of pixels, and the register tile.
//
// Pixels are numbered over all images: p = (image * size_d + d) * size_h * size_w + ... A block of pixels is cut into
// runs, pieces of one row of the output grid. A row of the panel holds what one tap of one channel meets:
//     panel row (channel, tap j) at pixel u  =  x[channel][u * stride + begin + j * step]   or 0
//         outside of x, on each axis.
// Forward, begin is -pad and step the dilation; the other directions put in their own numbers.
// Where operands are pairs, a row of the panel has two channels, and `channels` in kernels are pairs of them. Each
// work-group is one work-item: local memory is its cache-resident scratch.
//
// PLANES  planes of x in a row of the panel; 1 with PAIRED: its elements are single numbers as they are stored

#include "common/any_lane.cl"
#include "common/epilogue.cl"
#include "common/register_tile.cl"
#include "conv/gemm_cpu/apart.cl"
#include "conv/grid.cl"
#include "conv/past_caches.cl"

#ifndef PLANES
#define PLANES NUMBERS
#endif

// Elements of the panel: cells. CELLS_OF loads a vector of them, each `step` numbers from the last; `plane` numbers lie
// between the planes of a row. CHOOSE takes `b` where a mask of floats says so.
#if PAIRED && PLANES == 2
typedef uint cell;
typedef CAT(uint, VL) cells;
#define CELL(p, i, plane) (PLANE_NUMBER(p, i) | (uint)PLANE_NUMBER(p, (i) + (plane)) << 16)
#define CELLS_OF(p, plane, step) JOIN(load_apart(p, step), load_apart((p) + (plane), step))
#define CHOOSE(a, b, met) (((a) & ~CAT(as_uint, VL)(met)) | ((b) & CAT(as_uint, VL)(met)))
#elif PAIRED
typedef number cell;
typedef numbers cells;
#define CELL(p, i, plane) PLANE_NUMBER(p, i)
#define CELLS_OF(p, plane, step) load_apart(p, step)
#define CHOOSE(a, b, met) (((a) & ~CAT(convert_ushort, VL)(met)) | ((b) & CAT(convert_ushort, VL)(met)))
#else
typedef real cell;
typedef realv cells;
#define CELL(p, i, plane) LOAD(p, i)
#define CELLS_OF(p, plane, step) load_apart(p, step)
#define CHOOSE(a, b, met) select(a, b, met)
#endif

// 1: sums are kept in local memory between the parts of a panel: half precision would lose bits each time, and an
// epilogue, or pixels that are spread, have to come after the last one.
#if STORAGE == 16 || defined(EPILOGUE) || defined(SPREAD)
#define KEEP_SUMS 1
#else
#define KEEP_SUMS 0
#endif

#if STORAGE == 64
typedef CAT(long, VL) realv_mask;
typedef CAT(double, HALF_VL) half_vector;
#else
typedef CAT(int, VL) realv_mask;
typedef CAT(float, HALF_VL) half_vector;
#endif

// The number of each lane.
#if VL == 16
#define LANES (realv)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#elif VL == 8
#define LANES (realv)(0, 1, 2, 3, 4, 5, 6, 7)
#elif VL == 4
#define LANES (realv)(0, 1, 2, 3)
#else
#define LANES (realv)(0, 1)
#endif

#define FILL_ROWS 32  // most source rows that are filled at once: they and their rows of the panel stay in the L1 cache

// One run: the number of its first pixel in the block, its length, its image and its first source element.
enum { RUN_AT, RUN_LENGTH, RUN_IMAGE, RUN_D, RUN_H, RUN_W, RUN_FIELDS };

// Cuts pixels [first, first + count) into runs.
void cut_runs(local int *runs, const long first, const int count, const Grid grid) {
    int found = 0;
    for (int at = 0; at < count; found++) {
        const long p = first + at;
        const int column = (int)(p % grid.size_w);
        const long row = p / grid.size_w;
        const int h = (int)(row % grid.size_h), d = (int)((row / grid.size_h) % grid.size_d);
        const int length = min(grid.size_w - column, count - at);
        local int *run = runs + found * RUN_FIELDS;
        run[RUN_AT] = at;
        run[RUN_LENGTH] = length;
        run[RUN_IMAGE] = (int)(row / grid.size_h / grid.size_d);
        run[RUN_D] = d * grid.stride_d + grid.begin_d;
        run[RUN_H] = h * grid.stride_h + grid.begin_h;
        run[RUN_W] = column * grid.stride_w + grid.begin_w;
        at += length;
    }
}

// Fills a vector of the panel from each of `rows` source rows: lane i at row_to[r] is p[row_at[r] + i * step]. Lanes of
// `low` and more are written, those outside of `met` as zeros.
void fill_rows(local cell *vectors, const int *row_to, global const stored *p, const long *row_at, const long plane,
               const int rows, const int step, const int low, const realv_mask met) {
    if (low == 0 && !any_lane(~met)) {
        for (int r = 0; r < rows; r++) STORE_OPERANDS(vectors + row_to[r], CELLS_OF(p + row_at[r], plane, step));
        return;
    }
    for (int r = 0; r < rows; r++) {
        const cells old = low ? LOAD_OPERANDS(vectors + row_to[r]) : (cells)(0),
                    new = CELLS_OF(p + row_at[r], plane, step);
        STORE_OPERANDS(vectors + row_to[r], CHOOSE(old, new, met));
    }
}

// Fills panel rows of the source rows [from, to), numbered (channel, tap d, tap h): tiles of `width` pixels,
// `tile_pitch` elements apart, each with `filled` pixels of the `cut` ones that are cut into runs. Rows of
// neighbouring channels are `channel_pitch` elements apart, those of neighbouring taps `tap_pitch`. Whole vectors
// are written. x starts at the first image's first channel; image_size elements lie between images, `size`
// elements from x on may be read.
//
// A vector of pixels is filled for some source rows before the next one: what is known of its runs serves them all.
void fill_panel(local cell *panel, const int width, const int filled, const int channel_pitch, const int tap_pitch,
                const int tile_pitch, local const int *runs, const int count, const int cut, global const stored *x,
                const long image_size, const long size, const int from, const int to, const Grid grid) {
    const int step = grid.stride_w, hd_taps = grid.taps_d * grid.taps_h, hd_pitch = grid.taps_w * tap_pitch;
    const long plane = (long)grid.source_d * grid.source_h * grid.source_w;
    const int together = max(FILL_ROWS / max(hd_taps, 1), 1), most = min(together * hd_taps, FILL_ROWS);
    const realv lane = LANES;
    for (int first = from; first < to; first += most) {
        const int rows = min(most, to - first);
        int row_d[FILL_ROWS], row_h[FILL_ROWS], row_to[FILL_ROWS];
        long row_at[FILL_ROWS];
        for (int r = 0; r < rows; r++) {
            const int hd_tap = (first + r) % hd_taps;
            row_to[r] = ((first + r) / hd_taps - from / hd_taps) * channel_pitch + (hd_tap - from % hd_taps) * hd_pitch;
            row_d[r] = hd_tap / grid.taps_h * grid.step_d;
            row_h[r] = hd_tap % grid.taps_h * grid.step_h;
            row_at[r] =
                (first + r) / hd_taps * (PLANES * plane) + ((long)row_d[r] * grid.source_h + row_h[r]) * grid.source_w;
        }
        local const int *next = runs;
        for (int tile = 0; tile * width < count; tile++) {
            const int end = min(tile * width + filled, cut);
            for (int at = tile * width; at < end; at += VL) {
                local cell *vectors = panel + tile * tile_pitch + at - tile * width;
                while (next[RUN_AT] + next[RUN_LENGTH] <= at) next += RUN_FIELDS;
                local const int *run = next;
                for (int low = 0; at + low < end && low < VL; run += RUN_FIELDS) {
                    const int high = min(run[RUN_AT] + run[RUN_LENGTH] - at, VL);
                    const int d = run[RUN_D], h = run[RUN_H], w = run[RUN_W] + (at - run[RUN_AT]) * step;
                    const bool inside = d >= 0 && d + (grid.taps_d - 1) * grid.step_d < grid.source_d && h >= 0 &&
                                        h + (grid.taps_h - 1) * grid.step_h < grid.source_h;
                    const long row = run[RUN_IMAGE] * image_size + ((long)d * grid.source_h + h) * grid.source_w;
                    for (int j = 0; j < grid.taps_w; j++) {
                        const int start = w + j * grid.step_w;
                        int begin = low, stop = high;  // the lanes whose elements are in the row
                        if (start + low * step < 0) begin = min((-start + step - 1) / step, high);
                        if (start + (high - 1) * step >= grid.source_w) {
                            stop = max((grid.source_w - start + step - 1) / step, begin);
                        }
                        const long p = row + start;
                        local cell *to_rows = vectors + j * tap_pitch;
                        if (inside && p + row_at[0] >= 0 &&
                            p + row_at[rows - 1] + (PLANES - 1) * plane + VL * step <= size) {
                            const realv_mask met = (lane >= (realv)(begin)) & (lane < (realv)(stop));
                            for (int r = 0; j == 0 && r < rows; r++) {
                                for (int i = 0; i < min(step, 4); i++) {
                                    __builtin_prefetch(x + p + row_at[r] + together * PLANES * plane + i * VL);
                                    if (PLANES == 2)
                                        __builtin_prefetch(x + p + row_at[r] + (together * 2 + 1) * plane + i * VL);
                                }
                            }
                            if (step == 1) {
                                fill_rows(to_rows, row_to, x + p, row_at, plane, rows, 1, low, met);
                            } else if (step == 2) {
                                fill_rows(to_rows, row_to, x + p, row_at, plane, rows, 2, low, met);
                            } else {
                                fill_rows(to_rows, row_to, x + p, row_at, plane, rows, step, low, met);
                            }
                            continue;
                        }
                        // at the edges of an image each row of the source is there or not
                        for (int r = 0; r < rows; r++) {
                            const int row_of_d = d + row_d[r], row_of_h = h + row_h[r];
                            const long from_at = p + row_at[r];
                            if (row_of_d < 0 || row_of_d >= grid.source_d || row_of_h < 0 ||
                                row_of_h >= grid.source_h) {
                                // zeros are there already if a run ends before
                                if (low == 0) STORE_OPERANDS(to_rows + row_to[r], (cells)(0));
                            } else if (from_at >= 0 && from_at + (PLANES - 1) * plane + VL * step <= size) {
                                const realv_mask met = (lane >= (realv)(begin)) & (lane < (realv)(stop));
                                fill_rows(to_rows, row_to + r, x + p, row_at + r, plane, 1, step, low, met);
                            } else {
                                for (int i = low; i < VL; i++) {
                                    to_rows[row_to[r] + i] =
                                        i >= begin && i < stop ? CELL(x, from_at + i * step, plane) : 0;
                                }
                            }
                        }
                    }
                    low = high;
                }
            }
        }
    }
}

// Computes the epilogue of `length` values of a channel, which belong to the result's elements from `at` on. The last
// vector may overlap the one before: it is computed first.
void finish_run(local real *values, const int length, const long channel, const long at TAKE_EPILOGUE) {
#ifdef EPILOGUE
    if (length < VL) {
        for (int l = 0; l < length; l++) values[l] = EPILOGUE_ELEMENT(values[l], channel, at + l);
        return;
    }
    const int last = length - VL;
    const realv end = EPILOGUE_VECTOR(LOAD_REALS(values + last), channel, at + last);
    for (int l = 0; l < last; l += VL)
        STORE_REALS(values + l, EPILOGUE_VECTOR(LOAD_REALS(values + l), channel, at + l));
    STORE_REALS(values + last, end);
#endif
}

// Whether an epilogue asks which element of the result a value is, not only for its channel.
#ifdef EPILOGUE
#define ONE_MORE(n) +1
#if 0 WHOLE_EXTRAS(ONE_MORE)
#define FINISHES_RUNS true
#endif
#endif
#ifndef FINISHES_RUNS
#define FINISHES_RUNS false
#endif

// Computes the epilogue of a tile's rows, where it asks for channels alone: in whole vectors, wherever runs end.
void finish_rows(local real *tile, const int rows, const long channel TAKE_EPILOGUE) {
#ifdef EPILOGUE
    for (int i = 0; i < rows; i++) {
        local real *values = tile + i * COLS;
        for (int l = 0; l < COLS; l += VL)
            STORE_REALS(values + l, EPILOGUE_VECTOR(LOAD_REALS(values + l), channel + i, 0));
    }
#endif
}

// Writes or adds `length` values, the last vector over the one before: it is summed first.
#define STORE_RUN(n, y, values, length, add, vector, load, store)          \
    {                                                                      \
        const int last_ = (length) - (n);                                  \
        const vector old_end_ = (add) ? load(y, last_) : (vector)(0);      \
        const vector end_ = CAT(vload, n)(0, (values) + last_) + old_end_; \
        for (int l_ = 0; l_ < last_; l_ += (n)) {                          \
            const vector old_ = (add) ? load(y, l_) : (vector)(0);         \
            store(y, l_, CAT(vload, n)(0, (values) + l_) + old_);          \
        }                                                                  \
        store(y, last_, end_);                                             \
    }
#if STORAGE == 16
// Not by the compiler's own load: the vector may not be needed, and some then take its address for aligned.
#define LOAD_OLD(p, i) load_small((p) + (i))
#else
#define LOAD_OLD(p, i) VLOAD(p, i)
#endif
#define HALF_LOAD(p, i) CAT(vload, HALF_VL)(0, (p) + (i))
#define HALF_STORE(p, i, value) CAT(vstore, HALF_VL)(value, 0, (p) + (i))

void store_run(global stored *y, local const real *values, const int length, const bool add) {
    if (length >= VL) {
        STORE_RUN(VL, y, values, length, add, realv, LOAD_OLD, VSTORE)
        return;
    }
#if STORAGE != 16
    if (length >= HALF_VL) {
        STORE_RUN(HALF_VL, y, values, length, add, half_vector, HALF_LOAD, HALF_STORE)
        return;
    }
#endif
    for (int l = 0; l < length; l++) STORE(y, l, values[l] + (add ? LOAD(y, l) : 0));
}

// Whether a tile's rows are rounded before they are stored: runs then are pieces of 16 bits, however short.
#if STORAGE == 16
#define ROUNDS_ROWS (!FINISHES_RUNS && !add)

// Computes the epilogue of a tile's rows as finish_rows does, and rounds them.
void round_rows(ushort *rounded, local const real *tile, const int rows, const long channel TAKE_EPILOGUE) {
    for (int i = 0; i < rows; i++) {
        for (int l = i * COLS; l < (i + 1) * COLS; l += VL) {
            const realv value = EPILOGUE_VECTOR(LOAD_REALS(tile + l), channel + i, 0);
            CAT(vstore, VL)(CAT(narrow, VL)(value), 0, rounded + l);
        }
    }
}

// Copies numbers by n where there are as many; the last n may overlap the ones before.
#define COPY_BITS(n)                                                                                   \
    if (length >= n) {                                                                                 \
        for (int l = 0; l < length - n; l += n) CAT(vstore, n)(CAT(vload, n)(0, from + l), 0, to + l); \
        CAT(vstore, n)(CAT(vload, n)(0, from + length - n), 0, to + length - n);                       \
        return;                                                                                        \
    }

void copy_rounded(global stored *y, const ushort *from, const int length) {
    global ushort *to = (global ushort *)y;
    COPY_BITS(VL)
#if VL > 8
    COPY_BITS(8)
#endif
#if VL > 4
    COPY_BITS(4)
#endif
    for (int l = 0; l < length; l++) to[l] = from[l];
}
#else
#define ROUNDS_ROWS false
#define round_rows(rounded, tile, m_rows, channel)
#define copy_rounded(y, from, length)
#endif

// Finishes and stores the first `columns` pixels of a tile, which are the result's from p on, in one image or in
// several; `m_rows` channels of a group, the first of them m.
void store_columns(global stored *y, local real *tile, const long p, const int columns, const long pixels,
                   const int group, const int groups, const int m_count, const int m, const int m_rows,
                   const bool add TAKE_EPILOGUE) {
    ushort rounded[MR * COLS];
    if (ROUNDS_ROWS) {
        round_rows(rounded, tile, m_rows, group * m_count + m PASS_EPILOGUE);
    } else if (!FINISHES_RUNS) {
        finish_rows(tile, m_rows, group * m_count + m PASS_EPILOGUE);
    }
    for (int at = 0; at < columns;) {
        const long q = p + at, image = q / pixels, rest = q - image * pixels;
        const int length = (int)min((long)(columns - at), pixels - rest);
        global stored *ys = y + ((image * groups + group) * m_count + m) * pixels + rest;
        for (int i = 0; i < m_rows; i++) {
            if (ROUNDS_ROWS) {
                copy_rounded(ys, rounded + i * COLS + at, length);
            } else {
                local real *values = tile + i * COLS + at;
                if (FINISHES_RUNS) finish_run(values, length, group * m_count + m + i, ys - y PASS_EPILOGUE);
                store_run(ys, values, length, add);
            }
            ys += pixels;
        }
        at += length;
    }
}

// Copies `length` elements: whole vectors, of which the last two may overlap.
#define COPY_PIECE(length, copy_vector, copy_one)    \
    if ((length) >= VL) {                            \
        for (int i_ = 0; i_ < (length); i_ += VL) {  \
            const int i = min(i_, (length) - VL);    \
            copy_vector;                             \
        }                                            \
    } else {                                         \
        for (int i = 0; i < (length); i++) copy_one; \
    }

// Sets the sums of a register tile to the biases of its rows where it is `biased`, else to zeros. Rows beyond `rows`,
// which are not stored, repeat the last one's.
#define START_TILE(acc, biased, biases, rows)            \
    if (biased) {                                        \
        TILE_SET(acc, LOAD(biases, min(i_, (rows) - 1))) \
    } else {                                             \
        TILE_SET(acc, 0)                                 \
    }

// Writes or adds a whole register tile: MR rows of VL * NV pixels, the first at ys and of channel `first`, `pitch`
// elements apart. `once` says that nothing is added to them, neither now nor later.
#define STORE_TILE(acc, ys, pitch, first, add, once) STORE_WHOLE_ROWS(MR, acc, ys, pitch, first, add, once)
// The same for so many rows.
#define STORE_WHOLE_ROWS(rows, acc, ys, pitch, first, add, once)                                              \
    {                                                                                                         \
        global stored *ys_ = ys;                                                                              \
        const long pitch_ = pitch;                                                                            \
        const int first_ = first;                                                                             \
        SET_ROWS(rows, acc, EPILOGUE_VECTOR(acc[i_][v_], first_ + i_, ys_ + i_ * pitch_ + v_ * VL - OPEN(y))) \
        if (add) {                                                                                            \
            SET_ROWS(rows, acc, acc[i_][v_] + VLOAD(ys_, i_ * pitch_ + v_ * VL))                              \
        }                                                                                                     \
        if (GOES_PAST(ys_, (once) && pitch_ % VL == 0)) {                                                     \
            ROWS_OF(rows) { TILE_VECTORS PUT_PAST(ys_, i_ * pitch_ + v_ * VL, acc[i_][v_]); }                 \
        } else {                                                                                              \
            ROWS_OF(rows) { TILE_VECTORS VSTORE(ys_, i_ * pitch_ + v_ * VL, acc[i_][v_]); }                   \
        }                                                                                                     \
    }
