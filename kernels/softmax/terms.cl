// What all kernels of softmax compute for an element. LOG 1: the logarithm of the softmax.

#ifndef LOG
#define LOG 0
#endif

// Of a gradient: a term of the sum over the channels, and the result.
#if LOG
#define TERM(y, dy) (dy)
#define GRADIENT(y, dy, total) ((dy) - exp(y) * (total))
#else
#define TERM(y, dy) ((y) * (dy))
#define GRADIENT(y, dy, total) ((y) * ((dy) - (total)))
#endif

#define GREATER(a, b) ((b) > (a) ? (b) : (a))

// exp(z) of z <= 0 or NaN; exp(0) is 1. For results of 16 bits in vectors it is 2^n p(f), where n + f is z / ln(2), n
// rounded to a whole number, and p is a fit of 2^f: off by less than 5e-6 of the value, and 0 below the smallest normal
// number.
#if defined(VL) && STORAGE == 16
#define EXP_BELOW(z) exp_below(z)
realv exp_below(const realv z) {
    // the sum's last bits are those of n + 127
    const realv sum = fma(z, (realv)(1.44269504f), (realv)(12583039.0f)), n = sum - 12583039.0f;
    const realv f = fma(z, (realv)(1.44269504f), -n);
    realv p = fma(f, (realv)(9.582853059e-3f), (realv)(5.590642465e-2f));
    p = fma(f, p, (realv)(2.402409861e-1f));
    p = fma(f, p, (realv)(6.931241934e-1f));
    p = fma(f, p, (realv)(1.0f));
    return select(p * CAT(as_float, VL)(CAT(as_int, VL)(sum) << 23), (realv)(0), z < -87.0f);
}
#else
#define EXP_BELOW(z) exp(z)
#endif
