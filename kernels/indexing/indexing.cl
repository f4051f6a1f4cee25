// Elements by their index along the middle axis of x (outer, extent, inner), and the other way: elements that take in
// updates. A negative index counts from the end; one outside of the axis reads NaN and changes nothing.
//
// SHARING    shape of the index: 0 (count), 1 (outer, count), 2 (outer, count, inner)
// OPERATOR   of scatter: 0 set, 1 add, 2 mul, 3 max, 4 min; max and min keep NaN
// ONTO_ZERO  1: scatter starts from 0 and not from x

#ifndef SHARING
#define SHARING 0
#endif
#ifndef OPERATOR
#define OPERATOR 0
#endif
#ifndef ONTO_ZERO
#define ONTO_ZERO 0
#endif

#if SHARING == 0
#define INDEX_AT(o, j, i) (j)
#elif SHARING == 1
#define INDEX_AT(o, j, i) ((o) * count + (j))
#else
#define INDEX_AT(o, j, i) (((o) * count + (j)) * inner + (i))
#endif

#define SIZES const ulong outer, const ulong extent, const ulong inner, const ulong count

kernel void gather_elements(CONST_TENSOR(x), TENSOR_OF(const int, index), TENSOR(y), const int accumulate, SIZES) {
    const ulong item = get_global_id(0);
    if (item >= outer * count * inner) return;
    global const stored *xs = OPEN(x);
    global const int *indices = OPEN(index);
    global stored *ys = OPEN(y);
    const ulong i = item % inner, j = item / inner % count, o = item / inner / count;
    long at = indices[INDEX_AT(o, j, i)];
    if (at < 0) at += (long)extent;
    real value = at >= 0 && at < (long)extent ? LOAD(xs, (o * extent + (ulong)at) * inner + i) : (real)NAN;
    if (accumulate) value += LOAD(ys, item);
    STORE(ys, item, value);
}

kernel void scatter_lines(CONST_TENSOR(x), TENSOR_OF(const int, index), CONST_TENSOR(updates), TENSOR(y),
                          const int accumulate, TENSOR_OF(real, line), SIZES) {
    const ulong item = get_global_id(0);
    if (item >= outer * inner) return;
    global const stored *xs = OPEN(x), *news = OPEN(updates);
    global const int *indices = OPEN(index);
    global stored *ys = OPEN(y);
    global real *lines = OPEN(line);
    const ulong i = item % inner, o = item / inner, begin = o * extent * inner + i;
    for (ulong e = 0; e < extent; e++) lines[begin + e * inner] = ONTO_ZERO ? 0 : LOAD(xs, begin + e * inner);
    for (ulong j = 0; j < count; j++) {
        long at = indices[INDEX_AT(o, j, i)];
        if (at < 0) at += (long)extent;
        if (at < 0 || at >= (long)extent) continue;
        const real update = LOAD(news, (o * count + j) * inner + i);
        const ulong place = begin + (ulong)at * inner;
#if OPERATOR == 0
        lines[place] = update;
#elif OPERATOR == 1
        lines[place] += update;
#elif OPERATOR == 2
        lines[place] *= update;
#elif OPERATOR == 3
        if (update > lines[place] || isnan(update)) lines[place] = update;
#else
        if (update < lines[place] || isnan(update)) lines[place] = update;
#endif
    }
    for (ulong e = 0; e < extent; e++) {
        const ulong place = begin + e * inner;
        STORE(ys, place, accumulate ? LOAD(ys, place) + lines[place] : lines[place]);
    }
}
