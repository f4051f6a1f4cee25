// With STATISTICS: stores a tile of staged sums as STORE_STAGED does, and leaves what a batch norm over the result's
// rows needs, so that it need not read them: of the tile's stored values of each column a shift, and the sums of their
// differences from it and of the squares of these.
//
//   statistics   real, [tile of rows][3][channels], and after that the stored rows of each tile (batchnorm/tiles.cl)
//
// The shift is the column's value in one of the tile's rows: it is so near to the others that no digits are lost.
#ifdef STATISTICS
#include "batchnorm/tiles.cl"

#ifndef BIASED
#define BIASED 1  // 0: there is no bias
#endif
#if BIASED
#define WITH_BIAS(sum) (first_sum + (sum))
#else
#define WITH_BIAS(sum) (sum)
#endif
#define STATISTICS_PARAMETERS , TENSOR_OF(real, statistics)
#if TILE_M * STAGED_PITCH < THREADS * 16
#error "a tile's sums of lines do not fit its local memory"
#endif

// Of eight neighbours those that are there, and zeros.
ALWAYS_INLINE float8 those_of8(global const stored *from, const int count) {
    float all[8];
#pragma unroll
    for (int i = 0; i < 8; i++) all[i] = i < count ? LOAD(from, i) : 0;
    return (float8)(all[0], all[1], all[2], all[3], all[4], all[5], all[6], all[7]);
}

#define ADD_STORED(value)                      \
    const float8 difference = (value) - shift; \
    added += difference;                       \
    squares = fma(difference, difference, squares);
// FIRST(row): as of STORE_STAGED. tile: of rows, of so many `tiles`. from: a row that is stored, of `stored_rows`.
#define STORE_WITH_STATISTICS(FIRST, tile, tiles, from, stored_rows)                                                 \
    const int line = FIRST_ROW, vector = COLUMN_OF_ITEM; /* work-items without a whole line: TILE_M */               \
    const int column = column_tile + vector, channel = group * columns + column, count = min(columns - column, 8);   \
    const int all_channels = groups * columns;                                                                       \
    float8 added = 0, squares = 0, shift = 0;                                                                        \
    if (count > 0) {                                                                                                 \
        const float8 first_sum = has_bias ? those_of8(OPEN(bias) + channel, count) : (float8)(0);                    \
        if (stored_rows > 0) shift = widen8(narrow8(WITH_BIAS(STAGED8(from))));                                      \
        if (columns % 8 == 0 && (ulong)OPEN(target) % 16 == 0 && !accumulate) {                                      \
            _Pragma("unroll 2") for (int row = line; row < TILE_M; row += ROWS_AT_A_TIME) {                          \
                const long at = FIRST(row) + column;                                                                 \
                if (at >= column) {                                                                                  \
                    const ushort8 result = narrow8(WITH_BIAS(STAGED8(row)));                                         \
                    *(global ushort8 *)(OPEN(target) + at) = result;                                                 \
                    ADD_STORED(widen8(result))                                                                       \
                }                                                                                                    \
            }                                                                                                        \
        } else {                                                                                                     \
            _Pragma("unroll 1") for (int row = line; row < TILE_M; row += ROWS_AT_A_TIME) {                          \
                const long at = FIRST(row) + column;                                                                 \
                if (at >= column) {                                                                                  \
                    finish8(STAGED8(row), OPEN(target), at, channel, columns - column, OPEN(bias), has_bias,         \
                            accumulate PASS_EPILOGUE);                                                               \
                    ADD_STORED(those_of8(OPEN(target) + at, count))                                                  \
                }                                                                                                    \
            }                                                                                                        \
        }                                                                                                            \
    }                                                                                                                \
    barrier(CLK_LOCAL_MEM_FENCE); /* nobody reads staged sums any more: sums of lines take their place */            \
    local float *const of_lines = staged + line * 2 * TILE_N + vector;                                               \
    if (line < ROWS_AT_A_TIME) {                                                                                     \
        *(local float4 *)of_lines = added.lo;                                                                        \
        *(local float4 *)(of_lines + 4) = added.hi;                                                                  \
        *(local float4 *)(of_lines + TILE_N) = squares.lo;                                                           \
        *(local float4 *)(of_lines + TILE_N + 4) = squares.hi;                                                       \
    }                                                                                                                \
    if (line == 0) {                                                                                                 \
        const float all[8] = {shift.s0, shift.s1, shift.s2, shift.s3, shift.s4, shift.s5, shift.s6, shift.s7};       \
        _Pragma("unroll") for (int i = 0; i < 8; i++) if (i < count)                                                 \
            TILE_SUMS(OPEN(statistics), tile, 0, all_channels)[channel + i] = all[i];                                \
    }                                                                                                                \
    if (get_local_id(0) == 0 && column_tile == 0 && group == 0)                                                      \
        TILE_ROWS(OPEN(statistics), tiles, all_channels)[tile] = stored_rows;                                        \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                                    \
    for (int i = get_local_id(0); i < 2 * TILE_N; i += THREADS) {                                                    \
        const int second = i >= TILE_N, own = column_tile + i - second * TILE_N;                                     \
        float sum = 0;                                                                                               \
        _Pragma("unroll") for (int l = 0; l < ROWS_AT_A_TIME; l++) sum += staged[l * 2 * TILE_N + i];                \
        if (own < columns) TILE_SUMS(OPEN(statistics), tile, 1 + second, all_channels)[group * columns + own] = sum; \
    }
#else
#define STATISTICS_PARAMETERS
#endif
