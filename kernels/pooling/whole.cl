// Pooling of whole planes to one value each.
//
// x  (planes, pixels)    y  (planes)
//
// OPERATOR  as in pooling/operators.cl; backward has no norms of power 2 and 3
// ARGMAX    forward also notes which pixel of a plane is the maximum, and backward reads that in place of x and y:
//           argmax (planes), bytes
// VL        lanes, for CPU devices
// VECTORS   that hold a plane, of small planes alone, forward
// BACKWARD  which of their two kernels there is
// GROUP     work-items of a group for GPUs, LANES of them for a plane; powers of two
// PIXELS    elements of a plane, for pool_whole_staged
// SPREAD    elements of a work-item, for pool_whole_spread

#include "pooling/operators.cl"

#ifdef ARGMAX
#define VALUES TENSOR_OF(const uchar, argmax)
#define RESULTS TENSOR(y), TENSOR_OF(uchar, argmax), const int accumulate, const int accumulate_argmax
#define PUT_RESULTS(number, value, place)                                                       \
    if (y_base) STORE(OPEN(y), number, accumulate ? (value) + LOAD(OPEN(y), number) : (value)); \
    if (argmax_base) OPEN(argmax)[number] = (uchar)(place) + (accumulate_argmax ? OPEN(argmax)[number] : 0);
#else
#define VALUES CONST_TENSOR(x), CONST_TENSOR(y)
#define RESULTS TENSOR(y), const int accumulate
#define PUT_RESULTS(number, value, place) \
    STORE(OPEN(y), number, accumulate ? (value) + LOAD(OPEN(y), number) : (value));
#endif
// The result of a plane whose elements were joined.
#if OPERATOR == 1
#define RESULT_OF(joined) ROOT(SHARE_OF(joined, divisor))
#else
#define RESULT_OF(joined) ROOT(joined)
#endif

#ifdef VL
#ifndef BACKWARD
#define BACKWARD 0
#endif

#define WHOLE_SHAPE const long planes, const long item_planes, const long pixels, const long divisor

#include "common/any_lane.cl"
#include "common/lanes.cl"

#define FIRST (get_global_id(0) * item_planes)

#if OPERATOR == 0 && KEEP_NAN
#define JOIN_LANES(value) (any_lane((value) != (value)) ? (real)NAN : largest_lane(value))
#elif OPERATOR == 0
#define JOIN_LANES largest_lane
#else
#define JOIN_LANES sum_of_lanes
#endif

#if !BACKWARD
#ifdef ARGMAX
// The place of a plane's first element that equals `result`. Vectors are met from the last one on, so that each lane
// keeps the first of its own. Places are counted in reals: compilers may call a function to convert long.
real first_place(global const stored *plane, const long pixels, const real result, const realv lanes) {
    if (pixels < VL) return LOAD(plane, 0) == result ? 0 : NOWHERE;  // a plane of one pixel
    const int count = (int)pixels, whole = count / VL * VL;
    realv places = lanes + (real)(count - VL);
    realv taken = VLOAD(plane, count - VL) == (realv)(result) ? places : (realv)(NOWHERE);
    places = lanes + (real)(whole - VL);
    for (int at = whole - VL; at >= 0; at -= VL) {
        taken = VLOAD(plane, at) == (realv)(result) ? places : taken;
        places -= VL;
    }
    return -largest_lane(-taken);
}
#endif

#ifdef VECTORS
// Small planes, VL at once: their lanes are joined together, which takes a fourth of the instructions.

// Joins the lanes of vectors in the order of JOIN_LANES: lane p of the result is what those of parts[p] join to.
// Vectors of half of the planes become one with those of the other half, whose elements then stand next to theirs.
#define JOIN_HALVES(count)                              \
    _Pragma("unroll") for (int p = 0; p < count; p++) { \
        realv low, high;                                \
        low.even = parts[p].lo;                         \
        low.odd = parts[p + count].lo;                  \
        high.even = parts[p].hi;                        \
        high.odd = parts[p + count].hi;                 \
        parts[p] = JOIN(low, high);                     \
    }

