// The last launch of a filter's gradient on CPU devices: the parts that were computed apart are added in their order,
// so that two runs give the same bits. The columns of a tile are an argument: one program adds the parts of all tiles.

#include "common/transpose.cl"

// dw[group][out channel][k] (+)= sum over splits of partial. One work-item takes one tile's range of k.
kernel void sum_partials(TENSOR_OF(const real, partial), TENSOR(dw), const int accumulate, const int splits,
                         const int groups, const int out_count, const int depth, const int columns, const int range) {
    const int out_tiles = (out_count + columns - 1) / columns;
    const int tile = get_global_id(1), group = get_global_id(2);
    const int first = get_global_id(0) * range, last = min(first + range, depth);
    const long split_size = (long)groups * out_tiles * depth * columns;
    const int lanes = min(out_count - tile * columns, columns);
    for (int lane = 0; lane < lanes; lane += VL) {
        global const real *from = OPEN(partial) + ((long)group * out_tiles + tile) * depth * columns + lane;
        global stored *to = OPEN(dw) + ((long)group * out_count + tile * columns + lane) * depth;
        for (int k = first; k < last; k += VL) {
            realv a[VL], b[VL];
#pragma unroll
            for (int i = 0; i < VL; i++) a[i] = 0;
            for (int split = 0; split < splits; split++) {
                global const real *rows = from + split * split_size;
#pragma unroll
                for (int i = 0; i < VL; i++) a[i] += LOAD_REALS(rows + (long)min(k + i, last - 1) * columns);
            }
            TRANSPOSE(a, b, VL)
            const int rest = min(last - k, VL), rows = min(lanes - lane, VL);
            real out[VL * VL];
            if (rest < VL) {
#pragma unroll
                for (int i = 0; i < VL; i++) STORE_REALS(out + i * VL, a[i]);
                for (int i = 0; i < rows * VL; i++) {
                    const long at = (long)(i / VL) * depth + k + i % VL;
                    if (i % VL < rest) STORE(to, at, out[i] + (accumulate ? LOAD(to, at) : 0));
                }
                continue;
            }
#pragma unroll
            for (int i = 0; i < VL; i++) {
                if (i < rows) {
                    const long at = (long)i * depth + k;
                    VSTORE(to, at, accumulate ? a[i] + VLOAD(to, at) : a[i]);
                }
            }
        }
    }
}

// dw[group][row][column] (+)= the sum over splits where partial has the axes of dw: [split][group][tile][row][column of
// the tile]. One work-item takes `range` rows of one tile.
kernel void add_splits(TENSOR_OF(const real, partial), TENSOR(dw), const int accumulate, const int splits,
                       const int groups, const int row_count, const int column_count, const int tile_columns,
                       const int range) {
    const int column_tiles = (column_count + tile_columns - 1) / tile_columns, tile = get_global_id(1),
              group = get_global_id(2);
    const int first = get_global_id(0) * range, last = min(first + range, row_count);
    const int columns = min(column_count - tile * tile_columns, tile_columns);
    const long split_size = (long)groups * column_tiles * row_count * tile_columns;
    for (int row = first; row < last; row++) {
        global const real *from =
            OPEN(partial) + (((long)group * column_tiles + tile) * row_count + row) * tile_columns;
        global stored *to = OPEN(dw) + ((long)group * row_count + row) * column_count + tile * tile_columns;
        for (int column = 0; column < columns; column += VL) {
            realv sum = 0;
            for (int split = 0; split < splits; split++) sum += LOAD_REALS(from + split * split_size + column);
            if (column + VL <= columns) {
                VSTORE(to, column, accumulate ? sum + VLOAD(to, column) : sum);
                continue;
            }
            real lanes[VL];
            STORE_REALS(lanes, sum);
            for (int i = 0; i < columns - column; i++)
                STORE(to, column + i, lanes[i] + (accumulate ? LOAD(to, column + i) : 0));
        }
    }
}
