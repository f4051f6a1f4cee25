// Pooling on GPUs in one or two axes, of windows whose taps are unrolled.
//
// x  (planes, ih, iw)    y  (planes, oh, ow)
//
//   pool_windows_forward   a work-item makes ITEM_ROWS x ITEM_COLUMNS results, which share what they read of x
//   pool_windows_backward  a work-group makes a tile of dx, of CELLS_H x CELLS_W cells of a stride each, in TILE_PLANES
//                          planes. First it notes, for every window that the tile meets, which tap gets its gradient
//                          (max), or what every tap gets: a work-item has NOTED_ROWS x ITEM_COLUMNS windows. Then each
//                          work-item takes ITEM_CELLS x ITEM_COLUMNS cells, and adds up for each element of dx the
//                          windows that hold it, in memory order
//   pool_windows_apart     backward, of windows that share nothing and begin in their cells: a work-item notes its
//                          windows and makes their cells
//
// OPERATOR  as in pooling/operators.cl; backward has no norms of power 2 and 3
// ARGMAX    forward also notes where in its window each maximum stands, and backward reads that instead of x and y
// UNIT_X    columns of x and dx that are read and written together: 4, 2 or 1, of which iw and the columns of a
//           work-item are multiples; UNIT_Y: of y and dy

#include "common/divide.cl"
#include "pooling/operators.cl"
#include "pooling/windows.cl"
#include "pointwise/quads.cl"
#include "common/aligned.cl"

// What stands for elements outside of a plane, as memory has it: the start of a maximum, less than any number, NaN.
#if STORAGE != 16
#define RAW_START START
#define RAW_LEAST (-INFINITY)
#define RAW_NAN NAN
#elif defined(BRAIN)
#define RAW_START (OPERATOR == 0 ? 0xff7f : 0)
#define RAW_LEAST 0xff80
#define RAW_NAN 0x7fc0
#else
#define RAW_START (OPERATOR == 0 ? 0xfbff : 0)
#define RAW_LEAST 0xfc00
#define RAW_NAN 0x7e00
#endif

#ifndef KH
#define KH 3  // window
#define KW 3
#define SH 2  // stride
#define SW 2
#define PH 1  // padding in front
#define PW 1
#endif
#ifndef GROUP
#define GROUP 128
#endif
#ifndef ITEM_ROWS
#define ITEM_ROWS 2
#endif
#ifndef ITEM_COLUMNS
#define ITEM_COLUMNS 4  // 4, 2 or 1
#endif
#ifndef UNIT_X
#define UNIT_X 1
#define UNIT_Y 1
#endif
#ifndef UNDER_H
#define UNDER_H KH  // see READ_ROW
#define UNDER_W KW
#define OVER_H KH
#define OVER_W KW
#endif
#ifndef CELLS_H
#define TILE_PLANES 1
#define CELLS_H 8
#define CELLS_W 32
#define TILES_W 2   // tiles in the width of a plane
#define BEFORE_H 0  // windows that meet a cell and begin in cells before it, and those that are counted after it
#define BEFORE_W 0
#define AFTER_H 1
#define AFTER_W 1
#define NOTED_LINES 5   // of work-items, with NOTED_ROWS windows below each other, in a plane
#define NOTED_BLOCKS 9  // of ITEM_COLUMNS windows that each line notes, of WINDOWS_W windows in local memory
#define WINDOWS_W 36
#endif
#ifndef NOTED_ROWS
#define NOTED_ROWS 2
#endif
#ifndef ITEM_CELLS
#define ITEM_CELLS 2
#endif

#ifdef ARGMAX
#define RESULTS TENSOR(y), TENSOR_OF(uchar, argmax), const int accumulate, const int accumulate_argmax
#define VALUES TENSOR_OF(const uchar, argmax)
#else
#define RESULTS TENSOR(y), const int accumulate
#define VALUES CONST_TENSOR(x), CONST_TENSOR(y)
#endif

