// Pooling on CPU devices: a work-item takes a run of rows, each in vectors.
//
// x  (planes, id, ih, iw)    y  (planes, od, oh, ow)
//
// Forward joins the rows of a window first, into `line`, and then its columns. Backward goes over the rows of x and gathers:
// what a row's elements get lies in the windows above and below, of which the latest are kept.
//
// `line` holds a padded row of the input: element c at c + pw. Windows that are kept stand at LEFT + v, so that element c meets
// tap j of window (c + pw - j) / SW; beside them are windows without gradient.
//
// OPERATOR       as in pooling_operators.cl; backward has no norms of power 2 and 3
// BACKWARD       which of the two kernels there is
// KW, SW         columns of a window and their stride
// VL             lanes, at most the columns of x

#include "pooling/operators.cl"

#ifndef BACKWARD
#define BACKWARD 0
#endif
#ifndef KW
#define KW 2
#define SW 2
#endif

#define LEFT ((KW - 1) / SW)

#define GET(p, i) CAT(vload, VL)(0, (p) + (i))
#define PUT(p, i, value) CAT(vstore, VL)((value), 0, (p) + (i))

// NO_PREFETCH is for checkers that do not know the builtin.
#if defined(__has_builtin) && !defined(NO_PREFETCH)
#if __has_builtin(__builtin_prefetch)
#define PREFETCH(p) __builtin_prefetch((const void *)(size_t)(p))
#endif
#endif
#ifndef PREFETCH
#define PREFETCH(p)
#endif
#define CACHE_LINE 64

#define ROWS_SHAPE \
    const long rows, const int item_rows, const int ih, const int iw, const int oh, const int ow, const int kh, const int sh, \
        const int ph, const int pw, const int eh, const int ew, const int count_padding, const int pitch

// Copies a finished row from local to global memory.
void emit(global stored *target, local const real *row, const int n, const int accumulate) {
    int c = 0;
    if (accumulate) {
        for (; c + VL <= n; c += VL) VSTORE(target, c, VLOAD(target, c) + GET(row, c));
        for (; c < n; c++) STORE(target, c, LOAD(target, c) + row[c]);
    } else {
        for (; c + VL <= n; c += VL) VSTORE(target, c, GET(row, c));
        for (; c < n; c++) STORE(target, c, row[c]);
    }
}

// Column by column, how many of a window's columns count.
void count_columns(local real *columns, const int iw, const int ow, const int pw, const int ew, const int count_padding) {
    for (int v = 0; v < (ow + VL - 1) / VL * VL; v++) columns[v] = (real)counted(v * SW - pw, KW, iw, ew, count_padding);
}

// Taps j and, where SW is 2, j + 1 of VL windows from v on.
#if SW == 1
#define TAPS(line, v, j) const realv tap0 = GET(line, (v) + (j));
#elif SW == 2
#define TAPS(line, v, j) \
    const realv low = GET(line, 2 * (v) + (j)), high = GET(line, 2 * (v) + (j) + VL); \
    const realv tap0 = (realv)(low.even, high.even), tap1 = (realv)(low.odd, high.odd);
#else
realv gather(local const real *line, const int at) {
    real lanes[VL];
    for (int i = 0; i < VL; i++) lanes[i] = line[at + i * SW];
    return CAT(vload, VL)(0, lanes);
}
#define TAPS(line, v, j) const realv tap0 = gather(line, (v) * SW + (j));
#endif
#define TAPS_AT_ONCE (SW == 2 ? 2 : 1)

