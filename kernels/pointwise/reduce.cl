// Reductions of a generated program's values (see pointwise_value.cl) over some axes, without atomics: the work
// is cut the same way in every run, each work-item or work-group folds its part in a fixed order, and
// reduce_finish folds the parts.
//
// There are `kept` results; each is a fold over `rows` times `length` values (columns: over `rows` values), cut into
// `parts`. With PARTIAL outputs are partial results of type real, laid out (parts, kept).
//   reduce_rows      CPUs, innermost axis folded: VL running results per lane, joined at the end
//   reduce_columns   CPUs, innermost axis kept: VL results at a time
//   reduce_elements  a work-item per result and part, any axes
//   reduce_groups    GPUs: team_size of a work-group's GROUP work-items per result and part
//   reduce_staged    GPUs, one output, short contiguous rows: a work-group's rows are one stretch of memory, which its
//                    work-items read in quads; the values go to local memory, where team_size of them fold a row
//   reduce_finish    folds the parts; on GPUs a work-group of GROUP per result does (reduce_finish_groups)
// Running results have three levels, so that rounding grows with the cube root of the count: values go to level 0,
// every BLOCK of them to level 1, every BLOCK of those to level 2.
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
#ifndef WIDE
#define WIDE 1  // neighbouring values that a work-item of reduce_groups reads at once: 4 or 1
#endif
#ifndef UNROLL
#define UNROLL 4  // of which it reads so many
#endif

#define START_KEPT(n, kind, unit) ulong kept_##n = 0;
#define ADVANCE_KEPT(n, a) kept_##n += (ulong)at_##a * stride_##n##_##a;
#define START(n, kind, unit) ulong from_##n = kept_##n;
#define ADVANCE(n, a) from_##n += (ulong)at_##a * stride_##n##_##a;

#define DECLARE_LEVELS(n, kind) VALUE a0_##n = IDENTITY_##n, a1_##n = IDENTITY_##n, a2_##n = IDENTITY_##n;
#define FOLD(n, kind) a0_##n = COMBINE_##n(a0_##n, y##n);
#define FLUSH_0(n, kind)                  \
    a1_##n = COMBINE_##n(a1_##n, a0_##n); \
    a0_##n = IDENTITY_##n;
#define FLUSH_1(n, kind)                  \
    a2_##n = COMBINE_##n(a2_##n, a1_##n); \
    a1_##n = IDENTITY_##n;
#define JOIN_LEVELS(n, kind) VALUE y##n = COMBINE_##n(a2_##n, COMBINE_##n(a1_##n, a0_##n));
// Counts a full level 0.
#define FLUSH                     \
    {                             \
        OUTPUTS(FLUSH_0)          \
        if (++flushes == BLOCK) { \
            OUTPUTS(FLUSH_1)      \
            flushes = 0;          \
        }                         \
    }

