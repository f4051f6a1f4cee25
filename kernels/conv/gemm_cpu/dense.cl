// Kernels of one tap with a stride on CPU devices: between the tensor that the stride steps over and the pixels that it
// meets, side by side, which a product in place reads or writes.
//
//     collect   dense[plane][u]  =  x[plane][u * stride + begin], 0 where that is in the padding
//     spread    dx[plane][u * stride + begin]  =  dense[plane][u], 0 everywhere else; what is in the padding is dropped
//
// x, dx (planes, size); dense (planes, pixels); planes are all channels of all images. A work-group is one work-item:
// `range` rows of the tensor that it writes.

#include "conv/grid.cl"

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
        for (int u = from; u < to; u++) STORE(values, u, LOAD(xs, u * stride + begin));
        for (int u = to; u < source.pixels_w; u++) STORE(values, u, REAL(0.0));
    }
}

// The pixel whose place on an axis is `at`; less than 0 if there is none.
int pixel_at(const int at, const int stride, const int begin, const int pixels) {
    const int pixel = (at - begin) / stride;
    return (at - begin) % stride == 0 && pixel < pixels ? pixel : -1;
}

kernel void spread(CONST_TENSOR(dense), TENSOR(dx), const int accumulate, const long row_count, const int range,
                   const Target target) {
    const int rows = target.size_d * target.size_h, width = target.size_w, stride = target.stride_w,
              begin = target.begin_w;
    const long first = get_global_id(0) * (long)range, last = min(first + range, row_count);
    const int from = (stride - 1 - begin) / stride, to = min(target.pixels_w, (width - begin + stride - 1) / stride);
    for (long row = first; row < last; row++) {
        const int own = (int)(row % rows);
        global stored *xs = OPEN(dx) + row * width;
        if (!accumulate) {
            int w = 0;
            for (; w + VL <= width; w += VL) VSTORE(xs, w, (realv)(0));
            for (; w < width; w++) STORE(xs, w, REAL(0.0));
        }
        const int d = pixel_at(own / target.size_h, target.stride_d, target.begin_d, target.pixels_d);
        const int h = pixel_at(own % target.size_h, target.stride_h, target.begin_h, target.pixels_h);
        if (d < 0 || h < 0) continue;
        global const stored *values =
            OPEN(dense) + ((row / rows * target.pixels_d + d) * target.pixels_h + h) * target.pixels_w;
        for (int u = from; u < to; u++) {
            const int w = u * stride + begin;
            const real value = LOAD(values, u);
            STORE(xs, w, accumulate ? LOAD(xs, w) + value : value);
        }
    }
}
