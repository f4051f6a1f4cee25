// Discrete Fourier transforms of real planes of SIDE x SIDE elements, PLANES of them in a work-group of THREADS.
//
// A plane lies in local memory: row y is at y * ROW, plane p at p * PLANE. Its transform is Hermitian, so half of it is
// kept: POINTS complex numbers. Work-item (plane, line) transforms two rows as one complex row, then a column. Number k
// of column `line` is point k * SIDE / 2 + line. Columns 0 and SIDE / 2 are transforms of real columns, which are
// transformed as one complex column; their numbers k and -k are conjugates, so they share the points of column 0: first
// numbers 0 to SIDE / 2 of column 0, then numbers SIDE / 2 - 1 to 1 of column SIDE / 2. Its numbers 0 and SIDE / 2 are
// the last two points.
// In between, element y of column k is at row y, its imaginary part SIDE / 2 elements further; column SIDE / 2 is the
// imaginary part of column 0. Rows of one plane are in different banks, and so are the planes of a column.
// Cooley and Tukey, An algorithm for the machine calculation of complex Fourier series (1965).
//
// SIDE     16 or 32
// PLANES   a divisor of 32

#define HALF (SIDE / 2)
#define THREADS (PLANES * HALF)
#define ROW (SIDE + 1)
#define PLANE (SIDE * ROW + SIDE * ROW % 32 + 32 / PLANES)
#define POINTS (SIDE * HALF + 2)

typedef float2 Complex;

#define CONJUGATE(z) ((Complex)((z).x, -(z).y))
#define TIMES_I(z) ((Complex)(-(z).y, (z).x))
#define MINUS_I(z) ((Complex)((z).y, -(z).x))

// cos and sin of 2 * pi * j / 32
constant Complex turns[22] = {
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
};
#define HALF_ROOT 0.7071067811865476f  // square root of 1 / 2

#define IN_PLACE __attribute__((always_inline))

// z turned back by the angle with this cosine and sine.
IN_PLACE Complex turn_back(const Complex z, const Complex angle) {
    return (Complex)(fma(z.x, angle.x, z.y * angle.y), fma(z.y, angle.x, -(z.x * angle.y)));
}

// The transform of four numbers, in place.
#define FOUR(a, b, c, d)                                                             \
    {                                                                                \
        const Complex sum = (a) + (c), difference = (a) - (c);                       \
        const Complex other_sum = (b) + (d), other_difference = MINUS_I((b) - (d));  \
        a = sum + other_sum;                                                         \
        b = difference + other_difference;                                           \
        c = sum - other_sum;                                                         \
        d = difference - other_difference;                                           \
    }

