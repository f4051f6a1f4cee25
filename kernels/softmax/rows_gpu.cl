// Softmax of rows on GPUs: a row is read once and stays in registers, or its parts do.
//
// x, y, dy, dx  (rows, channels)
//
//   softmax_rows_*    LANES work-items share a row of at most LANES * ITEM channels, GROUP / LANES rows a work-group
//   softmax_parts_*   a work-group makes the numbers of one of `parts` parts of a row: its maximum and its sum, or
//                     its sum alone
//   softmax_finish_*  a work-group makes the results of one part from the numbers of all
//
// LOG    1: the logarithm of the softmax
// GROUP  work-items of a work-group, LANES of them for a row (parts: all); powers of two
// ITEM   elements of a work-item: groups of WIDE neighbours, LANES groups apart
// WIDE   4 or 1; with 4 the number of channels is a multiple of it

#include "pointwise/quads.cl"
#include "softmax/terms.cl"

#ifndef GROUP
#define GROUP 256
#endif
#ifndef LANES
#define LANES GROUP
#endif
#ifndef ITEM
#define ITEM 8
#endif

#ifndef WIDE
#define WIDE 1
#endif

#define EACH for (int i = 0; i < ITEM; i++)
#define CHANNEL (first + (lane + i / WIDE * LANES) * WIDE + i % WIDE)

// The number that is subtracted from exponents whose maximum is `top`: 0 if all of them are -infinity.
#define BASE(top) ((top) == -INFINITY ? 0 : (top))

// The lanes of a row first make FAN numbers one, then all of what is left.
#define FAN (LANES < 16 ? LANES : LANES < 128 ? 8 : 16)
#define LEFT (LANES / FAN)
#define SUM(a, b) ((a) + (b))

// Gives all lanes of a row what JOIN makes of the numbers of all, in order. first and second: LANES and LEFT numbers.
#define DEFINE_SHARE(name, JOIN)                                                         \
    real name(local real *first, local real *second, const int lane, const real value) { \
        first[lane] = value;                                                             \
        barrier(CLK_LOCAL_MEM_FENCE);                                                    \
        if (lane < LEFT) {                                                               \
            real some = first[lane * FAN];                                               \
            for (int i = 1; i < FAN; i++) some = JOIN(some, first[lane * FAN + i]);      \
            second[lane] = some;                                                         \
        }                                                                                \
        barrier(CLK_LOCAL_MEM_FENCE);                                                    \
        real all = second[0];                                                            \
        for (int i = 1; i < LEFT; i++) all = JOIN(all, second[i]);                       \
        return all;                                                                      \
    }
DEFINE_SHARE(share_top, GREATER)
DEFINE_SHARE(share_sum, SUM)

// For a maximum and a sum: one's last reads do not wait for the other's first writes, so each has its own.
#define LOCALS local real firsts[2][GROUP], seconds[2][GROUP / FAN];
#define TOP_OF_ROW(value) share_top(firsts[0] + of_group, seconds[0] + of_group / FAN, lane, value)
#define SUM_OF_ROW(value) share_sum(firsts[1] + of_group, seconds[1] + of_group / FAN, lane, value)

// Reads a work-item's channels; MISSING is for places without one. Addresses that allow it are read in quads. Numbers
// are converted when all reads are on their way (common/raw.cl).
#if WIDE == 4
#define QUADS(p) QUAD_ALIGNED_stored(p)
// clang-format off
#define READ_EACH(to, p, MISSING)                                                     \
    {                                                                                 \
        raw held[ITEM];                                                              \
        if (QUADS(p)) {                                                               \
            _Pragma("unroll") for (int i = 0; i < ITEM; i += WIDE)                    \
                if (CHANNEL < end) READ_RAWS_stored(held + i, (p) + CHANNEL)         \
        } else {                                                                      \
            _Pragma("unroll") for (int i = 0; i < ITEM; i += WIDE)                    \
                if (CHANNEL < end) GATHER_RAWS_stored(held + i, (p) + CHANNEL)       \
        }                                                                             \
        _Pragma("unroll") for (int i = 0; i < ITEM; i += WIDE) {                      \
            if (CHANNEL < end) {                                                      \
                NUMBERS_stored(to + i, held + i, true)                                \
            } else {                                                                  \
                for (int e = 0; e < WIDE; e++) to[i + e] = (real)(MISSING);           \
            }                                                                         \
        }                                                                             \
    }
