// What the products with operands of 16 bits on matrix units share (halves.cl, halves_windows.cl): macros, and the
// micro kernel that MICRO says.

#include "conv/gemm_gpu/constants.cl"

#ifndef SPLIT
#define SPLIT 0
#endif
#ifndef EMULATED
#define EMULATED 0
#endif
#ifndef PENDING
#define PENDING 0
#endif
// 1: a product in place, one tap without strides and padding.
#ifndef PLAIN
#define PLAIN 0
#endif
// 1: the grid's pixels are all of the target's, in order.
#ifndef DENSE
#define DENSE 0
#endif
#define A_BY_DEPTH (OPERATION == FILTER)
#define B_BY_DEPTH (OPERATION != FORWARD)
#define TARGET (OPERATION == FILTER ? TO_FILTER : TO_PIXELS)
#define ALWAYS_INLINE __attribute__((always_inline))
#ifdef BRAIN
#define OPERANDS BFLOAT16
#else
#define OPERANDS FLOAT16
#endif

#include "conv/gemm_gpu/store/halves.cl"

#ifdef MICRO
#include "conv/gemm_gpu/micro/halves.cl"

// Tiles of operands in local memory, and how often a work-item copies to them: vector id % 8 of rows id / 8 + i *
// ROWS_AT_ONCE, of each block of 64 columns.
#define A_TILE (TILE_M * HALVES_DEPTH)
#define B_TILE (TILE_N * HALVES_DEPTH)
#define ROWS_AT_ONCE (THREADS / 8)
#define DEPTH_COPIES (HALVES_DEPTH / ROWS_AT_ONCE)  // of a block whose rows are the depth
#define A_COPIES (TILE_M / ROWS_AT_ONCE)
#define B_COPIES (TILE_N / ROWS_AT_ONCE)

// Copies a vector, or zeros. aligned: of the caller; whether addresses are multiples of a vector.
#define COPY_OR_LOAD(to, from, valid) \
    if (aligned)                      \
        COPY_HALVES(to, from, valid); \
    else                              \
        *(local ushort8 *)(to) = (valid) ? vload8(0, (global const ushort *)(from)) : (ushort8)(0)

// Where a row's columns are in local memory. What work-items write at once, two columns of eight rows, is in
// different banks: by a distance of eight floats between rows, or, where there is no room for it, by another order of
// the vectors. So is what they read at once, halves of eight vectors: every other four vectors, or rows of four, have
// their second half first. STAGED_COLUMNS: of the tile, so many columns are there at the same time.
#ifdef STAGED_COLUMNS
#define STAGED_PITCH STAGED_COLUMNS
#define ROW_ORDER(row) ((row) & 7 & (VECTORS_OF_ROW - 1))
#else
#define STAGED_COLUMNS TILE_N
#define STAGED_PITCH (STAGED_COLUMNS + 8)
#define ROW_ORDER(row) 0
#endif
#define VECTORS_OF_ROW (STAGED_COLUMNS / 8)
#define HALF_ORDER(row, vector) (VECTORS_OF_ROW >= 8 ? (vector) & 4 : ((row) & 1) * 4)
#define STAGED_AT(row, column) \
    ((row) * STAGED_PITCH + (((column) / 8) ^ ROW_ORDER(row)) * 8 + ((column) % 8 ^ HALF_ORDER(row, (column) / 8)))
#define STAGED_BYTES (TILE_M * STAGED_PITCH * 4)

// Puts a work-item's sums of the columns from `begin` on into local memory, where a row's columns lie side by side.
ALWAYS_INLINE void stage_sums(const float *sums, local float *staged, const int begin) {
#pragma unroll
    for (int e = 0; e < SUMS; e += 2) {
        const uint row = SUM_ROW(e), column = SUM_COLUMN(e) - begin;
        if (STAGED_COLUMNS == TILE_N || column < STAGED_COLUMNS)
            *(local float2 *)(staged + STAGED_AT(row, column)) = (float2)(sums[e], sums[e + 1]);
    }
}

