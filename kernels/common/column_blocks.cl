// Rows of a matrix as columns of blocks of COLS: [block][column][COLS], with zeros beyond the last row. A column is
// one of operands.

#include "common/register_tile.cl"

// Packs columns `from` to `to` of a block's rows, of which `count` are there.
void pack_block(global const stored *rows, global operand *block, const int count, const int columns, const int from,
                const int to) {
    for (int lane = 0; lane < COLS; lane += VL) {
        const int left = min(count - lane, VL);
        global const stored *first = rows + (long)lane * columns * NUMBERS;
        int k = from;
        for (; left > 0 && k + VL <= to; k += VL) {
            operandv a[VL], b[VL];
#pragma unroll
            for (int i = 0; i < VL; i++)
                a[i] = i < left ? OPERANDS_AT(first, (long)min(i, left - 1) * columns + k) : (operandv)(0);
            TRANSPOSE(a, b, VL)
#pragma unroll
            for (int i = 0; i < VL; i++) STORE_OPERANDS(block + (long)(k + i) * COLS + lane, a[i]);
        }
        for (; k < to; k++) {
            for (int i = 0; i < VL; i++)
                block[(long)k * COLS + lane + i] = i < left ? OPERAND_AT(first, (long)i * columns + k) : 0;
        }
    }
}
