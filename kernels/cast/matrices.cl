// Conversion of several arrays of matrices to another type, each matrix transposed: y (outer, columns, rows) from
// x (outer, rows, columns), or added to y. An array that only changes its type is a matrix of one row.
//
// A work-group has a tile of tile_rows x tile_columns elements of one matrix. Its elements pass through local memory,
// so that it reads along rows of x and writes along rows of y. An array whose y is NULL is left out.
//
// SOURCE, TARGET  types of 16 bits and float, as cast/types.cl numbers them
// MORE_ARRAYS(F)  F(i) for each array but the first
// TILE            elements of local memory: tile_rows * (tile_columns | 1) at most

#include "cast/types.cl"

#ifndef GROUP
#define GROUP 256
#endif
#ifndef TILE
#define TILE 2048
#endif

#ifdef MATRICES_FIELDS
typedef struct {
    MATRICES_FIELDS
} Matrices;

#define PARAMETERS(i) \
    TENSOR_OF(const source, x##i), TENSOR_OF(target, y##i), const int accumulate##i, const Matrices sizes##i
#define ALIGNED(p) ((ulong)(p) % (4 * sizeof(*(p))) == 0)
#define NEXT_PARAMETERS(i) , PARAMETERS(i)
#define CHOOSE(i)                        \
    if (group >= sizes##i.first_group) { \
        x = OPEN(x##i);                  \
        y = OPEN(y##i);                  \
        wanted = y##i##_base != 0;       \
        accumulate = accumulate##i;      \
        sizes = sizes##i;                \
    }
#define AHEAD 4  // vectors of four elements that a work-item reads before it writes any
#define EACH_AHEAD \
    _Pragma("unroll") for (int a = 0, i = first; a < AHEAD; a++, i = first + a * GROUP * 4) if (i < elements)
// The elements of a tile.
#define EACH_ELEMENT for (int i = get_local_id(0); i < elements; i += GROUP)

kernel
    __attribute__((reqd_work_group_size(GROUP, 1, 1))) void cast_matrices(PARAMETERS(0) MORE_ARRAYS(NEXT_PARAMETERS)) {
    local float tile[TILE];
    const long group = get_group_id(0);
    global const source *x = OPEN(x0);
    global target *y = OPEN(y0);
    bool wanted = y0_base != 0;
    int accumulate = accumulate0;
    Matrices sizes = sizes0;
    MORE_ARRAYS(CHOOSE)
    const long across = (sizes.columns + sizes.tile_columns - 1) / sizes.tile_columns;
    const long down = (sizes.rows + sizes.tile_rows - 1) / sizes.tile_rows, rest = (group - sizes.first_group) / across;
    const long column = (group - sizes.first_group) % across * sizes.tile_columns;
    const long row = rest % down * sizes.tile_rows, matrix = rest / down;
    const int height = min(sizes.tile_rows, sizes.rows - row), width = min(sizes.tile_columns, sizes.columns - column);
    x += (matrix * sizes.rows + row) * sizes.columns + column;
    y += (matrix * sizes.columns + column) * sizes.rows + row;
    const bool in_row = sizes.rows == 1, quads = width % 4 == 0 && ALIGNED(x) && ALIGNED(y) && !accumulate;
    int elements = wanted && in_row ? width : 0;
    if (quads) {
        for (int first = get_local_id(0) * 4; first < elements; first += GROUP * 4 * AHEAD) {
            source4 fours[AHEAD];
            EACH_AHEAD fours[a] = *(global const source4 *)(x + i);
            EACH_AHEAD {
                const source4 four = fours[a];
                const source *from = (const source *)&four;
                target4 result;
                target *to = (target *)&result;
                _Pragma("unroll") for (int e = 0; e < 4; e++) WRITE(to, e, READ(from, e));
                *(global target4 *)(y + i) = result;
            }
        }
    } else {
        EACH_ELEMENT {
            const float value = READ(x, i);
            WRITE(y, i, accumulate ? value + OLD(y, i) : value);
        }
    }
    elements = wanted && !in_row ? height * width : 0;
    const int pitch = width | 1;  // neighbours in a column are in different banks
    EACH_ELEMENT {
        const int r = i / width, c = i - r * width;
        tile[r * pitch + c] = READ(x, r * sizes.columns + c);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    EACH_ELEMENT {
        const int c = i / height, r = i - c * height;
        const float value = tile[r * pitch + c];
        WRITE(y, c * sizes.rows + r, accumulate ? value + OLD(y, c * sizes.rows + r) : value);
    }
}
#endif
