// Dense layers along the rows of the weights for large batches on CPU devices, as a product of matrices.
//
//     c[n][s]  =  bias[s] + sum over t of a[n][t] * b[s][t]
//
// transposed    operands, [block of COLS of the batch][t][COLS], made by dense_transpose: a
//               transposed; zeros beyond the batch
// b         (rows, columns), read in place: MR operands of b, each in all lanes, times NV vectors of the batch. Numbers
//           of 16 bits are converted for a few steps at a time
// c         (batch, rows)
//
// Where operands are pairs, `columns` counts those. A work-group is one work-item: a block of rows, a block of the
// batch, a part of the columns. It takes `chunk` columns at a time, whose part of `transposed` stays in the first
// level's cache; its results stay in local memory.

#include "common/column_blocks.cl"
#include "common/epilogue.cl"
#include "common/register_tile.cl"

#define STEPS 16  // between which the next chunk's weights are asked for
#if STORAGE == 16 && !PAIRED
#define CONVERTED
#define WEIGHT_OF(i, k) converted[i][(k) % STEPS]

// to[i] = from[i] for i < count.
void convert_weights(real *to, global const stored *from, const int count) {
    int i = 0;
    for (; i + VL <= count; i += VL) STORE_REALS(to + i, VLOAD(from, i));
    for (; i < count; i++) to[i] = LOAD(from, i);
}
#else
#define WEIGHT_OF(i, k) OPERAND_AT(w[i], k)
#endif

kernel void dense_transpose(CONST_TENSOR(a), TENSOR_OF(operand, transposed), const int batch, const int columns,
                            const int range) {
    const int from = get_global_id(0) * range, to = min(from + range, columns), block = get_global_id(1);
    global operand *out = OPEN(transposed) + (long)block * columns * COLS;
    pack_block(OPEN(a) + (long)block * COLS * columns * NUMBERS, out, batch - block * COLS, columns, from, to);
}

kernel void dense_panel(TENSOR_OF(const operand, transposed), CONST_TENSOR(b), CONST_TENSOR(bias), TENSOR(c),
                        TENSOR_OF(real, partial), const int has_bias, const int accumulate, const int batch,
                        const int rows, const int columns, const int item_rows, const int part_columns, const int chunk,
                        local real *sums EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    const int first = get_global_id(0) * item_rows, count = min(item_rows, rows - first);
    const int block = get_global_id(1), part = get_global_id(2), parts = get_global_size(2);
    const int begin = part * part_columns, end = min(begin + part_columns, columns);
    const int tiles = (count + MR - 1) / MR;
    for (int i = 0; i < tiles * MR * NV; i++) STORE_REALS(sums + i * VL, (realv)(0));
    for (int from = begin; from < end; from += chunk) {
        const int length = min(chunk, end - from);
        for (int tile = 0; tile < tiles; tile++) {
            global const operand *x = OPEN(transposed) + ((long)block * columns + from) * COLS;
            global const stored *w[MR];
#pragma unroll
            for (int i = 0; i < MR; i++)
                w[i] = OPEN(b) + ((long)(first + min(tile * MR + i, count - 1)) * columns + from) * NUMBERS;
            local real *kept = sums + tile * MR * COLS;
            realv acc[MR][NV];
            TILE_LOAD(acc, kept, COLS)
            for (int k = 0; k < length;) {
                const int stop = min(k + STEPS, length);
#pragma unroll
                for (int i = 0; i < MR; i++) __builtin_prefetch(w[i] + (k + chunk) * NUMBERS, 0, 2);  // the next chunk
#ifdef CONVERTED
                real converted[MR][STEPS];
                TILE_ROWS convert_weights(converted[i_], w[i_] + k, stop - k);
#endif
                for (; k < stop; k++) {
                    TILE_STEP(acc, WEIGHT_OF(i_, k), vector_[v_] = LOAD_OPERANDS(x + v_ * VL))
                    x += COLS;
                }
            }
            TILE_STORE(acc, kept, COLS)
        }
    }
    for (int lane = 0; lane < COLS && block * COLS + lane < batch; lane += VL) {
        const int lanes = min(VL, batch - block * COLS - lane);
        int r = 0;
        for (; r + VL <= count; r += VL) {
            realv a[VL], b[VL];
            real turned[VL * VL];  // [lane][row]
#pragma unroll
            for (int i = 0; i < VL; i++) a[i] = LOAD_REALS(sums + (r + i) * COLS + lane);
            TRANSPOSE(a, b, VL)
#pragma unroll
            for (int i = 0; i < VL; i++) STORE_REALS(turned + i * VL, a[i]);
            for (int i = 0; i < lanes; i++) {
                const long at = (long)(block * COLS + lane + i) * rows + first + r;
                realv value = LOAD_REALS(turned + i * VL);
                if (parts > 1) {
                    STORE_REALS(OPEN(partial) + (long)part * batch * rows + at, value);
                } else {
                    if (has_bias) value += VLOAD(OPEN(bias), first + r);
                    value = EPILOGUE_CHANNELS(value, first + r, at);
                    if (accumulate) value += VLOAD(OPEN(c), at);
                    VSTORE(OPEN(c), at, value);
                }
            }
        }
        for (; r < count; r++) {
            for (int i = 0; i < lanes; i++) {
                const long at = (long)(block * COLS + lane + i) * rows + first + r;
                real value = sums[r * COLS + lane + i];
                if (parts > 1) {
                    OPEN(partial)[(long)part * batch * rows + at] = value;
                } else {
                    if (has_bias) value += LOAD(OPEN(bias), first + r);
                    value = EPILOGUE_ELEMENT(value, first + r, at);
                    if (accumulate) value += LOAD(OPEN(c), at);
                    STORE(OPEN(c), at, value);
                }
            }
        }
    }
}
