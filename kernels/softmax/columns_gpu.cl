// Softmax over the channels of pixels on GPUs: a work-item reads the channels of a pixel once, into registers.
//
// x, y, dy, dx  (images, CHANNELS, pixels)
//
// LOG  1: the logarithm of the softmax

#include "softmax/terms.cl"

#ifndef CHANNELS
#define CHANNELS 21
#endif

#define EACH for (int c = 0; c < CHANNELS; c++)
#define START                                        \
    if (get_global_id(0) >= images * pixels) return; \
    const long from = (long)get_global_id(0) / pixels * CHANNELS * pixels + get_global_id(0) % pixels;

void put(global stored *p, const long at, const real value, const int accumulate) {
    STORE(p, at, accumulate ? value + LOAD(p, at) : value);
}

kernel void softmax_columns_forward(CONST_TENSOR(x), TENSOR(y), const int accumulate, const real scale,
                                    const uint images, const uint pixels) {
    START
    global const stored *xs = OPEN(x) + from;
    real values[CHANNELS], top = -INFINITY, total = 0;
#pragma unroll
    EACH values[c] = LOAD(xs, c * (long)pixels) * scale;
#pragma unroll
    EACH top = GREATER(top, values[c]);
#pragma unroll
    EACH {
        const real value = values[c] - top, power = exp(value);
        values[c] = LOG ? value : power;
        total += power;
    }
    const real last = LOG ? log(total) : REAL(1.0) / total;
#pragma unroll
    EACH put(OPEN(y) + from, c * (long)pixels, LOG ? values[c] - last : values[c] * last, accumulate);
}

kernel void softmax_columns_backward(CONST_TENSOR(y), CONST_TENSOR(dy), TENSOR(dx), const int accumulate,
                                     const real scale, const uint images, const uint pixels) {
    START
    global const stored *ys = OPEN(y) + from, *dys = OPEN(dy) + from;
    real results[CHANNELS], gradients[CHANNELS], total = 0;
#pragma unroll
    EACH {
        results[c] = LOAD(ys, c * (long)pixels);
        gradients[c] = LOAD(dys, c * (long)pixels);
    }
#pragma unroll
    EACH total += TERM(results[c], gradients[c]);
#pragma unroll
    EACH put(OPEN(dx) + from, c * (long)pixels, GRADIENT(results[c], gradients[c], total) * scale, accumulate);
}
