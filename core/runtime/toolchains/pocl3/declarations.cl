// OpenCL's functions as declarations of our own, in front of every kernel on PoCL 3.
//
// PoCL reads a header of 15000 declarations twice for every program, which takes longer than many kernels. The option
// -D_OPENCL_H_ leaves the header out, and these declarations, which agree with it, take its place. A line that begins
// with DECLARE_ is left out where a kernel does not use its name (`declarations.py` next to it). A kernel that calls
// another function is built with the header after all.
//
// vloadN and vstoreN are made anew: PoCL's move one element after the other, and its compiler spends half of its time
// on making vectors of them again.

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#define POCL_DOUBLE(...) __VA_ARGS__
#else
#define POCL_DOUBLE(...)
#endif
#define POCL_CONST __attribute__((overloadable, const))
#define POCL_PURE __attribute__((overloadable, pure))
#define POCL_PLAIN __attribute__((overloadable))
// A list for a scalar type and its vectors, with a second type of the same size, and for all types of real numbers.
#define POCL_SIZES(LIST, name, T, I) \
    LIST(name, T, I) LIST(name, T##2, I##2) LIST(name, T##4, I##4) LIST(name, T##8, I##8) LIST(name, T##16, I##16)
#define POCL_REALS(LIST, name) \
    POCL_SIZES(LIST, name, float, int) POCL_DOUBLE(POCL_SIZES(LIST, name, double, long))

// Places in the grid.
#define DECLARE_PLACE(name) size_t POCL_CONST name(uint);
DECLARE_PLACE(get_global_id)
DECLARE_PLACE(get_global_size)
DECLARE_PLACE(get_local_id)
DECLARE_PLACE(get_local_size)
DECLARE_PLACE(get_group_id)
DECLARE_PLACE(get_num_groups)
#define DECLARE_COUNT(name) uint POCL_CONST name(void);
DECLARE_COUNT(get_work_dim)
#define DECLARE_FENCE(name) void __attribute__((overloadable, convergent)) name(cl_mem_fence_flags);
DECLARE_FENCE(barrier)
#define DECLARE_MEMORY_FENCE(name) void POCL_PLAIN name(cl_mem_fence_flags);
DECLARE_MEMORY_FENCE(mem_fence)

#define DECLARE_COUNTER(name)                    \
    int POCL_PLAIN name(volatile global int *); \
    int POCL_PLAIN name(volatile local int *);
DECLARE_COUNTER(atomic_inc)
#define DECLARE_EXCHANGE(name) int POCL_PLAIN name(volatile global int *, int);
DECLARE_EXCHANGE(atomic_xchg)
#define DECLARE_MAXIMUM(name) uint POCL_PLAIN name(volatile local uint *, uint);
DECLARE_MAXIMUM(atomic_max)
#define DECLARE_MINIMUM(name) int POCL_PLAIN name(volatile local int *, int);
DECLARE_MINIMUM(atomic_min)

// Functions of real numbers.
#define POCL_ONE(name, T, I) T POCL_CONST name(T);
#define DECLARE_ONE(name) POCL_REALS(POCL_ONE, name)
DECLARE_ONE(acos)
DECLARE_ONE(acosh)
DECLARE_ONE(acospi)
DECLARE_ONE(asin)
DECLARE_ONE(asinh)
DECLARE_ONE(asinpi)
DECLARE_ONE(atan)
DECLARE_ONE(atanh)
DECLARE_ONE(atanpi)
DECLARE_ONE(cbrt)
DECLARE_ONE(ceil)
DECLARE_ONE(cos)
DECLARE_ONE(cosh)
DECLARE_ONE(cospi)
DECLARE_ONE(erf)
DECLARE_ONE(erfc)
DECLARE_ONE(exp)
DECLARE_ONE(exp10)
DECLARE_ONE(exp2)
DECLARE_ONE(expm1)
DECLARE_ONE(fabs)
DECLARE_ONE(floor)
DECLARE_ONE(lgamma)
DECLARE_ONE(log)
DECLARE_ONE(log10)
DECLARE_ONE(log1p)
DECLARE_ONE(log2)
DECLARE_ONE(rint)
DECLARE_ONE(round)
DECLARE_ONE(rsqrt)
DECLARE_ONE(sign)
DECLARE_ONE(sin)
DECLARE_ONE(sinh)
DECLARE_ONE(sinpi)
DECLARE_ONE(sqrt)
DECLARE_ONE(tan)
DECLARE_ONE(tanh)
DECLARE_ONE(tanpi)
DECLARE_ONE(tgamma)
DECLARE_ONE(trunc)
#define POCL_TWO(name, T, I) T POCL_CONST name(T, T);
#define DECLARE_TWO(name) POCL_REALS(POCL_TWO, name)
DECLARE_TWO(atan2)
DECLARE_TWO(copysign)
DECLARE_TWO(fdim)
DECLARE_TWO(fmax)
DECLARE_TWO(fmin)
DECLARE_TWO(fmod)
DECLARE_TWO(hypot)
DECLARE_TWO(max)
DECLARE_TWO(maxmag)
DECLARE_TWO(min)
DECLARE_TWO(minmag)
DECLARE_TWO(nextafter)
DECLARE_TWO(pow)
DECLARE_TWO(remainder)
DECLARE_TWO(step)
#define POCL_THREE(name, T, I) T POCL_CONST name(T, T, T);
#define DECLARE_THREE(name) POCL_REALS(POCL_THREE, name)
DECLARE_THREE(clamp)
DECLARE_THREE(fma)
DECLARE_THREE(mad)
DECLARE_THREE(mix)
DECLARE_THREE(smoothstep)
#define POCL_CHOICE(name, T, I) T POCL_CONST name(T, T, I);
#define DECLARE_CHOICE(name) POCL_REALS(POCL_CHOICE, name)
DECLARE_CHOICE(select)
#define POCL_TEST(name, T, I) I POCL_CONST name(T);
#define DECLARE_TEST(name)                            \
    POCL_SIZES(POCL_TEST, name, float, int)   \
    POCL_DOUBLE(int POCL_CONST name(double);) \
    POCL_DOUBLE(long2 POCL_CONST name(double2);) \
    POCL_DOUBLE(long4 POCL_CONST name(double4);) \
    POCL_DOUBLE(long8 POCL_CONST name(double8);) \
    POCL_DOUBLE(long16 POCL_CONST name(double16);)
DECLARE_TEST(isfinite)
DECLARE_TEST(isinf)
DECLARE_TEST(isnan)
DECLARE_TEST(signbit)

// Functions of whole numbers.
#define POCL_WHOLE(LIST, name) \
    LIST(name, char, ) LIST(name, uchar, ) LIST(name, short, ) LIST(name, ushort, ) \
    POCL_SIZES(LIST, name, int, ) POCL_SIZES(LIST, name, uint, ) \
    POCL_SIZES(LIST, name, long, ) POCL_SIZES(LIST, name, ulong, )
#define DECLARE_WHOLE_TWO(name) POCL_WHOLE(POCL_TWO, name)
DECLARE_WHOLE_TWO(max)
DECLARE_WHOLE_TWO(min)
DECLARE_WHOLE_TWO(mul_hi)
#define DECLARE_WHOLE_THREE(name) POCL_WHOLE(POCL_THREE, name)
DECLARE_WHOLE_THREE(clamp)
#define DECLARE_SIZE(name) uint POCL_CONST name(int); ulong POCL_CONST name(long);
DECLARE_SIZE(abs)
#define DECLARE_BITS(name) int POCL_CONST name(int);
DECLARE_BITS(clz)
#define DECLARE_BIT_CHOICE(name) uint POCL_CONST name(uint, uint, uint);
DECLARE_BIT_CHOICE(bitselect)
#define POCL_MASK(name, T, I) int POCL_CONST name(T);
#define DECLARE_MASK(name) POCL_SIZES(POCL_MASK, name, int, ) POCL_SIZES(POCL_MASK, name, long, )
DECLARE_MASK(all)
DECLARE_MASK(any)

// Conversions of all types into one.
#define POCL_FROM(name, T, from)                                                                    \
    T POCL_CONST name(from);                                                                        \
    T##2 POCL_CONST name##2(from##2);                                                               \
    T##4 POCL_CONST name##4(from##4);                                                               \
    T##8 POCL_CONST name##8(from##8);                                                               \
    T##16 POCL_CONST name##16(from##16);
#define POCL_FROM_ALL(LIST, name, T)                                                                \
    LIST(name, T, char) LIST(name, T, uchar) LIST(name, T, short) LIST(name, T, ushort)             \
    LIST(name, T, int) LIST(name, T, uint) LIST(name, T, long) LIST(name, T, ulong)                 \
    LIST(name, T, float) POCL_DOUBLE(LIST(name, T, double))
#define DECLARE_CONVERSION(name, T) POCL_FROM_ALL(POCL_FROM, name, T)
DECLARE_CONVERSION(convert_float, float)
DECLARE_CONVERSION(convert_int, int)
DECLARE_CONVERSION(convert_long, long)
DECLARE_CONVERSION(convert_uchar, uchar)
DECLARE_CONVERSION(convert_uint, uint)
DECLARE_CONVERSION(convert_ulong, ulong)
DECLARE_CONVERSION(convert_ushort, ushort)
#ifdef cl_khr_fp64
DECLARE_CONVERSION(convert_double, double)
#endif
#define POCL_CLIPPED(name, T, from) T POCL_CONST name(from);
#define DECLARE_CLIPPING(name, T) POCL_FROM_ALL(POCL_CLIPPED, name, T)
DECLARE_CLIPPING(convert_float_rtz, float)
DECLARE_CLIPPING(convert_int_sat, int)
DECLARE_CLIPPING(convert_uchar_sat, uchar)

// Half precision in memory.
#define POCL_MOVE static __attribute__((overloadable, always_inline))
#define POCL_HALVES(space)                                             \
    float POCL_PURE vload_half(size_t, const space half *);            \
    float2 POCL_PURE vload_half2(size_t, const space half *);          \
    float4 POCL_PURE vload_half4(size_t, const space half *);          \
    float8 POCL_PURE vload_half8(size_t, const space half *);          \
    float16 POCL_PURE vload_half16(size_t, const space half *);        \
    float4 POCL_PURE vloada_half4(size_t, const space half *);         \
    void POCL_PLAIN vstore_half_rte(float, size_t, space half *);      \
    void POCL_PLAIN vstore_half2_rte(float2, size_t, space half *);    \
    void POCL_PLAIN vstore_half4_rte(float4, size_t, space half *);    \
    void POCL_PLAIN vstore_half8_rte(float8, size_t, space half *);    \
    void POCL_PLAIN vstore_half16_rte(float16, size_t, space half *);  \
    void POCL_PLAIN vstorea_half4_rte(float4, size_t, space half *);   \
    POCL_DOUBLE(void POCL_PLAIN vstore_half_rte(double, size_t, space half *);)
POCL_HALVES(global)
POCL_HALVES(local)
POCL_HALVES(private)

// The same by the processor's conversions, at any address of an element: PoCL's own compute one element after the other
// from its bits. They are assembly: the compiler knows the builtin functions as conversions of halves, and compares
// halves then, by one call of a function for each.
#ifdef __F16C__
typedef ushort pocl_halves2 __attribute__((ext_vector_type(2), aligned(2)));
typedef ushort pocl_halves4 __attribute__((ext_vector_type(4), aligned(2)));
typedef ushort pocl_halves8 __attribute__((ext_vector_type(8), aligned(2)));
typedef ushort pocl_halves16 __attribute__((ext_vector_type(16), aligned(2)));
#define POCL_WIDEN(T, name, from)                                  \
    POCL_MOVE T name(const from bits) {                            \
        T value;                                                   \
        __asm__("vcvtph2ps %1, %0" : "=v"(value) : "v"(bits));     \
        return value;                                              \
    }
POCL_WIDEN(float4, pocl_four, short8)
POCL_MOVE short8 pocl_bits(const float4 value) { return as_short8(__builtin_ia32_vcvtps2ph(value, 0)); }
POCL_MOVE float pocl_widen(const ushort bits) { return pocl_four((short8)((short)bits, 0, 0, 0, 0, 0, 0, 0)).x; }
POCL_MOVE float2 pocl_widen(const ushort2 bits) { return pocl_four((short8)(as_short2(bits), 0, 0, 0, 0, 0, 0)).xy; }
POCL_MOVE float4 pocl_widen(const ushort4 bits) { return pocl_four((short8)(as_short4(bits), 0, 0, 0, 0)); }
POCL_WIDEN(float8, pocl_widen, ushort8)
POCL_MOVE ushort pocl_narrow(const float value) { return as_ushort8(pocl_bits((float4)(value, 0, 0, 0))).s0; }
POCL_MOVE ushort2 pocl_narrow(const float2 value) { return as_ushort8(pocl_bits((float4)(value, 0, 0))).s01; }
POCL_MOVE ushort4 pocl_narrow(const float4 value) { return as_ushort8(pocl_bits(value)).s0123; }
POCL_MOVE ushort8 pocl_narrow(const float8 value) { return as_ushort8(__builtin_ia32_vcvtps2ph256(value, 0)); }
#ifdef __AVX512F__
POCL_WIDEN(float16, pocl_widen, ushort16)
POCL_MOVE ushort16 pocl_narrow(const float16 value) {
    return as_ushort16(__builtin_ia32_vcvtps2ph512_mask(value, 0, (short16)(0), (ushort)-1));
}
#else
POCL_MOVE float16 pocl_widen(const ushort16 bits) { return (float16)(pocl_widen(bits.lo), pocl_widen(bits.hi)); }
POCL_MOVE ushort16 pocl_narrow(const float16 value) { return (ushort16)(pocl_narrow(value.lo), pocl_narrow(value.hi)); }
#endif
#define POCL_HALF_MOVES(n, type, space)                                               \
    POCL_MOVE float##n pocl_load_half##n(const size_t i, const space half *p) {       \
        return pocl_widen(*(const space type *)((const space ushort *)p + i * (sizeof(type) / 2))); \
    }                                                                                 \
    POCL_MOVE void pocl_store_half##n(const float##n v, const size_t i, space half *p) { \
        *(space type *)((space ushort *)p + i * (sizeof(type) / 2)) = pocl_narrow(v); \
    }
