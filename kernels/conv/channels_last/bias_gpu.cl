// Gradient of the bias in channels last on GPUs: the sum of dy (rows, channels), with a row for each pixel of each
// image, over the rows. Work-items have WIDE neighbouring channels, of which `channels` is a multiple.
//
//   bias_rows_gpu       sums of parts of the rows: a work-group takes COLUMNS vectors of channels and LINES rows at a
//                       time: partial[part][channels], in real
//   bias_rows_gpu_join  db, or added to db, of the parts, in their order: a work-item for each channel
//
// AHEAD  rows that a work-item reads before it adds them up
#include "common/channels.cl"

#ifndef GROUP
#define GROUP 256
#endif
#ifndef COLUMNS
#define COLUMNS 32  // a power of 2, as GROUP is
#endif
#ifndef AHEAD
#define AHEAD 4
#endif
#define LINES (GROUP / COLUMNS)

kernel __attribute__((reqd_work_group_size(COLUMNS, LINES, 1))) void bias_rows_gpu(
    CONST_TENSOR(dy), TENSOR_OF(real, partial), const int channels, const long rows, const long part_rows) {
    local real lines[GROUP * WIDE];
    const int line = get_local_id(1), me = line * COLUMNS + get_local_id(0), channel = (int)get_global_id(0) * WIDE;
    const bool there = channel < channels, wide = QUAD_ALIGNED_stored(OPEN(dy));
    const long begin = get_group_id(1) * part_rows, last = there ? min(begin + part_rows, rows) : 0;
    real sums[WIDE];
    WIDTH sums[e] = 0;
    for (long row = begin + line; row < last; row += AHEAD * LINES) {
        raw values[AHEAD][WIDE];
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (row + a * LINES < last) read_wide(values[a], OPEN(dy) + (row + a * LINES) * channels + channel, wide);
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            real terms[WIDE];
            if (row + a * LINES >= last) break;
            take_wide(terms, values[a]);
            WIDTH sums[e] += terms[e];
        }
    }
    WIDTH lines[e * GROUP + me] = sums[e];
    for (int left = LINES / 2; left > 0; left /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (line < left) WIDTH lines[e * GROUP + me] += lines[e * GROUP + me + left * COLUMNS];
    }
    if (there && !line) WIDTH OPEN(partial)[(long)get_group_id(1) * channels + channel + e] = lines[e * GROUP + me];
}

kernel void bias_rows_gpu_join(TENSOR_OF(const real, partial), TENSOR(db), const int accumulate, const int channels,
                               const int parts) {
    const int channel = get_global_id(0);
    global const real *from = OPEN(partial) + channel;
    real sum = 0;
#pragma unroll 8
    for (int part = 0; part < parts; part++) sum += from[(long)part * channels];
    STORE(OPEN(db), channel, accumulate ? LOAD(OPEN(db), channel) + sum : sum);
}
