// The register tile of products of matrices on CPU devices: MR x NV vectors of sums, which stay in vector registers.
//
//     sums[i][v]  +=  value(i) * vector(v)        for each i < MR, v < NV, of operands (common/operands.cl)
//
// A step multiplies one element for each row, in all lanes, with one row of NV vectors; a product is a loop of steps.
// The macros' arguments may use i_, the row, and v_, the vector. All loops over them are unrolled, so that sums need no
// memory.
//
// MR, NV    rows and vectors of the tile; the planner's (core/operators/conv/register_tile.py)
// COLS      elements of a row of the tile

#include "common/operands.cl"
#include "common/transpose.cl"

#ifndef MR
#define MR 6
#endif
#ifndef NV
#define NV 4
#endif
#define COLS (NV * VL)

#define ROWS_OF(rows) _Pragma("unroll") for (int i_ = 0; i_ < (rows); i_++)
#define TILE_ROWS ROWS_OF(MR)
#define TILE_VECTORS _Pragma("unroll") for (int v_ = 0; v_ < NV; v_++)

// Sets every vector of the sums to `value`; SET_ROWS, as STORE_ROWS below, those of so many rows.
#define TILE_SET(sums, value) SET_ROWS(MR, sums, value)
#define SET_ROWS(rows, sums, value) \
    ROWS_OF(rows) { TILE_VECTORS sums[i_][v_] = value; }

// Loads the sums from reals whose rows are `pitch` elements apart, or stores them there.
#define TILE_LOAD(sums, from, pitch) TILE_SET(sums, LOAD_REALS((from) + i_ * (pitch) + v_ * VL))
#define TILE_STORE(sums, to, pitch) STORE_ROWS(MR, sums, to, pitch)
#define STORE_ROWS(rows, sums, to, pitch) \
    ROWS_OF(rows) { TILE_VECTORS STORE_REALS((to) + i_ * (pitch) + v_ * VL, sums[i_][v_]); }

// Adds one step's products to the sums. `fetch` sets vector_[v_]; `value` is the element of row i_.
#define TILE_STEP(sums, value, fetch) TILE_STEP_OF(NV, sums, value, fetch)
// The same for the first `count` vectors alone, and for so many rows.
#define TILE_STEP_OF(count, sums, value, fetch) STEP_OF(MR, count, sums, value, fetch)
#define STEP_ROWS(rows, sums, value, fetch) STEP_OF(rows, NV, sums, value, fetch)
#define STEP_OF(rows, count, sums, value, fetch)                            \
    operandv vector_[NV];                                                   \
    _Pragma("unroll") for (int v_ = 0; v_ < count; v_++) { fetch; }         \
    ROWS_OF(rows) {                                                         \
        const operandv value_ = value;                                      \
        _Pragma("unroll") for (int v_ = 0; v_ < count; v_++) {              \
            sums[i_][v_] = MULTIPLY_ADD(value_, vector_[v_], sums[i_][v_]); \
        }                                                                   \
    }

// Rows of a smaller tile, one or two of which take the last rows of a product where a whole one would leave more idle;
// as RegisterTile.last_rows in core/operators/conv/register_tile.py.
#define LAST_MR (MR % 3 ? (MR + 1) / 2 : MR / 3 * 2)

// How many of `rows` rows whole tiles take; smaller ones take the rest.
int rows_of_whole_tiles(const int rows) {
    const int rest = rows % MR;
    if (rest == 0 || rest > LAST_MR) return rows;
    return rows - rest - (rest <= 2 * LAST_MR - MR && rows > rest ? MR : 0);
}
