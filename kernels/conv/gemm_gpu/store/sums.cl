// Stores a tile of staged sums as STORE_STAGED does, and leaves what a batch norm over the result's rows needs, so that
// it need not read them.
//
// STATISTICS      for the norm of the result: of the tile's stored values of each column a shift, and the sums of their
//                 differences from it and of the squares of these. The shift is the column's value in one of the tile's
//                 rows: it is so near to the others that no digits are lost
// GRADIENT_SUMS   for the gradient of a norm whose result has the stored gradient: of each column the sums of the
//                 gradient of the norm's value, which is that of its result through the activation after the norm
//                 (batchnorm/activation.cl), and of its products with x - mean, both of the norm
//
//   statistics   real, [tile of rows][3][channels], and after that the stored rows of each tile (batchnorm/tiles.cl);
//                with GRADIENT_SUMS without shifts and rows
#if defined(STATISTICS) || defined(GRADIENT_SUMS)
#include "batchnorm/tiles.cl"

#if TILE_M * STAGED_PITCH < THREADS * 16
#error "a tile's sums of lines do not fit its local memory"
#endif

// Where staged sums were, puts each work-item's sums of eight columns of its rows, and writes those of all rows. begin:
// of the tile's columns, those that are there at the same time.
#define JOIN_LINES(tile, begin, first, second)                                                                     \
    barrier(CLK_LOCAL_MEM_FENCE); /* nobody reads staged sums any more */                                          \
    if (FIRST_ROW < ROWS_AT_A_TIME) {                                                                              \
        local float *const of_lines = staged + FIRST_ROW * 2 * STAGED_COLUMNS + COLUMN_OF_ITEM;                    \
        *(local float4 *)of_lines = first.lo;                                                                      \
        *(local float4 *)(of_lines + 4) = first.hi;                                                                \
        *(local float4 *)(of_lines + STAGED_COLUMNS) = second.lo;                                                  \
        *(local float4 *)(of_lines + STAGED_COLUMNS + 4) = second.hi;                                              \
    }                                                                                                              \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                                  \
    for (int at = get_local_id(0); at < 2 * STAGED_COLUMNS; at += THREADS) {                                       \
        const int of_second = at >= STAGED_COLUMNS, own = column_tile + (begin) + at - of_second * STAGED_COLUMNS; \
        float sum = 0;                                                                                             \
        _Pragma("unroll") for (int l = 0; l < ROWS_AT_A_TIME; l++) sum += staged[l * 2 * STAGED_COLUMNS + at];     \
        if (own < columns)                                                                                         \
            TILE_SUMS(OPEN(statistics), tile, 1 + of_second, groups * columns)[group * columns + own] = sum;       \
    }
#endif

