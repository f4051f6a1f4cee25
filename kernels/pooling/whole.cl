// Pooling of whole planes to one value each.
//
// x  (planes, pixels)    y  (planes)
//
// OPERATOR  as in pooling_operators.cl; backward has no norms of power 2 and 3
// VL        lanes, for CPU devices
// BACKWARD  which of their two kernels there is
// GROUP     work-items that share a plane, for GPUs; a power of two

#include "pooling/operators.cl"

#ifdef VL
#ifndef BACKWARD
#define BACKWARD 0
#endif

#define WHOLE_SHAPE const long planes, const long item_planes, const long pixels, const long divisor

#define FIRST (get_global_id(0) * item_planes)

#if !BACKWARD
kernel void pool_whole_forward(CONST_TENSOR(x), TENSOR(y), const int accumulate, WHOLE_SHAPE) {
    global stored *ys = OPEN(y);
    for (long number = FIRST; number < min((long)FIRST + item_planes, planes); number++) {
        global const stored *plane = OPEN(x) + number * pixels;
        realv some = START, others = START;
        long i = 0;
        for (; i + 2 * VL <= pixels; i += 2 * VL) {
            const realv value = VLOAD(plane, i), next = VLOAD(plane, i + VL);
            some = JOIN(some, RAISE(value));
            others = JOIN(others, RAISE(next));
        }
        some = JOIN(some, others);
        real lanes[VL];
        CAT(vstore, VL)(some, 0, lanes);
        real result = START;
        for (int lane = 0; lane < VL; lane++) result = JOIN(result, lanes[lane]);
        for (; i < pixels; i++) {
            const real value = LOAD(plane, i);
            result = JOIN(result, RAISE(value));
        }
#if OPERATOR == 1
        result /= (real)divisor;
#endif
        result = ROOT(result);
        STORE(ys, number, accumulate ? result + LOAD(ys, number) : result);
    }
}
#else
kernel void pool_whole_backward(CONST_TENSOR(x), CONST_TENSOR(y), CONST_TENSOR(dy), TENSOR(dx), const int accumulate,
                                WHOLE_SHAPE) {
    for (long number = FIRST; number < min((long)FIRST + item_planes, planes); number++) {
        global stored *dxs = OPEN(dx) + number * pixels;
        const real gradient = LOAD(OPEN(dy), number);
#if OPERATOR == 0
        const real share = 0;
#elif OPERATOR == 1
        const real share = gradient / (real)divisor;
#else
        const real share = gradient;
#endif
        long i = 0;
        if (accumulate) {
            if (OPERATOR != 0)
                for (; i < pixels; i++) STORE(dxs, i, share + LOAD(dxs, i));
        } else {
            // one by one: PoCL takes 16 equal halves for aligned ones
            for (; i < pixels; i++) STORE(dxs, i, share);
        }
#if OPERATOR == 0
        global const stored *plane = OPEN(x) + number * pixels;
        const real result = LOAD(OPEN(y), number);
        long chosen = 0;
        for (; chosen + VL <= pixels && !any(VLOAD(plane, chosen) == (realv)(result)); chosen += VL)
            ;
        for (; chosen < pixels && LOAD(plane, chosen) != result; chosen++)
            ;
        if (chosen < pixels) STORE(dxs, chosen, accumulate ? gradient + LOAD(dxs, chosen) : gradient);
#endif
    }
}
#endif
#else
kernel void pool_whole_group(CONST_TENSOR(x), TENSOR(y), const int accumulate, const long pixels, const long divisor) {
    local real parts[GROUP];
    const int item = get_local_id(0);
    const ulong number = get_group_id(0);
    global const stored *plane = OPEN(x) + number * pixels;
    real result = START;
    for (long i = item; i < pixels; i += GROUP) {
        const real value = LOAD(plane, i);
        result = JOIN(result, RAISE(value));
    }
    parts[item] = result;
    for (int rest = GROUP / 2; rest > 0; rest /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < rest) parts[item] = JOIN(parts[item], parts[item + rest]);
    }
    if (item == 0) {
        result = parts[0];
#if OPERATOR == 1
        result /= (real)divisor;
#endif
        result = ROOT(result);
        global stored *ys = OPEN(y);
        STORE(ys, number, accumulate ? result + LOAD(ys, number) : result);
    }
}
#endif