#if !BACKWARD
kernel void pool_planes_forward(CONST_TENSOR(x), TENSOR(y), const int accumulate, ROWS_SHAPE, const int id, const int od,
                                const int kd, const int sd, const int pd, const int ed, local real *line, local real *row,
                                local real *columns) {
    const long first = get_global_id(0) * (long)item_rows, last = min(first + item_rows, rows);
    for (int i = 0; i < pitch; i++) line[i] = START;
    count_columns(columns, iw, ow, pw, ew, count_padding);
    for (long at = first; at < last; at++) {
        const long slice = at / oh;
        const int z0 = (int)(slice % od) * sd - pd, r0 = (int)(at % oh) * sh - ph;
        const int front = max(z0, 0), back = min(z0 + kd, id), top = max(r0, 0), bottom = min(r0 + kh, ih);
        global const stored *plane = OPEN(x) + slice / od * id * ih * iw;
        for (int from = 0; from < iw; from += VL) {
            const int c = min(from, iw - VL);
            realv column = START;
            for (int z = front; z < back; z++)
                for (int r = top; r < bottom; r++) {
                    const realv value = VLOAD(plane, ((long)z * ih + r) * iw + c);
                    column = JOIN(column, RAISE(value));
                }
            PUT(line, c + pw, column);
        }
#if OPERATOR == 1
        const real counts = (real)(counted(z0, kd, id, ed, count_padding) * counted(r0, kh, ih, eh, count_padding));
#endif
        for (int v = 0; v < ow; v += VL) {
            realv result = START;
#pragma unroll
            for (int j = 0; j < KW; j += TAPS_AT_ONCE) {
                TAPS(line, v, j)
                result = JOIN(result, tap0);
#if SW == 2
                if (j + 1 < KW) result = JOIN(result, tap1);
#endif
            }
#if OPERATOR == 1
            result /= counts * GET(columns, v);
#endif
            PUT(row, v, ROOT(result));
        }
        emit(OPEN(y) + at * ow, row, ow, accumulate);
    }
}
#else
// The windows that hold row r.
#define FIRST_WINDOW(r) (max((r) + ph - kh + sh, 0) / sh)
#define LAST_WINDOW(r) (min(((r) + ph) / sh, oh - 1))

#if OPERATOR == 0
// Notes, for a row of windows, which tap gives the gradient to: the first that is the maximum, -1 if none is.
void choose(local real *chosen, local real *gradients, local real *line, local real *results, global const stored *plane,
            global const stored *y, global const stored *dy, const int r0, const int kh, const int sh, const int ih,
            const int iw, const int ow, const int pw) {
    // the rows that the next windows add: between these and the rows that are written, hardware does not foresee them
    for (int c = 0; c < sh * iw; c += CACHE_LINE / sizeof(stored)) PREFETCH(plane + (long)(r0 + kh) * iw + c);
    int v = 0;
    for (; v + VL <= ow; v += VL) {
        PUT(gradients, LEFT + v, VLOAD(dy, v));
        PUT(results, v, VLOAD(y, v));
        PUT(chosen, LEFT + v, (realv)(-1));
    }
    for (; v < ow; v++) {
        gradients[LEFT + v] = LOAD(dy, v);
        results[v] = LOAD(y, v);
        chosen[LEFT + v] = -1;
    }
    for (int r = min(r0 + kh, ih) - 1; r >= max(r0, 0); r--) {
        for (int from = 0; from < iw; from += VL) {
            const int c = min(from, iw - VL);
            PUT(line, c + pw, VLOAD(plane, (long)r * iw + c));
        }
        for (v = 0; v < ow; v += VL) {
            const realv result = GET(results, v);
            realv tap = GET(chosen, LEFT + v);
#pragma unroll
            for (int j = (KW - 1) / TAPS_AT_ONCE * TAPS_AT_ONCE; j >= 0; j -= TAPS_AT_ONCE) {
                TAPS(line, v, j)
#if SW == 2
                if (j + 1 < KW) tap = tap1 == result ? (realv)((r - r0) * KW + j + 1) : tap;
#endif
                tap = tap0 == result ? (realv)((r - r0) * KW + j) : tap;
            }
            PUT(chosen, LEFT + v, tap);
        }
    }
    for (v = ow; v < (ow + VL - 1) / VL * VL; v++) chosen[LEFT + v] = -1;
}
#endif

