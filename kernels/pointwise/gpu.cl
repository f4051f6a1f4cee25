// One value per element of the broadcast shape, by a generated program (see pointwise/value.cl), on GPUs.
//
// Outputs are contiguous. A work-item takes UNROLL times four neighbouring elements, and all its loads are on their way
// at once. Work-groups go from the end to the beginning: caches hold the end of what was just written, or summed.
// Programs say by each input's `unit` how it is read: 3: it is contiguous as outputs are. 2: the argument way_n says
// so, which is 0 where one element serves a whole row of `length` elements, 1 where it walks along rows, 3 where it is
// contiguous. All inputs are of unit 3 or all are of unit 2: one program serves all broadcasts.
//
// in_rows   every four elements are of one row, and rows of inputs that walk begin at multiples of four; else positions
//           are computed one by one
// TWO_ROWS  they are not, but of two rows at most, of which positions are computed: a program of its own, because it
//           takes more registers
// QUICK     there are at most 2^31 elements: numbers are divided by multiplications
#include "common/divide.cl"
#include "pointwise/value.cl"
#include "pointwise/quads.cl"

#ifndef UNROLL
#define UNROLL 1
#endif
#ifndef GROUP
#define GROUP 256
#endif

#ifdef TWO_ROWS
#define IN_ROWS false
#else
#define IN_ROWS in_rows
#endif

#define START(n, kind, unit) INDEX from_##n = 0;
#define ADVANCE(n, a) from_##n += at_##a * (INDEX)stride_##n##_##a;

#ifdef QUICK
#define QUOTIENT(number, size, divisor) quotient(number, divisor)
#else
#define QUOTIENT(number, size, divisor) ((number) / (INDEX)(size))
#endif
#define DIVISOR_PARAMETER(a) const ulong divisor_##a,
// The position of an element in its row, and where that row of each input begins.
#define FIND_ROW(column, number)                           \
    INDEX rest = QUOTIENT(number, length, length_divisor); \
    const INDEX column = (number) - rest * (INDEX)length;  \
    INPUTS(START)                                          \
    ROW_AXES(SPLIT_QUICKLY, LAST_AXIS)                     \
    STRIDES(ADVANCE)
#define SPLIT_QUICKLY(a)                                          \
    const INDEX left_##a = QUOTIENT(rest, size_##a, divisor_##a); \
    const INDEX at_##a = rest - left_##a * (INDEX)size_##a;       \
    rest = left_##a;

#define WAY_PARAMETER_2(n) const int way_##n,
#define WAY_PARAMETER_3(n)
#define WAY_PARAMETER(n, kind, unit) WAY_PARAMETER_##unit(n)

// clang-format off
#define ALIGNED_INPUT_2(n, kind) && (way_##n == 0 || QUAD_ALIGNED_##kind(xs##n))
#define ALIGNED_INPUT_3(n, kind) && QUAD_ALIGNED_##kind(xs##n)
#define ALIGNED_INPUT(n, kind, unit) ALIGNED_INPUT_##unit(n, kind)
#define ALIGNED_OUTPUT(n, kind) && QUAD_ALIGNED_##kind(ys##n)
// clang-format on

// Four elements from p on, of which there may be fewer.
#define READ_WHOLE(n, kind, p)                                                                            \
    if (quads && element + 4 <= total) {                                                                  \
        READ_RAWS_##kind(all_##n + 4 * u, p)                                                              \
    } else {                                                                                              \
        for (int e = 0; e < 4; e++) all_##n[4 * u + e] = element + e < total ? READ_RAW_##kind(p, e) : 0; \
    }
#define READ_FLAT(n, kind, unit) READ_WHOLE(n, kind, (xs##n + element))
#define READ_WHERE_FLAT(n, kind, unit) \
    if (way_##n == 3) {                \
        READ_FLAT(n, kind, unit)       \
    }