// Neighbours that are read together, in registers as memory has them (common/raw.cl): REGISTERS(unit) for each unit of
// so many elements; IN_UNITS is the number of the i-th element of some units, EACH a register full of one element.
#if STORAGE == 16
#if UNIT_X == 2 || UNIT_Y == 2
SMALL_NUMBERS(2)
#endif
#define REGISTERS(unit) (((unit) + 1) / 2)
#define IN_UNITS(unit, registers, i) ((unit) == 1 ? REAL_OF((registers)[i]) : REAL_IN((registers)[(i) / 2], i))
#define EACH(unit, bits) ((unit) == 1 ? (raw)(bits) : (raw)(bits) | (raw)(bits) << 16)
#define READ_2(to, p, together) (to)[0] = (together) ? *(global const raw *)(p) : LOAD_RAW(p, 0) | LOAD_RAW(p, 1) << 16;
#define WRITE_2(p, from) *(global ushort2 *)(p) = narrow2((float2)((from)[0], (from)[1]));
#else
#define REGISTERS(unit) (unit)
#define IN_UNITS(unit, registers, i) ((registers)[i])
#define EACH(unit, bits) (bits)
#define READ_2(to, p, together)                                                            \
    {                                                                                      \
        const real_pair pair = (together) ? *(global const real_pair *)(p) : vload2(0, p); \
        (to)[0] = pair.x;                                                                  \
        (to)[1] = pair.y;                                                                  \
    }
#define WRITE_2(p, from) *(global real_pair *)(p) = (real_pair)((from)[0], (from)[1]);
#endif
#define READ_1(to, p, together) (to)[0] = LOAD_RAW(p, 0);
#define READ_4(to, p, together)   \
    if (together) {               \
        READ_RAWS_stored(to, p)   \
    } else {                      \
        GATHER_RAWS_stored(to, p) \
    }
#define WRITE_1(p, from) STORE(p, 0, (from)[0]);
#define WRITE_4(p, from) WRITE_QUAD_stored(p, from)

// Units that hold the columns of x for so many results: they begin FIRST_X in front of the first result's stride, and
// the first of its taps is their element SHIFT_X.
#define FIRST_X ((PW + UNIT_X - 1) / UNIT_X * UNIT_X)
#define SHIFT_X (FIRST_X - PW)
#define UNITS_FOR(results) ((SHIFT_X + ((results) - 1) * SW + KW + UNIT_X - 1) / UNIT_X)
// Rows of x for so many results.
#define ROWS_FOR(results) (((results) - 1) * SH + KH)

// Columns of x of a work-item of backward.
#define ITEM_WIDTH (ITEM_COLUMNS * SW)

// Units of a row of x that are always inside of the plane, see READ_ROW.
#define LEAST_UNIT ((UNDER_W + SHIFT_X + UNIT_X - 1) / UNIT_X)
#define STOP_UNIT(results) ((SHIFT_X + ((results) - 1) * SW + KW - OVER_W + UNIT_X - 1) / UNIT_X)

// read_x, read_y    UNITS units from column `first` on of the row that begins at element `row`; `missing` stands for
//                   all that is not there. Something is read for those, too: a branch would wait for its load. Units
//                   from LEAST on, up to STOP, are always inside of the row
// write_x, write_y  COUNT columns of a row, of which `left` are there
// together          whether addresses allow it, and nothing is added to what is there
//
// Numbers of turns are constants in the functions themselves, because compilers unroll loops before they know where the
// functions are called.
#define READER(name, unit, UNITS, LEAST, STOP)                                                                       \
    void name(raw *to, global const stored *from, const int row, const int first, const int width, const bool there, \
              const raw missing, const bool together) {                                                              \
        _Pragma("unroll") for (int k = 0; k < UNITS; k++) {                                                          \
            const int column = first + k * unit;                                                                     \
            const bool inside = (k >= LEAST && k < STOP) || (column >= 0 && column < width);                         \
            raw found[REGISTERS(unit)];                                                                              \
            CAT(READ_, unit)(found, from + (row + (inside ? column : 0)), together);                                 \
            for (int j = 0; j < REGISTERS(unit); j++)                                                                \
                to[k * REGISTERS(unit) + j] = inside && there ? found[j] : missing;                                  \
        }                                                                                                            \
    }