#define WRITE_QUADS(p, VALUE)                                                                     \
    else if (QUADS(p)) {                                                                          \
        real made[ITEM];                                                                          \
        _Pragma("unroll") EACH made[i] = VALUE;                                                   \
        _Pragma("unroll") for (int i = 0; i < ITEM; i += WIDE)                                    \
            if (CHANNEL < end) WRITE_QUAD_stored((p) + CHANNEL, made + i)                         \
    }
// clang-format on
#else
#define READ_EACH(to, p, MISSING)                                                          \
    {                                                                                      \
        raw held[ITEM];                                                                    \
        _Pragma("unroll") EACH if (CHANNEL < end) held[i] = LOAD_RAW(p, CHANNEL);          \
        _Pragma("unroll") EACH to[i] = CHANNEL < end ? REAL_OF(held[i]) : (real)(MISSING); \
    }
#define WRITE_QUADS(p, VALUE)
#endif

// Writes VALUE for each of a work-item's channels, or adds it.
#define WRITE_EACH(p, VALUE)                                                                   \
    if (accumulate) {                                                                          \
        _Pragma("unroll") EACH if (CHANNEL < end) STORE(p, CHANNEL, VALUE + LOAD(p, CHANNEL)); \
    }                                                                                          \
    WRITE_QUADS(p, VALUE)                                                                      \
    else {                                                                                     \
        _Pragma("unroll") EACH if (CHANNEL < end) STORE(p, CHANNEL, VALUE);                    \
    }

// The greatest of what a work-item holds; places without a channel hold -INFINITY.
real top_of_item(const real *values) {
    real top = -INFINITY;
#pragma unroll
    EACH top = GREATER(top, values[i]);
    return top;
}

// Makes powers of it, relative to a maximum, and returns their sum; with LOG it only subtracts the maximum.
real raise(real *values, const real top) {
    real sum = 0;
#pragma unroll
    EACH {
        const real value = values[i] - top, power = exp(value);
        values[i] = LOG ? value : power;
        sum += power;
    }
    return sum;
}

// The sum of a work-item's terms.
real sum_of_terms(const real *results, const real *gradients) {
    real sum = 0;
#pragma unroll
    EACH sum += TERM(results[i], gradients[i]);
    return sum;
}

#define READ_POWERS                  \
    real values[ITEM];               \
    READ_EACH(values, xs, -INFINITY) \
    _Pragma("unroll") EACH if (CHANNEL < end) values[i] *= scale;

#define READ_GRADIENTS                   \
    real results[ITEM], gradients[ITEM]; \
    READ_EACH(results, ys, 0)            \
    READ_EACH(gradients, dys, 0)

#define WRITE_POWERS(p)                                            \
    {                                                              \
        const real last = LOG ? log(sum) : REAL(1.0) / sum;        \
        WRITE_EACH(p, (LOG ? values[i] - last : values[i] * last)) \
    }
#define WRITE_GRADIENTS(p) WRITE_EACH(p, GRADIENT(results[i], gradients[i], total) * scale)

// Rows beyond the last one are the last one, and not written.
#define OPEN_ROW                                                                           \
    const int lane = get_local_id(0) % LANES, of_group = get_local_id(0) / LANES * LANES;  \
    const long number = (long)get_group_id(0) * (GROUP / LANES) + get_local_id(0) / LANES; \
    const long from = min(number, rows - 1) * channels;                                    \
    const int first = 0, end = channels;

