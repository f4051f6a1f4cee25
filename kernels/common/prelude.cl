// In front of every kernel: the stored and the arithmetic type, and how tensors are passed.
//
// STORAGE  32, 64: float, double in memory and in arithmetic; 16: 16 bits in memory, float in arithmetic.
// BRAIN    with 16: the 16 bits are those of bfloat16, the first ones of a float; otherwise those of half.
// PAIRED   with BRAIN, in kernels that multiply bfloat16: numbers below the smallest normal one are stored as zeros, as
//          the processor's own conversion has it. 2 and 3: by that, in vectors of 16, as in common/operands.cl
// VL       lanes of the vector type realv (2, 4, 8, 16); left undefined where a kernel has no vectors. A kernel with
//          vectors runs in work-groups of one item, except for the GPUs' products, which say so by SCALAR_ITEMS.
// UNFUSED  the device has no fused multiply-add: fma rounds twice.
// HALVES_BY_BITS  with 16: vectors of halves are loaded as whole numbers.
// ONE_BY_ONE      stands in front of a kernel, and keeps the compiler from making vectors of work-items (SCALAR_ITEMS).

#ifndef STORAGE
#define STORAGE 32
#endif
#ifndef ONE_BY_ONE
#define ONE_BY_ONE
#endif

#if STORAGE == 64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
typedef double stored;
typedef double real;
#define REAL(x) x
#elif STORAGE == 16
#ifdef BRAIN
typedef ushort stored;
#else
typedef half stored;
#endif
typedef float real;
#define REAL(x) x##f
#else
typedef float stored;
typedef float real;
#define REAL(x) x##f
#endif

#ifdef UNFUSED
#define fma(a, b, c) mad(a, b, c)
#endif

// A kernel that runs in work-groups of one item.
#define SINGLE kernel __attribute__((reqd_work_group_size(1, 1, 1)))

#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)

// Functions between n numbers of 16 bits and floats: widen ## n, and narrow ## n, which rounds to the nearest number,
// and of two to the one that ends in 0. Vectors of halves are moved as whole numbers, because some compilers
// take the address of a vector of halves, or of equal halves, for aligned (HALVES_BY_BITS).
#define HALF_NUMBERS(n)                                                                       \
    float##n widen##n(const ushort##n bits) { return vload_half##n(0, (const half *)&bits); } \
    ushort##n narrow##n(const float##n value) {                                               \
        ushort##n bits;                                                                       \
        vstore_half##n##_rte(value, 0, (half *)&bits);                                        \
        return bits;                                                                          \
    }
#define BRAIN_WIDEN(n) \
    float##n widen##n(const ushort##n bits) { return as_float##n(convert_uint##n(bits) << 16); }
#define BRAIN_NARROW(n)                                                                       \
    ushort##n narrow##n(const float##n value) {                                               \
        const uint##n bits = as_uint##n(value);                                               \
        const uint##n nearest = bits + 0x7fffu + ((bits >> 16) & 1u), nan = bits | 0x400000u; \
        return convert_ushort##n(FLUSHED(value != value ? nan : nearest, bits) >> 16);        \
    }
#ifndef PAIRED
#define PAIRED 0
#endif
#if PAIRED
#define FLUSHED(nearest, bits) (((bits) & 0x7f800000u) == 0u ? (bits) & 0x80000000u : (nearest))
#else
#define FLUSHED(nearest, bits) (nearest)
#endif
#if STORAGE == 16 && defined(PTX)
#include "common/ptx.cl"
#define SMALL_NUMBERS(n)
#elif defined(BRAIN)
#define SMALL_NUMBERS(n) BRAIN_WIDEN(n) BRAIN_NARROW(n)
#else
#define SMALL_NUMBERS(n) HALF_NUMBERS(n)
#endif

// Element i of a stored tensor, as real.
#ifdef BRAIN
SMALL_NUMBERS()
#define LOAD(p, i) widen((p)[i])
#define STORE(p, i, value) ((p)[i] = narrow(value))
#elif STORAGE == 16
#define LOAD(p, i) vload_half((i), (p))
#define STORE(p, i, value) vstore_half_rte((value), (i), (p))
#else
#define LOAD(p, i) ((p)[i])
#define STORE(p, i, value) ((p)[i] = (value))
#endif

// VL elements from p + i on, at any alignment.
#ifdef VL
#if STORAGE == 64
typedef CAT(double, VL) realv;
#else
typedef CAT(float, VL) realv;
#endif
#ifndef SCALAR_ITEMS
// What is computed in vectors already need not be turned into vectors of several work-items: a compiler may take up to
// nine times as long over that, for code that a work-group of one item never reaches.
#define kernel __kernel __attribute__((vec_type_hint(realv)))
#endif
#if STORAGE == 16
#if PAIRED >= 2 && VL == 16
BRAIN_WIDEN(16)
#define narrow16 narrow_by_instruction
#if PAIRED == 2
ushort16 narrow_by_instruction(const float16 value) {
    ushort16 bits;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(bits) : "v"(value));
    return bits;
}
#else
typedef __bf16 brains16 __attribute__((ext_vector_type(16)));
brains16 __attribute__((const)) round_brains(float16 value) __asm__("llvm.x86.avx512bf16.cvtneps2bf16.512");
ushort16 narrow_by_instruction(const float16 value) { return __builtin_astype(round_brains(value), ushort16); }
#endif
#else
SMALL_NUMBERS(VL)
#endif
realv load_small(global const stored *p) { return CAT(widen, VL)(CAT(vload, VL)(0, (global const ushort *)p)); }
#if defined(BRAIN) || defined(HALVES_BY_BITS)
#define VLOAD(p, i) load_small((p) + (i))
#else
#define VLOAD(p, i) CAT(vload_half, VL)(0, (p) + (i))
#endif
void store_small(global stored *p, const realv value) {
    CAT(vstore, VL)(CAT(narrow, VL)(value), 0, (global ushort *)p);
}
#define VSTORE(p, i, value) store_small((p) + (i), (value))
#else
#define VLOAD(p, i) CAT(vload, VL)(0, (p) + (i))
#define VSTORE(p, i, value) CAT(vstore, VL)((value), 0, (p) + (i))
#endif
#endif

// A tensor is two parameters, the base pointer and an offset in elements, so that any part of any buffer can be one.
#define TENSOR_OF(type, name) global type *name##_base, const ulong name##_offset
#define TENSOR(name) TENSOR_OF(stored, name)
#define CONST_TENSOR(name) TENSOR_OF(const stored, name)
#define OPEN(name) (name##_base + name##_offset)
