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

#define STAGED_PITCH (TILE_N + 8)  // floats: two columns of eight rows are in different banks
#define STAGED_BYTES (TILE_M * STAGED_PITCH * 4)

// Puts a work-item's sums into local memory, where a row's columns lie side by side.
ALWAYS_INLINE void stage_sums(const float *sums, local float *staged) {
#pragma unroll
    for (int e = 0; e < SUMS; e += 2)
        *(local float2 *)(staged + SUM_ROW(e) * STAGED_PITCH + SUM_COLUMN(e)) = (float2)(sums[e], sums[e + 1]);
}

// Stores staged sums: a work-item has a vector of columns of every so many rows. FIRST(row): the target's element of
// the group's first column in a row of the tile; below 0: the row is not stored. The usual case has short code of its
// own: products of few steps wait for instructions.
#define VECTORS_OF_ROW (TILE_N / 8)
#define ROWS_AT_A_TIME (THREADS / VECTORS_OF_ROW)
#define STAGED8(row) (float8)(*(local const float4 *)(of_row + (row)), *(local const float4 *)(of_row + (row) + 4))
#ifdef EPILOGUE
#define ONE_MORE(n) +1
#if (0 WHOLE_EXTRAS(ONE_MORE)) > 0
#define WHOLE_AHEAD 4
#endif
#endif
#ifdef WHOLE_AHEAD
// Of inputs as large as the result vectors of several rows are read before the first row is stored.
#define STORE_ROWS(FIRST)                                                                                 \
    _Pragma("unroll 1") for (int first = get_local_id(0) / VECTORS_OF_ROW; first < TILE_M;                \
                             first += ROWS_AT_A_TIME * WHOLE_AHEAD) {                                     \
        long places[WHOLE_AHEAD];                                                                         \
        ushort8 results[WHOLE_AHEAD];                                                                     \
        _Pragma("unroll") for (int a = 0; a < WHOLE_AHEAD; a++) {                                         \
            const int row = first + a * ROWS_AT_A_TIME;                                                   \
            const long at = row < TILE_M ? FIRST(row) + column : -1;                                      \
            places[a] = at >= column ? at : -1;                                                           \
            const float8 sum = first_sum + STAGED8(row < TILE_M ? a * ROWS_AT_A_TIME * STAGED_PITCH : 0); \
            results[a] = narrow8(EPILOGUE_ALIGNED_CHANNELS(sum, channel, at >= column ? at : channel));   \
        }                                                                                                 \
        _Pragma("unroll") for (int a = 0; a < WHOLE_AHEAD; a++) if (places[a] >= 0) *                     \
            (global ushort8 *)(OPEN(target) + places[a]) = results[a];                                    \
        of_row += WHOLE_AHEAD * ROWS_AT_A_TIME * STAGED_PITCH;                                            \
    }
#else
#define STORE_ROWS(FIRST)                                                                                       \
    _Pragma("unroll 1") for (int row = get_local_id(0) / VECTORS_OF_ROW; row < TILE_M; row += ROWS_AT_A_TIME) { \
        const long at = FIRST(row) + column;                                                                    \
        if (at >= column) {                                                                                     \
            const float8 sum = first_sum + STAGED8(0);                                                          \
            *(global ushort8 *)(OPEN(target) + at) = narrow8(EPILOGUE_ALIGNED_CHANNELS(sum, channel, at));      \
        }                                                                                                       \
        of_row += ROWS_AT_A_TIME * STAGED_PITCH;                                                                \
    }
#endif
#define STORE_STAGED(FIRST)                                                                                         \
    const int vector = get_local_id(0) % VECTORS_OF_ROW * 8, column = column_tile + vector;                         \
    local const float *of_row = staged + get_local_id(0) / VECTORS_OF_ROW * STAGED_PITCH + vector;                  \
    if (column >= columns) return;                                                                                  \
    const int channel = group * columns + column;                                                                   \
    if (columns % 8 == 0 && (ulong)OPEN(target) % 16 == 0 && EXTRAS_ALIGNED && !accumulate) {                       \
        const float8 first_sum = has_bias ? VLOAD(OPEN(bias), channel) : (float8)(0);                               \
        STORE_ROWS(FIRST)                                                                                           \
    } else {                                                                                                        \
        _Pragma("unroll 1") for (int row = get_local_id(0) / VECTORS_OF_ROW; row < TILE_M;                          \
                                 row += THREADS / VECTORS_OF_ROW) {                                                 \
            const long at = FIRST(row) + column;                                                                    \
            if (at >= column)                                                                                       \
                finish8((float8)(*(local const float4 *)of_row, *(local const float4 *)(of_row + 4)), OPEN(target), \
                        at, channel, columns - column, OPEN(bias), has_bias, accumulate PASS_EPILOGUE);             \
            of_row += THREADS / VECTORS_OF_ROW * STAGED_PITCH;                                                      \
        }                                                                                                           \
    }
#include "conv/gemm_gpu/store/statistics.cl"
#endif