// What each of VL planes joins to, from the first one's elements on. The last vector of a plane overlaps others.
realv join_planes(global const stored *xs, const long pixels, const realv lanes) {
    const realv again = (realv)(real)(VECTORS * VL - (int)pixels);
    realv parts[VL];
#pragma unroll
    for (int p = 0; p < VL; p++) {
        global const stored *plane = xs + p * pixels;
        realv both[2] = {START, START};
#pragma unroll
        for (int v = 0; v < VECTORS - 1; v++) {
            const realv value = VLOAD(plane, v * VL);
            both[v % 2] = JOIN(both[v % 2], RAISE(value));
        }
        const realv value = VLOAD(plane, pixels - VL), fresh = lanes >= again ? RAISE(value) : (realv)(START);
        parts[p] = JOIN(both[0], JOIN(both[1], fresh));
    }
#if VL >= 16
    JOIN_HALVES(8)
#endif
#if VL >= 8
    JOIN_HALVES(4)
#endif
#if VL >= 4
    JOIN_HALVES(2)
#endif
    JOIN_HALVES(1)
    return parts[0];
}
#endif

kernel void pool_whole_forward(CONST_TENSOR(x), RESULTS, WHOLE_SHAPE) {
    real numbers[VL];
    for (int i = 0; i < VL; i++) numbers[i] = i;
    const realv again = (realv)(VL - (real)(pixels % VL)), lanes = GET(numbers, 0);
    const long stop = min((long)FIRST + item_planes, planes);
    long number = FIRST;
#ifdef VECTORS
    if (planes >= VL) {
        for (; number < stop; number += VL) {
            const long at = max(min(number, stop - VL), 0L);  // the last VL planes overlap others
            const realv joined = join_planes(OPEN(x) + at * pixels, pixels, lanes), result = RESULT_OF(joined);
#ifndef ARGMAX
            if (at == number && at + VL <= stop && !accumulate) {
                VSTORE(OPEN(y), at, result);
                continue;
            }
#endif
            real results[VL];
            PUT(results, 0, result);
            for (long n = number; n < min(at + VL, stop); n++) {
                const real one = results[n - at];
                PUT_RESULTS(n, one, first_place(OPEN(x) + n * pixels, pixels, one, lanes))
            }
        }
    }
#endif
    for (; number < stop; number++) {
        global const stored *plane = OPEN(x) + number * pixels;
        realv some = START, others = START;
        long i = 0;
        for (; i + 2 * VL <= pixels; i += 2 * VL) {
            const realv value = VLOAD(plane, i), next = VLOAD(plane, i + VL);
            some = JOIN(some, RAISE(value));
            others = JOIN(others, RAISE(next));
        }
        if (i + VL <= pixels) {
            const realv value = VLOAD(plane, i);
            some = JOIN(some, RAISE(value));
            i += VL;
        }
        if (i > 0 && i < pixels) {
            // the last vector overlaps the others
            const realv value = VLOAD(plane, pixels - VL), fresh = lanes >= again ? RAISE(value) : (realv)(START);
            others = JOIN(others, fresh);
            i = pixels;
        }
        const realv both = JOIN(some, others);
        real result = JOIN_LANES(both);
        for (; i < pixels; i++) {
            const real value = LOAD(plane, i);
            result = JOIN(result, RAISE(value));
        }
        result = RESULT_OF(result);
        PUT_RESULTS(number, result, first_place(plane, pixels, result, lanes))
    }
}
#else
kernel void pool_whole_backward(VALUES, CONST_TENSOR(dy), TENSOR(dx), const int accumulate, WHOLE_SHAPE) {
    for (long number = FIRST; number < min((long)FIRST + item_planes, planes); number++) {
        global stored *dxs = OPEN(dx) + number * pixels;
        const real gradient = LOAD(OPEN(dy), number);
#if OPERATOR == 0
        const real share = 0;
#elif OPERATOR == 1
        const real share = SHARE_OF(gradient, divisor);
#else
        const real share = gradient;
#endif
        long i = 0;
        if (accumulate) {
            if (OPERATOR != 0)
                for (; i < pixels; i++) STORE(dxs, i, share + LOAD(dxs, i));
        } else {
            for (; i + VL <= pixels; i += VL) VSTORE(dxs, i, (realv)(share));
            if (i > 0 && i < pixels) {  // the last vector overlaps the one in front of it
                VSTORE(dxs, pixels - VL, (realv)(share));
                i = pixels;
            }
            for (; i < pixels; i++) STORE(dxs, i, share);
        }
#ifdef ARGMAX
        const long chosen = OPEN(argmax)[number];
#elif OPERATOR == 0
        global const stored *plane = OPEN(x) + number * pixels;
        const real result = LOAD(OPEN(y), number);
        long chosen = 0;
        for (; chosen + VL <= pixels && !any_lane(VLOAD(plane, chosen) == (realv)(result)); chosen += VL);
        for (; chosen < pixels && LOAD(plane, chosen) != result; chosen++);
#endif
#if OPERATOR == 0
        if (chosen < pixels) STORE(dxs, chosen, accumulate ? gradient + LOAD(dxs, chosen) : gradient);
#endif
    }
}
#endif
#else
#include "common/divide.cl"
#include "pointwise/quads.cl"

