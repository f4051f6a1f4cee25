// Conversion of x (count) to y of another type, or added to y. Real numbers are rounded to the nearest one; whole
// numbers are saturated and lose the fraction, NaN becomes 0.
//
// SOURCE, TARGET  0 float, 1 half, 2 double, 3 int, 4 uchar, 5 bfloat16

#ifndef SOURCE
#define SOURCE 0
#endif
#ifndef TARGET
#define TARGET 0
#endif

#if SOURCE == 5 || TARGET == 5
BRAIN_WIDEN()
BRAIN_NARROW()
#endif

#if SOURCE == 0
typedef float source;
typedef float4 source4;
typedef float number;
#define READ(p, i) ((p)[i])
#elif SOURCE == 1
typedef half source;
typedef ushort4 source4;
typedef float number;
#define READ(p, i) vload_half((i), (p))
#elif SOURCE == 2
typedef double source;
typedef double4 source4;
typedef double number;
#define READ(p, i) ((p)[i])
#elif SOURCE == 3
typedef int source;
typedef int4 source4;
typedef int number;
#define READ(p, i) ((p)[i])
#elif SOURCE == 5
typedef ushort source;
typedef ushort4 source4;
typedef float number;
#define READ(p, i) widen((p)[i])
#else
typedef uchar source;
typedef uchar4 source4;
typedef uchar number;
#define READ(p, i) ((p)[i])
#endif

#if TARGET == 0
typedef float target;
typedef float4 target4;
#define WRITE(p, i, value) ((p)[i] = convert_float(value))
#define OLD(p, i) ((p)[i])
#elif TARGET == 1
typedef half target;
typedef ushort4 target4;
#if SOURCE == 2
#define WRITE(p, i, value) vstore_half_rte((value), (i), (p))
#else
#define WRITE(p, i, value) vstore_half_rte(convert_float(value), (i), (p))
#endif
#define OLD(p, i) vload_half((i), (p))
#elif TARGET == 2
typedef double target;
typedef double4 target4;
#define WRITE(p, i, value) ((p)[i] = convert_double(value))
#define OLD(p, i) ((p)[i])
#elif TARGET == 5
typedef ushort target;
typedef ushort4 target4;
#if SOURCE == 2
// Rounded to odd in between, so that a number is rounded once.
float as_odd(const double value) {
    const float found = convert_float_rtz(value);
    return (double)found == value || isnan(value) ? found : as_float(as_uint(found) | 1);
}
#elif SOURCE == 3
float as_odd(const int value) {
    const float found = convert_float_rtz(value);
    return convert_int_sat(found) == value ? found : as_float(as_uint(found) | 1);
}
#else
#define as_odd(value) convert_float(value)
#endif
#define WRITE(p, i, value) ((p)[i] = narrow(as_odd(value)))
#define WRITE_SUM(p, i, value) ((p)[i] = narrow(convert_float(value)))
#define OLD(p, i) widen((p)[i])
#elif TARGET == 3
typedef int target;
typedef int4 target4;
#define WRITE(p, i, value) ((p)[i] = convert_int_sat(value))
#define OLD(p, i) ((p)[i])
#else
typedef uchar target;
typedef uchar4 target4;
#define WRITE(p, i, value) ((p)[i] = convert_uchar_sat(value))
#define OLD(p, i) ((p)[i])
#endif

#ifndef WRITE_SUM
#define WRITE_SUM WRITE
#endif

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