#define WRITER(name, unit, COUNT)                                                                                \
    void name(global stored *row, const real *from, const int left, const int accumulate, const bool together) { \
        _Pragma("unroll") for (int k = 0; k < COUNT; k += unit) {                                                \
            if (k >= left) continue;                                                                             \
            if (together) {                                                                                      \
                CAT(WRITE_, unit)(row + k, from + k)                                                             \
            } else {                                                                                             \
                _Pragma("unroll") for (int e = k; e < k + unit; e++)                                             \
                    STORE(row, e, accumulate ? from[e] + LOAD(row, e) : from[e]);                                \
            }                                                                                                    \
        }                                                                                                        \
    }
READER(read_x, UNIT_X, UNITS_FOR(ITEM_COLUMNS), LEAST_UNIT, STOP_UNIT(ITEM_COLUMNS))
READER(read_y, UNIT_Y, ITEM_COLUMNS / UNIT_Y, 1, 0)
WRITER(write_x, UNIT_X, ITEM_WIDTH)
WRITER(write_y, UNIT_Y, ITEM_COLUMNS)

// Places of neighbouring windows, bytes, in a register: the first one's are its lowest bits.
#define PLACE_IN(bytes, i) ((int)((bytes) >> 8 * (i)) & 255)
typedef uchar Bytes1;
typedef ushort Bytes2;
typedef uint Bytes4;

// A row of x in registers: row r of those for so many results, the first of which is `row`, from the stride of result v
// on. Of the rows and columns of a work-item, the first UNDER_H and UNDER_W may lie in front of the plane, and the last
// OVER_H and OVER_W after it: only these are compared with its size.
#define READ_ROW(to, row, r, v, results, missing)                                                      \
    {                                                                                                  \
        const bool inner = (r) >= UNDER_H && (r) < ROWS_FOR(results) - OVER_H;                         \
        const int at_ = (row) + (r);                                                                   \
        read_x(to, xs, source + (inner ? at_ : min(max(at_, 0), ih - 1)) * iw, (v) * SW - FIRST_X, iw, \
               inner || (at_ >= 0 && at_ < ih), EACH(UNIT_X, missing), together);                      \
    }
#define COLUMN_OF(held, result, tap) IN_UNITS(UNIT_X, held, SHIFT_X + (result) * SW + (tap))

// What an average divides by, of window i of those that begin at row or column `from`: all taps, where they are inside.
#define COUNTED_H(results, i, from)                                     \
    ((i) * SH >= UNDER_H && (i) * SH + KH <= ROWS_FOR(results) - OVER_H \
         ? KH                                                           \
         : counted((from) + (i) * SH, KH, ih, eh, count_padding))
#define COUNTED_W(i, from)                                                         \
    ((i) * SW >= UNDER_W && (i) * SW + KW <= (ITEM_COLUMNS - 1) * SW + KW - OVER_W \
         ? KW                                                                      \
         : counted((from) + (i) * SW, KW, iw, ew, count_padding))

// The greater one of two, which is never the second one if that is NaN.
#if OPERATOR == 0 && !KEEP_NAN && !defined(ARGMAX)
#define JOIN_BOTH(a, b) fmax(a, b)
#else
#define JOIN_BOTH(a, b) JOIN(a, b)
#endif

