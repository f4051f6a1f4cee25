// Pooling on GPUs in one or two axes, of windows whose taps are unrolled.
//
// x  (planes, ih, iw)    y  (planes, oh, ow)
//
//   pool_windows_forward   a work-item makes ITEM_ROWS results, one below the other: they share rows of x
//   pool_windows_backward  a work-group makes a tile of dx, of CELLS_H x CELLS_W cells of a stride each. First it
//                          notes, for every window that the tile meets, which tap gets its gradient (max), or what
//                          every tap gets; then each work-item takes ITEM_CELLS cells, one below the other, and adds up
//                          for each element of dx the windows that hold it, in memory order
//
// OPERATOR  as in pooling/operators.cl; backward has no norms of power 2 and 3
// ARGMAX    forward also notes where in its window each maximum stands, and backward reads that instead of x and y

#include "common/divide.cl"
#include "pooling/operators.cl"
#include "pooling/windows.cl"
#include "common/raw.cl"

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
// An element of x, or what stands for it.
#define READ_OR(missing, there, place) REAL_OF((there) ? LOAD_RAW(xs, place) : (raw)(missing))

#ifndef KH
#define KH 3  // window
#define KW 3
#define SH 2  // stride
#define SW 2
#endif
#ifndef GROUP
#define GROUP 128
#endif
#ifndef ITEM_ROWS
#define ITEM_ROWS 4
#endif
#ifndef CELLS_H
#define CELLS_H 8
#define CELLS_W 32
#endif
#ifndef ITEM_CELLS
#define ITEM_CELLS 2
#endif

// Rows of x that a work-item's results meet.
#define STRIP ((ITEM_ROWS - 1) * SH + KH)

#ifdef ARGMAX
#define RESULTS TENSOR(y), TENSOR_OF(uchar, argmax), const int accumulate, const int accumulate_argmax
#define VALUES TENSOR_OF(const uchar, argmax)
#else
#define RESULTS TENSOR(y), const int accumulate
#define VALUES CONST_TENSOR(x), CONST_TENSOR(y)
#endif

// strips: work-items for a column of results
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void pool_windows_forward(
    CONST_TENSOR(x), RESULTS, const Windows windows, const uint count, const int strips, const ulong strips_divisor,
    const ulong row_divisor) {
    WINDOW_PLANES
    const uint number = get_global_id(0);
    if (number >= count) return;
    const uint line = quotient(number, row_divisor), plane = quotient(line, strips_divisor);
    const int v = number - line * ow, first = (int)(line - plane * strips) * ITEM_ROWS;
    const int r0 = first * SH - ph, q0 = v * SW - pw;
    global const stored *xs = OPEN(x) + (ulong)plane * ih * iw;
    real rows[STRIP];
#ifdef ARGMAX
    int columns[STRIP];  // of the rows' maxima; from less than the lowest number on, so that this one has a place, too
#endif
#pragma unroll
    for (int r = 0; r < STRIP; r++) {
        const bool there = r0 + r >= 0 && r0 + r < ih;
#ifdef ARGMAX
        rows[r] = -INFINITY;
        columns[r] = NOWHERE;
#pragma unroll
        for (int q = 0; q < KW; q++) {
            const bool inside = there && q0 + q >= 0 && q0 + q < iw;
            const real value = READ_OR(RAW_LEAST, inside, (r0 + r) * iw + q0 + q);
            columns[r] = value > rows[r] ? q : columns[r];
            rows[r] = JOIN(rows[r], value);
        }
#else
        real row = START;
#pragma unroll
        for (int q = 0; q < KW; q++) {
            const bool inside = there && q0 + q >= 0 && q0 + q < iw;
            const real value = READ_OR(RAW_START, inside, (r0 + r) * iw + q0 + q);
            const real raised = OPERATOR == 0 ? value : RAISE(value);
            row = JOIN(row, raised);
        }
        rows[r] = row;
#endif
    }
    global stored *ys = OPEN(y) + (ulong)plane * oh * ow;
#pragma unroll
    for (int i = 0; i < ITEM_ROWS; i++) {
        if (first + i >= oh) continue;
#ifdef ARGMAX
        real result = -INFINITY;
        int chosen = NOWHERE;
#pragma unroll
        for (int r = 0; r < KH; r++) {
            chosen = rows[i * SH + r] > result ? r * KW + columns[i * SH + r] : chosen;
            result = JOIN(result, rows[i * SH + r]);
        }
        result = JOIN(START, result);
#if KEEP_NAN
        if (result != result) chosen = NOWHERE;
#endif
        global uchar *places = OPEN(argmax) + (ulong)plane * oh * ow + (first + i) * ow + v;
        if (argmax_base) *places = chosen + (accumulate_argmax ? *places : 0);
        if (!y_base) continue;
#else
        real result = START;
#pragma unroll
        for (int r = 0; r < KH; r++) result = JOIN(result, rows[i * SH + r]);
#endif
#if OPERATOR == 1
        result /= (real)counted(r0 + i * SH, KH, ih, eh, count_padding) * (real)counted(q0, KW, iw, ew, count_padding);
#endif
        result = ROOT(result);
        const int at = (first + i) * ow + v;
        STORE(ys, at, accumulate ? result + LOAD(ys, at) : result);
    }
}

