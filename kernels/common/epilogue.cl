// What follows a convolution or a dense layer, computed where the result is stored: y0 from x0, the element, and extra
// inputs x1, x2, ... with one element for each channel or for each element of the result.
//
// EPILOGUE                the program's text (core/planning/epilogue.py); without it, all of this is nothing
// CHANNEL_EXTRAS(F)       F(n) for each extra input of the one kind
// WHOLE_EXTRAS(F)         F(n) for each extra input of the other kind
// EPILOGUE_SCALARS(F)     F(name) for each scalar
//
// A kernel ends its parameters with EPILOGUE_PARAMETERS and begins with OPEN_EPILOGUE; functions that store end their
// parameters with TAKE_EPILOGUE and are called with PASS_EPILOGUE. The extra inputs are never the result's own memory.
// PASS_EPILOGUE_PARAMETERS hands a kernel's parameters on as they are, where a toolchain makes its body a function.
//     EPILOGUE_VECTOR(value, channel, at)   VL neighbouring elements of a channel, the first is
//                                           element `at` of the result
//     EPILOGUE_CHANNELS(value, channel, at) one element each of VL neighbouring channels, where these lie side by side
//     EPILOGUE_ALIGNED_CHANNELS(...)        the same where EXTRAS_ALIGNED, in kernels with ALIGNED_EXTRAS
//     EPILOGUE_ELEMENT(value, channel, at)  one element
//     ASK_EXTRAS(at)                        asks for the lines of extra inputs with element `at` of the result
#if defined(EPILOGUE) || defined(PROLOGUE) || defined(GRADIENT_SUMS)
#include "pointwise/value.cl"
#endif

#include "common/prefetch.cl"

#ifdef EPILOGUE
#define EXTRA_FIELD(n) global const stored *x##n;
#define EXTRA_SCALAR(name) real p_##name;
typedef struct {
    int unused;  // there may be no other field
    WHOLE_EXTRAS(EXTRA_FIELD)
    CHANNEL_EXTRAS(EXTRA_FIELD)
    EPILOGUE_SCALARS(EXTRA_SCALAR)
} Epilogue;

// On matrix units of 16 bits many of them are read before the first result is written.
#if defined(EMULATED) && !EMULATED
#define EXTRA_PARAMETER(n) , global const stored *restrict extra##n##_base, const ulong extra##n##_offset
#else
#define EXTRA_PARAMETER(n) , CONST_TENSOR(extra##n)
#endif
#define EXTRA_SCALAR_PARAMETER(name) , const real p_##name
#define EPILOGUE_PARAMETERS \
    CHANNEL_EXTRAS(EXTRA_PARAMETER) WHOLE_EXTRAS(EXTRA_PARAMETER) EPILOGUE_SCALARS(EXTRA_SCALAR_PARAMETER)
#define PASS_EXTRA(n) , extra##n##_base, extra##n##_offset
#define PASS_EXTRA_SCALAR(name) , p_##name
#define PASS_EPILOGUE_PARAMETERS CHANNEL_EXTRAS(PASS_EXTRA) WHOLE_EXTRAS(PASS_EXTRA) EPILOGUE_SCALARS(PASS_EXTRA_SCALAR)
#define OPEN_EXTRA(n) epilogue.x##n = OPEN(extra##n);
#define OPEN_EXTRA_SCALAR(name) epilogue.p_##name = p_##name;
#define OPEN_EPILOGUE          \
    Epilogue epilogue;         \
    epilogue.unused = 0;       \
    CHANNEL_EXTRAS(OPEN_EXTRA) \
    WHOLE_EXTRAS(OPEN_EXTRA)   \
    EPILOGUE_SCALARS(OPEN_EXTRA_SCALAR)
#define TAKE_EPILOGUE , const Epilogue epilogue
#define PASS_EPILOGUE , epilogue

#define NAME_SCALAR(name) const real p_##name = epilogue.p_##name;
#define LOAD_CHANNEL(n) const VALUE x##n = SPLAT(LOAD(epilogue.x##n, channel));
#define LOAD_ELEMENT(n) const VALUE x##n = SPLAT(LOAD(epilogue.x##n, at));
#ifdef VL
#define LOAD_VECTOR(n) const VALUE x##n = VLOAD(epilogue.x##n, at);

