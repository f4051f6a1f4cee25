// Cumulative sums or products along the middle axis of x (outer, extent, inner).
//
// PRODUCT    0: sums, 1: products
// EXCLUSIVE  1: without the element itself
// REVERSE    1: from the end of the axis

#ifndef PRODUCT
#define PRODUCT 0
#endif
#ifndef EXCLUSIVE
#define EXCLUSIVE 0
#endif
#ifndef REVERSE
#define REVERSE 0
#endif

kernel void cumulative_lines(CONST_TENSOR(x), TENSOR(y), const int accumulate, const ulong outer, const ulong extent,
                             const ulong inner) {
    const ulong item = get_global_id(0);
    if (item >= outer * inner) return;
    global const stored *xs = OPEN(x);
    global stored *ys = OPEN(y);
    const ulong begin = item / inner * extent * inner + item % inner;
    real total = PRODUCT;
    for (ulong n = 0; n < extent; n++) {
        const ulong place = begin + (REVERSE ? extent - 1 - n : n) * inner;
        const real value = LOAD(xs, place);
        const real next = PRODUCT ? total * value : total + value;
        const real result = EXCLUSIVE ? total : next;
        STORE(ys, place, accumulate ? LOAD(ys, place) + result : result);
        total = next;
    }
}
