// One value per element of the broadcast shape, by a generated program (see pointwise/value.cl), on GPUs.
//
// Outputs are contiguous. A work-item takes UNROLL times four neighbouring elements, and all its loads are on their way
// at once. Work-groups go from the end to the beginning: caches hold the end of what was just written, or summed.
// Programs say by each input's `unit` how it is read: 0: one element serves all four, 1: four neighbours of a row,
// 2: an element of its own for each, 3: the input is contiguous as outputs are.
//
// PER_ELEMENT   four elements may be of different rows: their positions are computed one by one (units 2 and 3).
//               Without it, rows are of `length` elements, a multiple of four, and so are strides of inputs of unit 1.
#include "pointwise/value.cl"
#include "pointwise/quads.cl"

#ifndef UNROLL
#define UNROLL 1
#endif
#ifndef GROUP
#define GROUP 256
#endif

#define START(n, kind, unit) ulong from_##n = 0;
#define ADVANCE(n, a) from_##n += (ulong)at_##a * stride_##n##_##a;

#define ALIGNED_INPUT_0(n, kind)
#define ALIGNED_INPUT_1(n, kind) && QUAD_ALIGNED_##kind(xs##n)
#define ALIGNED_INPUT_2(n, kind)
#define ALIGNED_INPUT_3(n, kind) ALIGNED_INPUT_1(n, kind)
#define ALIGNED_INPUT(n, kind, unit) ALIGNED_INPUT_##unit(n, kind)
#define ALIGNED_OUTPUT(n, kind) && QUAD_ALIGNED_##kind(ys##n)

// Four elements from p on, of which there may be fewer.
#define READ_WHOLE(n, kind, p)                                                                           \
    if (quads && element + 4 <= total) {                                                                 \
        READ_QUAD_##kind(all_##n + 4 * u, p)                                                             \
    } else {                                                                                             \
        for (int e = 0; e < 4; e++) all_##n[4 * u + e] = element + e < total ? LOAD_##kind(p, e) : 0;    \
    }
#define READ_ROW_0(n, kind)                                   \
    {                                                         \
        const real held = LOAD_##kind(xs##n, from_##n);       \
        for (int e = 0; e < 4; e++) all_##n[4 * u + e] = held; \
    }
#define READ_ROW_1(n, kind) READ_WHOLE(n, kind, (xs##n + from_##n + column))
#define READ_ROW_2(n, kind)
#define READ_ROW_3(n, kind) READ_WHOLE(n, kind, (xs##n + element))
#define READ_ROW(n, kind, unit) READ_ROW_##unit(n, kind)

#define READ_FLAT_0(n, kind) READ_ROW_0(n, kind)
#define READ_FLAT_1(n, kind)
#define READ_FLAT_2(n, kind)
#define READ_FLAT_3(n, kind) READ_ROW_3(n, kind)
#define READ_FLAT(n, kind, unit) READ_FLAT_##unit(n, kind)
#define READ_ELEMENT_0(n, kind)
#define READ_ELEMENT_1(n, kind)
#define READ_ELEMENT_2(n, kind) all_##n[4 * u + e] = LOAD_##kind(xs##n, from_##n);
#define READ_ELEMENT_3(n, kind)
#define READ_ELEMENT(n, kind, unit) READ_ELEMENT_##unit(n, kind)

#define DECLARE_ALL(n, kind, unit) real all_##n[4 * UNROLL];
#define DECLARE_RESULTS(n, kind) real results_##n[4];
#define FETCH(n, kind, unit) const VALUE x##n = all_##n[4 * u + e];
#define BLEND_ELEMENT(n, kind)                                                        \
    if (wanted_##n && element + e < total) { BLEND(n, LOAD_##kind(ys##n, element + e)) } \
    results_##n[e] = y##n;
#define WRITE(n, kind)                                                                              \
    if (wanted_##n) {                                                                               \
        if (quads && element + 4 <= total) {                                                        \
            WRITE_QUAD_##kind(ys##n + element, results_##n)                                         \
        } else {                                                                                    \
            for (int e = 0; e < 4; e++)                                                             \
                if (element + e < total) STORE_##kind(ys##n, element + e, results_##n[e]);          \
        }                                                                                           \
    }

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void pointwise_quads(PARAMETERS const ulong length,
                                                                               const ulong total) {
    INPUTS(OPEN_INPUT)
    OUTPUTS(OPEN_OUTPUT)
    const bool quads = true INPUTS(ALIGNED_INPUT) OUTPUTS(ALIGNED_OUTPUT);
    const INDEX group = get_num_groups(0) - 1 - get_group_id(0);
    const INDEX begin = (group * (UNROLL * GROUP) + get_local_id(0)) * 4;
    INPUTS(DECLARE_ALL)
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const INDEX element = begin + u * (GROUP * 4);
        if (element >= total) break;
#ifdef PER_ELEMENT
        {
            INPUTS(START)
            INPUTS(READ_FLAT)
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            INDEX rest = min(element + e, (INDEX)(total - 1));
            INPUTS(START)
            ROW_AXES(SPLIT_AXIS, LAST_AXIS)
            STRIDES(ADVANCE)
            INPUTS(READ_ELEMENT)
        }
#else
        INDEX rest = element / (INDEX)length;
        const INDEX column = element % (INDEX)length;
        INPUTS(START)
        ROW_AXES(SPLIT_AXIS, LAST_AXIS)
        STRIDES(ADVANCE)
        INPUTS(READ_ROW)
#endif
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const INDEX element = begin + u * (GROUP * 4);
        if (element >= total) break;
        OUTPUTS(DECLARE_RESULTS)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            INPUTS(FETCH)
            OUTPUTS(DECLARE_OUTPUT)
            BODY
            OUTPUTS(BLEND_ELEMENT)
        }
        OUTPUTS(WRITE)
    }
}
