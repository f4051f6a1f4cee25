// Depthwise convolution of large strides on CPU devices, as the upsampling of segmentation nets has it, transposed:
// rows of the kernel are long, and vectors run along them.
//
// x (planes, source_h, source_w), y (planes, size_h, size_w), w (channels, taps_h, taps_w); filters are as many as
// channels, taps in a row are dense; `grid` has y's pixels over x. A row of x is used as a line in local memory,
// `length` elements, with the padding around it. A row of the kernel is padded with zeros to `pitch` elements, whole
// vectors. A work-group is one work-item.

#include "conv/depthwise/planes.cl"

#define LOAD_REALS(p) CAT(vload, VL)(0, (p))
#define STORE_REALS(p, value) CAT(vstore, VL)((value), 0, (p))

void copy_weights(local real *weights, global const stored *w, const int kh, const int kw, const int pitch) {
    for (int t = 0; t < kh; t++) {
        for (int v = 0; v < pitch; v++) weights[t * pitch + v] = v < kw ? LOAD(w, t * kw + v) : 0;
    }
}

void copy_line(local real *line, global const stored *row, const int iw, const int pw, const int length) {
    for (int at = 0; at < pw; at++) line[at] = 0;
    const int count = min(iw, length - pw);
    int at = 0;
    for (; at + VL <= count; at += VL) STORE_REALS(line + pw + at, VLOAD(row, at));
    for (; at < count; at++) line[pw + at] = LOAD(row, at);
    for (at += pw; at < length; at++) line[at] = 0;
}

real sum_of_lanes(const realv value) {
    real lanes[VL];
    STORE_REALS(lanes, value);
#pragma unroll
    for (int size = VL / 2; size > 0; size /= 2) {
#pragma unroll
        for (int l = 0; l < size; l++) lanes[l] += lanes[l + size];
    }
    return lanes[0];
}

// y[r][c] (+)= bias + sum over t, v of x[r * sh + begin_h + t * dh][c * sw + begin_w + v] * w[t][v]. One
// work-item: some rows of y.
kernel void depthwise_strided_forward(CONST_TENSOR(x), CONST_TENSOR(w), CONST_TENSOR(bias), TENSOR(y),
                                      const int has_bias, const int accumulate, const int channels, const Grid grid,
                                      const int pitch, const int length, const int item_rows, local real *weights,
                                      local real *line, local real *sums) {
    SIZES
    const int plane = get_global_id(1), channel = plane % channels;
    const int first = get_global_id(0) * item_rows, last = min(first + item_rows, oh);
    copy_weights(weights, OPEN(w) + (long)channel * grid.taps_h * grid.taps_w, grid.taps_h, grid.taps_w, pitch);
    for (int r = first; r < last; r++) {
        for (int c = 0; c < ow; c++) STORE_REALS(sums + c * VL, (realv)(0));
        for (int t = 0; t < grid.taps_h; t++) {
            const int h = r * sh + grid.begin_h + t * dh;
            if (h < 0 || h >= ih) continue;
            copy_line(line, OPEN(x) + ((long)plane * ih + h) * iw, iw, -grid.begin_w, length);
            for (int c = 0; c < ow; c++) {
                realv sum = LOAD_REALS(sums + c * VL);
                for (int v = 0; v < pitch; v += VL) {
                    sum = fma(LOAD_REALS(line + c * sw + v), LOAD_REALS(weights + t * pitch + v), sum);
                }
                STORE_REALS(sums + c * VL, sum);
            }
        }
        const long at = ((long)plane * oh + r) * ow;
        for (int c = 0; c < ow; c++) {
            real value = sum_of_lanes(LOAD_REALS(sums + c * VL));
            if (has_bias) value += LOAD(OPEN(bias), channel);
            if (accumulate) value += LOAD(OPEN(y), at + c);
            STORE(OPEN(y), at + c, value);
        }
    }
}

