// Pooling on CPU devices of windows that stand side by side: two columns wide, without padding, so that an element is
// in one window at most. A work-item takes a run of rows of windows, each in vectors.
//
// x, dx  (planes, ih, iw)    y, dy, argmax  (planes, oh, ow)
//
// A vector of windows is two vectors of each of their rows. The last one of a row overlaps the one before.
//
// OPERATOR     as in pooling/operators.cl; backward has no norms of power 2 and 3
// BACKWARD     which of the two kernels there is
// ARGMAX       forward also notes where in its window each maximum stands; backward reads that in place of x and y
// KH           rows of a window
// VL           lanes, at most the windows of a row
// PAST_CACHES  dx is too large to be found in a cache again, and rows are whole vectors

#include "common/lanes.cl"
#include "pooling/operators.cl"
#ifdef PAST_CACHES
#include "common/past_caches.cl"
#endif

#ifndef BACKWARD
#define BACKWARD 0
#endif
#ifndef KH
#define KH 2
#endif

#define EVENS(low, high) ((realv)((low).even, (high).even))
#define ODDS(low, high) ((realv)((low).odd, (high).odd))
#define ROWS_OF_WINDOWS const long rows, const int item_rows, const int ih, const int iw, const int oh, const int ow

// Where little is read, backward makes the rows of dx one after the other, as memory has them.
#if BACKWARD && (OPERATOR != 0 || defined(ARGMAX))
#define PASSES KH
#define ROWS_OF_PASS for (int i = pass; i < pass + 1; i++)
#else
#define PASSES 1
#define ROWS_OF_PASS _Pragma("unroll") for (int i = 0; i < KH; i++)
#endif

// WORK() for each vector of windows: `windows` is its place in y, of which `again` have been there before, and `source`
// that of its first element in x. END() after the last row of a plane, whose other rows begin at `source`.
#define EACH_VECTOR(WORK, END)                                                                  \
    const long first = get_global_id(0) * (long)item_rows, last = min(first + item_rows, rows); \
    long row_source = (first / oh * ih + first % oh * KH) * iw;                                 \
    int u = (int)(first % oh);                                                                  \
    for (long at = first; at < last; at++) {                                                    \
        for (int pass = 0; pass < PASSES; pass++)                                               \
            for (int from = 0; from < ow; from += VL) {                                         \
                const int v = min(from, ow - VL), again = from - v;                             \
                const long windows = at * ow + v, source = row_source + 2 * v;                  \
                WORK()                                                                          \
            }                                                                                   \
        row_source += KH * iw;                                                                  \
        if (++u == oh) {                                                                        \
            u = 0;                                                                              \
            const long source = row_source;                                                     \
            END()                                                                               \
            row_source = source + (long)(ih - oh * KH) * iw;                                    \
        }                                                                                       \
    }

// Stores a vector, or adds it, of which the first `again` lanes have been there before.
void put(global stored *p, const long i, const realv value, const int again, const int accumulate) {
    if (!accumulate) {
        VSTORE(p, i, value);
        return;
    }
    real kept[VL];
    PUT(kept, 0, value);
    for (int lane = again; lane < VL; lane++) STORE(p, i + lane, LOAD(p, i + lane) + kept[lane]);
}

// The first place of windows that equals their maxima; `evens` and `odds` are the columns of their rows.
realv places_of(const realv result, const realv *evens, const realv *odds) {
    realv place = NOWHERE;
#pragma unroll
    for (int i = KH - 1; i >= 0; i--) {
        place = odds[i] == result ? (realv)(real)(2 * i + 1) : place;
        place = evens[i] == result ? (realv)(real)(2 * i) : place;
    }
    return place;
}

#if !BACKWARD
#ifdef ARGMAX
#define RESULTS TENSOR(y), TENSOR_OF(uchar, argmax), const int accumulate, const int accumulate_argmax

void put_places(global uchar *p, const long i, const realv places, const int again, const int accumulate) {
    if (!accumulate) {
        CAT(vstore, VL)(CAT(convert_uchar, VL)(places), 0, p + i);
        return;
    }
    real kept[VL];
    PUT(kept, 0, places);
    for (int lane = again; lane < VL; lane++) p[i + lane] += (uchar)kept[lane];
}
#else
#define RESULTS TENSOR(y), const int accumulate
#endif

