// Batch norm of a training step on GPUs where a pixel's channels lie together: work-items have WIDE neighbouring ones.
//
// x, dy, y, dx (rows, channels), with a row for each pixel of each image; all others have one value for each channel.
// The channels are a multiple of WIDE. Three launches: sums of parts of the rows, one vector of results from the parts
// in their order, and the rows of the result, which may take the place of x or dy. In the first and the last, a
// work-group takes COLUMNS vectors of channels and LINES rows at a time.
//
//   partial   real, [part][3][channels]: forward the shift, which all parts share, and the sums of x - shift and of its
//             square; backward (the first is unused) the sums of dy and of dy (x - mean)
//   vectors   real, [3][channels]: what the last launch computes with
//
// The shift is the mean of SAMPLE rows, all over x: it is so near to the mean that its square loses no digits.
//
// Where the convolution that computed x has left sums of its tiles of rows (tiles.cl), the first launch is not needed,
// and the second one joins these by Chan, Golub and LeVeque's formula: each tile has a shift of its own.
//
// MAKES        1 to 3: forward's launches; 4 to 6: backward's; 7: what joins the sums of tiles
#include "batchnorm/lines.cl"
#include "batchnorm/tiles.cl"

#define SAMPLE 8
#define JOINED 8                  // channels that a work-group joins
#define JOINING (GROUP / JOINED)  // work-items that join a channel
#define ROWS_GROUP __attribute__((reqd_work_group_size(COLUMNS, LINES, 1)))
#define JOIN_GROUP __attribute__((reqd_work_group_size(GROUP, 1, 1)))
#define PART(part, n) (OPEN(partial) + ((long)(part) * 3 + (n)) * channels)

// The place of a work-item: its first channel, and the rows from `first` on, LINES apart.
#define OPEN_ROWS                                                                        \
    const int line = get_local_id(1), channel = (int)get_global_id(0) * WIDE;            \
    const bool there = channel < channels;                                               \
    const long begin = get_group_id(1) * part_rows, last = min(begin + part_rows, rows); \
    const long first = there ? begin + line : last;
// Walks rows by AHEAD at a time.
#define EACH_ROWS for (long row = first; row < last; row += AHEAD * LINES)

#if MAKES == 2 || MAKES == 5 || MAKES == 7
// What a work-item reads of a part, and adds to its sums; then it moves the sums to where all work-items have them.
#if MAKES != 7
#define PART_FIELDS real sum, square;
#define READ_PART(to, part)          \
    to.sum = PART(part, 1)[channel]; \
    to.square = PART(part, 2)[channel];
#define ADD_PART(from) \
    first += from.sum; \
    second += from.square;
#define MOVE_SUMS
#else
#define PART_FIELDS real sum, square, shift, count;
#define READ_PART(to, part)             \
    to.shift = PART(part, 0)[channel];  \
    to.sum = PART(part, 1)[channel];    \
    to.square = PART(part, 2)[channel]; \
    to.count = TILE_ROWS(OPEN(partial), parts, channels)[part];
#define ADD_PART(from)                                                \
    if (all_rows == 0) middle = from.shift;                           \
    ADD_MOVED(from.shift - middle, from.count, from.sum, from.square) \
    all_rows += from.count;
// A work-item's sums are around the shift of its first tile; those of the channel are around the mean of all that its
// first work-item has, which come from all over x.
#define MOVE_SUMS                                                                                                \
    local real middles[JOINED];                                                                                  \
    if (me < JOINED) middles[me] = all_rows > 0 ? middle + first / all_rows : 0;                                 \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                                \
    const real own_first = first, own_second = second, apart = all_rows > 0 ? middle - middles[me % JOINED] : 0; \
    first = second = 0;                                                                                          \
    ADD_MOVED(apart, all_rows, own_first, own_second)                                                            \
    middle = middles[me % JOINED];
