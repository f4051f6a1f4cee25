// Sums of an expression over all elements of several arrays, to one number, in a fixed order.
//
// totals_parts: a work-group adds up TILE elements of one array, and writes a real of the workspace
// totals_sum:   one work-group adds these up
//
// BODY               the assignment of y0 from x0 and the scalars p_name
// FIRST(F)           F(0, kind) for the first array, kind: stored or real, as its elements are
// ARRAYS(F)          F(a, kind) for each other array
// SHARED(F)          F(name) for each scalar
// RESULT             stored or real, as the result is
#include "pointwise/value.cl"

#ifdef GROUP
// The sum of the work-items' numbers, in the first one.
inline real group_sum(local real *numbers, const real mine) {
    const int lane = get_local_id(0);
    numbers[lane] = mine;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int half_way = GROUP / 2; half_way > 0; half_way /= 2) {
        if (lane < half_way) numbers[lane] += numbers[lane + half_way];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    return numbers[0];
}
#endif

#ifdef TILE
#define SHARED_PARAMETER(name) const real p_##name,
#define PARAMETERS_OF(a, kind) TENSOR_OF(const kind, in_##a), const ulong size_##a, const ulong first_##a,
#define CHOOSE(a, kind)           \
    if (group >= first_##a) {     \
        xs_stored = 0;            \
        xs_real = 0;              \
        xs_##kind = OPEN(in_##a); \
        size = size_##a;          \
        first = first_##a;        \
    }

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void totals_parts(
    SHARED(SHARED_PARAMETER) FIRST(PARAMETERS_OF) ARRAYS(PARAMETERS_OF) TENSOR_OF(real, parts)) {
    local real numbers[GROUP];
    const ulong group = get_group_id(0);
    global const stored *xs_stored = 0;
    global const real *xs_real = 0;
    ulong size = 0, first = 0;
    FIRST(CHOOSE)
    ARRAYS(CHOOSE)
    const ulong begin = (group - first) * TILE, end = min(size, begin + TILE);
    real total = REAL(0.0);
    for (ulong at = begin + get_local_id(0); at < end; at += GROUP) {
        const VALUE x0 = xs_real ? LOAD_real(xs_real, at) : LOAD_stored(xs_stored, at);
        VALUE y0;
        BODY
        total += y0;
    }
    total = group_sum(numbers, total);
    if (get_local_id(0) == 0) OPEN(parts)[group] = total;
}
#endif

#ifdef SUM
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void totals_sum(
    TENSOR_OF(const real, parts), const ulong count, TENSOR_OF(RESULT, out), const int accumulate) {
    local real numbers[GROUP];
    real total = REAL(0.0);
    for (ulong at = get_local_id(0); at < count; at += GROUP) total += OPEN(parts)[at];
    total = group_sum(numbers, total);
    if (get_local_id(0) == 0) {
        if (accumulate) total += CAT(LOAD_, RESULT)(OPEN(out), 0);
        CAT(STORE_, RESULT)(OPEN(out), 0, total);
    }
}
#endif