#define POCL_HALF_SPACE(space)                     \
    POCL_HALF_MOVES(, ushort, space)               \
    POCL_HALF_MOVES(2, pocl_halves2, space)        \
    POCL_HALF_MOVES(4, pocl_halves4, space)        \
    POCL_HALF_MOVES(8, pocl_halves8, space)        \
    POCL_HALF_MOVES(16, pocl_halves16, space)      \
    POCL_DOUBLE(POCL_MOVE void pocl_store_half(const double v, const size_t i, space half *p) \
    { vstore_half_rte(v, i, p); })
POCL_HALF_SPACE(global)
POCL_HALF_SPACE(local)
POCL_HALF_SPACE(private)
#undef vload_half
#undef vload_half2
#undef vload_half4
#undef vload_half8
#undef vload_half16
#undef vstore_half_rte
#undef vstore_half2_rte
#undef vstore_half4_rte
#undef vstore_half8_rte
#undef vstore_half16_rte
#define vload_half pocl_load_half
#define vload_half2 pocl_load_half2
#define vload_half4 pocl_load_half4
#define vload_half8 pocl_load_half8
#define vload_half16 pocl_load_half16
#define vstore_half_rte pocl_store_half
#define vstore_half2_rte pocl_store_half2
#define vstore_half4_rte pocl_store_half4
#define vstore_half8_rte pocl_store_half8
#define vstore_half16_rte pocl_store_half16
#endif

