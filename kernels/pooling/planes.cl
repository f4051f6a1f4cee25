// Pooling on CPU devices: a work-item takes a run of rows, each in vectors.
//
// x  (planes, id, ih, iw)    y  (planes, od, oh, ow)
//
// Forward joins the rows of a window first, into `line`, and then its columns; it does so for
// BAND rows at once, so that lines have arrived in local memory when they are read with another alignment. Backward
// goes over the rows of x: it adds up the rows of windows that hold a row, and then their columns. The gradient of a
// maximum has a kernel of its own (pooling/planes_max_gradient.cl).
//
// `line` holds a padded row of the input: element c at c + pw. Sums that are kept stand at LEFT + v, so that element c
// meets tap j of window (c + pw - j) / SW; next to them are zeros.
//
// The place of a maximum is the least of its columns': `rows_taken` holds, for each column of `line`, the place of its
// first row that holds the column's maximum, and more than any place where none does.
//
// OPERATOR       as in pooling/operators.cl; backward has no maximum and no norms of power 2 and 3
// BACKWARD       which of the two kernels there is
// ARGMAX         forward also notes where in its window each maximum stands
// KW, SW         columns of a window and their stride
// BAND           rows that forward computes at once
// VL             lanes, at most the columns of x

#include "common/lanes.cl"
#include "pooling/operators.cl"

#ifndef BACKWARD
#define BACKWARD 0
#endif
#ifndef KW
#define KW 2
#define SW 2
#endif
#ifndef BAND
#define BAND 4
#endif

#define LEFT ((KW - 1) / SW)

#define ROWS_SHAPE                                                                                              \
    const long rows, const int item_rows, const int ih, const int iw, const int oh, const int ow, const int kh, \
        const int sh, const int ph, const int pw, const int eh, const int ew, const int count_padding, const int pitch

// Column by column, how many of a window's columns count.
void count_columns(local real *columns, const int iw, const int ow, const int pw, const int ew,
                   const int count_padding) {
    for (int v = 0; v < (ow + VL - 1) / VL * VL; v++)
        columns[v] = (real)counted(v * SW - pw, KW, iw, ew, count_padding);
}

// Taps j and, where SW is 2, j + 1 of VL windows from v on, of a line at `start`.
#if SW == 1
#define TAPS(line, start, v, j, tap) const realv tap##0 = GET(line, (start) + (v) + (j));
#elif SW == 2
#define TAPS(line, start, v, j, tap)                                                                                \
    const realv tap##low = GET(line, (start) + 2 * (v) + (j)), tap##high = GET(line, (start) + 2 * (v) + (j) + VL); \
    const realv tap##0 = (realv)(tap##low.even, tap##high.even), tap##1 = (realv)(tap##low.odd, tap##high.odd);
#else
realv gather(local const real *line, const int at) {
    real lanes[VL];
    for (int i = 0; i < VL; i++) lanes[i] = line[at + i * SW];
    return CAT(vload, VL)(0, lanes);
}
#define TAPS(line, start, v, j, tap) const realv tap##0 = gather(line, (start) + (v) * SW + (j));
#endif
#define LESSER(a, b) ((b) < (a) ? (b) : (a))
#define TAPS_AT_ONCE (SW == 2 ? 2 : 1)

#if !BACKWARD
#ifdef ARGMAX
#define RESULTS TENSOR(y), TENSOR_OF(uchar, argmax), const int accumulate, const int accumulate_argmax
#define PLACES , local real *rows_taken
#else
#define RESULTS TENSOR(y), const int accumulate
#define PLACES
#endif

#ifdef ARGMAX
// The same as `store_some` for places, which are bytes.
void store_places(global uchar *p, const long i, const long count, const realv places, const int accumulate) {
    real lanes[VL];
    PUT(lanes, 0, places);
    for (int lane = 0; lane < min(count, (long)VL); lane++) {
        const uchar old = accumulate ? p[i + lane] : 0;
        p[i + lane] = old + (uchar)lanes[lane];
    }
}
#endif

