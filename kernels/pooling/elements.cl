// Pooling, one work-item per result: serves every problem and suits GPUs.
//
// x  (planes, id, ih, iw)    y  (planes, od, oh, ow); planes = batch * channels; 1-D and 2-D have leading sizes of 1
//
// OPERATOR  0 max, 1 average, 2 sum, 3 to 5 the norm of power 1 to 3
// WIDE      1: there are more elements than 32 bits count
// ARGMAX    forward also notes where in its window each maximum stands, and backward reads that instead of x and y
//
// Backward gathers: an element of dx adds up the windows that hold it, in memory order, so nothing is added atomically.

#include "pooling/operators.cl"
#include "pooling/windows.cl"

#ifndef WIDE
#define WIDE 1
#endif

#if WIDE
typedef ulong place;
#else
typedef uint place;
#endif

// What the sum of the window that begins at (z, r, q) is divided by.
#define DIVISOR(z, r, q)                                                                         \
    ((real)counted(z, kd, id, ed, count_padding) * (real)counted(r, kh, ih, eh, count_padding) * \
     (real)counted(q, kw, iw, ew, count_padding))

#ifdef ARGMAX
#define RESULTS TENSOR(y), TENSOR_OF(uchar, argmax), const int accumulate, const int accumulate_argmax
#define VALUES TENSOR_OF(const uchar, argmax)
#else
#define RESULTS TENSOR(y), const int accumulate
#define VALUES CONST_TENSOR(x), CONST_TENSOR(y)
#endif

kernel void pool_forward(CONST_TENSOR(x), RESULTS, const Windows windows, const ulong count) {
    WINDOW_DEPTHS WINDOW_PLANES if (get_global_id(0) >= count) return;
    const place at = get_global_id(0), row = at / ow, slice = row / oh, number = slice / od;
    global const stored *plane = OPEN(x) + (ulong)number * id * ih * iw;
    const int z0 = (int)(slice % od) * sd - pd, r0 = (int)(row % oh) * sh - ph, q0 = (int)(at % ow) * sw - pw;
    real result = START;
#ifdef ARGMAX
    int chosen = NOWHERE;
#endif
    for (int z = max(z0, 0); z < min(z0 + kd, id); z++)
        for (int r = max(r0, 0); r < min(r0 + kh, ih); r++)
            for (int q = max(q0, 0); q < min(q0 + kw, iw); q++) {
                const real value = LOAD(plane, ((place)z * ih + r) * iw + q);
#ifdef ARGMAX
                // the lowest number is no more than START, and yet a maximum
                if (value > result || (value == result && chosen == NOWHERE))
                    chosen = ((z - z0) * kh + r - r0) * kw + q - q0;
#endif
                result = JOIN(result, RAISE(value));
            }
#if OPERATOR == 1
    result /= DIVISOR(z0, r0, q0);
#endif
    result = ROOT(result);
#ifdef ARGMAX
#if KEEP_NAN
    if (result != result) chosen = NOWHERE;
#endif
    if (argmax_base) OPEN(argmax)[at] = chosen + (accumulate_argmax ? OPEN(argmax)[at] : 0);
    if (!y_base) return;
#endif
    global stored *ys = OPEN(y);
    STORE(ys, at, accumulate ? result + LOAD(ys, at) : result);
}

#if OPERATOR == 0 && !defined(ARGMAX)
// Whether the part of the window at (z0, r0, q0) that stands before (z, r, q) holds the value.
bool holds_before(global const stored *plane, const real value, const int z, const int r, const int q, const int z0,
                  const int r0, const int q0, const int ih, const int iw, const int kh, const int kw) {
    for (int a = max(z0, 0); a <= z; a++)
        for (int b = max(r0, 0); b < (a < z ? min(r0 + kh, ih) : r + 1); b++)
            for (int c = max(q0, 0); c < (a < z || b < r ? min(q0 + kw, iw) : q); c++)
                if (LOAD(plane, ((place)a * ih + b) * iw + c) == value) return true;
    return false;
}
#endif

kernel void pool_backward(VALUES, CONST_TENSOR(dy), TENSOR(dx), const int accumulate, const Windows windows,
                          const ulong count) {
    WINDOW_DEPTHS WINDOW_PLANES if (get_global_id(0) >= count) return;
    const place at = get_global_id(0), row = at / iw, slice = row / ih, number = slice / id;
    const int q = at % iw, r = row % ih, z = slice % id;
    const ulong first = (ulong)number * od * oh * ow;
    global const stored *gradients = OPEN(dy) + first;
#ifdef ARGMAX
    global const uchar *chosen = OPEN(argmax) + first;
#elif OPERATOR == 0 || OPERATOR > 3
    global const stored *plane = OPEN(x) + (ulong)number * id * ih * iw;
    global const stored *results = OPEN(y) + first;
    const real value = LOAD(plane, ((place)z * ih + r) * iw + q);
#endif
    real sum = 0;
    // windows t with t * s - p <= z < t * s - p + k
    for (int t = max(z + pd - kd + sd, 0) / sd; t < od && t * sd - pd <= z; t++)
        for (int u = max(r + ph - kh + sh, 0) / sh; u < oh && u * sh - ph <= r; u++)
            for (int v = max(q + pw - kw + sw, 0) / sw; v < ow && v * sw - pw <= q; v++) {
                const place window = ((place)t * oh + u) * ow + v;
#ifdef ARGMAX
                if (chosen[window] == ((z - t * sd + pd) * kh + r - u * sh + ph) * kw + q - v * sw + pw)
                    sum += LOAD(gradients, window);
#elif OPERATOR == 0
                if (value == LOAD(results, window) &&
                    !holds_before(plane, value, z, r, q, t * sd - pd, u * sh - ph, v * sw - pw, ih, iw, kh, kw))
                    sum += LOAD(gradients, window);
#elif OPERATOR == 1
                sum += LOAD(gradients, window) / DIVISOR(t * sd - pd, u * sh - ph, v * sw - pw);
#elif OPERATOR > 3
                const real norm = LOAD(results, window);
                const real ratio = norm == 0 ? 0 : value / norm;  // a norm of 0 has no slope
                sum += LOAD(gradients, window) * (OPERATOR == 4 ? ratio : ratio * ratio);
#else
                sum += LOAD(gradients, window);
#endif
            }
    global stored *dxs = OPEN(dx);
    STORE(dxs, at, accumulate ? sum + LOAD(dxs, at) : sum);
}
