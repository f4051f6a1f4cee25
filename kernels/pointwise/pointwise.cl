// One value per element of the broadcast shape, by a generated program (see pointwise_value.cl).
//
// Outputs are contiguous. Inputs have a stride per axis, 0 where they are broadcast, and may be the outputs' own
// memory: every element is read before it is written. Two shapes of the loop:
//   pointwise_vectors   CPUs: rows of `length` along the innermost axis, VL lanes at a time; a work-item takes one of
//                       `pieces` of a row, or `rows_per_item` whole rows. A row's piece is at least VL long.
//   pointwise_elements  a work-item per element: rows too short for vectors, and few elements on
//                       GPUs (more: pointwise/gpu.cl)
//
// The kernel wanted is named by a macro, POINTWISE_VECTORS and so on.
#include "common/prefetch.cl"
#include "pointwise/value.cl"

// Row offsets of the inputs.
#define START(n, kind, unit) ulong from_##n = 0;
#define ADVANCE(n, a) from_##n += (ulong)at_##a * stride_##n##_##a;

#if defined(POINTWISE_VECTORS)
#define HOLD_0(n, kind) const VALUE held_##n = SPLAT(LOAD_##kind(xs##n, from_##n));
#define HOLD_1(n, kind)
#define HOLD_2(n, kind) HOLD_0(n, kind)
#define HOLD(n, kind, unit) HOLD_##unit(n, kind)
#define FETCH_0(n, kind) const VALUE x##n = held_##n;
#define FETCH_1(n, kind) const VALUE x##n = VLOAD_##kind(xs##n, from_##n + column);
#define FETCH_2(n, kind)   \
    VALUE x##n = held_##n; \
    if (stride_##n##_inner) x##n = VLOAD_##kind(xs##n, from_##n + column);
#define FETCH(n, kind, unit) FETCH_##unit(n, kind)
// What comes AHEAD bytes later in the same row, asked for: functions of many instructions leave a core too few loads on
// their way.
#define AHEAD 1024
#define ASK_0(n)
#define ASK_1(n) PREFETCH(xs##n + from_##n + column + AHEAD / sizeof(*xs##n));
#define ASK_2(n) \
    if (stride_##n##_inner) ASK_1(n)
#define ASK(n, kind, unit) ASK_##unit(n)
#define COUNT_WALKED(n, kind, unit) (stride_##n##_inner != 0) +
#define DECLARE_LAST(n, kind) VALUE last_##n;
#define BLEND_VECTOR(n, kind)                      \
    if (wanted_##n) {                              \
        BLEND(n, VLOAD_##kind(ys##n, to + column)) \
    }
#define KEEP_LAST(n, kind) last_##n = y##n;
#ifdef PAST_CACHES
// Outputs too large to be found in a cache again: a store past the caches does not read the line first.
#include "common/past_caches.cl"
#define ALIGN(n, kind) const int past_##n = ON_VECTORS(ys##n + to + begin) && !accumulate_##n;
#define WRITE(n, kind)                                         \
    if (past_##n) {                                            \
        if (wanted_##n) PAST_##kind(ys##n, to + column, y##n); \
    } else if (wanted_##n) {                                   \
        VSTORE_##kind(ys##n, to + column, y##n);               \
    }
#define ASK_TO_WRITE(n, kind)
#else
#define ALIGN(n, kind)
#define ASK_TO_WRITE(n, kind) PREFETCH_TO_WRITE(ys##n + to + column + AHEAD / sizeof(*ys##n));
#define WRITE(n, kind) \
    if (wanted_##n) VSTORE_##kind(ys##n, to + column, y##n);
#endif
#define WRITE_LAST(n, kind) \
    if (wanted_##n) VSTORE_##kind(ys##n, to + end - VL, last_##n);

// A row's piece. The last, overlapping vector is computed before anything is written and stored after everything else.
#define COLUMNS(READ)                                              \
    if (ragged) {                                                  \
        const ulong column = end - VL;                             \
        READ(FETCH)                                                \
        OUTPUTS(DECLARE_OUTPUT)                                    \
        BODY                                                       \
        OUTPUTS(BLEND_VECTOR)                                      \
        OUTPUTS(KEEP_LAST)                                         \
    }                                                              \
    for (ulong column = begin; column + VL <= end; column += VL) { \
        READ(ASK)                                                  \
        OUTPUTS(ASK_TO_WRITE)                                      \
        READ(FETCH)                                                \
        OUTPUTS(DECLARE_OUTPUT)                                    \
        BODY                                                       \
        OUTPUTS(BLEND_VECTOR)                                      \
        OUTPUTS(WRITE)                                             \
    }

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void pointwise_vectors(
    PARAMETERS const ulong rows, const ulong length, const ulong pieces, const ulong rows_per_item) {
    INPUTS(OPEN_INPUT)
    OUTPUTS(OPEN_OUTPUT)
    const ulong item = get_global_id(0), piece = item % pieces, first = item / pieces * rows_per_item;
    const ulong vectors = length / VL;
    const ulong begin = vectors * piece / pieces * VL;
    const ulong end = piece + 1 == pieces ? length : vectors * (piece + 1) / pieces * VL;
    const int ragged = (end - begin) % VL != 0;
    for (ulong row = first; row < min(first + rows_per_item, rows); row++) {
        ulong rest = row;
        INPUTS(START)
        ROW_AXES(SPLIT_AXIS, LAST_AXIS)
        ROW_STRIDES(ADVANCE)
        INPUTS(HOLD)
        const ulong to = row * length;
        OUTPUTS(ALIGN)
        OUTPUTS(DECLARE_LAST)
#ifdef INPUTS_11
        if (stride_0_inner && stride_1_inner) {
            COLUMNS(INPUTS_11)
        } else if (stride_0_inner) {
            COLUMNS(INPUTS_10)
        } else {
            COLUMNS(INPUTS_01)
        }
#elif defined(INPUTS_FIRST)
        if (FIRST_WALKS && (INPUTS(COUNT_WALKED) 0) == 1) {
            COLUMNS(INPUTS_FIRST)
        } else {
            COLUMNS(INPUTS)
        }
#else
        COLUMNS(INPUTS)
#endif
        if (ragged) {
            OUTPUTS(WRITE_LAST)
        }
    }
}
#else  // POINTWISE_ELEMENTS
#define FETCH(n, kind, unit) const VALUE x##n = LOAD_##kind(xs##n, from_##n);
#define BLEND_ELEMENT(n, kind)                \
    if (wanted_##n) {                         \
        BLEND(n, LOAD_##kind(ys##n, element)) \
    }
#define WRITE(n, kind) \
    if (wanted_##n) STORE_##kind(ys##n, element, y##n);

kernel void pointwise_elements(PARAMETERS const ulong total) {
    INPUTS(OPEN_INPUT)
    OUTPUTS(OPEN_OUTPUT)
    for (INDEX element = get_global_id(0); element < total; element += get_global_size(0)) {
        INDEX rest = element;
        INPUTS(START)
        ROW_AXES(SPLIT_AXIS, LAST_AXIS)
        STRIDES(ADVANCE)
        INPUTS(FETCH)
        OUTPUTS(DECLARE_OUTPUT)
        BODY
        OUTPUTS(BLEND_ELEMENT)
        OUTPUTS(WRITE)
    }
}
#endif
