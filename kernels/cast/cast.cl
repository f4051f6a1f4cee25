// Conversion of x (count) to y of another type, or added to y. Real numbers are rounded to the nearest one; whole
// numbers are saturated and lose the fraction, NaN becomes 0.

#include "cast/types.cl"

#if (TARGET == 3 || TARGET == 4) && (SOURCE < 3 || SOURCE == 5)
#define NUMBER(x) (isnan(x) ? 0 : (x))
#else
#define NUMBER(x) (x)
#endif

kernel void cast_elements(TENSOR_OF(const source, x), TENSOR_OF(target, y), const int accumulate, const ulong count) {
    const ulong i = get_global_id(0);
    if (i >= count) return;
    global const source *xs = OPEN(x);
    global target *ys = OPEN(y);
    const number value = READ(xs, i);
    if (accumulate)
        WRITE_SUM(ys, i, NUMBER(value) + OLD(ys, i));
    else
        WRITE(ys, i, NUMBER(value));
}

#ifndef GROUP
#define GROUP 128
#endif
#define EACH_OF_FOUR _Pragma("unroll") for (int e = 0; e < 4; e++)

// The same on GPUs: a work-item takes four neighbours, by one load and one store where addresses allow that.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void cast_quads(
    TENSOR_OF(const source, x), TENSOR_OF(target, y), const int accumulate, const ulong count) {
    const ulong i = get_global_id(0) * 4;
    if (i >= count) return;
    global const source *xs = OPEN(x) + i;
    global target *ys = OPEN(y) + i;
    if (accumulate || i + 4 > count || (ulong)xs % sizeof(source4) || (ulong)ys % sizeof(target4)) {
        for (int e = 0; e < 4 && i + e < count; e++) {
            const number value = READ(xs, e);
            if (accumulate)
                WRITE_SUM(ys, e, NUMBER(value) + OLD(ys, e));
            else
                WRITE(ys, e, NUMBER(value));
        }
        return;
    }
    const source4 four = *(global const source4 *)xs;
    const source *from = (const source *)&four;
    target4 result;
    target *to = (target *)&result;
    EACH_OF_FOUR {
        const number value = READ(from, e);
        WRITE(to, e, NUMBER(value));
    }
    *(global target4 *)ys = result;
}
