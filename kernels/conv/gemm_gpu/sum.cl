// Adds the sums of a product's parts in order and finishes as kernels do without a split. Global: columns, rows,
// groups.

#include "conv/gemm_gpu/constants.cl"
#include "conv/gemm_gpu/store/target.cl"

kernel void conv_sum(TENSOR_OF(const real, sums), CONST_TENSOR(bias), TENSOR(target), const int has_bias,
                     const int accumulate, const int rows, const int columns, const int parts, const int groups,
                     const Target target EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    const int column = get_global_id(0), row = get_global_id(1), group = get_global_id(2);
    global const real *from = OPEN(sums) + ((long)group * rows + row) * columns + column;
    const long next = (long)groups * rows * columns;
    real sum = 0;
    for (int part = 0; part < parts; part++) sum += from[part * next];
    if (has_bias) sum += LOAD(OPEN(bias), group * rows + row);
    const Destination to = destination_of(column, group, groups, rows, columns, target);
    finish(sum, OPEN(target), group * rows + row, to.first[0] + row * to.row_step, accumulate PASS_EPILOGUE);
}
