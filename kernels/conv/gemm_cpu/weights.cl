// Where the products of matrices on CPU devices read weights: in place where those of a row, or those of a step for all
// rows, lie side by side, else as pack.cl left them. A step of a product multiplies with one weight of each row.

#include "common/register_tile.cl"
#include "conv/grid.cl"

// Declares pointers to the weights of a tile's rows at a step. Rows beyond `rows`, the tile's own ones, repeat the
// last: their products are not stored.
#define TILE_WEIGHTS(name, weights, strides, group_, tile_, rows, first_step)                                  \
    global const operand *name[MR];                                                                            \
    {                                                                                                          \
        global const operand *from_ =                                                                          \
            (weights) + (group_) * (strides).group + (tile_) * (strides).tile + (first_step) * (strides).step; \
        TILE_ROWS name[i_] = from_ + min(i_, (rows) - 1) * (strides).row;                                      \
    }
