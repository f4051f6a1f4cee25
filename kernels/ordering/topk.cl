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

// The order as numbers: the first element has the least key. NaN has 0.
#if STORAGE == 64
typedef ulong key_type;
#define AS_KEY as_ulong
#define KEY_BITS 64
#else
typedef uint key_type;
#define AS_KEY as_uint
#define KEY_BITS 32
#endif
#define DIGIT_BITS 8
#define DIGITS (1 << DIGIT_BITS)
#ifndef GROUP
#define GROUP 64
#endif

key_type key_of(const real value) {
    if (isnan(value)) return 0;
    const key_type bits = AS_KEY(value == 0 ? (real)0 : value), sign = (key_type)1 << (KEY_BITS - 1);
    const key_type rising = bits & sign ? ~bits : bits | sign;
    return SMALLEST ? rising : ~rising;
}

// A work-group per line: finds the key of the k-th element digit by digit, collects the k elements and orders them.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void topk_selects(PARAMETERS, TENSOR_OF(uint, chosen)) {
    local uint counts[DIGITS], less[GROUP], equal[GROUP];
    local key_type prefix_of;
    local uint left_of;
    const uint lane = get_local_id(0);
    const ulong line = get_group_id(0), i = line % inner, o = line / inner, begin = o * extent * inner + i;
    global const stored *xs = OPEN(x);
    global stored *ys = OPEN(y);
    global int *indices = OPEN(index);
    global uint *found = OPEN(chosen) + line * k;
    if (lane == 0) {
        prefix_of = 0;
        left_of = (uint)k;
    }
    for (int shift = KEY_BITS - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        for (uint d = lane; d < DIGITS; d += GROUP) counts[d] = 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        const key_type prefix = prefix_of;
        for (ulong e = lane; e < extent; e += GROUP) {
            const key_type key = key_of(LOAD(xs, begin + e * inner));
            if ((key >> shift >> DIGIT_BITS) == (prefix >> shift >> DIGIT_BITS))  // a shift by all bits is none
                atomic_inc(&counts[(uint)(key >> shift) & (DIGITS - 1)]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane == 0) {
            uint digit = 0, before = 0;
            while (before + counts[digit] < left_of) before += counts[digit++];
            left_of -= before;
            prefix_of = prefix | ((key_type)digit << shift);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    const key_type last_key = prefix_of;
    const uint equals = left_of;  // of the last key, so many are among the k
    const ulong part = (extent + GROUP - 1) / GROUP, from = min(extent, lane * part), to = min(extent, from + part);
    uint own_less = 0, own_equal = 0;
    for (ulong e = from; e < to; e++) {
        const key_type key = key_of(LOAD(xs, begin + e * inner));
        own_less += key < last_key;
        own_equal += key == last_key;
    }
    less[lane] = own_less;
    equal[lane] = own_equal;
    barrier(CLK_LOCAL_MEM_FENCE);
    uint place = 0, number = 0, all = 0;
    for (uint other = 0; other < GROUP; other++) {
        place += other < lane ? less[other] : 0;
        number += other < lane ? equal[other] : 0;
        all += equal[other];
    }
    const uint skipped = LAST ? all - equals : 0;
    uint taken = number < skipped ? 0 : min(number - skipped, equals);  // of the last key, before this part
    place += taken;
    for (ulong e = from; e < to; e++) {
        const key_type key = key_of(LOAD(xs, begin + e * inner));
        const int is_equal = key == last_key, counts_in = is_equal && number >= skipped && number - skipped < equals;
        if (key < last_key || counts_in) found[place++] = (uint)e;
        number += is_equal;
    }
    barrier(CLK_GLOBAL_MEM_FENCE);
    for (uint j = lane; j < k; j += GROUP) {
        const uint e = found[j];
        const real value = LOAD(xs, begin + e * inner);
        uint rank = 0;
        for (uint other = 0; other < k; other++)
            rank += comes_before(LOAD(xs, begin + found[other] * inner), found[other], value, e);
        PUT((o * k + rank) * inner + i, value, e)
    }
}
