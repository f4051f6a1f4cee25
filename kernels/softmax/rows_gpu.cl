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
// ITEM   elements of a work-item, LANES apart

#ifndef LOG
#define LOG 0
#endif
#ifndef GROUP
#define GROUP 256
#endif
#ifndef LANES
#define LANES GROUP
#endif
#ifndef ITEM
#define ITEM 8
#endif

#if LOG
#define TERM(y, dy) (dy)
#define GRADIENT(y, dy, total) ((dy) - exp(y) * (total))
#else
#define TERM(y, dy) ((y) * (dy))
#define GRADIENT(y, dy, total) ((y) * ((dy) - (total)))
#endif

#define GREATER(a, b) ((b) > (a) ? (b) : (a))
#define EACH for (int i = 0; i < ITEM; i++)
#define CHANNEL (first + lane + i * LANES)

// What is subtracted from powers whose greatest is `top`: nothing where there is no number at all.
#define BASE(top) ((top) == -INFINITY ? 0 : (top))

// The lanes of a row first make FAN numbers one, then all of what is left.
#define FAN (LANES < 16 ? LANES : LANES < 128 ? 8 : 16)
#define LEFT (LANES / FAN)

// Joins pairs of a maximum and a sum of powers relative to it, in order.
void join_pairs(local const real *tops, local const real *sums, const int count, real *top, real *sum) {
    real highest = tops[0], total = 0;
    for (int i = 1; i < count; i++) highest = GREATER(highest, tops[i]);
    for (int i = 0; i < count; i++) total += sums[i] * exp(tops[i] - BASE(highest));
    *top = highest;
    *sum = total;
}

// Gives all lanes of a row the pair of all. tops, sums: GROUP numbers, those of this row first.
void share_pair(local real *tops, local real *sums, const int lane, real *top, real *sum) {
    tops[lane] = *top;
    sums[lane] = *sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < LEFT) join_pairs(tops + lane * FAN, sums + lane * FAN, FAN, top, sum);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < LEFT) {
        tops[lane] = *top;
        sums[lane] = *sum;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    join_pairs(tops, sums, LEFT, top, sum);
}

real share_sum(local real *sums, const int lane, real sum) {
    sums[lane] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    sum = 0;
    if (lane < LEFT)
        for (int i = 0; i < FAN; i++) sum += sums[lane * FAN + i];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < LEFT) sums[lane] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    sum = 0;
    for (int i = 0; i < LEFT; i++) sum += sums[i];
    return sum;
}

// Writes VALUE for each of a work-item's channels, or adds it.
#define WRITE_EACH(p, VALUE)                                                                      \
    if (accumulate) {                                                                             \
        _Pragma("unroll") EACH if (CHANNEL < end) STORE(p, CHANNEL, VALUE + LOAD(p, CHANNEL));    \
    } else {                                                                                      \
        _Pragma("unroll") EACH if (CHANNEL < end) STORE(p, CHANNEL, VALUE);                       \
    }

// The pair of what a work-item holds, which becomes powers relative to its maximum, or with LOG stays. Places without a
// channel hold -INFINITY.
void pair_of_item(real *values, real *top, real *sum) {
    real highest = -INFINITY, total = 0;
#pragma unroll
    EACH highest = GREATER(highest, values[i]);
#pragma unroll
    EACH {
        const real power = exp(values[i] - BASE(highest));
        values[i] = LOG ? values[i] : power;
        total += power;
    }
    *top = highest;
    *sum = total;
}

#define READ_POWERS                                                                       \
    real values[ITEM];                                                                    \
    _Pragma("unroll") EACH values[i] = CHANNEL < end ? LOAD(xs, CHANNEL) * scale : -INFINITY;

#define READ_GRADIENTS                                            \
    real results[ITEM], gradients[ITEM];                          \
    _Pragma("unroll") EACH {                                      \
        results[i] = CHANNEL < end ? LOAD(ys, CHANNEL) : 0;       \
        gradients[i] = CHANNEL < end ? LOAD(dys, CHANNEL) : 0;    \
    }

// own: the maximum to which a work-item's powers are relative.
#define WRITE_POWERS(p)                                                     \
    {                                                                       \
        const real last = LOG ? log(sum) : exp(own - top) / sum;            \
        WRITE_EACH(p, (LOG ? values[i] - top - last : values[i] * last))    \
    }
#define WRITE_GRADIENTS(p) WRITE_EACH(p, GRADIENT(results[i], gradients[i], total) * scale)

