// The gradient of max pooling on CPU devices: a work-item takes a run of rows of dx, in bands.
//
// x, dx  (planes, ih, iw)    y, dy  (planes, oh, ow)
//
// For the windows that a band meets, it first notes which tap gets the gradient: the first one that equals the maximum.
// Then each element of the band's rows adds up the windows that chose it, in order of their rows and from the last
// window of a row to the first. Bands are of several rows, so that what is written to local memory has arrived there
// when it is read with another alignment.
//
// With ARGMAX, the taps were noted by forward, and x and y are not there: no row of x is brought.
//
// Element c of a row is element c / SW of phase c % SW. Tap j of window v is element SW * (v + back) + j + SHIFT, with
// back and SHIFT from the padding: SW * back + SHIFT = -pw. Local memory holds
//   x_rows     the latest X_ROWS rows of x by phases, each from element back on, with NaN on both sides
//   chosen     the latest SLOTS rows of windows, each with its first window at LEFT: the tap, row * KW + column, or -1
//   gradients  the same of dy
// Both x_rows and chosen have one row more, in which nothing is ever chosen.
//
// KH, KW, SH, SW  window and stride
// SHIFT           -pw modulo SW
// BAND            cells of a stride in the height of a band
// SLOTS, X_ROWS   rows of windows that a band meets, rows of x that they hold
// VL              lanes
// ARGMAX          backward_argmax: argmax (planes, oh, ow), bytes, in place of x and y
// PAST_CACHES     dx is too large to be found in a cache again, and rows are whole vectors

#include "common/prefetch.cl"
#include "common/lanes.cl"
#ifdef PAST_CACHES
#include "common/past_caches.cl"
#endif

#ifndef KH
#define KH 2
#define KW 2
#define SH 2
#define SW 2
#endif
#ifndef SHIFT
#define SHIFT 0
#endif
#ifndef BAND
#define BAND 4
#define SLOTS 5
#define X_ROWS 10
#endif

#define MEETING ((KH - 1) / SH + 1)  // rows of windows that hold a row, at most
#define LEFT ((KW + SW - 2) / SW)

#ifdef ARGMAX
#define VALUES TENSOR_OF(const uchar, argmax)
#define X_ROWS_OF
#else
#define VALUES CONST_TENSOR(x), CONST_TENSOR(y)
#define X_ROWS_OF local real *x_rows,
#endif

// Short loops over taps are unrolled, so that their numbers are constants.
#if KH * KW <= 49 && SH <= 8
#define TAPS _Pragma("unroll")
#else
#define TAPS
#endif

// Vectors whose places differ by at most FURTHEST elements are cut out of two neighbours: a load that crosses a cache
// line takes longer than a shuffle. Narrower vectors cross fewer lines.
#define FURTHEST ((KW - 1 + SHIFT) / SW)
#if VL == 16 && FURTHEST <= 2 && KH * KW <= 25
#define CUT
realv cut(const realv a, const realv b, const int n) {
    if (n == 1) return (realv)(a.s1234, a.s5678, a.s9abc, a.sdef, b.s0);
    if (n == 2) return (realv)(a.s2345, a.s6789, a.sabcd, a.sef, b.s01);
    return a;
}
#endif

// VL elements from p + i on, of which only those before `end` may be read; what the others are does not matter.
#define LOAD_BEFORE(p, i, end) ((i) + VL <= (end) ? VLOAD(p, i) : load_some(p, i, (end) - (i), 0))

#ifdef ARGMAX
// Places that forward noted, as numbers; the same holds.
realv places_before(global const uchar *p, const long i, const long end) {
#if STORAGE == 64
#define CONVERT CAT(convert_double, VL)
#else
#define CONVERT CAT(convert_float, VL)
#endif
    if (i + VL <= end) return CONVERT(CAT(vload, VL)(0, p + i));
    real lanes[VL];
    for (int lane = 0; lane < VL; lane++) lanes[lane] = i + lane < end ? p[i + lane] : -1;
    return GET(lanes, 0);
}
#else
// Copies a row of x by phases; elements from `iw` on become NaN.
void stage(local real *row, global const stored *xs, const long at, const long end, const int iw, const int phase_pitch,
           const realv lanes) {
#if SW <= 2
    for (int w = 0; w * SW < iw; w += VL) {
        const long i = at + w * SW;
        const realv nothing = NAN, first = LOAD_BEFORE(xs, i, end);
#if SW == 1
        PUT(row, w, w + VL <= iw ? first : lanes < (realv)(real)(iw - w) ? first : nothing);
#else
        const realv second = LOAD_BEFORE(xs, i + VL, end);
        const realv even = (realv)(first.even, second.even), odd = (realv)(first.odd, second.odd);
        const realv evens = (realv)(real)((iw - 2 * w + 1) / 2), odds = (realv)(real)((iw - 2 * w) / 2);
        PUT(row, w, lanes < evens ? even : nothing);
        PUT(row + phase_pitch, w, lanes < odds ? odd : nothing);
#endif
    }
#else
    for (int c = 0; c < iw; c++) row[c % SW * phase_pitch + c / SW] = LOAD(xs, at + c);
#endif
}
#endif

