// What micro kernels share whose operands are in the registers of a wave, LANES work-items that multiply together: its
// place in the tile, and fragments, which its lanes read from local memory (micro/halves.cl). waves_multiply.cl has the
// loops.
//
// WARPS_M * WARPS_N waves each make a part of the tile, WARP_M rows and WARP_N columns, by blocks of BLOCK_M rows and
// BLOCK_N columns. Products are turned: the units' first operand, whose rows are their result's, are columns of C, and
// the second one's columns are rows of C. So a lane has sums of neighbouring columns in one row.
//
// A file for units has
// LANES
// BLOCK_M, BLOCK_N, BLOCK_K              rows and columns of a block, and the depth of a lane's fragments
// BLOCK_ROW(lane)                        the row in a block of a lane's sums
// BLOCK_COLUMN(e, lane)                  the column of its sum e; e and e + 1, e even, are neighbours
// Columns, read_columns(b, n, k, lane)   a lane's fragments of a block's columns from n on, and of its rows from m on,
// Rows, read_rows(a, m, k, lane)         at the depth from k on: vectors of ushort
// ADD_BLOCK(sums, columns, rows)         adds a block's products, each by added_by_units if EMULATED
//
// and, for the emulation, UNITS_K, the depth of a product, the types of its operands and of its result, UNITS_FIRST,
// UNITS_SECOND and UNITS_SUMS, and where the units' documents say that elements are: FIRST_LANE(i, k) and
// FIRST_ELEMENT(i, k) of row i of the first operand, SECOND_LANE(k, j) and SECOND_ELEMENT(k, j) of column j of the
// second one, UNITS_ROW(e, lane) and UNITS_COLUMN(e, lane) of element e of a lane's result.

#define WARPS_M (TILE_M / WARP_M)
#define WARPS_N (TILE_N / WARP_N)
#define BLOCKS_M (WARP_M / BLOCK_M)
#define BLOCKS_N (WARP_N / BLOCK_N)
#define BLOCK_SUMS (BLOCK_M * BLOCK_N / LANES)
#define SUMS (BLOCKS_M * BLOCKS_N * BLOCK_SUMS)

#define LANE ((int)get_local_id(0) % LANES)
#define WARP ((int)get_local_id(0) / LANES)
// The first row and column of a wave's blocks.
#define ROW_OF_BLOCK(i) (WARP % WARPS_M * WARP_M + (i) * BLOCK_M)
#define COLUMN_OF_BLOCK(j) (WARP / WARPS_M * WARP_N + (j) * BLOCK_N)
#define SUM_ROW(e) (ROW_OF_BLOCK((e) / BLOCK_SUMS / BLOCKS_N) + BLOCK_ROW(LANE))
#define SUM_COLUMN(e) (COLUMN_OF_BLOCK((e) / BLOCK_SUMS % BLOCKS_N) + BLOCK_COLUMN((e) % BLOCK_SUMS / 2 * 2, LANE))

#define TILE_ALIGNMENT __attribute__((aligned(128)))
#define FENCE_TILES

// Emulated units exchange their operands through local memory, which kernels declare and pass on.
#if EMULATED
#define EXCHANGED 32  // elements of a work-item, of which the second half belongs to the second operand
#define DECLARE_EXCHANGE local ushort exchanged[THREADS * EXCHANGED] TILE_ALIGNMENT;
#define TAKE_EXCHANGE , local ushort *exchanged
#define PASS_EXCHANGE , exchanged
#define MULTIPLY(sums, a, shift, b) multiply_by_waves(sums, a, shift, b PASS_EXCHANGE)
#else
#define DECLARE_EXCHANGE
#define TAKE_EXCHANGE
#define PASS_EXCHANGE
#define MULTIPLY(sums, a, shift, b) multiply_by_waves(sums, a, shift, b)
#endif

// Eight elements of a tile, from elements m and k of its two axes on, both multiples of eight where they have to be:
// along the depth (k), and along rows or columns of C (m).
#define TOGETHER8(tile, AT, m, k) (*(local const ushort8 *)((tile) + AT(m, k)))
#define DEEP8(tile, AT, m, k)                                                                           \
    (ushort8)((tile)[AT(m, k)], (tile)[AT(m, (k) + 1)], (tile)[AT(m, (k) + 2)], (tile)[AT(m, (k) + 3)], \
              (tile)[AT(m, (k) + 4)], (tile)[AT(m, (k) + 5)], (tile)[AT(m, (k) + 6)], (tile)[AT(m, (k) + 7)])
#define WIDE8(tile, AT, m, k)                                                                           \
    (ushort8)((tile)[AT(m, k)], (tile)[AT((m) + 1, k)], (tile)[AT((m) + 2, k)], (tile)[AT((m) + 3, k)], \
              (tile)[AT((m) + 4, k)], (tile)[AT((m) + 5, k)], (tile)[AT((m) + 6, k)], (tile)[AT((m) + 7, k)])
#if A_BY_DEPTH
#define DEEP_ROW8(a, m, k) DEEP8(a, A_AT, m, k)
#else
#define DEEP_ROW8(a, m, k) TOGETHER8(a, A_AT, m, k)
#endif
#if B_BY_DEPTH
#define DEEP_COLUMN8(b, n, k) DEEP8(b, B_AT, n, k)
#define WIDE_COLUMNS8(b, n, k) TOGETHER8(b, B_AT, n, k)
#else
#define DEEP_COLUMN8(b, n, k) TOGETHER8(b, B_AT, n, k)
#define WIDE_COLUMNS8(b, n, k) WIDE8(b, B_AT, n, k)
#endif

// Sums as vectors.
#define SUMS4(s) (float4)((s)[0], (s)[1], (s)[2], (s)[3])
#define SUMS8(s) (float8)(SUMS4(s), SUMS4((s) + 4))
#define SET4(s, v) (s)[0] = (v).s0, (s)[1] = (v).s1, (s)[2] = (v).s2, (s)[3] = (v).s3
#define SET8(s, v) SET4(s, (v).lo), SET4((s) + 4, (v).hi)
