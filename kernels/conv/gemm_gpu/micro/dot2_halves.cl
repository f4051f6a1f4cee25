// The micro kernel for V_DOT2_F32_F16, which adds two products of float16 to a sum in float32: RDNA's first two
// generations, and others without units for matrices. Each work-item is a wave by itself (micro/waves.cl), whose blocks
// are a row and two columns. Its rows are WARPS_M apart, so that neighbours read neighbouring rows.

#define LANES 1
#define BLOCK_M 1
#define BLOCK_N 2
#define BLOCK_K 8
#undef ROW_OF_BLOCK
#define ROW_OF_BLOCK(i) (WARP % WARPS_M + (i) * WARPS_M)
#define BLOCK_ROW(lane) 0
#define BLOCK_COLUMN(e, lane) (e)

#define UNITS_K 2
#define FIRST_LANE(i, k) 0
#define FIRST_ELEMENT(i, k) (k)
#define SECOND_LANE(k, j) 0
#define SECOND_ELEMENT(k, j) (k)
#define UNITS_ROW(e, lane) 0
#define UNITS_COLUMN(e, lane) 0

typedef ushort16 Columns;
typedef ushort8 Rows;
#define UNITS_FIRST ushort2
#define UNITS_SECOND ushort2
#define UNITS_SUMS float

__attribute__((always_inline)) Columns read_columns(local const ushort *b, const int n, const int k, const int lane) {
    return (ushort16)(DEEP_COLUMN8(b, n, k), DEEP_COLUMN8(b, n + 1, k));
}

__attribute__((always_inline)) Rows read_rows(local const ushort *a, const int m, const int k, const int lane) {
    return DEEP_ROW8(a, m, k);
}

#if OPERANDS != FLOAT16
#error pairs are of float16
#endif

#if EMULATED
#define ADD_PAIR(sum, a, b) sum = added_by_units(a, b, sum PASS_EXCHANGE)
#else
#define ADD_PAIR(sum, a, b) sum = __builtin_amdgcn_fdot2(as_half2(a), as_half2(b), sum, false)
#endif
#define ADD_PAIRS(sum, a, b)         \
    ADD_PAIR(sum, (a).s01, (b).s01); \
    ADD_PAIR(sum, (a).s23, (b).s23); \
    ADD_PAIR(sum, (a).s45, (b).s45); \
    ADD_PAIR(sum, (a).s67, (b).s67)
#define ADD_BLOCK(sums, columns, rows)            \
    {                                             \
        ADD_PAIRS((sums)[0], (columns).lo, rows); \
        ADD_PAIRS((sums)[1], (columns).hi, rows); \
    }
