// Where a product's pixels lie a stride apart: dx, whose elements that no pixel meets are zeros.
//
//     dx[plane][u * stride, on each axis]  =  values[u], 0 everywhere else
//
// A run of pixels is stored with all that follows each of them up to the next one, in the order of memory, so that
// whole lines are written. It is put together in private memory first.

#define STAGED 2048  // elements of dx that are put together

// Puts `count` pixels of a row together, and zeros after them up to `width` elements, and less than VL more.
void stage_pixels(real *to, local const real *values, const int count, const int stride, const int width) {
    int w = 0;
    if (stride == 1) {
        for (int u = 0; u < count; u += VL) STORE_REALS(to + u, LOAD_REALS(values + u));
        w = count;
    } else if (stride == 2) {
        for (int u = 0; u < count; u += HALF_VL) {
            realv both = 0;
            both.even = CAT(vload, HALF_VL)(0, values + u);
            STORE_REALS(to + 2 * u, both);
        }
        w = 2 * count;
    }
    for (; w < width; w += VL) STORE_REALS(to + w, (realv)(0));
    for (int u = 0; stride > 2 && u < count; u++) to[u * stride] = values[u];
}

// Stores what was put together: past the caches where `past` says so, but for the ends, which fill no vector.
void store_staged(global stored *xs, const real *values, const int count) {
    int i = 0;
#ifdef PAST_CACHES
    for (; i < count && !ON_VECTORS(xs + i); i++) STORE(xs, i, values[i]);
    for (; i + VL <= count; i += VL) PAST_stored(xs, i, LOAD_REALS(values + i));
#else
    for (; i + VL <= count; i += VL) VSTORE(xs, i, LOAD_REALS(values + i));
#endif
    for (; i < count; i++) STORE(xs, i, values[i]);
}

// Stores or adds `count` pixels of a plane, of which the first is pixel p.
void spread_run(global stored *xs, local const real *values, const long p, const int count, const bool add,
                const Target target) {
    real staged[STAGED + VL];
    const int stride = target.stride_w;
    const long row = p / target.pixels_w;
    int w = (int)(p - row * target.pixels_w), h = (int)(row % target.pixels_h), d = (int)(row / target.pixels_h);
    long to = ((long)d * target.stride_d * target.size_h + h * target.stride_h) * target.size_w + w * stride;
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
            int u = 0;
            for (; stride == 2 && u + HALF_VL <= length && to + 2 * u + VL <= next; u += HALF_VL) {
                realv both = REAL(-0.0);  // which leaves every number as it is
                both.even = CAT(vload, HALF_VL)(0, values + at + u);
                VSTORE(xs, to + 2 * u, VLOAD(xs, to + 2 * u) + both);
            }
            for (; u < length; u++) STORE(xs, to + u * stride, LOAD(xs, to + u * stride) + values[at + u]);
        } else {
            for (int done = 0; done < length || to < next;) {
                const int room = (STAGED - waiting) / stride;
                const int pixels = min(length - done, room);
                const long rest = next - to;
                const int width = (int)min(rest, (long)(pixels < length - done ? pixels * stride : STAGED - waiting));
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