kernel void pool_planes_forward(CONST_TENSOR(x), RESULTS, ROWS_SHAPE, const int id, const int od, const int kd,
                                const int sd, const int pd, const int ed, local real *line,
                                local real *columns PLACES) {
    const long first = get_global_id(0) * (long)item_rows, last = min(first + item_rows, rows);
    const long run_end = last * ow;
    for (int i = 0; i < BAND * pitch; i++) line[i] = START;
#ifdef ARGMAX
    for (int i = 0; i < BAND * pitch; i++) rows_taken[i] = NOWHERE;
#endif
    count_columns(columns, iw, ow, pw, ew, count_padding);
    // the row of windows `at` is row u of slice w of its plane
    long plane_number = first / ((long)od * oh);
    int w = (int)(first / oh % od), u = (int)(first % oh);
    for (long begin = first; begin < last; begin += BAND) {
        const int count = (int)min(last - begin, (long)BAND);
        int fronts[BAND], tops[BAND];
        for (int i = 0; i < count; i++) {
            const int z0 = w * sd - pd, r0 = u * sh - ph;
            const int front = max(z0, 0), back = min(z0 + kd, id), top = max(r0, 0), bottom = min(r0 + kh, ih);
            global const stored *plane = OPEN(x) + plane_number * id * ih * iw;
            fronts[i] = z0;
            tops[i] = r0;
            if (++u == oh) {
                u = 0;
                if (++w == od) {
                    w = 0;
                    plane_number++;
                }
            }
            for (int from = 0; from < iw; from += VL) {
                const int c = min(from, iw - VL);
#ifdef ARGMAX
                // from less than the lowest number on, so that this one has a place, too
                realv column = -INFINITY, taken = NOWHERE;
                for (int z = front; z < back; z++) {
                    real place = (real)(((z - z0) * kh + top - r0) * KW);
                    for (int r = top; r < bottom; r++) {
                        const realv value = VLOAD(plane, ((long)z * ih + r) * iw + c);
                        taken = value > column ? (realv)(place) : taken;
                        column = JOIN(column, value);
                        place += KW;
                    }
                }
                column = JOIN((realv)(START), column);
                PUT(rows_taken, i * pitch + c + pw, taken);
#else
                realv column = START;
                for (int z = front; z < back; z++)
                    for (int r = top; r < bottom; r++) {
                        const realv value = VLOAD(plane, ((long)z * ih + r) * iw + c);
                        column = JOIN(column, RAISE(value));
                    }
#endif
                PUT(line, i * pitch + c + pw, column);
            }
        }
        for (int i = 0; i < count; i++) {
            const long at = begin + i;
#if OPERATOR == 1
            const int deep = counted(fronts[i], kd, id, ed, count_padding);
            const int high = counted(tops[i], kh, ih, eh, count_padding);
            const real counts = (real)(deep * high);
#endif
            for (int v = 0; v < ow; v += VL) {
                const long place = at * ow + v;
                realv result = START;
#pragma unroll
                for (int j = 0; j < KW; j += TAPS_AT_ONCE) {
                    TAPS(line, i * pitch, v, j, tap)
                    result = JOIN(result, tap0);
#if SW == 2
                    if (j + 1 < KW) result = JOIN(result, tap1);
#endif
                }
#ifdef ARGMAX
                realv least = NOWHERE;
#pragma unroll
                for (int j = 0; j < KW; j += TAPS_AT_ONCE) {
                    TAPS(line, i * pitch, v, j, tap)
                    TAPS(rows_taken, i * pitch, v, j, taken)
                    least = tap0 == result ? LESSER(least, taken0 + j) : least;
#if SW == 2
                    if (j + 1 < KW) least = tap1 == result ? LESSER(least, taken1 + j + 1) : least;
#endif
                }
                if (argmax_base) {
                    if (!accumulate_argmax && place + VL <= run_end)
                        CAT(vstore, VL)(CAT(convert_uchar, VL)(least), 0, OPEN(argmax) + place);
                    else
                        store_places(OPEN(argmax), place, ow - v, least, accumulate_argmax);
                }
                if (!y_base) continue;
#endif
#if OPERATOR == 1
                result /= counts * GET(columns, v);
#endif
                // what lies beyond a row is written again with the next row
                if (!accumulate && place + VL <= run_end)
                    VSTORE(OPEN(y), place, ROOT(result));
                else
                    store_some(OPEN(y), place, ow - v, ROOT(result), accumulate);
            }
        }
    }
}
#else
// The windows that hold row r.
#define FIRST_WINDOW(r) (max((r) + ph - kh + sh, 0) / sh)
#define LAST_WINDOW(r) (min(((r) + ph) / sh, oh - 1))