#ifndef GROUP
#define GROUP 128
#endif
#ifndef LANES
#define LANES GROUP
#endif

// Planes beyond the last one are the last one, and not written.
#define OPEN_PLANE                                                                           \
    const int lane = get_local_id(0) % LANES, of_group = get_local_id(0) / LANES * LANES;    \
    const ulong number = (ulong)get_group_id(0) * (GROUP / LANES) + get_local_id(0) / LANES; \
    const ulong at = min(number, (ulong)planes - 1);

// What the lanes of a plane have found becomes one number: `parts` of the first of them.
#define SHARE(parts, value, BOTH)                                             \
    parts[lane] = value;                                                      \
    for (int rest = LANES / 2; rest > 0; rest /= 2) {                         \
        barrier(CLK_LOCAL_MEM_FENCE);                                         \
        if (lane < rest) parts[lane] = BOTH(parts[lane], parts[lane + rest]); \
    }                                                                         \
    barrier(CLK_LOCAL_MEM_FENCE);

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void pool_whole_group_forward(
    CONST_TENSOR(x), RESULTS, const long planes, const long pixels, const long divisor) {
    local real shared[GROUP];
    OPEN_PLANE
    global const stored *plane = OPEN(x) + at * pixels;
    real result = START;
    for (long i = lane; i < pixels; i += LANES) {
        const real value = LOAD(plane, i), raised = RAISE(value);
        result = JOIN(result, raised);
    }
    local real *parts = shared + of_group;
    SHARE(parts, result, JOIN)
#ifdef ARGMAX
    local int shared_places[GROUP];
    const real largest = parts[0];
    int found = NOWHERE;
    for (int i = lane; i < pixels; i += LANES)
        if (LOAD(plane, i) == largest) found = min(found, i);
    local int *places = shared_places + of_group;
    SHARE(places, found, min)
#endif
    if (lane > 0 || number >= planes) return;
    result = RESULT_OF(parts[0]);
    PUT_RESULTS(number, result, places[0])
}

#ifndef SPREAD
#define SPREAD 4
#endif
#ifndef PIXELS
#define PIXELS 49
#endif
#define STAGED (GROUP / LANES * PIXELS)  // elements of a group's planes
#define STAGES ((STAGED + 4 * GROUP - 1) / (4 * GROUP))

