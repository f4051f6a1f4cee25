// What checked expressions are written with. VALUE is real or, with VL, a vector of VL reals.
//
// A truth value is a MASK: 0 or 1 for scalars, 0 or all bits in each lane for vectors.
// INPUTS(F), OUTPUTS(F), SCALARS(F) list F(...) for each operand of the generated program BODY:
//   INPUTS   F(number, kind, unit)   kind: stored or real elements; unit: 1 if the innermost axis is
//            walked, 0 if it is broadcast,
//                                    2 if stride_n_inner says so: pointwise_vectors has a loop for each pattern of two
//                                    inputs (INPUTS_11, INPUTS_10, INPUTS_01), and of more inputs one where the first
//                                    alone walks (INPUTS_FIRST) and one for all other patterns
//   OUTPUTS  F(number)
//   SCALARS  F(name)
#include "pointwise/math.cl"

#ifdef VL
typedef realv VALUE;
#if STORAGE == 64
typedef CAT(long, VL) MASK;
#else
typedef CAT(int, VL) MASK;
#endif
#define SPLAT(x) ((VALUE)(x))
#define PICK(test, yes, no) select(no, yes, test)
#define BOTH(a, b) ((a) & (b))
#define EITHER(a, b) ((a) | (b))
#define NOT(a) (~(a))
#define TRUTH(test) (test)
#else
typedef real VALUE;
typedef int MASK;
#define SPLAT(x) ((VALUE)(x))
#define PICK(test, yes, no) ((test) ? (yes) : (no))
#define BOTH(a, b) ((a) && (b))
#define EITHER(a, b) ((a) || (b))
#define NOT(a) (!(a))
#define TRUTH(test) ((test) != 0)
#endif
#define NUMBER(test) PICK(test, SPLAT(REAL(1.0)), SPLAT(REAL(0.0)))

// Elements of workspace tensors are reals whatever the storage.
#define LOAD_stored(p, i) LOAD(p, i)
#define LOAD_real(p, i) ((p)[i])
#define STORE_stored(p, i, value) STORE(p, i, value)
#define STORE_real(p, i, value) ((p)[i] = (value))
#ifdef VL
#define VLOAD_stored(p, i) VLOAD(p, i)
#define VLOAD_real(p, i) CAT(vload, VL)(0, (p) + (i))
#define VSTORE_stored(p, i, value) VSTORE(p, i, value)
#define VSTORE_real(p, i, value) CAT(vstore, VL)((value), 0, (p) + (i))
#endif

// The parameters that every generated kernel begins with. An output that is not wanted has a base of NULL.
#define INPUT_PARAMETER(n, kind, unit) TENSOR_OF(const kind, in##n),
#define OUTPUT_PARAMETER(n, kind) TENSOR_OF(kind, out##n), const int accumulate_##n,
#define SCALAR_PARAMETER(name) const real p_##name,
#define AXIS_PARAMETER(a) const ulong size_##a,
#define STRIDE_PARAMETER(n, a) const ulong stride_##n##_##a,
#define PARAMETERS          \
    INPUTS(INPUT_PARAMETER) \
    OUTPUTS(OUTPUT_PARAMETER) SCALARS(SCALAR_PARAMETER) AXES(AXIS_PARAMETER) STRIDES(STRIDE_PARAMETER)

#define OPEN_INPUT(n, kind, unit) global const kind *xs##n = OPEN(in##n);
#define OPEN_OUTPUT(n, kind)                   \
    const int wanted_##n = out##n##_base != 0; \
    global kind *ys##n = OPEN(out##n);

// An index into some axes, innermost first, becomes a position on each; the outermost takes what is left.
#define SPLIT_AXIS(a)                            \
    const INDEX at_##a = rest % (INDEX)size_##a; \
    rest /= (INDEX)size_##a;
#define LAST_AXIS(a) const INDEX at_##a = rest;

#define DECLARE_OUTPUT(n, kind) VALUE y##n;

// y = ALPHA * value + BETA * y, and y on top where the run accumulates.
#ifdef ALPHA
#define SCALED(value) (ALPHA * (value))
#else
#define SCALED(value) (value)
#endif
#ifdef BETA
#define BLEND(n, old) y##n = SCALED(y##n) + (accumulate_##n ? BETA + SPLAT(REAL(1.0)) : BETA) * (old);
#else
#define BLEND(n, old)    \
    y##n = SCALED(y##n); \
    if (accumulate_##n) y##n += (old);
#endif
