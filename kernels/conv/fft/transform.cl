// Discrete Fourier transforms of real planes of SIDE x SIDE elements, PLANES of them in a work-group of THREADS.
//
// Work-item (plane, x) transforms columns x and x + SIDE / 2 as one complex column, in registers. Work-item
// (plane, line) then transforms a line: number `line` of all columns. What passes from one to the other is in local
// memory: number k of column x is at k * ROW + x, plane p at p * PLANE. Work-items that read or write at the same time
// use different banks. Only elements of one plane are transformed together: a NaN reaches no other.
//
// The transform of a plane is Hermitian, so half of it is kept: POINTS complex numbers. Number k of line `line` is
// point k * SIDE / 2 + line. Lines 0 and SIDE / 2 are transforms of real numbers, which are transformed as one complex
// line: line SIDE / 2 is the imaginary part of line 0. Their numbers k and -k are conjugates, so they share the points
// of line 0: first numbers 0 to SIDE / 2 of line 0, then numbers SIDE / 2 - 1 to 1 of line SIDE / 2. Its numbers 0 and
// SIDE / 2 are the last two points.
//
// Cooley and Tukey, An algorithm for the machine calculation of complex Fourier series (1965).
//
// SIDE     16 or 32
// PLANES   a divisor of 16

#define HALF (SIDE / 2)
#define THREADS (PLANES * HALF)
#define ROW (SIDE + 1)
#define PLANE_OF(row) (HALF * (row) + (16 / PLANES + 16 - HALF * (row) % 16) % 16)
#define PLANE PLANE_OF(ROW)
#define POINTS (SIDE * HALF + 2)

typedef float2 Complex;

#define CONJUGATE(z) ((Complex)((z).x, -(z).y))
#define TIMES_I(z) ((Complex)(-(z).y, (z).x))
#define MINUS_I(z) ((Complex)((z).y, -(z).x))

// cos and sin of 2 * pi * j / 32
constant Complex turns[32] = {
    {1.0f, 0.0f},
    {0.9807852804032304f, 0.19509032201612825f},
    {0.9238795325112867f, 0.3826834323650898f},
    {0.8314696123025452f, 0.5555702330196022f},
    {0.7071067811865476f, 0.7071067811865475f},
    {0.5555702330196023f, 0.8314696123025452f},
    {0.38268343236508984f, 0.9238795325112867f},
    {0.19509032201612833f, 0.9807852804032304f},
    {0.0f, 1.0f},
    {-0.1950903220161282f, 0.9807852804032304f},
    {-0.3826834323650897f, 0.9238795325112867f},
    {-0.555570233019602f, 0.8314696123025453f},
    {-0.7071067811865475f, 0.7071067811865476f},
    {-0.8314696123025453f, 0.5555702330196022f},
    {-0.9238795325112867f, 0.3826834323650899f},
    {-0.9807852804032304f, 0.1950903220161286f},
    {-1.0f, 0.0f},
    {-0.9807852804032304f, -0.19509032201612836f},
    {-0.9238795325112868f, -0.38268343236508967f},
    {-0.8314696123025455f, -0.555570233019602f},
    {-0.7071067811865477f, -0.7071067811865475f},
    {-0.5555702330196022f, -0.8314696123025452f},
    {-0.38268343236509034f, -0.9238795325112865f},
    {-0.19509032201612866f, -0.9807852804032303f},
    {0.0f, -1.0f},
    {0.1950903220161283f, -0.9807852804032304f},
    {0.38268343236509f, -0.9238795325112866f},
    {0.5555702330196018f, -0.8314696123025455f},
    {0.7071067811865474f, -0.7071067811865477f},
    {0.8314696123025452f, -0.5555702330196022f},
    {0.9238795325112865f, -0.3826834323650904f},
    {0.9807852804032303f, -0.19509032201612872f},
};
#define HALF_ROOT 0.7071067811865476f  // square root of 1 / 2

#define IN_PLACE __attribute__((always_inline))
#define UNROLLED _Pragma("unroll")

// z turned back by the angle with this cosine and sine.
IN_PLACE Complex turn_back(const Complex z, const Complex angle) {
    return (Complex)(fma(z.x, angle.x, z.y * angle.y), fma(z.y, angle.x, -(z.x * angle.y)));
}

// The transform of four numbers, in place.
#define FOUR(a, b, c, d)                                                            \
    {                                                                               \
        const Complex sum = (a) + (c), difference = (a) - (c);                      \
        const Complex other_sum = (b) + (d), other_difference = MINUS_I((b) - (d)); \
        a = sum + other_sum;                                                        \
        b = difference + other_difference;                                          \
        c = sum - other_sum;                                                        \
        d = difference - other_difference;                                          \
    }

#define SUM_AND_DIFFERENCE(a, b, turned) \
    {                                    \
        const Complex second = turned;   \
        b = (a) - second;                \
        a += second;                     \
    }

// Frequency k is left in z[PLACE(k)].
#if SIDE == 32
#define COUNT 8
#define PLACE(k) ((k) % 4 * 8 + (k) / 4 % 4 * 2 + (k) / 16)
#else
#define COUNT 4
#define PLACE(k) ((k) % 4 * 4 + (k) / 4)
#endif

