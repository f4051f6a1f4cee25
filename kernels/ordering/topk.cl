// The k greatest elements of each line along the middle axis of x (outer, extent, inner), in their
// order, with their indices.
//
// SMALLEST  1: the smallest elements
// LAST      of equal elements 0: the first comes first, 1: the last

#ifndef SMALLEST
#define SMALLEST 0
#endif
#ifndef LAST
#define LAST 0
#endif

// Whether element a at i comes before element b at j; NaN comes before all numbers.
int comes_before(const real a, const ulong i, const real b, const ulong j) {
    const int none = isnan(a), other = isnan(b);
    if (none != other) return none;
    if (!none && a != b) return SMALLEST ? a < b : a > b;
    return LAST ? i > j : i < j;
}

#define PARAMETERS                                                                                       \
    CONST_TENSOR(x), TENSOR(y), TENSOR_OF(int, index), const int accumulate, const int accumulate_index, \
        const ulong outer, const ulong extent, const ulong inner, const ulong k

// A result that nobody wants is no memory.
#define PUT(place, value, at)                                                   \
    if (ys) STORE(ys, place, accumulate ? LOAD(ys, place) + (value) : (value)); \
    if (indices) indices[place] = accumulate_index ? indices[place] + (int)(at) : (int)(at);

kernel void topk_scans(PARAMETERS) {
    const ulong item = get_global_id(0);
    if (item >= outer * inner) return;
    global const stored *xs = OPEN(x);
    global stored *ys = OPEN(y);
    global int *indices = OPEN(index);
    const ulong i = item % inner, o = item / inner, begin = o * extent * inner + i;
    real last = 0;
    ulong last_at = extent;
    for (ulong n = 0; n < k; n++) {
        real best = 0;
        ulong best_at = extent;
        for (ulong e = 0; e < extent; e++) {
            const real value = LOAD(xs, begin + e * inner);
            if (n > 0 && !comes_before(last, last_at, value, e)) continue;
            if (best_at == extent || comes_before(value, e, best, best_at)) {
                best = value;
                best_at = e;
            }
        }
        PUT((o * k + n) * inner + i, best, best_at)
        last = best;
        last_at = best_at;
    }
}

kernel void topk_ranks(PARAMETERS) {
    const ulong item = get_global_id(0);
    if (item >= outer * extent * inner) return;
    global const stored *xs = OPEN(x);
    global stored *ys = OPEN(y);
    global int *indices = OPEN(index);
    const ulong i = item % inner, e = item / inner % extent, o = item / inner / extent, begin = o * extent * inner + i;
    const real value = LOAD(xs, begin + e * inner);
    ulong rank = 0;
    for (ulong j = 0; j < extent && rank < k; j++) rank += comes_before(LOAD(xs, begin + j * inner), j, value, e);
    if (rank >= k) return;
    PUT((o * k + rank) * inner + i, value, e)
}
