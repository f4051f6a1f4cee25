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

#define TILE_ROWS _Pragma("unroll") for (int i_ = 0; i_ < MR; i_++)
#define TILE_VECTORS _Pragma("unroll") for (int v_ = 0; v_ < NV; v_++)

// Sets every vector of the sums to `value`.
#define TILE_SET(sums, value) \
    TILE_ROWS { TILE_VECTORS sums[i_][v_] = value; }

// Loads the sums from reals whose rows are `pitch` elements apart, or stores them there.
#define TILE_LOAD(sums, from, pitch) TILE_SET(sums, LOAD_REALS((from) + i_ * (pitch) + v_ * VL))
#define TILE_STORE(sums, to, pitch) \
    TILE_ROWS { TILE_VECTORS STORE_REALS((to) + i_ * (pitch) + v_ * VL, sums[i_][v_]); }

// Adds one step's products to the sums. `fetch` sets vector_[v_]; `value` is the element of row i_.
#define TILE_STEP(sums, value, fetch) TILE_STEP_OF(NV, sums, value, fetch)
// The same for the first `count` vectors alone.
#define TILE_STEP_OF(count, sums, value, fetch)                             \
    operandv vector_[NV];                                                   \
    _Pragma("unroll") for (int v_ = 0; v_ < count; v_++) { fetch; }         \
    TILE_ROWS {                                                             \
        const operandv value_ = value;                                      \
        _Pragma("unroll") for (int v_ = 0; v_ < count; v_++) {              \
            sums[i_][v_] = MULTIPLY_ADD(value_, vector_[v_], sums[i_][v_]); \
        }                                                                   \
    }