// Copies a finished row from local to global memory.
void emit(global stored *target, local const real *row, const int n, const int accumulate) {
    int c = 0;
    if (accumulate) {
        for (; c + VL <= n; c += VL) VSTORE(target, c, VLOAD(target, c) + GET(row, c));
        for (; c < n; c++) STORE(target, c, LOAD(target, c) + row[c]);
    } else {
        for (; c + VL <= n; c += VL) VSTORE(target, c, GET(row, c));
        if (c < n && n >= VL) {  // the last vector overlaps the one in front of it
            VSTORE(target, n - VL, GET(row, n - VL));
            return;
        }
        for (; c < n; c++) STORE(target, c, row[c]);
    }
}

#if OPERATOR == 1
#define ROWS_OF(u) counted((u) * sh - ph, kh, ih, eh, count_padding)
#else
#define ROWS_OF(u) 1
#endif

// Sums over the windows [low, high] of a plane of dy, each divided by the elements that it averages. Where windows have
// as many rows, one division serves all of them.
void sum_windows(local real *kept, local const real *columns, global const stored *dy, const int low, const int high,
                 const int ih, const int ow, const int kh, const int sh, const int ph, const int eh,
                 const int count_padding) {
    const int count = ROWS_OF(low);
    bool alike = true;
    for (int u = low; u <= high; u++) alike &= ROWS_OF(u) == count;
    for (int from = 0; ow >= VL && from < ow; from += VL) {
        const int v = min(from, ow - VL);  // the last vector overlaps the one in front of it
        realv sum = 0;
        for (int u = low; u <= high; u++) {
            const realv value = VLOAD(dy, (long)u * ow + v);
            sum += alike ? value : value / (real)ROWS_OF(u);
        }
#if OPERATOR == 1
        sum /= (alike ? (real)count : 1) * GET(columns, v);
#endif
        PUT(kept, LEFT + v, sum);
    }
    for (int v = 0; ow < VL && v < ow; v++) {
        real sum = 0;
        for (int u = low; u <= high; u++) sum += LOAD(dy, (long)u * ow + v) / (alike ? 1 : (real)ROWS_OF(u));
#if OPERATOR == 1
        sum /= (alike ? (real)count : 1) * columns[v];
#endif
        kept[LEFT + v] = sum;
    }
}

// A row of dx from the sums of its windows: each element takes those of the `places` windows that hold its column.
void spread_windows(local real *row, local const real *kept, const int places) {
    for (int w = 0; w < places; w += VL) {
        realv phases[SW];
#pragma unroll
        for (int p = 0; p < SW; p++) {
            realv sum = 0;
#pragma unroll
            for (int j = p; j < KW; j += SW) sum += GET(kept, LEFT + w - j / SW);
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
}

// `kept` is a row of sums.
kernel void pool_planes_backward(CONST_TENSOR(x), CONST_TENSOR(y), CONST_TENSOR(dy), TENSOR(dx), const int accumulate,
                                 ROWS_SHAPE, const int kept_pitch, local real *kept, local real *columns,
                                 local real *row) {
    const long first = get_global_id(0) * (long)item_rows, last = min(first + item_rows, rows);
    for (int i = 0; i < kept_pitch; i++) kept[i] = 0;
    count_columns(columns, iw, ow, pw, ew, count_padding);
    long windows = first / ih * oh;
    int r = (int)(first % ih), held_low = -1, held_high = -1;
    for (long at = first; at < last; at++) {
        const int low = FIRST_WINDOW(r), high = LAST_WINDOW(r);
        // rows that the same windows hold are equal
        if (low != held_low || high != held_high) {
            sum_windows(kept, columns, OPEN(dy) + windows * ow, low, high, ih, ow, kh, sh, ph, eh, count_padding);
            spread_windows(row, kept, (iw - 1 + pw) / SW + 1);
            held_low = low;
            held_high = high;
        }
        emit(OPEN(dx) + at * iw, row + pw, iw, accumulate);
        if (++r == ih) {
            r = 0;
            windows += oh;
            held_low = -1;
        }
    }
}
#endif