// Windows that end in a later cell than they begin, and all that a tile meets.
#define BEFORE_H ((KH - 1) / SH)
#define BEFORE_W ((KW - 1) / SW)
#define WINDOWS_H (CELLS_H + BEFORE_H)
#define WINDOWS_W (CELLS_W + BEFORE_W)
// What a work-item meets: rows of dx and of windows.
#define ITEM_HEIGHT (ITEM_CELLS * SH)
#define ITEM_WINDOWS (ITEM_CELLS + BEFORE_H)

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void pool_windows_backward(
    VALUES, CONST_TENSOR(dy), TENSOR(dx), const int accumulate, const Windows windows, const int tiles_h,
    const int tiles_w) {
    WINDOW_PLANES
    local real gradients[WINDOWS_H * WINDOWS_W];
#if OPERATOR == 0
    local int chosen[WINDOWS_H * WINDOWS_W];
#endif
    uint number = get_group_id(0);
    const int cell_w = number % tiles_w * CELLS_W;
    number /= tiles_w;
    const int cell_h = number % tiles_h * CELLS_H;
    const uint plane = number / tiles_h;
    const int id = get_local_id(0);
#ifdef ARGMAX
    global const uchar *places = OPEN(argmax) + (ulong)plane * oh * ow;
#elif OPERATOR == 0
    global const stored *xs = OPEN(x) + (ulong)plane * ih * iw;
    global const stored *ys = OPEN(y) + (ulong)plane * oh * ow;
#endif
    global const stored *dys = OPEN(dy) + (ulong)plane * oh * ow;
    for (int i = id; i < WINDOWS_H * WINDOWS_W; i += GROUP) {
        const int u = cell_h - BEFORE_H + i / WINDOWS_W, v = cell_w - BEFORE_W + i % WINDOWS_W;
        if (u < 0 || u >= oh || v < 0 || v >= ow) {
            gradients[i] = 0;
#if OPERATOR == 0
            chosen[i] = NOWHERE;
#endif
            continue;
        }
        const int r0 = u * SH - ph, q0 = v * SW - pw;
        real gradient = LOAD(dys, u * ow + v);
#ifdef ARGMAX
        chosen[i] = places[u * ow + v];
#elif OPERATOR == 0
        const real result = LOAD(ys, u * ow + v);
        int tap = NOWHERE;
        // backwards, so that the first tap is the last one noted
#pragma unroll
        for (int r = KH - 1; r >= 0; r--) {
            const bool row_there = r0 + r >= 0 && r0 + r < ih;
#pragma unroll
            for (int q = KW - 1; q >= 0; q--) {
                const bool inside = row_there && q0 + q >= 0 && q0 + q < iw;
                const real value = READ_OR(RAW_NAN, inside, (r0 + r) * iw + q0 + q);
                tap = value == result ? r * KW + q : tap;
            }
        }
        chosen[i] = tap;
#elif OPERATOR == 1
        gradient /= (real)counted(r0, KH, ih, eh, count_padding) * (real)counted(q0, KW, iw, ew, count_padding);
#endif
        gradients[i] = gradient;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    global stored *dxs = OPEN(dx) + (ulong)plane * ih * iw;
    for (int i = id; i < CELLS_H / ITEM_CELLS * CELLS_W; i += GROUP) {
        const int cell = i / CELLS_W * ITEM_CELLS, column = i % CELLS_W;
        const int r0 = (cell_h + cell) * SH - ph, q0 = (cell_w + column) * SW - pw;
        real sums[ITEM_HEIGHT][SW];
#pragma unroll
        for (int r = 0; r < ITEM_HEIGHT; r++)
#pragma unroll
            for (int q = 0; q < SW; q++) sums[r][q] = 0;
#pragma unroll
        for (int h = 0; h < ITEM_WINDOWS; h++) {
#pragma unroll
            for (int w = 0; w <= BEFORE_W; w++) {
                const int window = (cell + h) * WINDOWS_W + column + w;
                const real gradient = gradients[window];
#if OPERATOR == 0
                const int tap = chosen[window];
#endif
#pragma unroll
                for (int r = 0; r < ITEM_HEIGHT; r++) {
                    const int tap_h = r + (BEFORE_H - h) * SH;
#pragma unroll
                    for (int q = 0; q < SW; q++) {
                        const int tap_w = q + (BEFORE_W - w) * SW;
                        if (tap_h < 0 || tap_h >= KH || tap_w >= KW) continue;
#if OPERATOR == 0
                        sums[r][q] += tap == tap_h * KW + tap_w ? gradient : 0;
#else
                        sums[r][q] += gradient;
#endif
                    }
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ITEM_HEIGHT; r++) {
#pragma unroll
            for (int q = 0; q < SW; q++) {
                if (r0 + r < 0 || r0 + r >= ih || q0 + q < 0 || q0 + q >= iw) continue;
                const int at = (r0 + r) * iw + q0 + q;
                STORE(dxs, at, accumulate ? sums[r][q] + LOAD(dxs, at) : sums[r][q]);
            }
        }
    }
}
