// The micro kernel for CDNA's MFMA, by waves of 64 (micro/waves.cl): products of UNITS rows and columns, 32 where a
// wave has more than one such block and 16 otherwise. Groups of UNITS lanes have UNITS_PART neighbours of the depth of
// a row of the first operand and of a column of the second one, and of the result four neighbours of every eight rows
// (with 16 of all rows) of a column.
//
// A lane reads eight neighbours of the depth at once, and its products take UNITS_PART of them each: both operands have
// the same order of the depth, which may be any.

#define LANES 64
#if WARP_M * WARP_N > 1024
#define UNITS 32
#else
#define UNITS 16
#endif
// bfloat16 has half of the depth where there are no products of four neighbours, on the first generation.
#if OPERANDS == BFLOAT16 && defined(__gfx908__)
#define UNITS_PART 2
#else
#define UNITS_PART 4
#endif
#define BLOCK_M UNITS
#define BLOCK_N UNITS
#define BLOCK_K (8 * LANES / UNITS)
#define BLOCK_ROW(lane) ((lane) % UNITS)
#define BLOCK_COLUMN(e, lane) UNITS_ROW(e, lane)

#define UNITS_K (UNITS_PART * LANES / UNITS)
#define FIRST_LANE(i, k) ((i) + (k) / UNITS_PART * UNITS)
#define FIRST_ELEMENT(i, k) ((k) % UNITS_PART)
#define SECOND_LANE(k, j) ((j) + (k) / UNITS_PART * UNITS)
#define SECOND_ELEMENT(k, j) ((k) % UNITS_PART)
#define UNITS_ROW(e, lane) ((e) / 4 * 8 + (lane) / UNITS * 4 + (e) % 4)
#define UNITS_COLUMN(e, lane) ((lane) % UNITS)

typedef ushort8 Columns;
typedef ushort8 Rows;

__attribute__((always_inline)) Columns read_columns(local const ushort *b, const int n, const int k, const int lane) {
    return DEEP_COLUMN8(b, n + lane % UNITS, k + lane / UNITS * 8);
}

__attribute__((always_inline)) Rows read_rows(local const ushort *a, const int m, const int k, const int lane) {
    return DEEP_ROW8(a, m + lane % UNITS, k + lane / UNITS * 8);
}

#if UNITS_PART == 4
#define UNITS_FIRST ushort4
#else
#define UNITS_FIRST ushort2
#endif
#define UNITS_SECOND UNITS_FIRST
#if UNITS == 32
#define SUMS_VECTOR(s) (float16)(SUMS8(s), SUMS8((s) + 8))
#define SET_VECTOR(s, v) SET8(s, (v).lo), SET8((s) + 8, (v).hi)
#define UNITS_SUMS float16
#if OPERANDS == FLOAT16
#define UNITS_ADD __builtin_amdgcn_mfma_f32_32x32x8f16
#elif UNITS_PART == 4
#define UNITS_ADD __builtin_amdgcn_mfma_f32_32x32x8bf16_1k
#else
#define UNITS_ADD __builtin_amdgcn_mfma_f32_32x32x4bf16
#endif
#else
#define SUMS_VECTOR(s) SUMS4(s)
#define SET_VECTOR(s, v) SET4(s, v)
#define UNITS_SUMS float4
#if OPERANDS == FLOAT16
#define UNITS_ADD __builtin_amdgcn_mfma_f32_16x16x16f16
#elif UNITS_PART == 4
#define UNITS_ADD __builtin_amdgcn_mfma_f32_16x16x16bf16_1k
#else
#define UNITS_ADD __builtin_amdgcn_mfma_f32_16x16x8bf16
#endif
#endif
#if EMULATED
#define ADD_PART(columns, rows) added = added_by_units(columns, rows, added PASS_EXCHANGE)
#else
#if OPERANDS == FLOAT16
#define PART_OF(fragment) as_half4(fragment)
#elif UNITS_PART == 4
#define PART_OF(fragment) as_short4(fragment)
#else
#define PART_OF(fragment) as_short2(fragment)
#endif
#define ADD_PART(columns, rows) added = UNITS_ADD(PART_OF(columns), PART_OF(rows), added, 0, 0, 0)
#endif
#if UNITS_PART == 4
#define ADD_PARTS(columns, rows)       \
    ADD_PART((columns).lo, (rows).lo); \
    ADD_PART((columns).hi, (rows).hi)
#else
#define ADD_PARTS(columns, rows)         \
    ADD_PART((columns).s01, (rows).s01); \
    ADD_PART((columns).s23, (rows).s23); \
    ADD_PART((columns).s45, (rows).s45); \
    ADD_PART((columns).s67, (rows).s67)
#endif
#define ADD_BLOCK(sums, columns, rows)        \
    {                                         \
        UNITS_SUMS added = SUMS_VECTOR(sums); \
        ADD_PARTS(columns, rows);             \
        SET_VECTOR(sums, added);              \
    }
