// What the kernels of pooling share: how two values of a window become one, for scalars and vectors alike.
//
// OPERATOR  0 max, 1 average, 2 sum, 3 to 5 the norm of power 1 to 3
// KEEP_NAN  1: a maximum is NaN where its window holds NaN; it stands nowhere then

#ifndef OPERATOR
#define OPERATOR 0
#endif
#ifndef KEEP_NAN
#define KEEP_NAN 0
#endif

// A maximum is greater than the lowest number. NaN is not; with KEEP_NAN it is greater than all numbers.
#if OPERATOR != 0
#define START REAL(0.0)
#elif STORAGE == 64
#define START (-DBL_MAX)
#elif defined(BRAIN)
#define START as_float(0xff7f0000u)
#elif STORAGE == 16
#define START (-65504.0f)
#else
#define START (-FLT_MAX)
#endif

#if OPERATOR == 0 && KEEP_NAN
#define JOIN(a, b) ((((b) > (a)) | ((b) != (b))) ? (b) : (a))
#elif OPERATOR == 0
#define JOIN(a, b) ((b) > (a) ? (b) : (a))
#else
#define JOIN(a, b) ((a) + (b))
#endif

#if OPERATOR == 4
#define RAISE(x) ((x) * (x))
#define ROOT(x) sqrt(x)
#elif OPERATOR == 5
#define RAISE(x) ((x) * (x) * (x))
#define ROOT(x) cbrt(x)
#else
#define RAISE(x) (x)
#define ROOT(x) (x)
#endif

// A number divided by a count of taps. Where it is rounded to 16 bits, it may be multiplied by a reciprocal that is off
// by an ulp of float32: a division takes GPUs ten times as long.
#if STORAGE == 16 && defined(PTX)
#define SHARE_OF(number, count) ((number) * reciprocal((real)(count)))
#else
#define SHARE_OF(number, count) ((number) / (real)(count))
#endif

#define NOWHERE 255  // the argmax of a window that holds nothing

// How many places of the window that begins at `from` count on one axis; 1 for those that hold nothing.
int counted(const int from, const int window, const int size, const int end, const int count_padding) {
    return max(count_padding ? min(from + window, end) - from : min(from + window, size) - max(from, 0), 1);
}
