// What follows the depthwise convolution inside of a product's kernel: y0 from x0, the element, and extra inputs x1,
// x2, ... with one element for each channel. As common/epilogue.cl, for a kernel that may have both.
//
// PROLOGUE             the program's text; without it, all of this is nothing
// PROLOGUE_EXTRAS(F)   F(n) for each extra input
// PROLOGUE_SCALARS(F)  F(name) for each scalar
#include "common/epilogue.cl"

#ifdef PROLOGUE
#define PROLOGUE_FIELD(n) global const stored *x##n;
#define PROLOGUE_SCALAR(name) real p_##name;
typedef struct {
    int unused;  // there may be no other field
    PROLOGUE_EXTRAS(PROLOGUE_FIELD)
    PROLOGUE_SCALARS(PROLOGUE_SCALAR)
} Prologue;

#define PROLOGUE_PARAMETER(n) , CONST_TENSOR(before##n)
#define PROLOGUE_SCALAR_PARAMETER(name) , const real p_##name
#define PROLOGUE_PARAMETERS PROLOGUE_EXTRAS(PROLOGUE_PARAMETER) PROLOGUE_SCALARS(PROLOGUE_SCALAR_PARAMETER)
#define PASS_PROLOGUE_EXTRA(n) , before##n##_base, before##n##_offset
#define PASS_PROLOGUE_SCALAR(name) , p_##name
#define PASS_PROLOGUE_PARAMETERS PROLOGUE_EXTRAS(PASS_PROLOGUE_EXTRA) PROLOGUE_SCALARS(PASS_PROLOGUE_SCALAR)
#define OPEN_PROLOGUE_EXTRA(n) prologue.x##n = OPEN(before##n);
#define OPEN_PROLOGUE_SCALAR(name) prologue.p_##name = p_##name;
#define OPEN_PROLOGUE                    \
    Prologue prologue;                   \
    prologue.unused = 0;                 \
    PROLOGUE_EXTRAS(OPEN_PROLOGUE_EXTRA) \
    PROLOGUE_SCALARS(OPEN_PROLOGUE_SCALAR)
#define TAKE_PROLOGUE , const Prologue prologue
#define PASS_PROLOGUE , prologue

#define NAME_PROLOGUE_SCALAR(name) const real p_##name = prologue.p_##name;
#define LOAD_PROLOGUE_EXTRA(n) const VALUE x##n = SPLAT(LOAD(prologue.x##n, channel));

VALUE prologue_vector(const VALUE x0, const Prologue prologue, const long channel) {
    PROLOGUE_SCALARS(NAME_PROLOGUE_SCALAR)
    PROLOGUE_EXTRAS(LOAD_PROLOGUE_EXTRA)
    VALUE y0;
    PROLOGUE
    return y0;
}

#define PROLOGUE_VECTOR(value, channel) prologue_vector(value, prologue, channel)
#else
#define PROLOGUE_PARAMETERS
#define PASS_PROLOGUE_PARAMETERS
#define OPEN_PROLOGUE
#define TAKE_PROLOGUE
#define PASS_PROLOGUE
#define PROLOGUE_VECTOR(value, channel) (value)
#endif
