// What kernels of rows of channels on CPUs and on GPUs share: three vectors of a number for each channel, by which the
// launch that joins the sums of parts tells the launch after it what to do with rows.

#include "batchnorm/activation.cl"

#define VECTOR(n) (OPEN(vectors) + (long)(n) * channels)
#define PUT_VECTORS(a, b, c)  \
    VECTOR(0)[channel] = (a); \
    VECTOR(1)[channel] = (b); \
    VECTOR(2)[channel] = (c);
// Of a channel's statistics, whose mean is middle + average: middle, and the norm's factor and level.
#define PUT_NORM(middle, average, variance)                                            \
    const real factor = LOAD_parameter(OPEN(gamma), channel) / sqrt((variance) + eps), \
               level = LOAD_parameter(OPEN(beta), channel) - (average) * factor;       \
    PUT_STATISTICS(middle, average, variance, factor, level)                           \
    PUT_VECTORS(middle, factor, level)
// Of the sums of gradients and of their products with x - mean: the mean gradient, its slope along the norm, and the
// factor.
#define PUT_GRADIENT(first, second, inverse, share) \
    const real along = (second) * (inverse);        \
    PUT_GRADIENTS(first, along)                     \
    PUT_VECTORS((first) * (share), (inverse) * along * (share), LOAD_parameter(OPEN(gamma), channel) * (inverse))