#define SUM_AND_DIFFERENCE(a, b, turned)    \
    {                                       \
        const Complex second = turned;      \
        b = (a) - second;                   \
        a += second;                        \
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
// turns, 4 transforms of COUNT numbers.
IN_PLACE void fourier(Complex *z) {
#pragma unroll
    for (int n = 0; n < COUNT; n++) {
        FOUR(z[n], z[COUNT + n], z[2 * COUNT + n], z[3 * COUNT + n])
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

// Rows `line` and `line` + SIDE / 2 of a plane: real elements in, columns' elements out.
IN_PLACE void rows_forward(local real *plane, const int line) {
    local real *a = plane + line * ROW, *b = a + HALF * ROW;
    Complex z[SIDE];
#pragma unroll
    for (int i = 0; i < SIDE; i++) z[i] = (Complex)(a[i], b[i]);
    fourier(z);
    a[0] = z[PLACE(0)].x;
    b[0] = z[PLACE(0)].y;
    a[HALF] = z[PLACE(HALF)].x;
    b[HALF] = z[PLACE(HALF)].y;
#pragma unroll
    for (int k = 1; k < HALF; k++) {
        const Complex one = z[PLACE(k)], other = CONJUGATE(z[PLACE(SIDE - k)]);
        const Complex of_a = 0.5f * (one + other), of_b = 0.5f * MINUS_I(one - other);
        a[k] = of_a.x;
        a[HALF + k] = of_a.y;
        b[k] = of_b.x;
        b[HALF + k] = of_b.y;
    }
}

// The inverse of rows_forward, times SIDE.
IN_PLACE void rows_back(local real *plane, const int line) {
    local real *a = plane + line * ROW, *b = a + HALF * ROW;
    Complex z[SIDE];  // with real and imaginary parts swapped, which makes the transform its own inverse
    z[0] = (Complex)(b[0], a[0]);
    z[HALF] = (Complex)(b[HALF], a[HALF]);
#pragma unroll
    for (int k = 1; k < HALF; k++) {
        const Complex of_a = (Complex)(a[k], a[HALF + k]), of_b = TIMES_I((Complex)(b[k], b[HALF + k]));
        z[k] = (of_a + of_b).yx;
        z[SIDE - k] = (CONJUGATE(of_a) - CONJUGATE(of_b)).yx;
    }
    fourier(z);
#pragma unroll
    for (int i = 0; i < SIDE; i++) {
        a[i] = z[PLACE(i)].y;
        b[i] = z[PLACE(i)].x;
    }
}

#define UNROLLED _Pragma("unroll")

// Column `line` of a plane: PUT(k, value) takes its numbers, PUT_LAST(i, value) the last two points.
#define COLUMN_FORWARD(plane, line, PUT, PUT_LAST)                                                 \
    {                                                                                              \
        Complex z[SIDE];                                                                           \
        UNROLLED                                                                                   \
        for (int y = 0; y < SIDE; y++)                                                             \
            z[y] = (Complex)((plane)[y * ROW + (line)], (plane)[y * ROW + HALF + (line)]);         \
        fourier(z);                                                                                \
        if ((line) == 0) {                                                                         \
            PUT_LAST(0, (Complex)(z[PLACE(0)].y, 0))                                               \
            PUT_LAST(1, (Complex)(z[PLACE(HALF)].y, 0))                                            \
            z[PLACE(0)].y = z[PLACE(HALF)].y = 0;                                                  \
            UNROLLED                                                                               \
            for (int k = 1; k < HALF; k++) {                                                       \
                const Complex one = z[PLACE(k)], other = CONJUGATE(z[PLACE(SIDE - k)]);            \
                z[PLACE(k)] = 0.5f * (one + other);                                                \
                z[PLACE(SIDE - k)] = 0.5f * MINUS_I(one - other);                                  \
            }                                                                                      \
        }                                                                                          \
        UNROLLED                                                                                   \
        for (int k = 0; k < SIDE; k++) PUT(k, z[PLACE(k)])                                         \
    }

// The inverse of COLUMN_FORWARD, times SIDE; GET(k) and GET_LAST(i) are the points' values.
#define COLUMN_BACK(plane, line, GET, GET_LAST)                                                    \
    {                                                                                              \
        Complex z[SIDE];                                                                           \
        UNROLLED                                                                                   \
        for (int k = 0; k < SIDE; k++) z[k] = GET(k);                                              \
        if ((line) == 0) {                                                                         \
            z[0] += TIMES_I(GET_LAST(0));                                                          \
            z[HALF] += TIMES_I(GET_LAST(1));                                                       \
            UNROLLED                                                                               \
            for (int k = 1; k < HALF; k++) {                                                       \
                const Complex first = z[k], last = TIMES_I(z[SIDE - k]);                           \
                z[k] = first + last;                                                               \
                z[SIDE - k] = CONJUGATE(first) - CONJUGATE(last);                                  \
            }                                                                                      \
        }                                                                                          \
        UNROLLED                                                                                   \
        for (int k = 0; k < SIDE; k++) z[k] = z[k].yx;                                             \
        fourier(z);                                                                                \
        UNROLLED                                                                                   \
        for (int y = 0; y < SIDE; y++) {                                                           \
            (plane)[y * ROW + (line)] = z[PLACE(y)].y;                                             \
            (plane)[y * ROW + HALF + (line)] = z[PLACE(y)].x;                                      \
        }                                                                                          \
    }