// dx[h][...] (+)= the sum of dy[r][c] * w[t] put at column c * sw + begin_w, over the rows t of the kernel that meet h.
// One work-item: some rows of dx.
kernel void depthwise_strided_backward_data(CONST_TENSOR(dy), CONST_TENSOR(w), TENSOR(dx), const int accumulate,
                                            const int channels, const Grid grid, const int pitch, const int length,
                                            const int item_rows, local real *weights, local real *line) {
    SIZES
    const int plane = get_global_id(1), channel = plane % channels;
    const int first = get_global_id(0) * item_rows, last = min(first + item_rows, ih);
    copy_weights(weights, OPEN(w) + (long)channel * grid.taps_h * grid.taps_w, grid.taps_h, grid.taps_w, pitch);
    for (int h = first; h < last; h++) {
        for (int at = 0; at < length; at += VL) STORE_REALS(line + at, (realv)(0));
        const int reach = h - grid.begin_h - (grid.taps_h - 1) * dh;
        for (int r = reach > 0 ? (reach + sh - 1) / sh : 0; r < oh && r * sh <= h - grid.begin_h; r++) {
            const int q = h - grid.begin_h - r * sh;
            if (q % dh) continue;
            local const real *row = weights + q / dh * pitch;
            global const stored *from = OPEN(dy) + ((long)plane * oh + r) * ow;
            for (int c = 0; c < ow; c++) {
                const realv value = LOAD(from, c);
                local real *to = line + c * sw;
                for (int v = 0; v < pitch; v += VL)
                    STORE_REALS(to + v, fma(value, LOAD_REALS(row + v), LOAD_REALS(to + v)));
            }
        }
        global stored *to = OPEN(dx) + ((long)plane * ih + h) * iw;
        int at = 0;
        for (; at + VL <= iw; at += VL) {
            const realv old = accumulate ? VLOAD(to, at) : (realv)(0);
            VSTORE(to, at, LOAD_REALS(line + at - grid.begin_w) + old);
        }
        for (; at < iw; at++) {
            const real old = accumulate ? LOAD(to, at) : 0;
            STORE(to, at, line[at - grid.begin_w] + old);
        }
    }
}

// dw[t][v] (+)= sum over images, r, c of dy[r][c] * x[r * sh + begin_h + t * dh][c * sw + begin_w + v]. One
// work-item: one row of one kernel.
kernel void depthwise_strided_backward_filter(CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR(dw), const int accumulate,
                                              const int channels, const Grid grid, const int pitch, const int length,
                                              local real *line, local real *sums) {
    SIZES
    const int t = get_global_id(0), channel = get_global_id(1);
    for (int v = 0; v < pitch; v += VL) STORE_REALS(sums + v, (realv)(0));
    for (int image = 0; image < grid.batch; image++) {
        const long plane = (long)image * channels + channel;
        for (int r = 0; r < oh; r++) {
            const int h = r * sh + grid.begin_h + t * dh;
            if (h < 0 || h >= ih) continue;
            copy_line(line, OPEN(x) + (plane * ih + h) * iw, iw, -grid.begin_w, length);
            global const stored *row = OPEN(dy) + (plane * oh + r) * ow;
            for (int v = 0; v < pitch; v += VL) {
                realv even = LOAD_REALS(sums + v), odd = 0;
                int c = 0;
                for (; c + 2 <= ow; c += 2) {
                    even = fma((realv)(LOAD(row, c)), LOAD_REALS(line + c * sw + v), even);
                    odd = fma((realv)(LOAD(row, c + 1)), LOAD_REALS(line + (c + 1) * sw + v), odd);
                }
                if (c < ow) even = fma((realv)(LOAD(row, c)), LOAD_REALS(line + c * sw + v), even);
                STORE_REALS(sums + v, even + odd);
            }
        }
    }
    const long at = ((long)channel * grid.taps_h + t) * grid.taps_w;
    for (int v = 0; v < grid.taps_w; v++) STORE(OPEN(dw), at + v, sums[v] + (accumulate ? LOAD(OPEN(dw), at + v) : 0));
}
