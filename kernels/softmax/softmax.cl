// Softmax and its logarithm over the middle axis, and their gradients.
//
// x, y, dy, dx  (images, channels, pixels)
//
//   softmax_rows_*      CPUs, one pixel: vectors along a row of channels
//   softmax_columns_*   CPUs: vectors along the pixels, TV of them at a time
//   softmax_elements_*  a work-item per image and pixel, any sizes
//
// LOG    1: the logarithm of the softmax
// VL     lanes; the kernels for CPU devices exist where it is defined
// TV     vectors of a tile of columns
//
// The kernels for CPUs keep what they have read of a row or tile in `scratch`: the planes of an image may lie a
// multiple of a cache's size apart, so that none of them would still be there at the second look.

#include "softmax/terms.cl"

// What multiplied by scale is less than any number.
#define LEAST(scale) ((scale) < 0 ? (real)INFINITY : -(real)INFINITY)

#ifdef VL
#ifndef TV
#define TV 1
#endif
#define WIDE (TV * VL)

#include "common/lanes.cl"

#define ITEM get_global_id(0)
// Channels whose sum is taken by itself: rounding grows with the longest sum.
#define BLOCK 32

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void softmax_rows_forward(
    CONST_TENSOR(x), TENSOR(y), const int accumulate, const real scale, TENSOR_OF(real, scratch), const long pitch,
    const long rows, const long item_rows, const long channels) {
    global real *kept = OPEN(scratch) + ITEM * pitch;
    ROWS {
        global const stored *xs = OPEN(x) + row * channels;
        global stored *ys = OPEN(y) + row * channels;
        realv top = -INFINITY, end = -INFINITY, sum = 0;
        for (long i = 0; i < whole; i += VL) {
            const realv value = VLOAD(xs, i) * scale;
            top = LARGER(top, value);
        }
        if (tail) {
            end = LAST_OF(xs) * scale;
            end = IS_NEW ? end : (realv)(-INFINITY);
            top = LARGER(top, end);
        }
        const real highest = largest_lane(top);
        for (long i = 0; i < whole; i += VL) {
            const realv value = VLOAD(xs, i) * scale - highest, power = EXP_BELOW(value);
            PUT(kept, i, LOG ? value : power);
            sum += power;
        }
        if (tail) {
            const realv value = end - highest, power = EXP_BELOW(value);
            end = LOG ? value : power;
            sum += IS_NEW ? power : (realv)(0);
        }
        const real total = sum_of_lanes(sum), factor = LOG ? log(total) : REAL(1.0) / total;
#define RESULT(value) (LOG ? (value) - factor : (value) * factor)
        if (accumulate) {
            for (long i = 0; i < whole; i += VL) VSTORE(ys, i, VLOAD(ys, i) + RESULT(GET(kept, i)));
        } else {
            for (long i = 0; i < whole; i += VL) VSTORE(ys, i, RESULT(GET(kept, i)));
        }
        if (tail) {
            // what the whole vectors have written there is written again
            if (whole) end = IS_NEW ? end : GET(kept, last);
            store_last(ys, channels, RESULT(end), accumulate);
        }
    }
#undef RESULT
}

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void softmax_rows_backward(
    CONST_TENSOR(y), CONST_TENSOR(dy), TENSOR(dx), const int accumulate, const real scale, TENSOR_OF(real, scratch),
    const long pitch, const long rows, const long item_rows, const long channels) {
    ROWS {
        global const stored *ys = OPEN(y) + row * channels, *dys = OPEN(dy) + row * channels;
        global stored *dxs = OPEN(dx) + row * channels;
        realv sum = 0, end = 0, end_gradient = 0;
        for (long i = 0; i < whole; i += VL) sum += TERM(VLOAD(ys, i), VLOAD(dys, i));
        if (tail) {
            // before dx is written, which may be dy
            end = LAST_OF(ys);
            end_gradient = LAST_OF(dys);
            sum += IS_NEW ? TERM(end, end_gradient) : (realv)(0);
        }
        const real total = sum_of_lanes(sum);
        for (long i = 0; i < whole; i += VL) {
            realv value = GRADIENT(VLOAD(ys, i), VLOAD(dys, i), total) * scale;
            if (accumulate) value += VLOAD(dxs, i);
            VSTORE(dxs, i, value);
        }
        if (tail) store_last(dxs, channels, GRADIENT(end, end_gradient, total) * scale, accumulate);
    }
}