// Stores staged sums of the tile's columns from `begin` on: a work-item has a vector of columns of every so many rows.
// FIRST(row): the target's element of the group's first column in a row of the tile; below 0: the row is not stored.
// The usual case has short code of its own: products of few steps wait for instructions.
#define ROWS_AT_A_TIME (THREADS / VECTORS_OF_ROW)
#if THREADS % VECTORS_OF_ROW
#define FIRST_ROW \
    ((int)get_local_id(0) < ROWS_AT_A_TIME * VECTORS_OF_ROW ? (int)get_local_id(0) / VECTORS_OF_ROW : TILE_M)
#else
#define FIRST_ROW ((int)get_local_id(0) / VECTORS_OF_ROW)
#endif
#define COLUMN_OF_ITEM ((int)get_local_id(0) % VECTORS_OF_ROW * 8)
#define STAGED8(row)                                                           \
    (float8)(*(local const float4 *)(staged + STAGED_AT(row, COLUMN_OF_ITEM)), \
             *(local const float4 *)(staged + STAGED_AT(row, COLUMN_OF_ITEM + 4)))
#ifdef EPILOGUE
#define ONE_MORE(n) +1
#if (0 WHOLE_EXTRAS(ONE_MORE)) > 0
#define WHOLE_AHEAD 4
#endif
#endif
#ifndef UNROLLED_ROWS
#define UNROLLED_ROWS _Pragma("unroll 1")
#endif
#ifdef WHOLE_AHEAD
// Of inputs as large as the result vectors of several rows are read before the first row is stored.
#define STORE_ROWS(FIRST)                                                                                    \
    _Pragma("unroll 1") for (int first = FIRST_ROW; first < TILE_M; first += ROWS_AT_A_TIME * WHOLE_AHEAD) { \
        long places[WHOLE_AHEAD];                                                                            \
        ushort8 results[WHOLE_AHEAD];                                                                        \
        _Pragma("unroll") for (int a = 0; a < WHOLE_AHEAD; a++) {                                            \
            const int row = first + a * ROWS_AT_A_TIME;                                                      \
            const long at = row < TILE_M ? FIRST(row) + column : -1;                                         \
            places[a] = at >= column ? at : -1;                                                              \
            const float8 sum = first_sum + STAGED8(row < TILE_M ? row : first);                              \
            results[a] = narrow8(EPILOGUE_ALIGNED_CHANNELS(sum, channel, at >= column ? at : channel));      \
        }                                                                                                    \
        _Pragma("unroll") for (int a = 0; a < WHOLE_AHEAD; a++) if (places[a] >= 0) *                        \
            (global ushort8 *)(OPEN(target) + places[a]) = results[a];                                       \
    }
#else
#define STORE_ROWS(FIRST)                                                                                  \
    UNROLLED_ROWS for (int row = FIRST_ROW; row < TILE_M; row += ROWS_AT_A_TIME) {                         \
        const long at = FIRST(row) + column;                                                               \
        if (at >= column) {                                                                                \
            const float8 sum = first_sum + STAGED8(row);                                                   \
            *(global ushort8 *)(OPEN(target) + at) = narrow8(EPILOGUE_ALIGNED_CHANNELS(sum, channel, at)); \
        }                                                                                                  \
    }
#endif
#define STORE_STAGED(FIRST, begin)                                                                           \
    {                                                                                                        \
        const int column = column_tile + (begin) + COLUMN_OF_ITEM, channel = group * columns + column;       \
        if (column >= columns) {                                                                             \
        } else if (columns % 8 == 0 && (ulong)OPEN(target) % 16 == 0 && EXTRAS_ALIGNED && !accumulate) {     \
            const float8 first_sum = has_bias ? VLOAD(OPEN(bias), channel) : (float8)(0);                    \
            STORE_ROWS(FIRST)                                                                                \
        } else {                                                                                             \
            _Pragma("unroll 1") for (int row = FIRST_ROW; row < TILE_M; row += ROWS_AT_A_TIME) {             \
                const long at = FIRST(row) + column;                                                         \
                if (at >= column)                                                                            \
                    finish8(STAGED8(row), OPEN(target), at, channel, columns - column, OPEN(bias), has_bias, \
                            accumulate PASS_EPILOGUE);                                                       \
            }                                                                                                \
        }                                                                                                    \
    }
#include "conv/gemm_gpu/store/sums.cl"
#endif
