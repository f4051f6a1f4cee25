// Stores a work-item's sums: in the target, with bias and epilogue, or with SPLIT in the workspace for sum.cl.

#if ITEM_N % 4
#define COLUMNS_AT_ONCE 2
#endif

#include "conv/gemm_gpu/store/target.cl"

// Where sums of a part lie; loaders/matrices.cl has another way.
#ifndef TOGETHER
#define TOGETHER 1
#define MATRIX_AT(matrix, size, column) ((long)(matrix) * (size) + (column))
#endif
#define SUMS_OF_PART(groups) (((groups) + TOGETHER - 1) / TOGETHER * TOGETHER)

// With SPLIT the epilogue is sum.cl's.
#if SPLIT
#define STORE_PARAMETERS
#define OPEN_STORE
#define TARGET_TENSORS TENSOR_OF(real, sums)
#define TAKE_STORE const int matrix, global real *sums  // number of the part's and group's sums
#define PASS_STORE (part) * SUMS_OF_PART(groups) + group, OPEN(sums)
#else
#define STORE_PARAMETERS EPILOGUE_PARAMETERS
#define OPEN_STORE OPEN_EPILOGUE
#define TARGET_TENSORS CONST_TENSOR(bias), TENSOR(target)
#define TAKE_STORE                                                                                             \
    const int groups, const Target grid, global const stored *bias, global stored *target, const int has_bias, \
        const int accumulate TAKE_EPILOGUE
#define PASS_STORE groups, target, OPEN(bias), OPEN(target), has_bias, accumulate PASS_EPILOGUE
#endif

ALWAYS_INLINE void clear_sums(real sums[ITEM_M][ITEM_N]) {
#pragma unroll
    for (int i = 0; i < ITEM_M; i++)
#pragma unroll
        for (int j = 0; j < ITEM_N; j++) sums[i][j] = 0;
}

ALWAYS_INLINE void store_tile(const Place *place, real sums_of_item[ITEM_M][ITEM_N], const int row_tile,
                              const int column_tile, const int rows, const int columns, const int group, TAKE_STORE) {
#pragma unroll
    for (int j = 0; j < ITEM_N; j += COLUMNS_AT_ONCE) {
        const int column = column_tile + column_of(place, j);
        if (column >= columns) continue;
#if SPLIT
        global real *to = sums + MATRIX_AT(matrix, (long)rows * columns, column);
#else
        const Destination to = destination_of(column, group, groups, rows, columns, grid);
#endif
#pragma unroll
        for (int i = 0; i < ITEM_M; i++) {
            const int row = row_tile + row_of(place, i);
            if (row >= rows) continue;
#if COLUMNS_AT_ONCE == 4
            const realv sum =
                (realv)(sums_of_item[i][j], sums_of_item[i][j + 1], sums_of_item[i][j + 2], sums_of_item[i][j + 3]);
#else
            const realv sum = (realv)(sums_of_item[i][j], sums_of_item[i][j + 1], 0, 0);
#endif
#if SPLIT
            leave4(sum, to + (long)row * TOGETHER * columns, min(columns - column, COLUMNS_AT_ONCE));
#else
            finish4(sum, &to, row, group * rows + row, bias, target, has_bias, accumulate PASS_EPILOGUE);
#endif
        }
    }
}

#define STORE_TILE store_tile(&place, sums_of_item, row_tile, column_tile, rows, columns, group, PASS_STORE)