#ifdef STATISTICS
#ifndef BIASED
#define BIASED 1  // 0: there is no bias
#endif
#if BIASED
#define WITH_BIAS(sum) (first_sum + (sum))
#else
#define WITH_BIAS(sum) (sum)
#endif
#define STATISTICS_PARAMETERS , TENSOR_OF(real, statistics)

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
#define STORE_WITH_STATISTICS(FIRST, tile, tiles, from, stored_rows)                                               \
    const int line = FIRST_ROW, vector = COLUMN_OF_ITEM; /* work-items without a whole line: TILE_M */             \
    const int column = column_tile + vector, channel = group * columns + column, count = min(columns - column, 8); \
    const int all_channels = groups * columns;                                                                     \
    float8 added = 0, squares = 0, shift = 0;                                                                      \
    if (count > 0) {                                                                                               \
        const float8 first_sum = has_bias ? those_of8(OPEN(bias) + channel, count) : (float8)(0);                  \
        if (stored_rows > 0) shift = widen8(narrow8(WITH_BIAS(STAGED8(from))));                                    \
        if (columns % 8 == 0 && (ulong)OPEN(target) % 16 == 0 && !accumulate) {                                    \
            _Pragma("unroll 2") for (int row = line; row < TILE_M; row += ROWS_AT_A_TIME) {                        \
                const long at = FIRST(row) + column;                                                               \
                if (at >= column) {                                                                                \
                    const ushort8 result = narrow8(WITH_BIAS(STAGED8(row)));                                       \
                    *(global ushort8 *)(OPEN(target) + at) = result;                                               \
                    ADD_STORED(widen8(result))                                                                     \
                }                                                                                                  \
            }                                                                                                      \
        } else {                                                                                                   \
            _Pragma("unroll 1") for (int row = line; row < TILE_M; row += ROWS_AT_A_TIME) {                        \
                const long at = FIRST(row) + column;                                                               \
                if (at >= column) {                                                                                \
                    finish8(STAGED8(row), OPEN(target), at, channel, columns - column, OPEN(bias), has_bias,       \
                            accumulate PASS_EPILOGUE);                                                             \
                    ADD_STORED(those_of8(OPEN(target) + at, count))                                                \
                }                                                                                                  \
            }                                                                                                      \
        }                                                                                                          \
    }                                                                                                              \
    if (line == 0) {                                                                                               \
        const float all[8] = {shift.s0, shift.s1, shift.s2, shift.s3, shift.s4, shift.s5, shift.s6, shift.s7};     \
        _Pragma("unroll") for (int i = 0; i < 8; i++) if (i < count)                                               \
            TILE_SUMS(OPEN(statistics), tile, 0, all_channels)[channel + i] = all[i];                              \
    }                                                                                                              \
    if (get_local_id(0) == 0 && column_tile == 0 && group == 0)                                                    \
        TILE_ROWS(OPEN(statistics), tiles, all_channels)[tile] = stored_rows;                                      \
    JOIN_LINES(tile, 0, added, squares)

#elif defined(GRADIENT_SUMS)
#include "batchnorm/activation.cl"

#define STATISTICS_PARAMETERS                                 \
    , CONST_TENSOR(norm_x), TENSOR_OF(const parameter, mean), \
        KEPT_INPUTS TENSOR_OF(real, statistics) SCALARS(SCALAR_LAST)
#define NORM_AHEAD 4  // rows whose x is read before the first of them is stored

// What eight neighbouring channels have.
ALWAYS_INLINE float8 reals8(global const real *from) {
    global const float4 *const two = (global const float4 *)from;
    return (ulong)from % 16 == 0 ? (float8)(two[0], two[1]) : vload8(0, from);
}
#ifdef REAL_PARAMETERS
#define MEAN8 reals8(OPEN(mean) + channel)
#else
#define MEAN8 VLOAD(OPEN(mean), channel)
#endif
// Products are with x - middle; where that is not the mean, but near to it, they are moved there in the end.
#ifdef FLOW
#define PASS_KEPT , shift_base, shift_offset, scale_base, scale_offset, offset_base, offset_offset
#define OPEN_NORM                                                                                \
    const float8 middle = reals8(OPEN(shift) + channel), factor = reals8(OPEN(scale) + channel), \
                 level = reals8(OPEN(offset) + channel);
#define TO_MEAN(added, products) products = fma(added, reals8(OPEN(shift) + channel) - MEAN8, products);
#else
#define PASS_KEPT
#define OPEN_NORM const float8 middle = MEAN8;
#define TO_MEAN(added, products)
#endif
#define PASS_STATISTICS                                                              \
    , norm_x_base, norm_x_offset, mean_base, mean_offset PASS_KEPT, statistics_base, \
        statistics_offset SCALARS(PASS_SCALAR)

#define ADD_GRADIENT(stored_gradient, norm_value, added, products)                                           \
    {                                                                                                        \
        const float8 gradient = (stored_gradient), value = (norm_value), flowing = FLOWING(gradient, value); \
        added += flowing;                                                                                    \
        products = fma(flowing, value - middle, products);                                                   \
    }
