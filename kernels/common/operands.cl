// What products of matrices on CPU devices multiply: the elements of panels and of packed weights.
//
//     operand, operandv         an element, and a vector of VL
//     NUMBERS                   numbers of the summed axis in an operand: a product of operands adds as many
//     MULTIPLY_ADD(a, b, sums)  sums + a * b, in all lanes
//     OPERAND_AT(p, i)          operand i of stored numbers that lie side by side in the summed axis
//     OPERANDS_AT(p, i)         VL operands from operand i on
//
// PAIRED  0: reals. Otherwise two numbers of bfloat16 in 32 bits, the first in the lower half. Sums are floats; the
//         second product is added first, and each of both is rounded. Whatever is smaller than the smallest normal
//         number counts as zero. 1: without the processor's instruction, 2: by assembly, 3: by a function of LLVM

#define LOAD_OPERANDS(p) CAT(vload, VL)(0, (p))
#define STORE_OPERANDS(p, value) CAT(vstore, VL)((value), 0, (p))

#if PAIRED
#define NUMBERS 2
typedef uint operand;
typedef CAT(uint, VL) operandv;
#define OPERAND_AT(p, i) as_uint(vload2((i), (p)))
#define OPERANDS_AT(p, i) CAT(vload, VL)(0, (global const uint *)((p) + 2 * (long)(i)))
#define JOIN(first, second) (CAT(convert_uint, VL)(first) | CAT(convert_uint, VL)(second) << 16)

#if PAIRED == 1
#define AS_OPERANDS CAT(as_uint, VL)
#define AS_FLOATS CAT(as_float, VL)
realv without_denormals(const operandv bits) {
    const operandv small = AS_OPERANDS((bits & 0x7f800000u) == 0u);
    return AS_FLOATS(bits & ~(small & 0x7fffffffu));
}

realv add_pairs(const operandv a, const operandv b, const realv sums) {
    const realv second = fma(
        without_denormals(a & 0xffff0000u), without_denormals(b & 0xffff0000u), without_denormals(AS_OPERANDS(sums)));
    const realv both =
        fma(without_denormals(a << 16), without_denormals(b << 16), without_denormals(AS_OPERANDS(second)));
    return without_denormals(AS_OPERANDS(both));
}
#elif PAIRED == 2
realv add_pairs(const operandv a, const operandv b, realv sums) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
    return sums;
}
#else
typedef __bf16 brains __attribute__((ext_vector_type(2 * VL)));
realv __attribute__((const)) add_brains(realv sums, brains a, brains b) __asm__("llvm.x86.avx512bf16.dpbf16ps.512");
#define add_pairs(a, b, sums) add_brains(sums, __builtin_astype(a, brains), __builtin_astype(b, brains))
#endif
#define MULTIPLY_ADD(a, b, sums) add_pairs(a, b, sums)
#else
#define NUMBERS 1
typedef real operand;
typedef realv operandv;
#define OPERAND_AT(p, i) LOAD(p, i)
#define OPERANDS_AT(p, i) VLOAD(p, i)
#define MULTIPLY_ADD(a, b, sums) fma(a, b, sums)
#endif