#define TILES                                      \
    const long tiles = (pixels + WIDE - 1) / WIDE; \
    for (long tile = ITEM * item_tiles; tile < min((long)(ITEM + 1) * item_tiles, images * tiles); tile++)

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void softmax_columns_forward(
    CONST_TENSOR(x), TENSOR(y), const int accumulate, const real scale, TENSOR_OF(real, scratch), const long pitch,
    const long images, const long item_tiles, const long channels, const long pixels) {
    global real *kept = OPEN(scratch) + ITEM * pitch;
    const real least = LEAST(scale);
    TILES {
        const long column = tile % tiles * WIDE, left = pixels - column;
        const bool full = left >= WIDE;
        const long from = tile / tiles * channels * pixels + column;
        realv top[TV], last[TV];
#pragma unroll
        for (int v = 0; v < TV; v++) {
            top[v] = -INFINITY;
            last[v] = 0;
        }
        for (long c = 0; c < channels; c++) {
#pragma unroll
            for (int v = 0; v < TV; v++) {
                const realv value = READ(OPEN(x), from + c * pixels + v * VL, left - v * VL, least) * scale;
                top[v] = value > top[v] ? value : top[v];
                PUT(kept, c * WIDE + v * VL, value);
            }
        }
        for (long block = 0; block < channels; block += BLOCK) {
            realv part[TV];
#pragma unroll
            for (int v = 0; v < TV; v++) part[v] = 0;
            for (long c = block; c < min(block + BLOCK, channels); c++) {
#pragma unroll
                for (int v = 0; v < TV; v++) {
                    const realv value = GET(kept, c * WIDE + v * VL) - top[v], power = EXP_BELOW(value);
                    PUT(kept, c * WIDE + v * VL, LOG ? value : power);
                    part[v] += power;
                }
            }
#pragma unroll
            for (int v = 0; v < TV; v++) last[v] += part[v];
        }
#pragma unroll
        for (int v = 0; v < TV; v++) last[v] = LOG ? log(last[v]) : REAL(1.0) / last[v];
        for (long c = 0; c < channels; c++) {
#pragma unroll
            for (int v = 0; v < TV; v++) {
                const realv value = GET(kept, c * WIDE + v * VL);
                WRITE(OPEN(y), from + c * pixels + v * VL, left - v * VL, LOG ? value - last[v] : value * last[v],
                      accumulate)
            }
        }
    }
}

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void softmax_columns_backward(
    CONST_TENSOR(y), CONST_TENSOR(dy), TENSOR(dx), const int accumulate, const real scale, TENSOR_OF(real, scratch),
    const long pitch, const long images, const long item_tiles, const long channels, const long pixels) {
    global real *kept = OPEN(scratch) + ITEM * pitch;
    global real *gradients = kept + channels * WIDE;
    TILES {
        const long column = tile % tiles * WIDE, left = pixels - column;
        const bool full = left >= WIDE;
        const long from = tile / tiles * channels * pixels + column;
        realv total[TV];
#pragma unroll
        for (int v = 0; v < TV; v++) total[v] = 0;
        for (long block = 0; block < channels; block += BLOCK) {
            realv part[TV];
#pragma unroll
            for (int v = 0; v < TV; v++) part[v] = 0;
            for (long c = block; c < min(block + BLOCK, channels); c++) {
#pragma unroll
                for (int v = 0; v < TV; v++) {
                    const long at = from + c * pixels + v * VL;
                    const realv result = READ(OPEN(y), at, left - v * VL, 0);
                    const realv gradient = READ(OPEN(dy), at, left - v * VL, 0);
                    PUT(kept, c * WIDE + v * VL, result);
                    PUT(gradients, c * WIDE + v * VL, gradient);
                    part[v] += TERM(result, gradient);
                }
            }
#pragma unroll
            for (int v = 0; v < TV; v++) total[v] += part[v];
        }
        for (long c = 0; c < channels; c++) {
#pragma unroll
            for (int v = 0; v < TV; v++) {
                const realv result = GET(kept, c * WIDE + v * VL), gradient = GET(gradients, c * WIDE + v * VL);
                WRITE(OPEN(dx), from + c * pixels + v * VL, left - v * VL, GRADIENT(result, gradient, total[v]) * scale,
                      accumulate)
            }
        }
    }
}
#else

#define EACH_CHANNEL for (long c = 0; c < channels; c++)
#define PLACE(c) (from + (c) * pixels)
#define START                                        \
    if (get_global_id(0) >= images * pixels) return; \
    const long from = (long)get_global_id(0) / pixels * channels * pixels + get_global_id(0) % pixels;

void put(global stored *p, const long at, const real value, const int accumulate) {
    STORE(p, at, accumulate ? value + LOAD(p, at) : value);
}

kernel void softmax_elements_forward(CONST_TENSOR(x), TENSOR(y), const int accumulate, const real scale,
                                     const long images, const long channels, const long pixels) {
    START
    global const stored *xs = OPEN(x);
    real top = -INFINITY, total = 0;
    EACH_CHANNEL {
        const real value = LOAD(xs, PLACE(c)) * scale;
        top = GREATER(top, value);
    }
    EACH_CHANNEL {
        const real value = LOAD(xs, PLACE(c)) * scale;
        total += exp(value - top);
    }
    const real last = LOG ? log(total) : REAL(1.0) / total;
    EACH_CHANNEL {
        const real value = LOAD(xs, PLACE(c)) * scale - top;
        put(OPEN(y), PLACE(c), LOG ? value - last : exp(value) * last, accumulate);
    }
}

kernel void softmax_elements_backward(CONST_TENSOR(y), CONST_TENSOR(dy), TENSOR(dx), const int accumulate,
                                      const real scale, const long images, const long channels, const long pixels) {
    START
    global const stored *ys = OPEN(y), *dys = OPEN(dy);
    real total = 0;
    EACH_CHANNEL {
        const real result = LOAD(ys, PLACE(c)), gradient = LOAD(dys, PLACE(c));
        total += TERM(result, gradient);
    }
    EACH_CHANNEL {
        const real result = LOAD(ys, PLACE(c)), gradient = LOAD(dys, PLACE(c));
        put(OPEN(dx), PLACE(c), GRADIENT(result, gradient, total) * scale, accumulate);
    }
}
#endif