#endif
typedef struct {
    PART_FIELDS
} Part;
#define READ_AT_ONCE 8  // parts, which all are on their way together
#define EACH_PART _Pragma("unroll") for (int a = 0; a < READ_AT_ONCE; a++) if (begin + a * JOINING < parts)
// The sums of all parts of a channel; the first work-item of the channel gets them.
#define JOIN_PARTS                                                                                     \
    local real firsts[GROUP], seconds[GROUP];                                                          \
    const int me = get_local_id(0), channel = get_group_id(0) * JOINED + me % JOINED;                  \
    real first = 0, second = 0, middle = 0, all_rows = 0;                                              \
    if (channel < channels) {                                                                          \
        for (int begin = me / JOINED; begin < parts; begin += READ_AT_ONCE * JOINING) {                \
            Part of_parts[READ_AT_ONCE];                                                               \
            EACH_PART{READ_PART(of_parts[a], begin + a * JOINING)} EACH_PART { ADD_PART(of_parts[a]) } \
        }                                                                                              \
    }                                                                                                  \
    MOVE_SUMS                                                                                          \
    firsts[me] = first;                                                                                \
    seconds[me] = second;                                                                              \
    for (int left = JOINING / 2; left > 0; left /= 2) {                                                \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                  \
        if (me < left * JOINED) {                                                                      \
            firsts[me] += firsts[me + left * JOINED];                                                  \
            seconds[me] += seconds[me + left * JOINED];                                                \
        }                                                                                              \
    }                                                                                                  \
    if (me >= JOINED || channel >= channels) return;                                                   \
    first = firsts[me];                                                                                \
    second = seconds[me];
#endif

#if MAKES == 1
kernel ROWS_GROUP void batchnorm_rows_gpu_statistics(CONST_TENSOR(x), TENSOR_OF(real, partial), const int channels,
                                                     const long rows, const long part_rows) {
    local real firsts[GROUP * WIDE], seconds[GROUP * WIDE];
    OPEN_ROWS
    const bool quads = QUAD_ALIGNED_stored(OPEN(x));
    const long apart = rows / SAMPLE;  // of few rows the first one counts several times
    real sums[WIDE], squares[WIDE], shift[WIDE];
    WIDTH sums[e] = squares[e] = shift[e] = 0;
    if (there) {
        // each work-item reads the sample itself, while its first rows are on their way
        raw sampled[SAMPLE][WIDE];
#pragma unroll
        for (int i = 0; i < SAMPLE; i++) read_wide(sampled[i], OPEN(x) + i * apart * channels + channel, quads);
#pragma unroll
        for (int i = 0; i < SAMPLE; i++) {
            real value[WIDE];
            take_wide(value, sampled[i]);
            WIDTH shift[e] += value[e];
        }
        WIDTH shift[e] /= (real)SAMPLE;
    }
    EACH_ROWS {
        raw values[AHEAD][WIDE];
        EACH_AHEAD read_wide(values[a], OPEN(x) + PLACE, quads);
        ADD_DEVIATIONS(shift)
    }
    sum_lines(sums, squares, firsts, seconds);
    if (!there || line) return;
    const uint part = get_group_id(1);
    WIDTH {
        PART(part, 0)[channel + e] = shift[e];
        PART(part, 1)[channel + e] = sums[e];
        PART(part, 2)[channel + e] = squares[e];
    }
}
#elif MAKES == 2 || MAKES == 7
kernel JOIN_GROUP void batchnorm_rows_gpu_join(
    TENSOR_OF(const real, partial), TENSOR_OF(real, vectors), TENSOR_OF(const parameter, gamma),
    TENSOR_OF(const parameter, beta), OUTPUT_OF(parameter, mean), OUTPUT_OF(parameter, var),
    KEPT_OUTPUTS const int channels, const int parts, const long rows, const real eps) {
    JOIN_PARTS
#if MAKES == 2
    middle = PART(0, 0)[channel];
#endif
    const real average = first / (real)rows;
    const real square = second / (real)rows - average * average, variance = square < 0 ? 0 : square;
    PUT_NORM(middle, average, variance)
}
#elif MAKES == 3
kernel ROWS_GROUP void batchnorm_rows_gpu_result(
    CONST_TENSOR(x), TENSOR_OF(const real, vectors), RESIDUAL_PARAMETER TENSOR(y), const int accumulate_y,
    const int channels, const long rows, const long part_rows SCALARS(SCALAR_LAST)) {
    OPEN_ROWS
    const bool quads = NORM_QUADS;
    real middle[WIDE], factor[WIDE], level[WIDE];
    WIDTH {
        middle[e] = there ? VECTOR(0)[channel + e] : 0;
        factor[e] = there ? VECTOR(1)[channel + e] : 0;
        level[e] = there ? VECTOR(2)[channel + e] : 0;
    }
    EACH_ROWS {
        raw values[AHEAD][WIDE];
        READ_ADDENDS
        EACH_AHEAD read_wide(values[a], OPEN(x) + PLACE, quads);
        WRITE_NORMS
    }
}
#endif