// `kept` is 2 * kept_rows rows for a maximum, chosen taps and gradients, and else one row, of sums.
kernel void pool_planes_backward(CONST_TENSOR(x), CONST_TENSOR(y), CONST_TENSOR(dy), TENSOR(dx), const int accumulate,
                                 ROWS_SHAPE, const int kept_rows, const int kept_pitch, local real *line, local real *kept,
                                 local real *columns, local real *row) {
    const long first = get_global_id(0) * (long)item_rows, last = min(first + item_rows, rows);
#if OPERATOR == 0
    local real *gradients = kept + kept_rows * kept_pitch;
    for (int i = 0; i < pitch; i++) line[i] = NAN;  // equals nothing
    for (int i = 0; i < kept_rows * kept_pitch; i++) kept[i] = -1;
    for (int i = 0; i < kept_rows * kept_pitch; i++) gradients[i] = 0;
#else
    for (int i = 0; i < kept_pitch; i++) kept[i] = 0;
    count_columns(columns, iw, ow, pw, ew, count_padding);
#endif
    int done = 0;
    for (long at = first; at < last; at++) {
        const long plane = at / ih, windows = plane * oh;
        const int r = (int)(at % ih), low = FIRST_WINDOW(r), high = LAST_WINDOW(r);
#if OPERATOR == 0
        if (r == 0 || at == first) done = low;
        for (; done <= high; done++) {
            const int slot = done % kept_rows * kept_pitch;
            choose(kept + slot, gradients + slot, line, columns, OPEN(x) + plane * ih * iw, OPEN(y) + (windows + done) * ow,
                   OPEN(dy) + (windows + done) * ow, done * sh - ph, kh, sh, ih, iw, ow, pw);
        }
#else
        int v = 0;
        for (; v + VL <= ow; v += VL) {
            realv sum = 0;
            for (int u = low; u <= high; u++) {
                const realv value = VLOAD(OPEN(dy), (windows + u) * ow + v);
#if OPERATOR == 1
                sum += value / ((real)counted(u * sh - ph, kh, ih, eh, count_padding) * GET(columns, v));
#else
                sum += value;
#endif
            }
            PUT(kept, LEFT + v, sum);
        }
        for (; v < ow; v++) {
            real sum = 0;
            for (int u = low; u <= high; u++) {
                const real value = LOAD(OPEN(dy), (windows + u) * ow + v);
#if OPERATOR == 1
                sum += value / ((real)counted(u * sh - ph, kh, ih, eh, count_padding) * columns[v]);
#else
                sum += value;
#endif
            }
            kept[LEFT + v] = sum;
        }
#endif
        for (int w = 0; w <= (iw - 1 + pw) / SW; w += VL) {
            realv phases[SW];
#pragma unroll
            for (int p = 0; p < SW; p++) {
                realv sum = 0;
#if OPERATOR == 0
                for (int u = low; u <= high; u++) {
                    const int slot = u % kept_rows * kept_pitch, tap = (r + ph - u * sh) * KW;
#pragma unroll
                    for (int j = p; j < KW; j += SW) {
                        const int window = slot + LEFT + w - j / SW;
                        sum += GET(kept, window) == (real)(tap + j) ? GET(gradients, window) : (realv)(0);
                    }
                }
#else
#pragma unroll
                for (int j = p; j < KW; j += SW) sum += GET(kept, LEFT + w - j / SW);
#endif
                phases[p] = sum;
            }
#if SW == 1
            PUT(row, w, phases[0]);
#elif SW == 2
            realv low_part, high_part;
            low_part.even = phases[0].lo;
            low_part.odd = phases[1].lo;
            high_part.even = phases[0].hi;
            high_part.odd = phases[1].hi;
            PUT(row, 2 * w, low_part);
            PUT(row, 2 * w + VL, high_part);
#else
            for (int p = 0; p < SW; p++) {
                real lanes[VL];
                CAT(vstore, VL)(phases[p], 0, lanes);
                for (int i = 0; i < VL; i++) row[(w + i) * SW + p] = lanes[i];
            }
#endif
        }
        emit(OPEN(dx) + at * iw, row + pw, iw, accumulate);
    }
}
#endif