// Results from row `first`, column v on, of one plane, whose first elements of x and of y are `source` and `of_result`.
void join_windows(global const stored *xs, global stored *ys, global uchar *places, const Windows windows,
                  const int source, const int of_result, const int first, const int v, const int accumulate,
                  const int accumulate_argmax, const bool together) {
    WINDOW_PLANES
    const int r0 = first * SH - PH, q0 = v * SW - PW;
    real rows[ROWS_FOR(ITEM_ROWS)][ITEM_COLUMNS];
#ifdef ARGMAX
    // of the rows' maxima; from less than the lowest number on, so that this one has a place, too
    int columns[ROWS_FOR(ITEM_ROWS)][ITEM_COLUMNS];
#endif
#pragma unroll
    for (int r = 0; r < ROWS_FOR(ITEM_ROWS); r++) {
        raw held[UNITS_FOR(ITEM_COLUMNS) * REGISTERS(UNIT_X)];
#ifdef ARGMAX
        READ_ROW(held, r0, r, v, ITEM_ROWS, RAW_LEAST)
#else
        READ_ROW(held, r0, r, v, ITEM_ROWS, RAW_START)
#endif
#pragma unroll
        for (int c = 0; c < ITEM_COLUMNS; c++) {
#ifdef ARGMAX
            rows[r][c] = -INFINITY;
            columns[r][c] = NOWHERE;
#else
            rows[r][c] = START;
#endif
#pragma unroll
            for (int q = 0; q < KW; q++) {
                const real value = COLUMN_OF(held, c, q);
#ifdef ARGMAX
                columns[r][c] = value > rows[r][c] ? q : columns[r][c];
                const real raised = value;
#else
                const real raised = OPERATOR == 0 ? value : RAISE(value);
#endif
                rows[r][c] = JOIN_BOTH(rows[r][c], raised);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < ITEM_ROWS; i++) {
        if (first + i >= oh) continue;
        const int at = of_result + (first + i) * ow + v;
        real results[ITEM_COLUMNS];
#ifdef ARGMAX
        int chosen[ITEM_COLUMNS];
#endif
#pragma unroll
        for (int c = 0; c < ITEM_COLUMNS; c++) {
#ifdef ARGMAX
            real result = -INFINITY;
            int place = NOWHERE;
#pragma unroll
            for (int r = 0; r < KH; r++) {
                place = rows[i * SH + r][c] > result ? r * KW + columns[i * SH + r][c] : place;
                result = JOIN(result, rows[i * SH + r][c]);
            }
            result = JOIN(START, result);
#if KEEP_NAN
            if (result != result) place = NOWHERE;
#endif
            chosen[c] = place;
#else
            real result = START;
#pragma unroll
            for (int r = 0; r < KH; r++) result = JOIN_BOTH(result, rows[i * SH + r][c]);
#endif
#if OPERATOR == 1
            result = SHARE_OF(result, COUNTED_H(ITEM_ROWS, i, r0) * COUNTED_W(c, q0));
#endif
            results[c] = ROOT(result);
        }
#ifdef ARGMAX
#pragma unroll
        for (int c = 0; c < ITEM_COLUMNS; c += UNIT_Y) {
            if (!places || v + c >= ow) continue;
            if (together) {
                uint bytes = 0;
#pragma unroll
                for (int e = 0; e < UNIT_Y; e++) bytes |= (uint)chosen[c + e] << 8 * e;
                *(global CAT(Bytes, UNIT_Y) *)(places + at + c) = bytes;
            } else {
#pragma unroll
                for (int e = c; e < c + UNIT_Y; e++)
                    places[at + e] = chosen[e] + (accumulate_argmax ? places[at + e] : 0);
            }
        }
        if (!ys) continue;
#endif
        write_y(ys + at, results, ow - v, accumulate, together);
    }
}

// A work-item's rows and columns of a plane: from u and v on, so many of them.
#define OPEN_BLOCK(rows, columns)                                                                  \
    const uint number = get_global_id(0);                                                          \
    if (number >= count) return;                                                                   \
    const uint line = quotient(number, by_blocks), plane = quotient(line, by_strips);              \
    const int u = (int)(line - plane * strips) * (rows), v = (number - line * blocks) * (columns); \
    const int source = plane * (uint)(windows.source_h * windows.source_w),                        \
              of_result = plane * (uint)(windows.result_h * windows.result_w);
#define BLOCKS_OF_PLANES                                                                                \
    const Windows windows, const uint count, const int strips, const int blocks, const ulong by_strips, \
        const ulong by_blocks

kernel __attribute__((reqd_work_group_size(GROUP, 1,
                                           1))) void pool_windows_forward(CONST_TENSOR(x), RESULTS, BLOCKS_OF_PLANES) {
    OPEN_BLOCK(ITEM_ROWS, ITEM_COLUMNS)
    global const stored *xs = OPEN(x);
#ifdef ARGMAX
    global stored *ys = y_base ? OPEN(y) : 0;
    global uchar *places = argmax_base ? OPEN(argmax) : 0;
#else
    global stored *ys = OPEN(y);
    global uchar *places = 0;
    const int accumulate_argmax = 0;
#endif
    const bool adds = accumulate | accumulate_argmax;
    if (IS_ALIGNED(UNIT_X, xs) && IS_ALIGNED(UNIT_Y, ys) && (ulong)places % UNIT_Y == 0 && !adds)
        join_windows(xs, ys, places, windows, source, of_result, u, v, accumulate, accumulate_argmax, true);
    else
        join_windows(xs, ys, places, windows, source, of_result, u, v, accumulate, accumulate_argmax, false);
}

#define NOTED (NOTED_ROWS * ITEM_COLUMNS)
#if OPERATOR == 0
#define IS_PICKED(chosen, tap) ((chosen) == (tap))
#else
#define IS_PICKED(chosen, tap) true
#endif
// Adds what a window gives to one of its taps. Where there is PTX, compilers make a choice and an addition of an if.
#if OPERATOR == 0 && defined(PTX) && STORAGE != 64
#define ADD_PICKED(sum, chosen, tap, gradient)                                \
    asm("{.reg .pred met; setp.eq.s32 met, %1, %2; @met add.f32 %0, %0, %3;}" \
        : "+f"(sum)                                                           \
        : "r"(chosen), "r"(tap), "f"(gradient));
#else
#define ADD_PICKED(sum, chosen, tap, gradient) \
    if (IS_PICKED(chosen, tap)) sum += (gradient);
#endif
// Whether two neighbouring windows are compared with their results at once, and what they have of a tap.
#if OPERATOR == 0 && !defined(ARGMAX) && defined(HAS_EQUAL_PAIR) && UNIT_X > 1 && UNIT_Y > 1
#define BY_PAIRS
#define BITS_AT(held, e) ((held)[(e) / 2] >> 16 * ((e) % 2) & 0xffffu)
#define PAIR_FROM(held, e) \
    (SW == 1 && (e) % 2 == 0 ? (held)[(e) / 2] : BITS_AT(held, e) | BITS_AT(held, (e) + SW) << 16)
#endif

// Of windows from row u, column v on of one plane: what the chosen tap, or each tap, gets. Windows that are not there
// give nothing. Maxima are noted either by `places` or by xs and ys. The plane's first elements of x and of y are
// `source` and `of_result`.
void note_windows(real *gradients, int *chosen, global const stored *xs, global const stored *ys,
                  global const uchar *places, global const stored *dys, const Windows windows, const int source,
                  const int of_result, const int u, const int v, const bool together) {
    WINDOW_PLANES
    raw held[NOTED_ROWS][ITEM_COLUMNS / UNIT_Y * REGISTERS(UNIT_Y)];
#pragma unroll
    for (int i = 0; i < NOTED_ROWS; i++) {
        const bool there = u + i >= 0 && u + i < oh;
        read_y(held[i], dys, of_result + (there ? u + i : 0) * ow, v, ow, there, 0, together);
    }
#ifdef ARGMAX
    uint bytes[NOTED_ROWS][ITEM_COLUMNS / UNIT_Y];
#pragma unroll
    for (int i = 0; i < NOTED_ROWS; i++) {
#pragma unroll
        for (int k = 0; k < ITEM_COLUMNS / UNIT_Y; k++) {
            const int column = v + k * UNIT_Y;
            const bool inside = u + i >= 0 && u + i < oh && column >= 0 && column < ow;
            global const uchar *from = places + (of_result + (inside ? (u + i) * ow + column : 0));
            uint found = 0;
            if (together) {
                found = *(global const CAT(Bytes, UNIT_Y) *)from;
            } else {
#pragma unroll
                for (int e = 0; e < UNIT_Y; e++) found |= (uint)from[e] << 8 * e;
            }
            bytes[i][k] = inside ? found : 0xffffffffu;
        }
    }
#elif OPERATOR == 0
    const int inner_v = max(v, 0);  // windows in front of the plane have no result, whatever is read for them
    raw results[NOTED_ROWS][ITEM_COLUMNS / UNIT_Y * REGISTERS(UNIT_Y)];
    raw rows[ROWS_FOR(NOTED_ROWS)][UNITS_FOR(ITEM_COLUMNS) * REGISTERS(UNIT_X)];
#pragma unroll
    for (int i = 0; i < NOTED_ROWS; i++) {
        const bool there = u + i >= 0 && u + i < oh;
        read_y(results[i], ys, of_result + (there ? u + i : 0) * ow, v, ow, there, EACH(UNIT_Y, RAW_NAN), together);
    }
#pragma unroll
    for (int r = 0; r < ROWS_FOR(NOTED_ROWS); r++) READ_ROW(rows[r], u * SH - PH, r, inner_v, NOTED_ROWS, RAW_NAN)
#endif
#ifdef BY_PAIRS
    uint taps[NOTED_ROWS][ITEM_COLUMNS / 2];
#pragma unroll
    for (int i = 0; i < NOTED_ROWS; i++) {
#pragma unroll
        for (int c = 0; c < ITEM_COLUMNS; c += 2) {
            uint found = NOWHERE * 0x10001u;
            // backwards, so that the first tap is the last one noted
#pragma unroll
            for (int r = KH - 1; r >= 0; r--) {
#pragma unroll
                for (int q = KW - 1; q >= 0; q--) {
                    const uint pair = PAIR_FROM(rows[i * SH + r], SHIFT_X + c * SW + q);
                    found = bitselect(found, (r * KW + q) * 0x10001u, equal_pair(pair, results[i][c / 2]));
                }
            }
            taps[i][c / 2] = found;
        }
    }
#endif
#pragma unroll
    for (int i = 0; i < NOTED_ROWS; i++) {
#pragma unroll
        for (int c = 0; c < ITEM_COLUMNS; c++) {
            real gradient = IN_UNITS(UNIT_Y, held[i], c);
            int tap = NOWHERE;
#ifdef ARGMAX
            tap = PLACE_IN(bytes[i][c / UNIT_Y], c % UNIT_Y);
#elif defined(BY_PAIRS)
            tap = taps[i][c / 2] >> 16 * (c % 2) & 0xffff;
#elif OPERATOR == 0
            const real result = IN_UNITS(UNIT_Y, results[i], c);
            // backwards, so that the first tap is the last one noted
#pragma unroll
            for (int r = KH - 1; r >= 0; r--)
#pragma unroll
                for (int q = KW - 1; q >= 0; q--) tap = COLUMN_OF(rows[i * SH + r], c, q) == result ? r * KW + q : tap;
#elif OPERATOR == 1
            gradient = SHARE_OF(gradient, COUNTED_H(NOTED_ROWS, i, u * SH - PH) * COUNTED_W(c, v * SW - PW));
#endif
            gradients[i * ITEM_COLUMNS + c] = gradient;
            chosen[i * ITEM_COLUMNS + c] = tap;
        }
    }
}

// Where a work-item of backward reads.
#ifdef ARGMAX
#define OPEN_WINDOWS                           \
    global const stored *xs = 0, *ys = 0;      \
    global const uchar *places = OPEN(argmax); \
    global const stored *dys = OPEN(dy);
#define READ_TOGETHER (IS_ALIGNED(UNIT_Y, OPEN(dy)) && (ulong)OPEN(argmax) % UNIT_Y == 0)
#else
#define OPEN_WINDOWS                                  \
    global const stored *xs = OPEN(x), *ys = OPEN(y); \
    global const uchar *places = 0;                   \
    global const stored *dys = OPEN(dy);
#define READ_TOGETHER (IS_ALIGNED(UNIT_Y, OPEN(dy)) && IS_ALIGNED(UNIT_X, OPEN(x)) && IS_ALIGNED(UNIT_Y, OPEN(y)))
#endif

// A work-item's windows and all elements of their strides, from row u, column v on.
void spread_windows(global stored *dxs, global const stored *xs, global const stored *ys, global const uchar *places,
                    global const stored *dys, const Windows windows, const int source, const int of_result, const int u,
                    const int v, const int accumulate, const bool together) {
    WINDOW_PLANES
    real gradients[NOTED];
    int chosen[NOTED];
    note_windows(gradients, chosen, xs, ys, places, dys, windows, source, of_result, u, v, together);
#pragma unroll
    for (int r = 0; r < NOTED_ROWS * SH; r++) {
        if (u * SH + r >= ih) continue;
        real found[ITEM_WIDTH];
#pragma unroll
        for (int q = 0; q < ITEM_WIDTH; q++) {
            const int window = r / SH * ITEM_COLUMNS + q / SW;
            const bool met = r % SH < KH && q % SW < KW && IS_PICKED(chosen[window], r % SH * KW + q % SW);
            found[q] = met ? gradients[window] : 0;
        }
        const int at = source + (u * SH + r) * iw + v * SW;
        write_x(dxs + at, found, iw - v * SW, accumulate, together);
    }
}

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void pool_windows_apart(
    VALUES, CONST_TENSOR(dy), TENSOR(dx), const int accumulate, BLOCKS_OF_PLANES) {
    OPEN_BLOCK(NOTED_ROWS, ITEM_COLUMNS)
    OPEN_WINDOWS
    global stored *dxs = OPEN(dx);
    if (READ_TOGETHER && IS_ALIGNED(UNIT_X, dxs) && !accumulate)
        spread_windows(dxs, xs, ys, places, dys, windows, source, of_result, u, v, accumulate, true);
    else
        spread_windows(dxs, xs, ys, places, dys, windows, source, of_result, u, v, accumulate, false);
}

// What a work-item meets: rows and columns of dx, and windows, in units of ITEM_COLUMNS columns.
#define ITEM_HEIGHT (ITEM_CELLS * SH)
#define ITEM_WINDOWS (BEFORE_H + ITEM_CELLS + AFTER_H)
#define WHOLE_UNITS(windows) (((windows) + ITEM_COLUMNS - 1) / ITEM_COLUMNS * ITEM_COLUMNS)
#define LEAD WHOLE_UNITS(BEFORE_W)
#define TAIL WHOLE_UNITS(AFTER_W)
// The rows of windows in local memory, and the first block of them that is noted: the others hold no window.
#define WINDOWS_H (NOTED_LINES * NOTED_ROWS)
#define ALL_BLOCKS (WINDOWS_W / ITEM_COLUMNS)
#define FIRST_BLOCK (TILES_W == 1 ? LEAD / ITEM_COLUMNS : 0)

// The numbers of neighbouring windows in local memory that a work-item writes, or takes, together.
#define PUT_1(to, from) *(to) = *(from);
#define PUT_2(to, from) *(local real_pair *)(to) = (real_pair)((from)[0], (from)[1]);
#define PUT_4(to, from) PUT_QUAD(to, from)
#define GET_1(to, from) *(to) = *(from);
#define GET_2(to, from)                                            \
    {                                                              \
        const real_pair vector = *(local const real_pair *)(from); \
        (to)[0] = vector.x;                                        \
        (to)[1] = vector.y;                                        \
    }
#define GET_4(to, from)                                            \
    {                                                              \
        const real_quad vector = *(local const real_quad *)(from); \
        TAKE_QUAD(to, vector)                                      \
    }

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void pool_windows_backward(
    VALUES, CONST_TENSOR(dy), TENSOR(dx), const int accumulate, const Windows windows, const uint planes,
    const int tiles_h, const ulong by_tiles) {
    WINDOW_PLANES
    OPEN_WINDOWS
    local real gradients[TILE_PLANES * WINDOWS_H * WINDOWS_W] __attribute__((aligned(32)));
    local uchar chosen[OPERATOR == 0 ? TILE_PLANES * WINDOWS_H * WINDOWS_W : 4] __attribute__((aligned(4)));
    uint number = get_group_id(0);
    const int cell_w = number % TILES_W * CELLS_W;
    number /= TILES_W;
    const uint tile = quotient(number, by_tiles), first_plane = tile * TILE_PLANES;
    const int cell_h = (number - tile * tiles_h) * CELLS_H;
    const int id = get_local_id(0);
    const bool together = READ_TOGETHER;
    for (int i = id; i < TILE_PLANES * NOTED_LINES * NOTED_BLOCKS; i += GROUP) {
        const int block = i % NOTED_BLOCKS + FIRST_BLOCK, line = i / NOTED_BLOCKS;
        const uint plane = min(first_plane + line / NOTED_LINES, planes - 1);
        const int u = cell_h - BEFORE_H + line % NOTED_LINES * NOTED_ROWS, v = cell_w - LEAD + block * ITEM_COLUMNS;
        const int source = plane * (uint)(ih * iw), of_result = plane * (uint)(oh * ow);
        real found[NOTED];
        int taps[NOTED];
        if (together)
            note_windows(found, taps, xs, ys, places, dys, windows, source, of_result, u, v, true);
        else
            note_windows(found, taps, xs, ys, places, dys, windows, source, of_result, u, v, false);
#pragma unroll
        for (int r = 0; r < NOTED_ROWS; r++) {
            const int at = (line * NOTED_ROWS + r) * WINDOWS_W + block * ITEM_COLUMNS;
            CAT(PUT_, ITEM_COLUMNS)(gradients + at, found + r * ITEM_COLUMNS);
#if OPERATOR == 0
            uint bytes = 0;
#pragma unroll
            for (int c = 0; c < ITEM_COLUMNS; c++) bytes |= (uint)taps[r * ITEM_COLUMNS + c] << 8 * c;
            *(local CAT(Bytes, ITEM_COLUMNS) *)(chosen + at) = bytes;
#endif
        }
    }
#if ALL_BLOCKS > NOTED_BLOCKS
    for (int i = id; i < TILE_PLANES * WINDOWS_H * (ALL_BLOCKS - NOTED_BLOCKS); i += GROUP) {
        const int rest = i % (ALL_BLOCKS - NOTED_BLOCKS), block = rest < FIRST_BLOCK ? rest : rest + NOTED_BLOCKS;
        const int at = i / (ALL_BLOCKS - NOTED_BLOCKS) * WINDOWS_W + block * ITEM_COLUMNS;
#pragma unroll
        for (int c = 0; c < ITEM_COLUMNS; c++) {
            gradients[at + c] = 0;
#if OPERATOR == 0
            chosen[at + c] = NOWHERE;
#endif
        }
    }
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
    const bool written_together = IS_ALIGNED(UNIT_X, OPEN(dx)) && !accumulate;
    for (int i = id; i < TILE_PLANES * (CELLS_H / ITEM_CELLS) * (CELLS_W / ITEM_COLUMNS); i += GROUP) {
        const int column = i % (CELLS_W / ITEM_COLUMNS) * ITEM_COLUMNS, line = i / (CELLS_W / ITEM_COLUMNS);
        const int in_tile = line / (CELLS_H / ITEM_CELLS), row = line % (CELLS_H / ITEM_CELLS) * ITEM_CELLS;
        const uint plane = first_plane + in_tile;
        if (plane >= planes) continue;
        real sums[ITEM_HEIGHT][ITEM_WIDTH];
#pragma unroll
        for (int r = 0; r < ITEM_HEIGHT; r++)
#pragma unroll
            for (int q = 0; q < ITEM_WIDTH; q++) sums[r][q] = 0;
#pragma unroll
        for (int h = 0; h < ITEM_WINDOWS; h++) {
            const int at = (in_tile * WINDOWS_H + row + h) * WINDOWS_W + column;
            real found[LEAD + ITEM_COLUMNS + TAIL];
#if OPERATOR == 0
            int taps[LEAD + ITEM_COLUMNS + TAIL];
#endif
#pragma unroll
            for (int w = 0; w < LEAD + ITEM_COLUMNS + TAIL; w += ITEM_COLUMNS) {
                CAT(GET_, ITEM_COLUMNS)(found + w, gradients + at + w);
#if OPERATOR == 0
                const uint bytes = *(local const CAT(Bytes, ITEM_COLUMNS) *)(chosen + at + w);
#pragma unroll
                for (int e = 0; e < ITEM_COLUMNS; e++) taps[w + e] = PLACE_IN(bytes, e);
#endif
            }
#pragma unroll
            for (int w = LEAD - BEFORE_W; w < LEAD + ITEM_COLUMNS + AFTER_W; w++) {
#pragma unroll
                for (int r = 0; r < ITEM_HEIGHT; r++) {
                    const int tap_h = r + PH + (BEFORE_H - h) * SH;
#pragma unroll
                    for (int q = 0; q < ITEM_WIDTH; q++) {
                        const int tap_w = q + PW + (LEAD - w) * SW;
                        if (tap_h < 0 || tap_h >= KH || tap_w < 0 || tap_w >= KW) continue;
                        ADD_PICKED(sums[r][q], taps[w], tap_h * KW + tap_w, found[w])
                    }
                }
            }
        }
        const int r0 = (cell_h + row) * SH, q0 = (cell_w + column) * SW;
#pragma unroll
        for (int r = 0; r < ITEM_HEIGHT; r++) {
            if (r0 + r >= ih) continue;
            write_x(OPEN(dx) + (int)(plane * (uint)(ih * iw) + (r0 + r) * iw + q0), sums[r], iw - q0, accumulate,
                    written_together);
        }
    }
}