// The windows that hold row r.
#define FIRST_WINDOW(r) (max((r) + ph - KH + SH, 0) / SH)
#define LAST_WINDOW(r) (min(((r) + ph) / SH, oh - 1))

#define SLOT(row, count) ((int)((uint)(row) % (count)))

SINGLE void pool_planes_max_gradient(VALUES, CONST_TENSOR(dy), TENSOR(dx), const int accumulate, const long rows,
                                     const int item_rows, const int ih, const int iw, const int oh, const int ow,
                                     const int ph, const int back, const int phase_pitch, const int kept_pitch,
                                     X_ROWS_OF local real *chosen, local real *gradients) {
    const long first = get_global_id(0) * (long)item_rows, last = min(first + item_rows, rows);
    const long x_end = rows * iw, y_end = rows / ih * oh * ow, run_end = last * iw;
    const int kept = (SLOTS + 1) * kept_pitch;
    real numbers[VL];
    for (int i = 0; i < VL; i++) numbers[i] = i;
    const realv lanes = GET(numbers, 0);
#ifdef PAST_CACHES
    const bool past = ON_VECTORS(OPEN(dx)) && !accumulate;
#endif
#ifndef ARGMAX
    const int x_pitch = SW * phase_pitch;
    for (int i = 0; i < (X_ROWS + 1) * x_pitch; i++) x_rows[i] = NAN;
    int staged = 0;  // the row of x that comes next
#endif
    for (int i = 0; i < kept; i++) chosen[i] = -1;
    for (int i = 0; i < kept; i++) gradients[i] = 0;
    int done = 0;  // the row of windows that comes next
    for (long at = first; at < last;) {
        const long plane = at / ih;
        const int begin = (int)(at - plane * ih);
        const int end = (int)min(min((long)begin + BAND * SH, (long)ih), begin + last - at);
        if (begin == 0 || at == first) {
            done = FIRST_WINDOW(begin);
#ifndef ARGMAX
            staged = max(done * SH - ph, 0);
#endif
        }
        const int high = LAST_WINDOW(end - 1);
#ifdef ARGMAX
        for (; done <= high; done++) {
            const int slot = SLOT(done, SLOTS) * kept_pitch + LEFT;
            const long windows = (plane * oh + done) * ow;
            for (int v = 0; v < ow; v += VL) {
                const realv tap = places_before(OPEN(argmax), windows + v, y_end);
                PUT(chosen, slot + v, lanes < (realv)(real)(ow - v) ? tap : (realv)(-1));
                PUT(gradients, slot + v, LOAD_BEFORE(OPEN(dy), windows + v, y_end));
            }
        }
#else
        for (; staged < min(high * SH - ph + KH, ih); staged++) {
            const long from = (plane * ih + staged) * iw;
            // hardware does not foresee the next band's rows, because it sees others being written
            for (int c = 0; c < iw; c += CACHE_LINE / sizeof(stored)) PREFETCH(OPEN(x) + from + BAND * SH * iw + c);
            stage(x_rows + SLOT(staged, X_ROWS) * x_pitch - back, OPEN(x), from, x_end, iw, phase_pitch, lanes);
        }
        for (; done <= high; done++) {
            const int r0 = done * SH - ph, slot = SLOT(done, SLOTS) * kept_pitch + LEFT;
            const long windows = (plane * oh + done) * ow;
            local const real *lines[KH];
            TAPS for (int i = 0; i < KH; i++) lines[i] =
                x_rows + (r0 + i >= 0 && r0 + i < ih ? SLOT(r0 + i, X_ROWS) : X_ROWS) * x_pitch;
#ifdef CUT
            realv values[KH][SW];
            TAPS for (int i = 0; i < KH; i++) TAPS for (int p = 0; p < SW; p++) values[i][p] =
                GET(lines[i], p * phase_pitch);
#endif
            for (int v = 0; v < ow; v += VL) {
                const realv result = LOAD_BEFORE(OPEN(y), windows + v, y_end);
                realv tap = -1;
                TAPS for (int i = KH - 1; i >= 0; i--) {
#ifdef CUT
                    realv next[SW];
                    TAPS for (int p = 0; p < SW; p++) next[p] = GET(lines[i], v + VL + p * phase_pitch);
#endif
                    TAPS for (int j = KW - 1; j >= 0; j--) {
                        const int p = (j + SHIFT) % SW, n = (j + SHIFT) / SW;
#ifdef CUT
                        const realv value = cut(values[i][p], next[p], n);
#else
                        const realv value = GET(lines[i], v + p * phase_pitch + n);
#endif
                        tap = value == result ? (realv)(real)(i * KW + j) : tap;
                    }
#ifdef CUT
                    TAPS for (int p = 0; p < SW; p++) values[i][p] = next[p];
#endif
                }
                PUT(chosen, slot + v, lanes < (realv)(real)(ow - v) ? tap : (realv)(-1));
                PUT(gradients, slot + v, LOAD_BEFORE(OPEN(dy), windows + v, y_end));
            }
        }
#endif
        // by cells of SH rows: row r of a cell is row r + SH * h of window `below` - h
        for (int below = (begin + ph) / SH; below * SH - ph < end; below++) {
            int slots[MEETING];
            TAPS for (int h = 0; h < MEETING; h++) {
                const bool is_there = below - h >= 0 && below - h < oh;
                slots[h] = (is_there ? SLOT(below - h, SLOTS) : SLOTS) * kept_pitch + LEFT - back;
            }
            TAPS for (int r = 0; r < SH; r++) {
                const int row = below * SH - ph + r;
                if (row < begin || row >= end) continue;
#ifdef CUT
                realv taps[MEETING], flows[MEETING];
                TAPS for (int h = 0; h < MEETING; h++) {
                    taps[h] = GET(chosen, slots[h] - FURTHEST);
                    flows[h] = GET(gradients, slots[h] - FURTHEST);
                }
#endif
                for (int w = 0; w * SW < iw; w += VL) {
#ifdef CUT
                    realv next_taps[MEETING], next_flows[MEETING];
                    TAPS for (int h = 0; h < MEETING; h++) {
                        next_taps[h] = GET(chosen, slots[h] - FURTHEST + w + VL);
                        next_flows[h] = GET(gradients, slots[h] - FURTHEST + w + VL);
                    }
#endif
                    realv phases[SW];
#pragma unroll
                    for (int p = 0; p < SW; p++) {
                        realv sum = 0;
                        TAPS for (int h = (KH - 1 - r + SH) / SH - 1; h >= 0; h--) {
                            TAPS for (int j = (p + SW - SHIFT) % SW; j < KW; j += SW) {
                                const int n = (j + SHIFT - p) / SW;
#ifdef CUT
                                const realv tap = cut(taps[h], next_taps[h], FURTHEST - n);
                                const realv flow = cut(flows[h], next_flows[h], FURTHEST - n);
#else
                                const realv tap = GET(chosen, slots[h] + w - n);
                                const realv flow = GET(gradients, slots[h] + w - n);
#endif
                                sum += tap == (realv)(real)((r + SH * h) * KW + j) ? flow : (realv)(0);
                            }
                        }
                        phases[p] = sum;
                    }
                    const long i = (plane * ih + row) * iw + w * SW;
                    const int left = iw - w * SW;
#if SW <= 2
                    realv parts[SW];
#if SW == 1
                    parts[0] = phases[0];
#else
                    parts[0].even = phases[0].lo;
                    parts[0].odd = phases[1].lo;
                    parts[1].even = phases[0].hi;
                    parts[1].odd = phases[1].hi;
#endif
#pragma unroll
                    for (int p = 0; p < SW; p++) {
                        const long place = i + p * VL;
                        if (p * VL >= left) continue;
#ifdef PAST_CACHES
                        if (past) {
                            PAST_stored(OPEN(dx), place, parts[p]);
                            continue;
                        }
#endif
                        // what lies beyond a row is written again with the next row
                        if (!accumulate && place + VL <= run_end)
                            VSTORE(OPEN(dx), place, parts[p]);
                        else
                            store_some(OPEN(dx), place, left - p * VL, parts[p], accumulate);
                    }
#else
                    for (int p = 0; p < SW; p++) {
                        real results[VL];
                        PUT(results, 0, phases[p]);
                        for (int lane = 0; lane < VL && lane * SW + p < left; lane++) {
                            const long place = i + lane * SW + p;
                            STORE(OPEN(dx), place, results[lane] + (accumulate ? LOAD(OPEN(dx), place) : 0));
                        }
                    }
#endif
#ifdef CUT
                    TAPS for (int h = 0; h < MEETING; h++) {
                        taps[h] = next_taps[h];
                        flows[h] = next_flows[h];
                    }
#endif
                }
            }
        }
        at += end - begin;
    }
}
