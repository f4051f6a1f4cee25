// Reductions of a generated program's values (see pointwise_value.cl) over some axes, without atomics: the work is cut the same
// way in every run, each work-item or work-group folds its part in a fixed order, and reduce_finish folds the parts.
//
// There are `kept` results; each is a fold over `rows` times `length` values (columns: over `rows` values), cut into `parts`.
// With PARTIAL outputs are partial results of type real, laid out (parts, kept).
//   reduce_rows      CPUs, innermost axis folded: VL running results per lane, joined at the end
//   reduce_columns   CPUs, innermost axis kept: VL results at a time
//   reduce_elements  a work-item per result and part, any axes
//   reduce_groups    GPUs: a work-group of GROUP per result and part
//   reduce_finish    folds the parts; on GPUs a work-group of GROUP per result does (reduce_finish_groups)
// Running results have three levels, so that rounding grows with the cube root of the count: values go to level 0, every
// BLOCK of them to level 1, every BLOCK of those to level 2.
//
// The kernel wanted is named by a macro, REDUCE_ROWS and so on.
//
// COMBINE_n(a, b), IDENTITY_n  the fold of output n; associative, with its neutral element
#include "pointwise/value.cl"

#ifndef BLOCK
#define BLOCK 64
#endif
#ifndef GROUP
#define GROUP 256
#endif

#define START_KEPT(n, kind, unit) ulong kept_##n = 0;
#define ADVANCE_KEPT(n, a) kept_##n += (ulong)at_##a * stride_##n##_##a;
#define START(n, kind, unit) ulong from_##n = kept_##n;
#define ADVANCE(n, a) from_##n += (ulong)at_##a * stride_##n##_##a;

#define DECLARE_LEVELS(n, kind) VALUE a0_##n = IDENTITY_##n, a1_##n = IDENTITY_##n, a2_##n = IDENTITY_##n;
#define FOLD(n, kind) a0_##n = COMBINE_##n(a0_##n, y##n);
#define FLUSH_0(n, kind)                      \
    a1_##n = COMBINE_##n(a1_##n, a0_##n);     \
    a0_##n = IDENTITY_##n;
#define FLUSH_1(n, kind)                      \
    a2_##n = COMBINE_##n(a2_##n, a1_##n);     \
    a1_##n = IDENTITY_##n;
#define JOIN_LEVELS(n, kind) VALUE y##n = COMBINE_##n(a2_##n, COMBINE_##n(a1_##n, a0_##n));
// Counts a full level 0.
#define FLUSH                  \
    {                          \
        OUTPUTS(FLUSH_0)       \
        if (++flushes == BLOCK) { \
            OUTPUTS(FLUSH_1)   \
            flushes = 0;       \
        }                      \
    }

