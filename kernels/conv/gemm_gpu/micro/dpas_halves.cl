// The micro kernel for the matrix engines of cl_intel_subgroup_matrix_multiply_accumulate, on sub-groups of 8 or 16
// work-items, the device's smallest ones (micro/waves.cl). A product has 8 rows, a column for each lane and a depth of
// 16: lanes hold the first operand's rows side by side, a column of the second one each, and a column of the result.

#if MICRO == DPAS8_UNITS
#define LANES 8
#else
#define LANES 16
#endif
#define BLOCK_M LANES
#define BLOCK_N 8
#define BLOCK_K 16
#define BLOCK_ROW(lane) (lane)
#define BLOCK_COLUMN(e, lane) (e)

#define UNITS_K 16
#define SECOND_LANE(k, j) (j)
#define SECOND_ELEMENT(k, j) (k)
#define UNITS_ROW(e, lane) (e)
#define UNITS_COLUMN(e, lane) (lane)

typedef ushort16 Rows;
#define UNITS_FIRST Columns
#define UNITS_SECOND Rows
#define UNITS_SUMS float8

__attribute__((always_inline)) Rows read_rows(local const ushort *a, const int m, const int k, const int lane) {
    return (ushort16)(DEEP_ROW8(a, m + lane, k), DEEP_ROW8(a, m + lane, k + 8));
}

#if LANES == 8  // a lane has two elements of the depth, side by side, of each column
#define FIRST_LANE(i, k) ((k) / 2)
#define FIRST_ELEMENT(i, k) (2 * (i) + (k) % 2)
typedef ushort16 Columns;

__attribute__((always_inline)) Columns read_columns(local const ushort *b, const int n, const int k, const int lane) {
    const int at = k + 2 * lane;
#if B_BY_DEPTH
    const ushort8 even = WIDE_COLUMNS8(b, n, at), odd = WIDE_COLUMNS8(b, n, at + 1);
    return (ushort16)(even.s0, odd.s0, even.s1, odd.s1, even.s2, odd.s2, even.s3, odd.s3, even.s4, odd.s4, even.s5,
                      odd.s5, even.s6, odd.s6, even.s7, odd.s7);
#else
#define PAIR_OF(i) *(local const ushort2 *)(b + B_AT(n + (i), at))
    return (ushort16)(PAIR_OF(0), PAIR_OF(1), PAIR_OF(2), PAIR_OF(3), PAIR_OF(4), PAIR_OF(5), PAIR_OF(6), PAIR_OF(7));
#undef PAIR_OF
#endif
}
#define UNITS_COLUMNS(columns) as_int8(columns)
#else
#define FIRST_LANE(i, k) (k)
#define FIRST_ELEMENT(i, k) (i)
typedef ushort8 Columns;

__attribute__((always_inline)) Columns read_columns(local const ushort *b, const int n, const int k, const int lane) {
    return WIDE_COLUMNS8(b, n, k + lane);
}
#define UNITS_COLUMNS(columns) as_short8(columns)
#endif

#if EMULATED
#define ADDED(columns, rows, sums) added_by_units(columns, rows, sums PASS_EXCHANGE)
#else
#define OF_WAVES __attribute__((intel_reqd_sub_group_size(LANES)))
#define ADDED(columns, rows, sums) UNITS_ADD(UNITS_COLUMNS(columns), as_int8(rows), sums)
#if OPERANDS == BFLOAT16
#define UNITS_ADD intel_sub_group_bf16_bf16_matrix_mad_k16
#else
#define UNITS_ADD intel_sub_group_f16_f16_matrix_mad_k16
#endif
#endif
#define ADD_BLOCK(sums, columns, rows)                          \
    {                                                           \
        const float8 added = ADDED(columns, rows, SUMS8(sums)); \
        SET8(sums, added);                                      \
    }