#if MAKES == 4
kernel ROWS_GROUP void batchnorm_rows_gpu_products(CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR_OF(const parameter, mean),
                                                   KEPT_INPUTS TENSOR_OF(real, partial), const int channels,
                                                   const long rows, const long part_rows SCALARS(SCALAR_LAST)) {
    local real firsts[GROUP * WIDE], seconds[GROUP * WIDE];
    OPEN_ROWS
    const bool quads = QUAD_ALIGNED_stored(OPEN(x)) && QUAD_ALIGNED_stored(OPEN(dy));
    real sums[WIDE], products[WIDE], means[WIDE];
    WIDTH sums[e] = products[e] = means[e] = 0;
    if (there) {
        OPEN_VECTORS
        WIDTH means[e] = LOAD_parameter(OPEN(mean), channel + e);
        EACH_ROWS {
            READ_PAIRS
            ADD_FLOWS
        }
    }
    sum_lines(sums, products, firsts, seconds);
    if (!there || line) return;
    const uint part = get_group_id(1);
    WIDTH {
        PART(part, 1)[channel + e] = sums[e];
        PART(part, 2)[channel + e] = products[e];
    }
}
#elif MAKES == 5
kernel JOIN_GROUP void batchnorm_rows_gpu_join_products(
    TENSOR_OF(const real, partial), TENSOR_OF(real, vectors), TENSOR_OF(const parameter, gamma),
    TENSOR_OF(const parameter, var), OUTPUT_OF(parameter, dgamma), OUTPUT_OF(parameter, dbeta),
    BIAS_OUTPUT const int channels, const int parts, const long rows, const real eps) {
    JOIN_PARTS
    const real inverse = 1 / sqrt(LOAD_parameter(OPEN(var), channel) + eps), share = 1 / (real)rows;
    PUT_GRADIENT(first, second, inverse, share)
}
#elif MAKES == 6
kernel ROWS_GROUP void batchnorm_rows_gpu_gradient(
    CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR_OF(const parameter, mean), KEPT_INPUTS TENSOR_OF(const real, vectors),
    TENSOR(dx), const int accumulate_dx, const int channels, const long rows,
    const long part_rows SCALARS(SCALAR_LAST)) {
    OPEN_ROWS
    if (!there) return;
    const bool quads = QUAD_ALIGNED_stored(OPEN(x)) && QUAD_ALIGNED_stored(OPEN(dy)) && QUAD_ALIGNED_stored(OPEN(dx));
    real flow_mean[WIDE], slope[WIDE], gain[WIDE], means[WIDE];
    OPEN_VECTORS
    WIDTH {
        means[e] = LOAD_parameter(OPEN(mean), channel + e);
        flow_mean[e] = VECTOR(0)[channel + e];
        slope[e] = VECTOR(1)[channel + e];
        gain[e] = VECTOR(2)[channel + e];
    }
    EACH_ROWS {
        READ_PAIRS
        WRITE_GRADIENTS(flow_mean, slope, gain)
    }
}
#endif