// Rows beyond the last one are the last one, and not written.
#define OPEN_ROW                                                                              \
    const int lane = get_local_id(0) % LANES, of_group = get_local_id(0) / LANES * LANES;     \
    const long number = (long)get_group_id(0) * (GROUP / LANES) + get_local_id(0) / LANES;    \
    const long from = min(number, rows - 1) * channels;                                       \
    const int first = 0, end = channels;

#define OPEN_PART                                                                                       \
    const int lane = get_local_id(0);                                                                   \
    const long row = get_group_id(0) / parts, from = row * channels;                                    \
    const int first = (int)(get_group_id(0) % parts) * (GROUP * ITEM), end = channels;

#define FIXED kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))

FIXED void softmax_rows_forward(CONST_TENSOR(x), TENSOR(y), const int accumulate, const real scale, const long rows,
                                const int channels) {
    local real tops[GROUP], sums[GROUP];
    OPEN_ROW
    global const stored *xs = OPEN(x) + from;
    READ_POWERS
    real top, sum;
    pair_of_item(values, &top, &sum);
    const real own = BASE(top);
    share_pair(tops + of_group, sums + of_group, lane, &top, &sum);
    if (number < rows) WRITE_POWERS(OPEN(y) + from)
}

FIXED void softmax_rows_backward(CONST_TENSOR(y), CONST_TENSOR(dy), TENSOR(dx), const int accumulate, const real scale,
                                 const long rows, const int channels) {
    local real sums[GROUP];
    OPEN_ROW
    global const stored *ys = OPEN(y) + from, *dys = OPEN(dy) + from;
    READ_GRADIENTS
    real total = 0;
#pragma unroll
    EACH total += TERM(results[i], gradients[i]);
    total = share_sum(sums + of_group, lane, total);
    if (number < rows) {
        WRITE_GRADIENTS(OPEN(dx) + from)
    }
}

FIXED void softmax_parts_forward(CONST_TENSOR(x), TENSOR_OF(real, numbers), const real scale, const int channels,
                                 const int parts) {
    local real tops[GROUP], sums[GROUP];
    OPEN_PART
    global const stored *xs = OPEN(x) + from;
    READ_POWERS
    real top, sum;
    pair_of_item(values, &top, &sum);
    share_pair(tops, sums, lane, &top, &sum);
    if (lane == 0) {
        OPEN(numbers)[2 * get_group_id(0)] = top;
        OPEN(numbers)[2 * get_group_id(0) + 1] = sum;
    }
}

FIXED void softmax_finish_forward(CONST_TENSOR(x), TENSOR(y), const int accumulate, const real scale,
                                  TENSOR_OF(const real, numbers), const int channels, const int parts) {
    local real tops[GROUP], sums[GROUP];
    OPEN_PART
    global const stored *xs = OPEN(x) + from;
    global const real *pairs = OPEN(numbers) + 2 * row * parts;
    READ_POWERS
    real own, top = -INFINITY, sum = 0;
    pair_of_item(values, &own, &sum);
    own = BASE(own);
    sum = 0;
    for (int part = lane; part < parts; part += GROUP) {
        const real next = pairs[2 * part], highest = GREATER(top, next);
        sum = sum * exp(top - BASE(highest)) + pairs[2 * part + 1] * exp(next - BASE(highest));
        top = highest;
    }
    share_pair(tops, sums, lane, &top, &sum);
    WRITE_POWERS(OPEN(y) + from)
}

FIXED void softmax_parts_backward(CONST_TENSOR(y), CONST_TENSOR(dy), TENSOR_OF(real, numbers), const int channels,
                                  const int parts) {
    local real sums[GROUP];
    OPEN_PART
    global const stored *ys = OPEN(y) + from, *dys = OPEN(dy) + from;
    READ_GRADIENTS
    real total = 0;
#pragma unroll
    EACH total += TERM(results[i], gradients[i]);
    total = share_sum(sums, lane, total);
    if (lane == 0) OPEN(numbers)[get_group_id(0)] = total;
}

FIXED void softmax_finish_backward(CONST_TENSOR(y), CONST_TENSOR(dy), TENSOR(dx), const int accumulate,
                                   const real scale, TENSOR_OF(const real, numbers), const int channels,
                                   const int parts) {
    local real sums[GROUP];
    OPEN_PART
    global const stored *ys = OPEN(y) + from, *dys = OPEN(dy) + from;
    READ_GRADIENTS
    real total = 0;
    for (int part = lane; part < parts; part += GROUP) total += OPEN(numbers)[row * parts + part];
    total = share_sum(sums, lane, total);
    WRITE_GRADIENTS(OPEN(dx) + from)
}
