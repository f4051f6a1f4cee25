// Tells whether products of pairs of bfloat16 work on a device: c[lane] = the sum over k of a[k][lane] * b[k][lane],
// both numbers of a pair, by one work-item. Sums are rounded to bfloat16, which those of the check are.

#include "common/operands.cl"

#define DEPTH 8

kernel void check_pairs(TENSOR_OF(const uint, a), TENSOR_OF(const uint, b), TENSOR_OF(float, c)) {
    realv sums = 0;
    for (int k = 0; k < DEPTH; k++) {
        sums = MULTIPLY_ADD(LOAD_OPERANDS(OPEN(a) + k * VL), LOAD_OPERANDS(OPEN(b) + k * VL), sums);
    }
    CAT(vstore, VL)(CAT(widen, VL)(CAT(narrow, VL)(sums)), 0, OPEN(c));
}
