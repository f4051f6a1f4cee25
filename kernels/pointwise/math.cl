// Functions that some CPU runtimes compute lane by lane, as straight arithmetic on vectors of floats; good to about 4
// ulp. Elsewhere they are the compiler's own.
#if defined(VL) && STORAGE != 64
#include "common/any_lane.cl"

#define ERF(x) erf_lanes(x)
#define ERFC(x) erfc_lanes(x)
#define EXPM1(x) expm1_lanes(x)
#define LOG1P(x) log1p_lanes(x)
#define TANH(x) tanh_lanes(x)
#define VALUES(x) ((realv)(x))

// 2^n (q + 1) - 1, where n is x / ln(2) rounded and q is exp - 1 of the rest, whose series is fitted within ln(2) / 2.
// -30 <= z <= 89, or NaN.
static realv expm1_within(realv z) {
    // the sum's last bits are n as a whole number
    const realv sum = fma(z, VALUES(1.44269504f), VALUES(12582912.0f)), n = sum - 12582912.0f;
    const realv rest = fma(n, VALUES(2.12194440e-4f), fma(n, VALUES(-0.693359375f), z));
    realv p = fma(rest, VALUES(1.3865500016e-3f), VALUES(8.3655335748e-3f));
    p = fma(rest, p, VALUES(4.1667170632e-2f));
    p = fma(rest, p, VALUES(1.6666548581e-1f));
    p = fma(rest, p, VALUES(0.5f));
    const realv q = fma(rest * rest, p, rest);
    const realv half_of = CAT(as_float, VL)((CAT(as_int, VL)(sum) + 126) << 23);  // 2^(n - 1): 2^128 is no float
    return 2.0f * fma(half_of, q, half_of - 0.5f);
}

#define AT_LEAST(z, least) select(z, VALUES(least), z < least)

static realv expm1_lanes(realv x) {
    const realv z = select(x, VALUES(89.0f), x > 89.0f);
    return expm1_within(AT_LEAST(z, -30.0f));
}

// As exp(-2 x) - 1 keeps its digits next to 0, so does this quotient.
static realv tanh_lanes(realv x) {
    const realv z = -2.0f * fabs(x), q = expm1_within(AT_LEAST(z, -30.0f));
    return copysign(q / (q + 2.0f), x);
}

// 2 artanh(x / (2 + x)) next to 0, where log(1 + x) loses digits: a Chebyshev fit of its series for q up to 1/9.
static realv log1p_lanes(realv x) {
    const realv s = x / (2.0f + x), q = s * s;
    realv p = fma(q, VALUES(2.801198736e-01f), VALUES(2.800180514e-01f));
    p = fma(q, p, VALUES(4.002152725e-01f));
    p = fma(q, p, VALUES(6.666641629e-01f));
    p = fma(s * q, p, s + s);
    if (any_lane((x < -0.5f) | (x > 1.0f))) p = select(p, log(1.0f + x), (x < -0.5f) | (x > 1.0f));
    return p;
}

// exp(x^2) erfc(x) (1 + 2 x) for x >= 0 is smooth in t = (x - 2) / (x + 2) (Shepherd and Laframboise
// 1981); a Chebyshev fit of it.
static realv erfc_lanes(realv x) {
    const realv size = fabs(x), z = select(size, VALUES(11.0f), size > 11.0f), t = (z - 2.0f) / (z + 2.0f);
    realv p = fma(t, VALUES(-4.158970703e-04f), VALUES(-1.246796925e-03f));
    p = fma(t, p, VALUES(1.331685428e-03f));
    p = fma(t, p, VALUES(8.652287233e-03f));
    p = fma(t, p, VALUES(-8.066704030e-03f));
    p = fma(t, p, VALUES(-5.421196123e-02f));
    p = fma(t, p, VALUES(1.640563038e-01f));
    p = fma(t, p, VALUES(-1.660305301e-01f));
    p = fma(t, p, VALUES(-9.276402156e-02f));
    p = fma(t, p, VALUES(1.276978377f));
    // the square's rounding error would be multiplied by the square: exp(-square) exp(-rest), rest being tiny
    const realv square = z * z;
#ifdef UNFUSED
    const realv most = trunc(z * 128.0f) * 0.0078125f;  // its square has no rounding error
    const realv rest = (most * most - square) + (z - most) * (z + most);
#else
    const realv rest = fma(z, z, -square);
#endif
    const realv value = exp(-square) * (1.0f - rest) * (p / fma(z, VALUES(2.0f), VALUES(1.0f)));
    return select(value, 2.0f - value, x < 0.0f);
}

// x P(x^2) next to 0, P being a Chebyshev fit; 1 - erfc(x) elsewhere.
static realv erf_lanes(realv x) {
    const realv s = x * x;
    realv p = fma(s, VALUES(7.875875453e-05f), VALUES(-8.016864405e-04f));
    p = fma(s, p, VALUES(5.189087437e-03f));
    p = fma(s, p, VALUES(-2.685421202e-02f));
    p = fma(s, p, VALUES(1.128359472e-01f));
    p = fma(s, p, VALUES(-3.761262667e-01f));
    p = fma(s, p, VALUES(1.128379166f));
    return select(copysign(1.0f - erfc_lanes(fabs(x)), x), x * p, s < 1.0f);
}
#else
#define ERF(x) erf(x)
#define ERFC(x) erfc(x)
#define EXPM1(x) expm1(x)
#define LOG1P(x) log1p(x)
#define TANH(x) tanh(x)
#endif