// Small planes: a group's planes are one stretch of memory, which its work-items bring to local memory four elements
// each, whatever plane these belong to.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void pool_whole_staged(
    CONST_TENSOR(x), RESULTS, const uint planes, const long divisor) {
    local real staged[STAGES * 4 * GROUP] __attribute__((aligned(32)));
    local real shared[GROUP];
    const uint first = get_group_id(0) * (GROUP / LANES), id = get_local_id(0);
    global const stored *xs = OPEN(x) + (ulong)first * PIXELS;
    const uint there = min((planes - first) * PIXELS, (uint)STAGED);
    raw held[STAGES][4];
    if (QUAD_ALIGNED_stored(xs) && there == STAGED && there % 4 == 0) {
#pragma unroll
        for (int k = 0; k < STAGES; k++) {
            const uint i = 4 * (id + k * GROUP);
            READ_RAWS_stored(held[k], xs + (4 * GROUP * (k + 1) <= STAGED ? i : min(i, STAGED - 4u)))
        }
#pragma unroll
        for (int k = 0; k < STAGES; k++) {
            real numbers[4];
            NUMBERS_stored(numbers, held[k], true);
            PUT_QUAD(staged + 4 * (id + k * GROUP), numbers);
        }
    } else {
        for (uint i = id; i < there; i += GROUP) staged[i] = LOAD(xs, i);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint lane = id % LANES, number = first + id / LANES;
    local const real *plane = staged + id / LANES * PIXELS;
    real result = START;
#pragma unroll
    for (uint i = lane; i < PIXELS; i += LANES) {
        const real raised = RAISE(plane[i]);
        result = JOIN(result, raised);
    }
    shared[id] = result;
    barrier(CLK_LOCAL_MEM_FENCE);
    local const real *parts = shared + id - lane;
    result = parts[0];
#pragma unroll
    for (int i = 1; i < LANES; i++) result = JOIN(result, parts[i]);
#ifdef ARGMAX
    local int places[GROUP];
    int found = NOWHERE;
    for (int i = PIXELS - 1 - (PIXELS - 1 - (int)lane) % LANES; i >= 0; i -= LANES)
        found = plane[i] == result ? i : found;
    places[id] = found;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane > 0 || number >= planes) return;
    for (int i = 1; i < LANES; i++) found = min(found, places[id + i]);
#else
    if (lane > 0 || number >= planes) return;
#endif
    result = RESULT_OF(result);
    PUT_RESULTS(number, result, found)
}

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void pool_whole_group_backward(
    VALUES, CONST_TENSOR(dy), TENSOR(dx), const int accumulate, const long planes, const long pixels,
    const long divisor) {
    OPEN_PLANE
    global stored *dxs = OPEN(dx) + at * pixels;
    const real gradient = LOAD(OPEN(dy), at);
#ifdef ARGMAX
    const int chosen = OPEN(argmax)[at];
#elif OPERATOR == 0
    local int shared[GROUP];
    global const stored *plane = OPEN(x) + at * pixels;
    const real result = LOAD(OPEN(y), at);
    int found = (int)pixels;
    for (int i = lane; i < pixels; i += LANES)
        if (LOAD(plane, i) == result) found = min(found, i);
    local int *parts = shared + of_group;
    SHARE(parts, found, min)
    const int chosen = parts[0];
#endif
#if OPERATOR == 0
#define SPREAD_TO(i) ((i) == chosen ? gradient : 0)
#elif OPERATOR == 1
    const real share = SHARE_OF(gradient, divisor);
#define SPREAD_TO(i) share
#else
#define SPREAD_TO(i) gradient
#endif
    if (number >= planes) return;
    for (int i = lane; i < pixels; i += LANES) {
        const real share_here = SPREAD_TO(i);
        STORE(dxs, i, accumulate ? share_here + LOAD(dxs, i) : share_here);
    }
}
#if OPERATOR != 0
// dx where all elements of a plane get the same: a work-item makes SPREAD neighbours, at most as many as a plane has,
// so these are of two planes at most.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void pool_whole_spread(
    CONST_TENSOR(x), CONST_TENSOR(y), CONST_TENSOR(dy), TENSOR(dx), const int accumulate, const uint planes,
    const uint pixels, const long divisor, const ulong by_pixels) {
    const uint total = planes * pixels, element = get_global_id(0) * SPREAD;
    if (element >= total) return;
    const uint plane = quotient(element, by_pixels), rest = (plane + 1) * pixels - element;
    real both[2] = {LOAD(OPEN(dy), plane), LOAD(OPEN(dy), min(plane + 1, planes - 1))};
#if OPERATOR == 1
    both[0] = SHARE_OF(both[0], divisor);
    both[1] = SHARE_OF(both[1], divisor);
#endif
    real shares[SPREAD];
#pragma unroll
    for (uint e = 0; e < SPREAD; e++) shares[e] = e < rest ? both[0] : both[1];
    global stored *dxs = OPEN(dx) + element;
    if (SPREAD % 4 == 0 && !accumulate && element + SPREAD <= total && QUAD_ALIGNED_stored(OPEN(dx))) {
#pragma unroll
        for (uint e = 0; e + 4 <= SPREAD; e += 4) WRITE_QUAD_stored(dxs + e, shares + e)
        return;
    }
    for (uint e = 0; e < SPREAD; e++)
        if (element + e < total) STORE(dxs, e, accumulate ? shares[e] + LOAD(dxs, e) : shares[e]);
}
#endif
#endif