#define READ_ROW(n, kind, unit)                            \
    if (way_##n == 0) {                                    \
        all_##n[4 * u] = READ_RAW_##kind(xs##n, from_##n); \
    } else {                                               \
        READ_WHOLE(n, kind, (xs##n + from_##n + column))   \
    }
#define READ_ELEMENT(n, kind, unit) \
    if (way_##n != 3) all_##n[4 * u + e] = READ_RAW_##kind(xs##n, from_##n + (way_##n ? column : 0));
// Where four elements are of two rows: these begin at near_n and far_n, and element e is the `walked`-th of one's.
#define DECLARE_ROWS(n, kind, unit) INDEX near_##n, far_##n;
#define KEEP_NEAR(n, kind, unit) near_##n = from_##n;
#define KEEP_FAR(n, kind, unit) far_##n = from_##n;
#define READ_OF_TWO(n, kind, unit)                                                                                     \
    if (way_##n == 0) {                                                                                                \
        const RAW_##kind low = READ_RAW_##kind(xs##n, near_##n), high = READ_RAW_##kind(xs##n, far_##n);               \
        _Pragma("unroll") for (int e = 0; e < 4; e++) all_##n[4 * u + e] = e < in_first ? low : high;                  \
    } else if (way_##n == 1) {                                                                                         \
        _Pragma("unroll") for (int e = 0; e < 4; e++) {                                                                \
            const INDEX walked = first + min((INDEX)e, last - element);                                                \
            all_##n[4 * u + e] =                                                                                       \
                READ_RAW_##kind(xs##n, walked < (INDEX)length ? near_##n + walked : far_##n + walked - (INDEX)length); \
        }                                                                                                              \
    }

#define DECLARE_ALL(n, kind, unit) RAW_##kind all_##n[4 * UNROLL];
#define DECLARE_RESULTS(n, kind) real results_##n[4];
// The four numbers of each input of a round. `whole`: those that are read flat, or along a row, were read together.
#define TAKE_NUMBERS_3(n, kind, whole) NUMBERS_##kind(values_##n, all_##n + 4 * u, whole)
#define TAKE_NUMBERS_2(n, kind, whole)                                                                  \
    if (IN_ROWS && way_##n == 0) {                                                                      \
        const real number_ = NUMBER_##kind(all_##n[4 * u]);                                             \
        _Pragma("unroll") for (int i_ = 0; i_ < 4; i_++) values_##n[i_] = number_;                      \
    } else {                                                                                            \
        NUMBERS_##kind(values_##n, all_##n + 4 * u, (whole) && (IN_ROWS ? way_##n != 0 : way_##n == 3)) \
    }
#define TAKE_NUMBERS(n, kind, unit) \
    real values_##n[4];             \
    TAKE_NUMBERS_##unit(n, kind, whole)
#define FETCH(n, kind, unit) const VALUE x##n = values_##n[e];
#define BLEND_ELEMENT(n, kind)                    \
    if (wanted_##n && element + e < total) {      \
        BLEND(n, LOAD_##kind(ys##n, element + e)) \
    }                                             \
    results_##n[e] = y##n;
// The same in whole groups that overwrite all outputs.
// clang-format off
#ifdef BETA
#define AND_OVERWRITES(n, kind) && false
#else
#define AND_OVERWRITES(n, kind) && wanted_##n && !accumulate_##n
#endif
// clang-format on
#define READ_QUAD(n, kind, unit) READ_RAWS_##kind(all_##n + 4 * u, xs##n + element)
#define READ_ROW_QUAD(n, kind, unit)                                 \
    if (way_##n == 0) {                                              \
        all_##n[4 * u] = READ_RAW_##kind(xs##n, from_##n);           \
    } else {                                                         \
        READ_RAWS_##kind(all_##n + 4 * u, xs##n + from_##n + column) \
    }
#define SCALE_ELEMENT(n, kind) results_##n[e] = SCALED(y##n);
#define WRITE_QUAD(n, kind) WRITE_QUAD_##kind(ys##n + element, results_##n)
#define WRITE(n, kind)                                                                     \
    if (wanted_##n) {                                                                      \
        if (quads && element + 4 <= total) {                                               \
            WRITE_QUAD_##kind(ys##n + element, results_##n)                                \
        } else {                                                                           \
            for (int e = 0; e < 4; e++)                                                    \
                if (element + e < total) STORE_##kind(ys##n, element + e, results_##n[e]); \
        }                                                                                  \
    }

#ifdef BROADCASTS
#define IN_QUADS (quads && IN_ROWS)
#else
#define IN_QUADS quads
#endif

// Computes four results of each output from what was read; FINISH(n, kind) makes output n's element of its y. A
// constant `whole` says how it was read.
#define COMPUTE_QUAD(FINISH)                        \
    OUTPUTS(DECLARE_RESULTS)                        \
    INPUTS(TAKE_NUMBERS)                            \
    _Pragma("unroll") for (int e = 0; e < 4; e++) { \
        INPUTS(FETCH)                               \
        OUTPUTS(DECLARE_OUTPUT)                     \
        BODY                                        \
        OUTPUTS(FINISH)                             \
    }

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void pointwise_quads(
    PARAMETERS INPUTS(WAY_PARAMETER) const int in_rows, AXES(DIVISOR_PARAMETER) const ulong length_divisor,
    const ulong length, const ulong total) {
    INPUTS(OPEN_INPUT)
    OUTPUTS(OPEN_OUTPUT)
    const bool quads = true INPUTS(ALIGNED_INPUT) OUTPUTS(ALIGNED_OUTPUT);
    const INDEX group = get_num_groups(0) - 1 - get_group_id(0);
    const INDEX begin = (group * (UNROLL * GROUP) + get_local_id(0)) * 4;
    INPUTS(DECLARE_ALL)
    // Whole groups that overwrite have no branches: what these take counts where a launch is short.
    if (IN_QUADS && group * (UNROLL * GROUP * 4) + UNROLL * GROUP * 4 <= total OUTPUTS(AND_OVERWRITES)) {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const INDEX element = begin + u * (GROUP * 4);
#ifndef BROADCASTS
            INPUTS(READ_QUAD)
#else
            FIND_ROW(column, element)
            INPUTS(READ_ROW_QUAD)
#endif
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const INDEX element = begin + u * (GROUP * 4);
            const bool whole = true, in_rows = true;
            COMPUTE_QUAD(SCALE_ELEMENT)
            OUTPUTS(WRITE_QUAD)
        }
        return;
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const INDEX element = begin + u * (GROUP * 4);
        if (element >= total) break;
#ifndef BROADCASTS
        INPUTS(READ_FLAT)
#else
        if (IN_ROWS) {
            FIND_ROW(column, element)
            INPUTS(READ_ROW)
            continue;
        }
        INPUTS(READ_WHERE_FLAT)
#ifdef TWO_ROWS
        const INDEX last = min(element + 3, (INDEX)(total - 1));
        INPUTS(DECLARE_ROWS)
        INDEX first;
        {
            FIND_ROW(column, element)
            INPUTS(KEEP_NEAR)
            first = column;
        }
        {
            FIND_ROW(column, last)
            INPUTS(KEEP_FAR)
        }
        const int in_first = min((INDEX)length - first, (INDEX)4);
        INPUTS(READ_OF_TWO)
#else
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const INDEX place = min(element + e, (INDEX)(total - 1));
            FIND_ROW(column, place)
            INPUTS(READ_ELEMENT)
        }
#endif
#endif
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const INDEX element = begin + u * (GROUP * 4);
        if (element >= total) break;
        const bool whole = quads && element + 4 <= total;
        COMPUTE_QUAD(BLEND_ELEMENT)
        OUTPUTS(WRITE)
    }
}