// The transform of SIDE numbers, sum over n of z[n] * exp(-2 * pi * i * n * k / SIDE): COUNT transforms of 4 numbers,
// turns, 4 transforms of COUNT numbers. Only the first `used` numbers are read, a constant; the others are zeros.
IN_PLACE void fourier(Complex *z, const int used) {
#pragma unroll
    for (int n = 0; n < COUNT; n++) {
        if (used > COUNT)
            FOUR(z[n], z[COUNT + n], z[2 * COUNT + n], z[3 * COUNT + n])
        else
            z[COUNT + n] = z[2 * COUNT + n] = z[3 * COUNT + n] = z[n];
#pragma unroll
        for (int k = 1; k < 4; k++)
            if (n > 0) z[k * COUNT + n] = turn_back(z[k * COUNT + n], turns[n * k * (32 / SIDE)]);
    }
#pragma unroll
    for (int i = 0; i < SIDE; i += COUNT) {
#if COUNT == 8
        FOUR(z[i], z[i + 2], z[i + 4], z[i + 6])
        FOUR(z[i + 1], z[i + 3], z[i + 5], z[i + 7])
        const Complex first = z[i + 3], third = z[i + 7];
        SUM_AND_DIFFERENCE(z[i], z[i + 1], z[i + 1])
        SUM_AND_DIFFERENCE(z[i + 2], z[i + 3], HALF_ROOT * (Complex)(first.x + first.y, first.y - first.x))
        SUM_AND_DIFFERENCE(z[i + 4], z[i + 5], MINUS_I(z[i + 5]))
        SUM_AND_DIFFERENCE(z[i + 6], z[i + 7], HALF_ROOT * (Complex)(third.y - third.x, -third.x - third.y))
#else
        FOUR(z[i], z[i + 1], z[i + 2], z[i + 3])
#endif
    }
}

// Two columns, in z as real and imaginary parts; `one` is where number 0 of the first one goes.
IN_PLACE void columns_forward(Complex *z, local Complex *one) {
    local Complex *other = one + HALF;
    fourier(z, SIDE);
    one[0] = (Complex)(z[PLACE(0)].x, z[PLACE(HALF)].x);
    other[0] = (Complex)(z[PLACE(0)].y, z[PLACE(HALF)].y);
#pragma unroll
    for (int k = 1; k < HALF; k++) {
        const Complex plus = z[PLACE(k)], minus = CONJUGATE(z[PLACE(SIDE - k)]);
        one[k * ROW] = 0.5f * (plus + minus);
        other[k * ROW] = 0.5f * MINUS_I(plus - minus);
    }
}

// The inverse of columns_forward, times SIDE: element y is left in z[PLACE(y)], the first column's as .y.
IN_PLACE void columns_back(Complex *z, local const Complex *one) {
    local const Complex *other = one + HALF;
    const Complex ends = one[0], other_ends = other[0];
    // real and imaginary parts are swapped, which makes the transform its own inverse
    z[0] = (Complex)(other_ends.x, ends.x);
    z[HALF] = (Complex)(other_ends.y, ends.y);
#pragma unroll
    for (int k = 1; k < HALF; k++) {
        const Complex a = one[k * ROW], b = TIMES_I(other[k * ROW]);
        z[k] = (a + b).yx;
        z[SIDE - k] = (CONJUGATE(a) - CONJUGATE(b)).yx;
    }
    fourier(z, SIDE);
}

// A line in z, of which `used` numbers are not zero: PUT(k, value) takes its numbers, PUT_LAST(i, value) the last two
// points.
#define LINE_FORWARD(z, line, used, PUT, PUT_LAST)                                       \
    {                                                                                    \
        fourier(z, used);                                                                \
        if ((line) == 0) {                                                               \
            PUT_LAST(0, (Complex)(z[PLACE(0)].y, 0))                                     \
            PUT_LAST(1, (Complex)(z[PLACE(HALF)].y, 0))                                  \
            z[PLACE(0)].y = z[PLACE(HALF)].y = 0;                                        \
            UNROLLED                                                                     \
            for (int k = 1; k < HALF; k++) {                                             \
                const Complex plus = z[PLACE(k)], minus = CONJUGATE(z[PLACE(SIDE - k)]); \
                z[PLACE(k)] = 0.5f * (plus + minus);                                     \
                z[PLACE(SIDE - k)] = 0.5f * MINUS_I(plus - minus);                       \
            }                                                                            \
        }                                                                                \
        UNROLLED                                                                         \
        for (int k = 0; k < SIDE; k++) PUT(k, z[PLACE(k)])                               \
    }

// The inverse of LINE_FORWARD, times SIDE, of points in z and the last two points: `to` is where number 0 goes, and
// numbers up to `wanted`, a constant.
IN_PLACE void line_back(Complex *z, const Complex *last, const int line, local Complex *to, const int wanted) {
    if (line == 0) {
        z[0] += TIMES_I(last[0]);
        z[HALF] += TIMES_I(last[1]);
#pragma unroll
        for (int k = 1; k < HALF; k++) {
            const Complex first = z[k], second = TIMES_I(z[SIDE - k]);
            z[k] = first + second;
            z[SIDE - k] = CONJUGATE(first) - CONJUGATE(second);
        }
    }
#pragma unroll
    for (int k = 0; k < SIDE; k++) z[k] = z[k].yx;
    fourier(z, SIDE);
#pragma unroll
    for (int x = 0; x < SIDE; x++)
        if (x < wanted) to[x] = z[PLACE(x)].yx;
}
