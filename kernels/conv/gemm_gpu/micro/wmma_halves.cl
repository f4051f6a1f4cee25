// The micro kernel for RDNA3's WMMA, by waves of 32 (micro/waves.cl): products of 16 rows, 16 columns and a depth of
// 16. A lane has a whole row of the first operand and a whole column of the second one, lanes 16 to 31 the same as 0 to
// 15, and of the result every second row of a column.

#define LANES 32
#define BLOCK_M 16
#define BLOCK_N 16
#define BLOCK_K 16
// The units' rows are columns of C in an order in which a lane's are neighbours.
#define COLUMN_OF_UNITS(i) ((i) % 2 * 8 + (i) / 2)
#define BLOCK_ROW(lane) ((lane) % 16)
#define BLOCK_COLUMN(e, lane) ((lane) / 16 * 8 + (e))

#define UNITS_K 16
#define FIRST_LANE(i, k) ((i) + (k) / 8 * 16)  // from both copies
#define FIRST_ELEMENT(i, k) (k)
#define SECOND_LANE(k, j) ((j) + (k) / 8 * 16)
#define SECOND_ELEMENT(k, j) (k)
#define UNITS_ROW(e, lane) (2 * (e) + (lane) / 16)
#define UNITS_COLUMN(e, lane) ((lane) % 16)

typedef ushort16 Columns;
typedef ushort16 Rows;
#define UNITS_FIRST Columns
#define UNITS_SECOND Rows
#define UNITS_SUMS float8

__attribute__((always_inline)) Columns read_columns(local const ushort *b, const int n, const int k, const int lane) {
    const int column = n + COLUMN_OF_UNITS(lane % 16);
    return (ushort16)(DEEP_COLUMN8(b, column, k), DEEP_COLUMN8(b, column, k + 8));
}

__attribute__((always_inline)) Rows read_rows(local const ushort *a, const int m, const int k, const int lane) {
    const int row = m + lane % 16;
    return (ushort16)(DEEP_ROW8(a, row, k), DEEP_ROW8(a, row, k + 8));
}

#if EMULATED
#define UNITS_ADD(columns, rows, sums) added_by_units(columns, rows, sums PASS_EXCHANGE)
#elif OPERANDS == BFLOAT16
#define UNITS_ADD(columns, rows, sums) \
    __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(as_short16(columns), as_short16(rows), sums)
#else
#define UNITS_ADD(columns, rows, sums) \
    __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(as_half16(columns), as_half16(rows), sums)
#endif
#define ADD_BLOCK(sums, columns, rows)                              \
    {                                                               \
        const float8 added = UNITS_ADD(columns, rows, SUMS8(sums)); \
        SET8(sums, added);                                          \
    }