// Stores staged sums as STORE_STAGED does, and adds to `added` and `products`, of a work-item's eight columns. The
// columns are a multiple of eight: a data gradient's.
#define STORE_AND_ADD(FIRST, begin, added, products)                                                                \
    {                                                                                                               \
        const int column = column_tile + (begin) + COLUMN_OF_ITEM, channel = group * columns + column;              \
        if (column >= columns) {                                                                                    \
        } else if (((ulong)OPEN(target) | (ulong)OPEN(norm_x)) % 16 == 0 && EXTRAS_ALIGNED && !accumulate) {        \
            OPEN_NORM                                                                                               \
            _Pragma("unroll 1") for (int first = FIRST_ROW; first < TILE_M; first += ROWS_AT_A_TIME * NORM_AHEAD) { \
                long places[NORM_AHEAD];                                                                            \
                ushort8 results[NORM_AHEAD], values[NORM_AHEAD];                                                    \
                _Pragma("unroll") for (int a = 0; a < NORM_AHEAD; a++) {                                            \
                    const int row = first + a * ROWS_AT_A_TIME;                                                     \
                    const long at = row < TILE_M ? FIRST(row) + column : -1;                                        \
                    places[a] = at >= column ? at : -1;                                                             \
                    values[a] = *(global const ushort8 *)(OPEN(norm_x) + (at >= column ? at : channel));            \
                }                                                                                                   \
                _Pragma("unroll") for (int a = 0; a < NORM_AHEAD; a++) {                                            \
                    const int row = first + a * ROWS_AT_A_TIME;                                                     \
                    const float8 sum = STAGED8(row < TILE_M ? row : first);                                         \
                    const long at = places[a] >= 0 ? places[a] : channel;                                           \
                    results[a] = narrow8(EPILOGUE_ALIGNED_CHANNELS(sum, channel, at));                              \
                }                                                                                                   \
                _Pragma("unroll") for (int a = 0; a < NORM_AHEAD; a++) if (places[a] >= 0) {                        \
                    *(global ushort8 *)(OPEN(target) + places[a]) = results[a];                                     \
                    ADD_GRADIENT(widen8(results[a]), widen8(values[a]), added, products)                            \
                }                                                                                                   \
            }                                                                                                       \
        } else {                                                                                                    \
            OPEN_NORM                                                                                               \
            _Pragma("unroll 1") for (int row = FIRST_ROW; row < TILE_M; row += ROWS_AT_A_TIME) {                    \
                const long at = FIRST(row) + column;                                                                \
                if (at >= column) {                                                                                 \
                    finish8(STAGED8(row), OPEN(target), at, channel, columns - column, OPEN(bias), has_bias,        \
                            accumulate PASS_EPILOGUE);                                                              \
                    ADD_GRADIENT(VLOAD(OPEN(target), at), VLOAD(OPEN(norm_x), at), added, products)                 \
                }                                                                                                   \
            }                                                                                                       \
        }                                                                                                           \
    }
// Leaves what a work-group has added up. part: its number among those of the same columns.
#define LEAVE_GRADIENT_SUMS(part, begin, added, products)                                              \
    {                                                                                                  \
        const int column = column_tile + (begin) + COLUMN_OF_ITEM, channel = group * columns + column; \
        if (column < columns) {                                                                        \
            TO_MEAN(added, products)                                                                   \
        }                                                                                              \
        JOIN_LINES(part, begin, added, products)                                                       \
    }
// What a work-group adds up that stores several tiles of the same columns.
#define STAGED_PARTS ((TILE_N + STAGED_COLUMNS - 1) / STAGED_COLUMNS)
#define OPEN_ADDED                                      \
    float8 added[STAGED_PARTS], products[STAGED_PARTS]; \
    _Pragma("unroll") for (int i = 0; i < STAGED_PARTS; i++) added[i] = products[i] = 0;
#define TAKE_ADDED , float8 *added, float8 *products
#define PASS_ADDED , added, products
#define STORE_WITH_GRADIENT_SUMS(FIRST, part) \
    float8 added = 0, products = 0;           \
    STORE_AND_ADD(FIRST, 0, added, products)  \
    LEAVE_GRADIENT_SUMS(part, 0, added, products)
#endif

#if !defined(STATISTICS) && !defined(GRADIENT_SUMS)
#define STATISTICS_PARAMETERS
#define PASS_STATISTICS
#define OPEN_ADDED
#define TAKE_ADDED
#define PASS_ADDED
#endif