#ifdef PARTIAL
#define PLACE(result) ((ulong)part * kept + (result))
#define FINISH(n, kind, at, value) ys##n[at] = value;
#else
#define PLACE(result) (result)
#define FINISH(n, kind, at, value)                    \
    if (wanted_##n) {                                 \
        real y##n = (value);                          \
        BLEND_SCALAR(n, LOAD_##kind(ys##n, at))       \
        STORE_##kind(ys##n, at, y##n);                \
    }
#endif
// BLEND for one value of a kernel whose VALUE is a vector.
#ifdef BETA
#define BLEND_SCALAR(n, old) y##n = LANE(SCALED(SPLAT(y##n))) + (LANE(BETA) + (accumulate_##n ? REAL(1.0) : REAL(0.0))) * (old);
#else
#define BLEND_SCALAR(n, old)            \
    y##n = LANE(SCALED(SPLAT(y##n)));   \
    if (accumulate_##n) y##n += (old);
#endif

#ifdef VL
#define LANE(v) ((v).s0)
#define HOLD_0(n, kind) const VALUE held_##n = SPLAT(LOAD_##kind(xs##n, from_##n));
#define HOLD_1(n, kind)
#define HOLD(n, kind, unit) HOLD_##unit(n, kind)
#define FETCH_0(n, kind) const VALUE x##n = held_##n;
#define FETCH_1(n, kind) const VALUE x##n = VLOAD_##kind(xs##n, from_##n + column);
#define FETCH(n, kind, unit) FETCH_##unit(n, kind)
#define FOLD_TAIL(n, kind) a0_##n = COMBINE_##n(a0_##n, PICK(lanes < SPLAT((real)skip), IDENTITY_##n, y##n));

#ifdef REDUCE_ROWS
// Joins the lanes of y##n, as a tree.
#define JOIN_LANES(n, kind)                                                      \
    real folded_##n[2 * VL];                                                     \
    CAT(vstore, VL)(IDENTITY_##n, 0, folded_##n + VL);                           \
    CAT(vstore, VL)(y##n, 0, folded_##n);                                        \
    for (int half_way = VL / 2; half_way > 0; half_way /= 2) {                   \
        const VALUE low = CAT(vload, VL)(0, folded_##n), high = CAT(vload, VL)(0, folded_##n + half_way); \
        CAT(vstore, VL)(COMBINE_##n(low, high), 0, folded_##n);                  \
    }
#define FINISH_FOLDED(n, kind) FINISH(n, kind, PLACE(result), folded_##n[0])

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void reduce_rows(
    PARAMETERS const ulong kept, const ulong kept_per_item, const ulong rows, const ulong length, const ulong pieces,
    const ulong parts) {
    INPUTS(OPEN_INPUT)
    OUTPUTS(OPEN_OUTPUT)
    const ulong part = get_global_id(0) % parts, first = get_global_id(0) / parts * kept_per_item;
    const ulong units = rows * pieces, vectors = length / VL;
    const ulong first_unit = units * part / parts, last_unit = units * (part + 1) / parts;
    real numbers[VL];
    for (int i = 0; i < VL; i++) numbers[i] = i;
    const VALUE lanes = CAT(vload, VL)(0, numbers);
    for (ulong result = first; result < min(first + kept_per_item, kept); result++) {
        ulong rest = result;
        INPUTS(START_KEPT)
        KEPT_AXES(SPLIT_AXIS, LAST_AXIS)
        KEPT_STRIDES(ADVANCE_KEPT)
        OUTPUTS(DECLARE_LEVELS)
        int flushes = 0;
        for (ulong unit = first_unit; unit < last_unit; unit++) {
            const ulong row = unit / pieces, piece = unit % pieces;
            const ulong begin = vectors * piece / pieces * VL;
            const ulong end = piece + 1 == pieces ? length : vectors * (piece + 1) / pieces * VL;
            ulong rest = row;
            INPUTS(START)
            ROW_AXES(SPLIT_AXIS, LAST_AXIS)
            ROW_STRIDES(ADVANCE)
            INPUTS(HOLD)
            ulong column = begin;
            while (column + VL <= end) {
                const ulong stop = min(column + BLOCK * VL, end - VL + 1);
                for (; column < stop; column += VL) {
                    INPUTS(FETCH)
                    OUTPUTS(DECLARE_OUTPUT)
                    BODY
                    OUTPUTS(FOLD)
                }
                if (column + VL <= end) FLUSH
            }
            if (column < end) {
                const int skip = column + VL - end;
                column = end - VL;
                INPUTS(FETCH)
                OUTPUTS(DECLARE_OUTPUT)
                BODY
                OUTPUTS(FOLD_TAIL)
            }
            FLUSH
        }
        OUTPUTS(JOIN_LEVELS)
        OUTPUTS(JOIN_LANES)
        OUTPUTS(FINISH_FOLDED)
    }
}

#else  // REDUCE_COLUMNS
#define FINISH_LANES(n, kind)                        \
    real folded_##n[VL];                             \
    CAT(vstore, VL)(y##n, 0, folded_##n);            \
    for (ulong i = skip; i < VL; i++) FINISH(n, kind, PLACE(outer * length + column + i), folded_##n[i])

// A work-item takes VL columns of one outer position; the last columns' vector overlaps, and its first lanes are not written.
kernel __attribute__((reqd_work_group_size(1, 1, 1))) void reduce_columns(
    PARAMETERS const ulong kept, const ulong length, const ulong rows, const ulong parts) {
    INPUTS(OPEN_INPUT)
    OUTPUTS(OPEN_OUTPUT)
    const ulong vectors = (length + VL - 1) / VL;
    const ulong vector = get_global_id(0) % vectors, part = get_global_id(0) / vectors % parts;
    const ulong outer = get_global_id(0) / vectors / parts;
    const ulong column = min(vector * VL, length - VL), skip = vector * VL - column;
    ulong rest = outer;
    INPUTS(START_KEPT)
    KEPT_AXES(SPLIT_AXIS, LAST_AXIS)
    KEPT_STRIDES(ADVANCE_KEPT)
    OUTPUTS(DECLARE_LEVELS)
    int flushes = 0;
    ulong row = rows * part / parts;
    const ulong end = rows * (part + 1) / parts;
    while (row < end) {
        for (const ulong stop = min(row + BLOCK, end); row < stop; row++) {
            ulong rest = row;
            INPUTS(START)
            ROW_AXES(SPLIT_AXIS, LAST_AXIS)
            ROW_STRIDES(ADVANCE)
            INPUTS(HOLD)
            INPUTS(FETCH)
            OUTPUTS(DECLARE_OUTPUT)
            BODY
            OUTPUTS(FOLD)
        }
        FLUSH
    }
    OUTPUTS(JOIN_LEVELS)
    OUTPUTS(FINISH_LANES)
}
#endif

#else  // no vectors
#define LANE(v) (v)
#define FINISH_ONE(n, kind) FINISH(n, kind, PLACE(result), total_##n)
#define NAME_TOTAL(n, kind) const real total_##n = y##n;

#define FOLD_ELEMENT(row)               \
    {                                   \
        INDEX rest = row;               \
        INPUTS(START)                   \
        ROW_AXES(SPLIT_AXIS, LAST_AXIS) \
        ROW_STRIDES(ADVANCE)            \
        INPUTS(FETCH)                   \
        OUTPUTS(DECLARE_OUTPUT)         \
        BODY                            \
        OUTPUTS(FOLD)                   \
    }

#define JOIN_GROUP(n, kind)                                                                      \
    shared_values[lane] = y##n;                                                                  \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                \
    for (int half_way = GROUP / 2; half_way > 0; half_way /= 2) {                                \
        if (lane < half_way) shared_values[lane] = COMBINE_##n(shared_values[lane], shared_values[lane + half_way]); \
        barrier(CLK_LOCAL_MEM_FENCE);                                                            \
    }                                                                                            \
    const real total_##n = shared_values[0];                                                     \
    barrier(CLK_LOCAL_MEM_FENCE);

#if defined(REDUCE_ELEMENTS)
#define FETCH(n, kind, unit) const VALUE x##n = LOAD_##kind(xs##n, from_##n);

kernel void reduce_elements(PARAMETERS const ulong kept, const ulong rows, const ulong parts) {
    INPUTS(OPEN_INPUT)
    OUTPUTS(OPEN_OUTPUT)
    const INDEX result = get_global_id(0) % kept, part = get_global_id(0) / kept;
    if (part >= parts) return;
    INDEX rest = result;
    INPUTS(START_KEPT)
    KEPT_AXES(SPLIT_AXIS, LAST_AXIS)
    KEPT_STRIDES(ADVANCE_KEPT)
    OUTPUTS(DECLARE_LEVELS)
    int flushes = 0;
    ulong row = rows * part / parts;
    const ulong end = rows * (part + 1) / parts;
    while (row < end) {
        const ulong stop = min(row + BLOCK, end);
#pragma unroll 4
        for (; row < stop; row++) FOLD_ELEMENT(row)
        FLUSH
    }
    OUTPUTS(JOIN_LEVELS)
    OUTPUTS(NAME_TOTAL)
    OUTPUTS(FINISH_ONE)
}

#elif defined(REDUCE_GROUPS)
#define FETCH(n, kind, unit) const VALUE x##n = LOAD_##kind(xs##n, from_##n + unit * column);

// A work-item walks every GROUP-th value of its part, and keeps row and column instead of dividing.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void reduce_groups(PARAMETERS const ulong kept, const ulong rows,
                                                                             const ulong length, const ulong parts) {
    local real shared_values[GROUP];
    INPUTS(OPEN_INPUT)
    OUTPUTS(OPEN_OUTPUT)
    const INDEX result = get_group_id(0) / (INDEX)parts, part = get_group_id(0) % (INDEX)parts;
    const int lane = get_local_id(0);
    INDEX rest = result;
    INPUTS(START_KEPT)
    KEPT_AXES(SPLIT_AXIS, LAST_AXIS)
    KEPT_STRIDES(ADVANCE_KEPT)
    OUTPUTS(DECLARE_LEVELS)
    int flushes = 0;
    const INDEX begin = rows * length * part / parts + lane, end = rows * length * (part + 1) / parts;
    const INDEX row_step = GROUP / (INDEX)length, column_step = GROUP % (INDEX)length;
    INDEX row = begin / (INDEX)length, column = begin % (INDEX)length;
    INDEX left = begin < end ? (end - begin + GROUP - 1) / GROUP : 0;
    while (left > 0) {
        const INDEX count = min(left, (INDEX)BLOCK);
        left -= count;
#pragma unroll 4
        for (INDEX i = 0; i < count; i++) {
            FOLD_ELEMENT(row)
            row += row_step;
            column += column_step;
            if (column >= length) {
                column -= length;
                row++;
            }
        }
        FLUSH
    }
    OUTPUTS(JOIN_LEVELS)
    OUTPUTS(JOIN_GROUP)
    if (lane == 0) {
        OUTPUTS(FINISH_ONE)
    }
}

#else  // REDUCE_FINISH
#define OPEN_PARTS(n, kind, unit) global const real *parts##n = OPEN(in##n);
#define FOLD_PART(n, kind) a0_##n = COMBINE_##n(a0_##n, parts##n[part * kept + result]);

// The parts of output n stand at input n.
#ifdef REDUCE_FINISH_GROUPS
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void reduce_finish_groups(PARAMETERS const ulong kept,
                                                                                    const ulong parts) {
    local real shared_values[GROUP];
    const ulong result = get_group_id(0);
    const int lane = get_local_id(0), step = GROUP;
#else
kernel void reduce_finish(PARAMETERS const ulong kept, const ulong parts) {
    const ulong result = get_global_id(0);
    const int lane = 0, step = 1;
    if (result >= kept) return;
#endif
    INPUTS(OPEN_PARTS)
    OUTPUTS(OPEN_OUTPUT)
    OUTPUTS(DECLARE_LEVELS)
    int flushes = 0, count = 0;
    for (ulong part = lane; part < parts; part += step) {
        OUTPUTS(FOLD_PART)
        if (++count == BLOCK) {
            FLUSH
            count = 0;
        }
    }
    OUTPUTS(JOIN_LEVELS)
#ifdef REDUCE_FINISH_GROUPS
    OUTPUTS(JOIN_GROUP)
    if (lane > 0) return;
#else
    OUTPUTS(NAME_TOTAL)
#endif
    OUTPUTS(FINISH_ONE)
}
#endif
#endif