VALUE epilogue_vector(const VALUE x0, const Epilogue epilogue, const long channel, const long at) {
    EPILOGUE_SCALARS(NAME_SCALAR)
    CHANNEL_EXTRAS(LOAD_CHANNEL)
    WHOLE_EXTRAS(LOAD_VECTOR)
    VALUE y0;
    EPILOGUE
    return y0;
}

#define LOAD_CHANNELS(n) const VALUE x##n = VLOAD(epilogue.x##n, channel);
VALUE epilogue_channels(const VALUE x0, const Epilogue epilogue, const long channel, const long at) {
    EPILOGUE_SCALARS(NAME_SCALAR)
    CHANNEL_EXTRAS(LOAD_CHANNELS)
    WHOLE_EXTRAS(LOAD_VECTOR)
    VALUE y0;
    EPILOGUE
    return y0;
}
#ifdef ALIGNED_EXTRAS
// The same for addresses of vectors of 16 bits, eight of which are read at once.
#define OR_ADDRESS(n) | (ulong)epilogue.x##n
#define EXTRAS_ALIGNED ((0 WHOLE_EXTRAS(OR_ADDRESS) CHANNEL_EXTRAS(OR_ADDRESS)) % 16 == 0)
#define LOAD_ALIGNED_CHANNELS(n) const VALUE x##n = widen8(*(global const ushort8 *)(epilogue.x##n + channel));
#define LOAD_ALIGNED_VECTOR(n) const VALUE x##n = widen8(*(global const ushort8 *)(epilogue.x##n + at));
VALUE epilogue_aligned_channels(const VALUE x0, const Epilogue epilogue, const long channel, const long at) {
    EPILOGUE_SCALARS(NAME_SCALAR)
    CHANNEL_EXTRAS(LOAD_ALIGNED_CHANNELS)
    WHOLE_EXTRAS(LOAD_ALIGNED_VECTOR)
    VALUE y0;
    EPILOGUE
    return y0;
}
#define EPILOGUE_ALIGNED_CHANNELS(value, channel, at) epilogue_aligned_channels(value, epilogue, channel, at)
#endif
#define FIRST_LANE(value) (value).s0
#else
#define FIRST_LANE(value) (value)
#endif

real epilogue_element(const real value, const Epilogue epilogue, const long channel, const long at) {
    const VALUE x0 = SPLAT(value);
    EPILOGUE_SCALARS(NAME_SCALAR)
    CHANNEL_EXTRAS(LOAD_CHANNEL)
    WHOLE_EXTRAS(LOAD_ELEMENT)
    VALUE y0;
    EPILOGUE
    return FIRST_LANE(y0);
}

#define EPILOGUE_VECTOR(value, channel, at) epilogue_vector(value, epilogue, channel, at)
#define EPILOGUE_CHANNELS(value, channel, at) epilogue_channels(value, epilogue, channel, at)
#define EPILOGUE_ELEMENT(value, channel, at) epilogue_element(value, epilogue, channel, at)
#define ASK_EXTRA(n) PREFETCH(epilogue.x##n + asked_at);
#define ASK_EXTRAS(at)              \
    {                               \
        const long asked_at = (at); \
        WHOLE_EXTRAS(ASK_EXTRA)     \
    }
#else
#define EPILOGUE_PARAMETERS
#define PASS_EPILOGUE_PARAMETERS
#define OPEN_EPILOGUE
#define TAKE_EPILOGUE
#define PASS_EPILOGUE
#define EPILOGUE_VECTOR(value, channel, at) (value)
#define EPILOGUE_CHANNELS(value, channel, at) (value)
#define EPILOGUE_ALIGNED_CHANNELS(value, channel, at) (value)
#define EXTRAS_ALIGNED true
#define EPILOGUE_ELEMENT(value, channel, at) (value)
#define ASK_EXTRAS(at)
#endif
