// What the kernels of a training batch norm share: outputs with write modes, and the activation after the norm.
//
// ACTIVATE   y0 from x0, the norm's value; FLOW: y0, the gradient of the norm's value, from x0, y's, and x1, the value;
//            both only where an activation follows. SCALARS(F): its scalars
// RESIDUAL   an array of x's shape is added before the activation; then nothing is kept for the gradient
// BIAS       the gradient of a bias in front of the norm is written too
// REAL_PARAMETERS  1: all that has one value for each channel is stored as real, not as x is
#include "pointwise/value.cl"

#ifdef REAL_PARAMETERS
typedef real parameter;
#define LOAD_parameter LOAD_real
#define STORE_parameter STORE_real
#define VLOAD_parameter VLOAD_real
#else
typedef stored parameter;
#define LOAD_parameter LOAD_stored
#define STORE_parameter STORE_stored
#define VLOAD_parameter VLOAD_stored
#endif

#ifndef SCALARS
#define SCALARS(F)
#endif
#define SCALAR_LAST(name) , const real p_##name
#define PASS_SCALAR(name) , p_##name

#define OUTPUT_OF(type, name) TENSOR_OF(type, name), const int accumulate_##name
#define PUT_VALUE(kind, name, at, value) \
    if (name##_base) STORE_##kind(OPEN(name), at, accumulate_##name ? LOAD_##kind(OPEN(name), at) + (value) : (value));

VALUE activated(const VALUE norm SCALARS(SCALAR_LAST)) {
#ifdef ACTIVATE
    const VALUE x0 = norm;
    VALUE y0;
    ACTIVATE
    return y0;
#else
    return norm;
#endif
}

VALUE flow(const VALUE dy, const VALUE norm SCALARS(SCALAR_LAST)) {
#ifdef FLOW
    const VALUE x0 = dy, x1 = norm;
    VALUE y0;
    FLOW
    return y0;
#else
    return dy;
#endif
}

#ifdef RESIDUAL
#define RESIDUAL_PARAMETER CONST_TENSOR(residual),
#else
#define RESIDUAL_PARAMETER
#endif

// The gradient of the norm of `value`: shift, factor and level are those that forward kept.
#ifdef FLOW
#define KEPT_INPUTS TENSOR_OF(const real, shift), TENSOR_OF(const real, scale), TENSOR_OF(const real, offset),
#define OPEN_KEPT \
    const real middle = OPEN(shift)[channel], factor = OPEN(scale)[channel], level = OPEN(offset)[channel];
#define FLOWING(dy, value) flow(dy, ((value) - middle) * factor + level SCALARS(PASS_SCALAR))
#else
#define KEPT_INPUTS
#define OPEN_KEPT
#define FLOWING(dy, value) (dy)
#endif
#if defined(ACTIVATE) && !defined(RESIDUAL)
#define KEPT_OUTPUTS OUTPUT_OF(real, shift), OUTPUT_OF(real, scale), OUTPUT_OF(real, offset),
#define PUT_KEPT(middle, factor, level)     \
    PUT_VALUE(real, shift, channel, middle) \
    PUT_VALUE(real, scale, channel, factor) \
    PUT_VALUE(real, offset, channel, level)
#else
#define KEPT_OUTPUTS
#define PUT_KEPT(middle, factor, level)
#endif
// An output of backward, and what stores those of a channel, of its sums: of the gradient, and of that times the norm.
// A norm takes away what a bias in front of it adds, so the bias has a gradient of 0 if the sums are finite.
#ifdef BIAS
#define BIAS_OUTPUT OUTPUT_OF(parameter, dbias),
#define PUT_BIAS(first, second) PUT_VALUE(parameter, dbias, channel, (first) * 0 + (second) * 0)
#else
#define BIAS_OUTPUT
#define PUT_BIAS(first, second)
#endif
#define PUT_GRADIENTS(first, second)              \
    PUT_VALUE(parameter, dgamma, channel, second) \
    PUT_VALUE(parameter, dbeta, channel, first)   \
    PUT_BIAS(first, second)
// Stores a channel's statistics, of which the mean is `apart` from middle, and the norm that follows from them.
#define PUT_STATISTICS(middle, apart, variance, factor, level) \
    PUT_VALUE(parameter, mean, channel, (middle) + (apart))    \
    PUT_VALUE(parameter, var, channel, variance)               \
    PUT_KEPT(middle, factor, level)
