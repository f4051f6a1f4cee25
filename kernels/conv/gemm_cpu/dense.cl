// Kernels of one tap with a stride on CPU devices: between the tensor that the stride steps over and the pixels that it
// meets, side by side, which a product in place reads or writes.
//
//     collect   dense[plane][u]  =  x[plane][u * stride + begin], 0 where that is in the padding
//     spread    dx[plane][u * stride + begin]  =  dense[plane][u], 0 everywhere else; what is in the padding is dropped
//
// x, dx (planes, size); dense (planes, pixels); planes are all channels of all images. A work-group is one work-item:
// `range` rows of the tensor that it writes.

// PAST_CACHES  dx is too large to be found in a cache again: where nothing is added, it is stored past them

#include "conv/grid.cl"
#include "conv/past_caches.cl"

#define LEAST_PAIRS 8  // pixels of a row from which on vectors are faster
#define STAGED 2048    // elements of dx that are put together before they are stored past the caches

#if STORAGE == 64
typedef CAT(double, HALF_VL) half_vector;
#else
typedef CAT(float, HALF_VL) half_vector;
#endif
#define LOAD_HALF(p, i) CAT(vload, HALF_VL)(0, (p) + (i))
#define STORE_HALF(p, i, value) CAT(vstore, HALF_VL)((value), 0, (p) + (i))

// values[u] = xs[u * stride + begin] for u from `from` to `to`, of a row of `size` elements.
void collect_row(global stored *values, global const stored *xs, const int from, const int to, const int stride,
                 const int begin, const int size) {
    int u = from;
#if STORAGE != 16
    if (stride == 2) {
        for (; u + HALF_VL <= to && 2 * u + begin + VL <= size; u += HALF_VL) {
            const realv both = VLOAD(xs, 2 * u + begin);
            STORE_HALF(values, u, both.even);
        }
        const int last = to - HALF_VL;
        if (u < to && last >= from && 2 * last + begin > 0) {
            const realv both = VLOAD(xs, 2 * last + begin - 1);
            STORE_HALF(values, last, both.odd);
            return;
        }
    }
#endif
    for (; u < to; u++) STORE(values, u, LOAD(xs, u * stride + begin));
}

kernel void collect(CONST_TENSOR(x), TENSOR(dense), const long row_count, const int range, const Target source) {
    const int rows = source.pixels_d * source.pixels_h, stride = source.stride_w, begin = source.begin_w;
    const long first = get_global_id(0) * (long)range, last = min(first + range, row_count);
    const int from = min((stride - 1 - begin) / stride, source.pixels_w);
    const int to = clamp((source.size_w - begin + stride - 1) / stride, from, source.pixels_w);
    for (long row = first; row < last; row++) {
        const int own = (int)(row % rows);
        const int d = own / source.pixels_h * source.stride_d + source.begin_d;
        const int h = own % source.pixels_h * source.stride_h + source.begin_h;
        const bool inside = d >= 0 && h >= 0 && d < source.size_d && h < source.size_h;
        global stored *values = OPEN(dense) + row * source.pixels_w;
        for (int u = 0; u < (inside ? from : source.pixels_w); u++) STORE(values, u, REAL(0.0));
        if (!inside) continue;
        global const stored *xs = OPEN(x) + ((row / rows * source.size_d + d) * source.size_h + h) * source.size_w;
        collect_row(values, xs, from, to, stride, begin, source.size_w);
        for (int u = to; u < source.pixels_w; u++) STORE(values, u, REAL(0.0));
    }
}

// The pixel whose place on an axis is `at`; less than 0 if there is none.
int pixel_at(const int at, const int stride, const int begin, const int pixels) {
    const int pixel = (at - begin) / stride;
    return (at - begin) % stride == 0 && pixel < pixels ? pixel : -1;
}

// Sets a row of dx, of `width` elements: pixels from `from` to `to`, which are none where `met` is false, and zeros.
#define SET_ROW(name, space)                                                                               \
    void name(space stored *xs, global const stored *values, const bool met, const int from, const int to, \
              const int stride, const int begin, const int width) {                                        \
        int w = 0, u = from;                                                                               \
        SET_PAIRS                                                                                          \
        for (; w + VL <= width; w += VL) VSTORE(xs, w, (realv)(0));                                        \
        for (; w < width; w++) STORE(xs, w, REAL(0.0));                                                    \
        for (; met && u < to; u++) STORE(xs, u * stride + begin, LOAD(values, u));                         \
    }
// Pixels of a stride of 2 by vectors, each with its zero after it, as long as they fill them; not of short rows.
#if STORAGE == 16
#define SET_PAIRS
#else
#define SET_PAIRS                                                    \
    if (met && stride == 2 && to - from >= LEAST_PAIRS) {            \
        for (; w < 2 * from + begin; w++) STORE(xs, w, REAL(0.0));   \
        for (; u + HALF_VL <= to && w + VL <= width; u += HALF_VL) { \
            realv both = 0;                                          \
            both.even = LOAD_HALF(values, u);                        \
            VSTORE(xs, w, both);                                     \
            w += VL;                                                 \
        }                                                            \
    }
#endif
SET_ROW(set_row, global)
#ifdef PAST_CACHES
SET_ROW(stage_row, private)

// Stores `count` elements past the caches, but for the first and the last ones, which fill no vector.
void store_past(global stored *xs, const stored *values, const int count) {
    int i = 0;
    for (; i < count && !ON_VECTORS(xs + i); i++) xs[i] = values[i];
    for (; i + VL <= count; i += VL) PAST_stored(xs, i, CAT(vload, VL)(0, values + i));
    for (; i < count; i++) xs[i] = values[i];
}
#endif

kernel void spread(CONST_TENSOR(dense), TENSOR(dx), const int accumulate, const long row_count, const int range,
                   const Target target) {
    const int rows = target.size_d * target.size_h, width = target.size_w, stride = target.stride_w,
              begin = target.begin_w;
    const long first = get_global_id(0) * (long)range, last = min(first + range, row_count);
    const int from = (stride - 1 - begin) / stride, to = min(target.pixels_w, (width - begin + stride - 1) / stride);
#ifdef PAST_CACHES
    stored staged[STAGED];
    int count = 0;
    const bool past = !accumulate && width <= STAGED;
#endif
    for (long row = first; row < last; row++) {
        const int own = (int)(row % rows);
        global stored *xs = OPEN(dx) + row * width;
        const int d = pixel_at(own / target.size_h, target.stride_d, target.begin_d, target.pixels_d);
        const int h = pixel_at(own % target.size_h, target.stride_h, target.begin_h, target.pixels_h);
        const bool met = d >= 0 && h >= 0;
        global const stored *values =
            OPEN(dense) + ((row / rows * target.pixels_d + d) * target.pixels_h + h) * target.pixels_w;
#ifdef PAST_CACHES
        if (past) {
            stage_row(staged + count, values, met, from, to, stride, begin, width);
            count += width;
            if (row + 1 == last || count + width > STAGED) {
                store_past(xs + width - count, staged, count);
                count = 0;
            }
            continue;
        }
#endif
        if (!accumulate) set_row(xs, values, met, from, to, stride, begin, width);
        for (int u = from; accumulate && met && u < to; u++) {
            const int w = u * stride + begin;
            STORE(xs, w, LOAD(xs, w) + LOAD(values, u));
        }
    }
}
