// In front of every kernel: the stored and the arithmetic type, and how tensors are passed.
//
// STORAGE  32, 64: float, double in memory and in arithmetic; 16: half in memory, float in arithmetic.
// VL       lanes of the vector type realv (2, 4, 8, 16); left undefined where a kernel has no vectors. A kernel with
//          vectors runs in work-groups of one item, except for the GPUs' products, which say so by SCALAR_ITEMS.

#ifndef STORAGE
#define STORAGE 32
#endif

#if STORAGE == 64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
typedef double stored;
typedef double real;
#define REAL(x) x
#elif STORAGE == 16
typedef half stored;
typedef float real;
#define REAL(x) x##f
#else
typedef float stored;
typedef float real;
#define REAL(x) x##f
#endif

// A kernel that runs in work-groups of one item.
#define SINGLE kernel __attribute__((reqd_work_group_size(1, 1, 1)))

#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)

// Element i of a stored tensor, as real.
#if STORAGE == 16
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
// What is computed in vectors already need not be turned into vectors of several work-items: Intel's compiler takes up
// to nine times as long over that, for code that a work-group of one item never reaches.
#define kernel __kernel __attribute__((vec_type_hint(realv)))
#endif
#if STORAGE == 16
// As whole numbers, because PoCL 3.1 may load a vector of halves as if its address were aligned.
realv load_halves(global const half *p) {
    const CAT(ushort, VL) bits = CAT(vload, VL)(0, (global const ushort *)p);
    return CAT(vload_half, VL)(0, (const half *)&bits);
}
#ifdef POCL_DEVICE_ADDRESS_BITS
#define VLOAD(p, i) load_halves((p) + (i))
#else
#define VLOAD(p, i) CAT(vload_half, VL)(0, (p) + (i))
#endif
// As whole numbers, because PoCL 3.1 stores a vector of equal halves as if its address were aligned.
void store_halves(global half *p, const realv value) {
    CAT(ushort, VL) bits;
    CAT(CAT(vstore_half, VL), _rte)(value, 0, (half *)&bits);
    CAT(vstore, VL)(bits, 0, (global ushort *)p);
}
#define VSTORE(p, i, value) store_halves((p) + (i), (value))
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