// Vectors at any address of an element.
#define POCL_LOAD(T, n, space)                                            \
    POCL_MOVE T##n pocl_load##n(const size_t i, const space T *p) {       \
        return *(const space T##n##_anywhere *)(p + i * n);               \
    }
#define POCL_STORE(T, n, space)                                           \
    POCL_MOVE void pocl_store##n(const T##n v, const size_t i, space T *p) { \
        *(space T##n##_anywhere *)(p + i * n) = v;                        \
    }
#define POCL_MOVES(T, n)                                                                                       \
    typedef T##n __attribute__((aligned(sizeof(T)))) T##n##_anywhere;                                          \
    POCL_LOAD(T, n, global) POCL_LOAD(T, n, local) POCL_LOAD(T, n, private)                                    \
    POCL_STORE(T, n, global) POCL_STORE(T, n, local) POCL_STORE(T, n, private)
#define DECLARE_MOVES(T) POCL_MOVES(T, 2) POCL_MOVES(T, 4) POCL_MOVES(T, 8) POCL_MOVES(T, 16)
DECLARE_MOVES(float)
DECLARE_MOVES(int)
DECLARE_MOVES(long)
DECLARE_MOVES(uchar)
DECLARE_MOVES(uint)
DECLARE_MOVES(ulong)
DECLARE_MOVES(ushort)
#if STORAGE == 64
DECLARE_MOVES(double)
#endif
#undef vload  // a macro in PoCL, as vstore is: CAT(vload, VL) would see it
#undef vstore
#undef vload2
#undef vload4
#undef vload8
#undef vload16
#undef vstore2
#undef vstore4
#undef vstore8
#undef vstore16
#define vload2 pocl_load2
#define vload4 pocl_load4
#define vload8 pocl_load8
#define vload16 pocl_load16
#define vstore2 pocl_store2
#define vstore4 pocl_store4
#define vstore8 pocl_store8
#define vstore16 pocl_store16