#define OPEN_PART                                                    \
    const int lane = get_local_id(0), of_group = 0;                  \
    const long row = get_group_id(0) / parts, from = row * channels; \
    const int first = (int)(get_group_id(0) % parts) * (GROUP * ITEM), end = channels;

#define FIXED kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))

FIXED void softmax_rows_forward(CONST_TENSOR(x), TENSOR(y), const int accumulate, const real scale, const long rows,
                                const int channels) {
    LOCALS
    OPEN_ROW
    global const stored *xs = OPEN(x) + from;
    READ_POWERS
    const real top = TOP_OF_ROW(top_of_item(values)), sum = SUM_OF_ROW(raise(values, top));
    if (number < rows) WRITE_POWERS(OPEN(y) + from)
}

FIXED void softmax_rows_backward(CONST_TENSOR(y), CONST_TENSOR(dy), TENSOR(dx), const int accumulate, const real scale,
                                 const long rows, const int channels) {
    LOCALS
    OPEN_ROW
    global const stored *ys = OPEN(y) + from, *dys = OPEN(dy) + from;
    READ_GRADIENTS
    const real total = SUM_OF_ROW(sum_of_terms(results, gradients));
    if (number < rows) {
        WRITE_GRADIENTS(OPEN(dx) + from)
    }
}

FIXED void softmax_parts_forward(CONST_TENSOR(x), TENSOR_OF(real, numbers), const real scale, const int channels,
                                 const int parts) {
    LOCALS
    OPEN_PART
    global const stored *xs = OPEN(x) + from;
    READ_POWERS
    const real top = TOP_OF_ROW(top_of_item(values)), sum = SUM_OF_ROW(raise(values, BASE(top)));
    if (lane == 0) {
        OPEN(numbers)[2 * get_group_id(0)] = top;
        OPEN(numbers)[2 * get_group_id(0) + 1] = sum;
    }
}

FIXED void softmax_finish_forward(CONST_TENSOR(x), TENSOR(y), const int accumulate, const real scale,
                                  TENSOR_OF(const real, numbers), const int channels, const int parts) {
    LOCALS
    OPEN_PART
    global const stored *xs = OPEN(x) + from;
    global const real *pairs = OPEN(numbers) + 2 * row * parts;
    READ_POWERS
    real top = -INFINITY, some = 0;
    for (int part = lane; part < parts; part += GROUP) top = GREATER(top, pairs[2 * part]);
    top = TOP_OF_ROW(top);
    for (int part = lane; part < parts; part += GROUP) some += pairs[2 * part + 1] * exp(pairs[2 * part] - BASE(top));
    const real sum = SUM_OF_ROW(some);
    raise(values, top);
    WRITE_POWERS(OPEN(y) + from)
}

FIXED void softmax_parts_backward(CONST_TENSOR(y), CONST_TENSOR(dy), TENSOR_OF(real, numbers), const int channels,
                                  const int parts) {
    LOCALS
    OPEN_PART
    global const stored *ys = OPEN(y) + from, *dys = OPEN(dy) + from;
    READ_GRADIENTS
    const real total = SUM_OF_ROW(sum_of_terms(results, gradients));
    if (lane == 0) OPEN(numbers)[get_group_id(0)] = total;
}

FIXED void softmax_finish_backward(CONST_TENSOR(y), CONST_TENSOR(dy), TENSOR(dx), const int accumulate,
                                   const real scale, TENSOR_OF(const real, numbers), const int channels,
                                   const int parts) {
    LOCALS
    OPEN_PART
    global const stored *ys = OPEN(y) + from, *dys = OPEN(dy) + from;
    READ_GRADIENTS
    real total = 0;
    for (int part = lane; part < parts; part += GROUP) total += OPEN(numbers)[row * parts + part];
    total = SUM_OF_ROW(total);
    WRITE_GRADIENTS(OPEN(dx) + from)
}
