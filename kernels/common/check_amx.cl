// Tells whether products of tiles of bfloat16 work on a device: c[row][lane], twice the sum over the steps of
// a[row][step] * b[step][lane], by one work-item. Sums are rounded to bfloat16, which those of the check are.

#include "common/amx.cl"

#define STEP_OPERANDS (DEPTH * VL)
#define ALL_SUMS (AMX_ROWS * VL)

kernel void check_amx(TENSOR_OF(const operand, a), TENSOR_OF(const operand, b), TENSOR_OF(float, c)) {
    local operand steps[STEP_OPERANDS];
    local float sums[ALL_SUMS];
    for (int k = 0; k < DEPTH; k++) STORE_OPERANDS(steps + k * VL, LOAD_OPERANDS(OPEN(b) + k * VL));
    set_tiles(DEPTH);
    for (int again = 0; again < 2; again++) multiply_tiles(sums, again, OPEN(a), steps, DEPTH);
    release_tiles();
    for (int row = 0; row < AMX_ROWS; row++) {
        const realv value = LOAD_REALS(sums + row * VL);
        CAT(vstore, VL)(CAT(widen, VL)(CAT(narrow, VL)(value)), 0, OPEN(c) + row * VL);
    }
}
