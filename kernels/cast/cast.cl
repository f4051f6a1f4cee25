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
BRAIN_NUMBERS()
#endif

#if SOURCE == 0
typedef float source;
typedef float number;
#define READ(p, i) ((p)[i])
#elif SOURCE == 1
typedef half source;
typedef float number;
#define READ(p, i) vload_half((i), (p))
#elif SOURCE == 2
typedef double source;
typedef double number;
#define READ(p, i) ((p)[i])
#elif SOURCE == 3
typedef int source;
typedef int number;
#define READ(p, i) ((p)[i])
#elif SOURCE == 5
typedef ushort source;
typedef float number;
#define READ(p, i) widen((p)[i])
#else
typedef uchar source;
typedef uchar number;
#define READ(p, i) ((p)[i])
#endif

#if TARGET == 0
typedef float target;
#define WRITE(p, i, value) ((p)[i] = convert_float(value))
#define OLD(p, i) ((p)[i])
#elif TARGET == 1
typedef half target;
#if SOURCE == 2
#define WRITE(p, i, value) vstore_half_rte((value), (i), (p))
#else
#define WRITE(p, i, value) vstore_half_rte(convert_float(value), (i), (p))
#endif
#define OLD(p, i) vload_half((i), (p))
#elif TARGET == 2
typedef double target;
#define WRITE(p, i, value) ((p)[i] = convert_double(value))
#define OLD(p, i) ((p)[i])
#elif TARGET == 5
typedef ushort target;
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
#define WRITE(p, i, value) ((p)[i] = convert_int_sat(value))
#define OLD(p, i) ((p)[i])
#else
typedef uchar target;
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