kernel void pool_side_by_side_forward(CONST_TENSOR(x), RESULTS, ROWS_OF_WINDOWS) {
#ifdef ARGMAX
#define POOL()                                                                                                    \
    realv evens[KH], odds[KH], even = START, odd = START, result = START;                                         \
    _Pragma("unroll") for (int i = 0; i < KH; i++) {                                                              \
        const realv low = VLOAD(OPEN(x), source + i * iw), high = VLOAD(OPEN(x), source + i * iw + VL);           \
        evens[i] = EVENS(low, high);                                                                              \
        odds[i] = ODDS(low, high);                                                                                \
        even = JOIN(even, evens[i]);                                                                              \
        odd = JOIN(odd, odds[i]);                                                                                 \
    }                                                                                                             \
    result = JOIN(result, even);                                                                                  \
    result = JOIN(result, odd);                                                                                   \
    if (argmax_base) put_places(OPEN(argmax), windows, places_of(result, evens, odds), again, accumulate_argmax); \
    if (y_base) put(OPEN(y), windows, result, again, accumulate);
#else
#define POOL()                                                                                            \
    realv low = START, high = START, result = START;                                                      \
    _Pragma("unroll") for (int i = 0; i < KH; i++) {                                                      \
        const realv lows = VLOAD(OPEN(x), source + i * iw), highs = VLOAD(OPEN(x), source + i * iw + VL); \
        low = JOIN(low, RAISE(lows));                                                                     \
        high = JOIN(high, RAISE(highs));                                                                  \
    }                                                                                                     \
    const realv even = EVENS(low, high), odd = ODDS(low, high);                                           \
    result = JOIN(result, even);                                                                          \
    result = JOIN(result, odd);                                                                           \
    if (OPERATOR == 1) result /= (realv)(2 * KH);                                                         \
    put(OPEN(y), windows, ROOT(result), again, accumulate);
#endif
#define NOTHING()
    EACH_VECTOR(POOL, NOTHING)
}
#else
#ifdef ARGMAX
#define VALUES TENSOR_OF(const uchar, argmax)
#else
#define VALUES CONST_TENSOR(x), CONST_TENSOR(y)
#endif
#if STORAGE == 64
#define FROM_BYTES CAT(convert_double, VL)
#else
#define FROM_BYTES CAT(convert_float, VL)
#endif

// What the two columns of row i of the windows get: `flow`, or nothing where another place was the maximum.
#if OPERATOR != 0
#define SHARE(tap) flow
#else
#define SHARE(tap) (place == (realv)(real)(tap) ? flow : (realv)(0))
#endif

kernel void pool_side_by_side_backward(VALUES, CONST_TENSOR(dy), TENSOR(dx), const int accumulate, ROWS_OF_WINDOWS) {
#ifdef PAST_CACHES
    const bool past = ON_VECTORS(OPEN(dx)) && !accumulate;
#define PUT_PART(i, value, before)                          \
    if (past) {                                             \
        if ((before) < VL) PAST_stored(OPEN(dx), i, value); \
    } else {                                                \
        put(OPEN(dx), i, value, before, accumulate);        \
    }
#else
#define PUT_PART(i, value, before) put(OPEN(dx), i, value, before, accumulate);
#endif

#if OPERATOR == 1
#define FLOW(value) ((value) / (realv)(2 * KH))
#else
#define FLOW(value) (value)
#endif

#if OPERATOR != 0
#define FIND_PLACES
#elif defined(ARGMAX)
#define FIND_PLACES const realv place = FROM_BYTES(CAT(vload, VL)(0, OPEN(argmax) + windows));
#else
#define FIND_PLACES                                                                                     \
    realv evens[KH], odds[KH];                                                                          \
    _Pragma("unroll") for (int i = 0; i < KH; i++) {                                                    \
        const realv low = VLOAD(OPEN(x), source + i * iw), high = VLOAD(OPEN(x), source + i * iw + VL); \
        evens[i] = EVENS(low, high);                                                                    \
        odds[i] = ODDS(low, high);                                                                      \
    }                                                                                                   \
    const realv place = places_of(VLOAD(OPEN(y), windows), evens, odds);
#endif

#define SPREAD()                                                                                              \
    const realv flow = FLOW(VLOAD(OPEN(dy), windows));                                                        \
    FIND_PLACES                                                                                               \
    ROWS_OF_PASS {                                                                                            \
        const realv left = SHARE(2 * i), right = SHARE(2 * i + 1);                                            \
        realv low, high;                                                                                      \
        low.even = left.lo;                                                                                   \
        low.odd = right.lo;                                                                                   \
        high.even = left.hi;                                                                                  \
        high.odd = right.hi;                                                                                  \
        PUT_PART(source + i * iw, low, 2 * again)                                                             \
        PUT_PART(source + i * iw + VL, high, max(2 * again - VL, 0))                                          \
        if (v + VL == ow && iw > 2 * ow && !accumulate) STORE(OPEN(dx), source + i * iw + 2 * VL, REAL(0.0)); \
    }

// Rows below the last windows.
#define CLEAR()      \
    if (!accumulate) \
        for (long i = source; i < source + (long)(ih - oh * KH) * iw; i++) STORE(OPEN(dx), i, REAL(0.0));

    EACH_VECTOR(SPREAD, CLEAR)
}
#endif
