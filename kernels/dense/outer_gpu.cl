// The gradient of a dense layer's weights for small batches, on GPUs: c (rows, columns) = sum
// over r of a[r] outer b[r].
//
// a (BATCH, rows), b (BATCH, columns). Almost all of the time is that of the stores to c. A work-group passes ROWS
// rows, whose factors lie in local memory; a work-item keeps the factors of its WIDE neighbouring columns in registers.
#include "common/wide.cl"

#ifndef BATCH
#define BATCH 8
#endif
#ifndef GROUP
#define GROUP 128  // work-items of a work-group
#endif
#ifndef ROWS
#define ROWS 16
#endif

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void dense_outer(
    CONST_TENSOR(a), CONST_TENSOR(b), TENSOR(c), const int accumulate, const uint rows, const uint columns,
    const uint tiles) {
    local real factors[ROWS * BATCH];
    const uint first_row = get_group_id(0) / tiles * ROWS;
    for (int i = get_local_id(0); i < ROWS * BATCH; i += GROUP) {
        const uint row = i % ROWS, r = i / ROWS;
        factors[row * BATCH + r] = first_row + row < rows ? LOAD(OPEN(a) + (ulong)r * rows, first_row + row) : 0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint column = (get_group_id(0) % tiles * GROUP + get_local_id(0)) * WIDE;
    if (column >= columns) return;
    const bool quads = QUAD_ALIGNED_stored(OPEN(b)) && QUAD_ALIGNED_stored(OPEN(c));
    raw held[BATCH * WIDE];
    real values[BATCH * WIDE];
#pragma unroll
    for (int r = 0; r < BATCH; r++) read_wide(held + r * WIDE, OPEN(b) + (ulong)r * columns + column, quads);
#pragma unroll
    for (int r = 0; r < BATCH; r++) take_wide(values + r * WIDE, held + r * WIDE);
    global stored *to = OPEN(c) + (ulong)first_row * columns + column;
    const uint count = min((uint)ROWS, rows - first_row);
#pragma unroll 4
    for (uint row = 0; row < count; row++) {
        real sums[WIDE];
        WIDTH sums[e] = 0;
#pragma unroll
        for (int r = 0; r < BATCH; r++) WIDTH sums[e] = fma(factors[row * BATCH + r], values[r * WIDE + e], sums[e]);
        write_wide(to + (ulong)row * columns, sums, quads, accumulate);
    }
}
