// Tells whether products of tiles of bfloat16 work on a device: c[row][lane], twice the sum over the steps of
// a[row][step] * b[step][lane], by one work-item. Sums are rounded to bfloat16, which those of the check are.

#include "common/amx.cl"

#define STEP_OPERANDS (DEPTH * AMX_LANES)
#define ALL_SUMS (AMX_ROWS * AMX_LANES)

kernel void check_amx(TENSOR_OF(const operand, a), TENSOR_OF(const operand, b), TENSOR_OF(float, c)) {
    local operand steps[STEP_OPERANDS];
    local float sums[ALL_SUMS];
    for (int i = 0; i < STEP_OPERANDS; i += VL) STORE_OPERANDS(steps + i, LOAD_OPERANDS(OPEN(b) + i));
    set_tiles();
    for (int again = 0; again < 2; again++)
        multiply_tiles(sums, again, OPEN(a), TILE_STEPS, BLOCK_OPERANDS, steps, DEPTH / TILE_STEPS);
    release_tiles();
    for (int i = 0; i < ALL_SUMS; i += VL)
        CAT(vstore, VL)(CAT(widen, VL)(CAT(narrow, VL)(LOAD_REALS(sums + i))), 0, OPEN(c) + i);
}
