// Where a product's pixels lie a stride apart: dx, whose elements that no pixel meets are zeros.
//
//     dx[plane][u * stride, on each axis]  =  values[u], 0 everywhere else
//
// A run of pixels is stored with all that follows each of them up to the next one, in the order of memory. It is put
// together in private memory first, so that whole lines are written; the separate stores of pixels and zeros, which
// cross lines, take longer.

#define STAGED 2048  // elements of dx that are put together

// VL elements of dx: pixels from `u` on, with the number `between` after each of them.
realv pixels_apart(local const real *values, const int u, const real between) {
    realv both = between;
    both.even = CAT(vload, HALF_VL)(0, values + u);
    return both;
}

// Puts `count` pixels of a row together, and zeros after them up to `width` elements, and less than VL more.
void stage_pixels(real *to, local const real *values, const int count, const int stride, const int width) {
    int w = 0;
    if (stride == 1) {
        for (int u = 0; u < count; u += VL) STORE_REALS(to + u, LOAD_REALS(values + u));
        w = count;
    } else if (stride == 2) {
        for (int u = 0; u < count; u += HALF_VL) STORE_REALS(to + 2 * u, pixels_apart(values, u, 0));
        w = 2 * count;
    }
    for (; w < width; w += VL) STORE_REALS(to + w, (realv)(0));
    for (int u = 0; stride > 2 && u < count; u++) to[u * stride] = values[u];
}

// Stores what was put together by vectors that begin where their size divides addresses, but for the ends.
void store_staged(global stored *xs, const real *values, const int count) {
    int i = 0;
    for (; i < count && !ON_VECTORS(xs + i); i++) STORE(xs, i, values[i]);
    for (; i + VL <= count; i += VL) PUT_PAST(xs, i, LOAD_REALS(values + i));
    for (; i < count; i++) STORE(xs, i, values[i]);
}

// Adds `count` pixels of a row; there are `width` elements up to the next one.
void add_pixels(global stored *xs, local const real *values, const int count, const int stride, const long width) {
    int u = 0;
    // negative zeros, which leave every number as it is
    for (; stride == 2 && u + HALF_VL <= count && 2 * u + VL <= width; u += HALF_VL)
        VSTORE(xs, 2 * u, VLOAD(xs, 2 * u) + pixels_apart(values, u, REAL(-0.0)));
    for (; u < count; u++) STORE(xs, u * stride, LOAD(xs, u * stride) + values[u]);
}

// Stores or adds `count` pixels of a plane, of which the first is pixel p. No part of the kernel: compilers would find
// fewer registers for its products.
__attribute__((noinline)) void spread_run(global stored *xs, local const real *values, const long p, const int count,
                                          const bool add, const Target target) {
    const int stride = target.stride_w;
    const long row = p / target.pixels_w;
    int w = (int)(p - row * target.pixels_w), h = (int)(row % target.pixels_h), d = (int)(row / target.pixels_h);
    long to = ((long)d * target.stride_d * target.size_h + h * target.stride_h) * target.size_w + w * stride;
    real staged[STAGED + VL];
    int waiting = 0;  // elements in front of `to` that are put together, not yet stored
    for (int at = 0; at < count;) {
        const int length = min(target.pixels_w - w, count - at);
        w += length;
        long next = to + length * stride;
        if (w == target.pixels_w) {
            w = 0;
            h = h + 1 < target.pixels_h ? h + 1 : 0;
            d += h == 0;
            const int rows = d < target.pixels_d ? d * target.stride_d * target.size_h + h * target.stride_h
                                                 : target.size_d * target.size_h;
            next = rows * (long)target.size_w;
        }
        if (add) {
            add_pixels(xs + to, values + at, length, stride, next - to);
        } else {
            for (int done = 0; done < length || to < next;) {
                const int pixels = min(length - done, (STAGED - waiting) / stride);
                const long room = done + pixels < length ? pixels * stride : STAGED - waiting;
                const int width = (int)min(next - to, room);
                stage_pixels(staged + waiting, values + at + done, pixels, stride, width);
                done += pixels;
                to += width;
                waiting += width;
                if (to < next) {
                    store_staged(xs + to - waiting, staged, waiting);
                    waiting = 0;
                }
            }
        }
        to = next;
        at += length;
    }
    store_staged(xs + to - waiting, staged, waiting);
}
