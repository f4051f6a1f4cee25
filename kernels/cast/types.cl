// The types of conversions: how elements are read, as `number`, and written.
//
// SOURCE, TARGET  0 float, 1 half, 2 double, 3 int, 4 uchar, 5 bfloat16
//
//   WRITE, WRITE_SUM  element i of p from a number, and from a sum of a number and OLD(p, i), the element as it was

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
