// Kernels of one tap with a stride on CPU devices: the pixels of x that are met, side by side, as a product in place
// reads them.
//
//     collect   dense[plane][u]  =  x[plane][u * stride + begin], 0 where that is in the padding
//
// x (planes, size); dense (planes, pixels); planes are all channels of all images. A work-group is one work-item:
// `range` rows of dense.

#include "conv/grid.cl"

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