#ifdef PARTIAL
#define PLACE(result) ((ulong)part * kept + (result))
#define FINISH(n, kind, at, value) ys##n[at] = value;
#else
#define PLACE(result) (result)
#define FINISH(n, kind, at, value)              \
    if (wanted_##n) {                           \
        real y##n = (value);                    \
        BLEND_SCALAR(n, LOAD_##kind(ys##n, at)) \
        STORE_##kind(ys##n, at, y##n);          \
    }
#endif
// BLEND for one value of a kernel whose VALUE is a vector.
#ifdef BETA
#define BLEND_SCALAR(n, old) \
    y##n = LANE(SCALED(SPLAT(y##n))) + (LANE(BETA) + (accumulate_##n ? REAL(1.0) : REAL(0.0))) * (old);
#else
#define BLEND_SCALAR(n, old)          \
    y##n = LANE(SCALED(SPLAT(y##n))); \
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
#include "common/transpose.cl"

// Joins the lanes of VL results, each as a tree: the upper half of them with the lower one, of these, and so on. Two
// results share a vector from the first step on, and all of them the last one, where result i is in lane i.
#define DECLARE_FOLDED(n, kind) VALUE folded_##n[VL];
#define KEEP_FOLDED(n, kind) folded_##n[i] = y##n;
#define FILL_FOLDED(n, kind) folded_##n[i] = IDENTITY_##n;
#define JOIN_HALVES(n, half_way)                                                   \
    _Pragma("unroll") for (int i = 0; i < half_way; i++) {                         \
        const VALUE lower = folded_##n[i], upper = folded_##n[i + half_way];       \
        folded_##n[i] = COMBINE_##n(LACE_LO(lower, upper), LACE_HI(lower, upper)); \
    }
#if VL == 16
#define JOIN_LANES(n, kind) JOIN_HALVES(n, 8) JOIN_HALVES(n, 4) JOIN_HALVES(n, 2) JOIN_HALVES(n, 1)
#elif VL == 8
#define JOIN_LANES(n, kind) JOIN_HALVES(n, 4) JOIN_HALVES(n, 2) JOIN_HALVES(n, 1)
#elif VL == 4
#define JOIN_LANES(n, kind) JOIN_HALVES(n, 2) JOIN_HALVES(n, 1)
#else
#define JOIN_LANES(n, kind) JOIN_HALVES(n, 1)
#endif
#ifdef PARTIAL
#define FINISH_VECTOR(n, kind) VSTORE_##kind(ys##n, PLACE(result), folded_##n[0]);
#else
#define FINISH_VECTOR(n, kind)                       \
    if (wanted_##n) {                                \
        VALUE y##n = folded_##n[0];                  \
        BLEND(n, VLOAD_##kind(ys##n, PLACE(result))) \
        VSTORE_##kind(ys##n, PLACE(result), y##n);   \
    }
#endif
#define FINISH_FIRST_LANES(n, kind)                                                      \
    {                                                                                    \
        real lanes_##n[VL];                                                              \
        CAT(vstore, VL)(folded_##n[0], 0, lanes_##n);                                    \
        for (int i = 0; i < count; i++) FINISH(n, kind, PLACE(result + i), lanes_##n[i]) \
    }

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
    const ulong last = min(first + kept_per_item, kept);
    for (ulong result = first; result < last; result += VL) {
        const int count = (int)min(last - result, (ulong)VL);
        OUTPUTS(DECLARE_FOLDED)
        for (int i = 0; i < count; i++) {
            ulong rest = result + i;
            INPUTS(START_KEPT)
            KEPT_AXES(SPLIT_AXIS, LAST_AXIS)
            KEPT_STRIDES(ADVANCE_KEPT)
            OUTPUTS(DECLARE_LEVELS)
            int flushes = 0;
            for (ulong unit = first_unit; unit < last_unit; unit++) {
                const ulong row = pieces == 1 ? unit : unit / pieces, piece = unit - row * pieces;
                const ulong begin = piece == 0 ? 0 : vectors * piece / pieces * VL;
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
            OUTPUTS(KEEP_FOLDED)
        }
        for (int i = count; i < VL; i++) {
            OUTPUTS(FILL_FOLDED)
        }
        OUTPUTS(JOIN_LANES)
        if (count == VL) {
            OUTPUTS(FINISH_VECTOR)
        } else {
            OUTPUTS(FINISH_FIRST_LANES)
        }
    }
}

#else  // REDUCE_COLUMNS
#define FINISH_LANES(n, kind)             \
    real folded_##n[VL];                  \
    CAT(vstore, VL)(y##n, 0, folded_##n); \
    for (ulong i = skip; i < VL; i++) FINISH(n, kind, PLACE(outer *length + column + i), folded_##n[i])

// A work-item takes VL columns of one outer position; the last columns' vector overlaps, and its
// first lanes are not written.
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

// The sum of team_size neighbouring work-items' values, as a tree.
#define JOIN_GROUP(n, kind)                                                          \
    local real *mine_##n = shared_values + get_local_id(0);                          \
    *mine_##n = y##n;                                                                \
    barrier(CLK_LOCAL_MEM_FENCE);                                                    \
    for (int half_way = team_size / 2; half_way > 0; half_way /= 2) {                \
        if (lane < half_way) *mine_##n = COMBINE_##n(*mine_##n, mine_##n[half_way]); \
        barrier(CLK_LOCAL_MEM_FENCE);                                                \
    }                                                                                \
    const real total_##n = *mine_##n;                                                \
    barrier(CLK_LOCAL_MEM_FENCE);

#if defined(REDUCE_GROUPS) || defined(REDUCE_STAGED)
#include "pointwise/quads.cl"
#endif

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

// A work-item reads UNROLL times WIDE neighbouring values at once, and keeps row and column instead of dividing. Each
// of the WIDE has a level 0 of its own. Inputs are of unit 1, or all of unit 2: walks_n says which walk along rows.
#define WALKS_PARAMETER_1(n)
#define WALKS_PARAMETER_2(n) const int walks_##n,
#define WALKS_PARAMETER(n, kind, unit) WALKS_PARAMETER_##unit(n)
// clang-format off
#define ALIGNED_INPUT_1(n, kind) && QUAD_ALIGNED_##kind(xs##n + kept_##n)
#define ALIGNED_INPUT_2(n, kind) && (!walks_##n || QUAD_ALIGNED_##kind(xs##n + kept_##n))
// clang-format on
#define ALIGNED_INPUT(n, kind, unit) ALIGNED_INPUT_##unit(n, kind)
#define DECLARE_ALL(n, kind, unit) RAW_##kind all_##n[UNROLL * WIDE];
#define DECLARE_WIDE(n, kind)                                           \
    VALUE a1_##n = IDENTITY_##n, a2_##n = IDENTITY_##n, wide_##n[WIDE]; \
    for (int e = 0; e < WIDE; e++) wide_##n[e] = IDENTITY_##n;
#define READ_0(n, kind) all_##n[WIDE * u] = READ_RAW_##kind(xs##n, from_##n);
#if WIDE == 4
#define READ_1(n, kind)                                                   \
    if (quads) {                                                          \
        READ_RAWS_##kind(all_##n + WIDE * u, xs##n + from_##n + column)   \
    } else {                                                              \
        GATHER_RAWS_##kind(all_##n + WIDE * u, xs##n + from_##n + column) \
    }
#else
#define READ_1(n, kind) all_##n[u] = READ_RAW_##kind(xs##n, from_##n + column);
#endif
#define READ_2(n, kind) \
    if (walks_##n) {    \
        READ_1(n, kind) \
    } else              \
        READ_0(n, kind)
#define READ(n, kind, unit) READ_##unit(n, kind)
#if WIDE == 4
#define TAKE_1(n, kind) NUMBERS_##kind(values_##n, all_##n + WIDE * u, true)
#else
#define TAKE_1(n, kind) values_##n[0] = NUMBER_##kind(all_##n[u]);
#endif
#define TAKE_2(n, kind)                                                           \
    if (walks_##n) {                                                              \
        TAKE_1(n, kind)                                                           \
    } else {                                                                      \
        const real number_ = NUMBER_##kind(all_##n[WIDE * u]);                    \
        _Pragma("unroll") for (int e = 0; e < WIDE; e++) values_##n[e] = number_; \
    }
#define TAKE_NUMBERS(n, kind, unit) \
    real values_##n[WIDE];          \
    TAKE_##unit(n, kind)
#define FETCH(n, kind, unit) const VALUE x##n = values_##n[e];
#define FOLD_WIDE(n, kind) wide_##n[e] = COMBINE_##n(wide_##n[e], y##n);
#define JOIN_WIDE(n, kind)                                                                                 \
    for (int half_way = WIDE / 2; half_way > 0; half_way /= 2)                                             \
        for (int e = 0; e < half_way; e++) wide_##n[e] = COMBINE_##n(wide_##n[e], wide_##n[e + half_way]); \
    VALUE a0_##n = wide_##n[0];                                                                            \
    for (int e = 0; e < WIDE; e++) wide_##n[e] = IDENTITY_##n;                                             \
    FLUSH_0(n, kind)
#define JOIN_TWO_LEVELS(n, kind) VALUE y##n = COMBINE_##n(a2_##n, a1_##n);

// team_size work-items share a result's part; a work-group has GROUP / team_size of such teams. The parts of a result
// take turns: teams that run at the same time read neighbours.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void reduce_groups(
    PARAMETERS INPUTS(WALKS_PARAMETER) const int team_size, const ulong kept, const ulong rows, const ulong length,
    const ulong parts) {
    local real shared_values[GROUP];
    INPUTS(OPEN_INPUT)
    OUTPUTS(OPEN_OUTPUT)
    const int lane = get_local_id(0) % team_size;
    const INDEX team = get_group_id(0) * (INDEX)(GROUP / team_size) + get_local_id(0) / team_size;
    const INDEX result = team % (INDEX)kept, part = team / (INDEX)kept;
    INDEX rest = result;
    INPUTS(START_KEPT)
    KEPT_AXES(SPLIT_AXIS, LAST_AXIS)
    KEPT_STRIDES(ADVANCE_KEPT)
    const bool quads = true INPUTS(ALIGNED_INPUT);
    const INDEX steps_of_row = (INDEX)length / WIDE;
    const ulong steps = rows * steps_of_row;
    const INDEX end = part < parts ? steps : 0, turn = team_size * (INDEX)parts;
    INDEX step = part * team_size + lane;
    const INDEX row_step = turn / steps_of_row, column_step = turn % steps_of_row * WIDE;
    INDEX row = step / steps_of_row, column = step % steps_of_row * WIDE;
    OUTPUTS(DECLARE_WIDE)
    int flushes = 0;
    while (step < end) {
        for (int i = 0; i < BLOCK / UNROLL && step < end; i++) {
            const INDEX first = step;
            INPUTS(DECLARE_ALL)
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                if (step < end) {
                    INDEX rest = row;
                    INPUTS(START)
                    ROW_AXES(SPLIT_AXIS, LAST_AXIS)
                    ROW_STRIDES(ADVANCE)
                    INPUTS(READ)
                }
                step += turn;
                row += row_step;
                column += column_step;
                if (column >= length) {
                    column -= length;
                    row++;
                }
            }
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                if (first + u * turn < end) {
                    INPUTS(TAKE_NUMBERS)
#pragma unroll
                    for (int e = 0; e < WIDE; e++) {
                        INPUTS(FETCH)
                        OUTPUTS(DECLARE_OUTPUT)
                        BODY
                        OUTPUTS(FOLD_WIDE)
                    }
                }
            }
        }
        OUTPUTS(JOIN_WIDE)
        if (++flushes == BLOCK) {
            OUTPUTS(FLUSH_1)
            flushes = 0;
        }
    }
    OUTPUTS(JOIN_TWO_LEVELS)
    OUTPUTS(JOIN_GROUP)
    if (lane == 0 && part < parts) {
        OUTPUTS(FINISH_ONE)
    }
}

#elif defined(REDUCE_STAGED)

#ifndef STAGES
#define STAGES 4  // quads of a work-item
#endif
// clang-format off
#define ALIGNED_STRETCH(n, kind, unit) && QUAD_ALIGNED_##kind(xs##n + from)
// clang-format on
#define DECLARE_ALL(n, kind, unit) RAW_##kind all_##n[4 * STAGES];
#define READ(n, kind, unit) READ_RAWS_##kind(all_##n + 4 * k, xs##n + from + min(at, there - 4))
#define TAKE_NUMBERS(n, kind, unit) \
    real values_##n[4];             \
    NUMBERS_##kind(values_##n, all_##n + 4 * k, true)
#define FETCH(n, kind, unit) const VALUE x##n = values_##n[e];
#define FETCH_ONE(n, kind, unit) const VALUE x##n = LOAD_##kind(xs##n, from + at);
#define KEEP_ONE(n, kind) values[e] = y##n;
#define PUT_ONE(n, kind) staged[at] = y##n;
#define FOLD_ROW(n, kind)      \
    VALUE y##n = IDENTITY_##n; \
    for (uint i = lane; i < length; i += team_size) y##n = COMBINE_##n(y##n, row[i]);

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void reduce_staged(PARAMETERS const int team_size,
                                                                             const uint kept, const uint length) {
    local real staged[4 * STAGES * GROUP] __attribute__((aligned(32)));
    local real shared_values[GROUP];
    INPUTS(OPEN_INPUT)
    OUTPUTS(OPEN_OUTPUT)
    const uint id = get_local_id(0), lane = id % team_size, group_rows = GROUP / team_size;
    const uint first = get_group_id(0) * group_rows, there = min(kept - first, group_rows) * length;
    const INDEX from = (INDEX)first * length;
    if (there % 4 == 0 INPUTS(ALIGNED_STRETCH)) {
        INPUTS(DECLARE_ALL)
#pragma unroll
        for (uint k = 0; k < STAGES; k++) {
            const uint at = 4 * (id + k * GROUP);
            INPUTS(READ)
        }
#pragma unroll
        for (uint k = 0; k < STAGES; k++) {
            const uint at = 4 * (id + k * GROUP);
            INPUTS(TAKE_NUMBERS)
            real values[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                INPUTS(FETCH)
                OUTPUTS(DECLARE_OUTPUT)
                BODY
                OUTPUTS(KEEP_ONE)
            }
            PUT_QUAD(staged + at, values)
        }
    } else {
        for (uint at = id; at < there; at += GROUP) {
            INPUTS(FETCH_ONE)
            OUTPUTS(DECLARE_OUTPUT)
            BODY
            OUTPUTS(PUT_ONE)
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint result = first + id / team_size;
    local const real *row = staged + id / team_size * length;
    OUTPUTS(FOLD_ROW)
    OUTPUTS(JOIN_GROUP)
    if (lane == 0 && result < kept) {
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
    const int lane = get_local_id(0), step = GROUP, team_size = GROUP;
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
