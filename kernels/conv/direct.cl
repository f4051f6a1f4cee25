// Convolution in all directions, one work-item per result, straight from the definition. Serves every problem; slow.
//
// x  (batch, in_channels, id, ih, iw)    w  (out_channels, in_channels / groups, kd, kh, kw)
// y  (batch, out_channels, od, oh, ow)   1-D and 2-D have leading sizes of 1
//
// Sums are nested (row, plane, channel) so that rounding grows with the longest of them and not with their product.

#define SHAPE \
    const long batch, const long ic, const long oc, const long groups, const int id, const int ih, const int iw, const int od, \
        const int oh, const int ow, const int kd, const int kh, const int kw, const int sd, const int sh, const int sw, \
        const int pd, const int ph, const int pw, const int dd, const int dh, const int dw

kernel void conv_forward(CONST_TENSOR(x), CONST_TENSOR(w), CONST_TENSOR(b), TENSOR(y), const int has_bias, const int accumulate,
                         SHAPE) {
    global const stored *xs = OPEN(x);
    global const stored *ws = OPEN(w);
    global stored *ys = OPEN(y);
    const long at = get_global_id(0);
    const int v = at % ow, u = at / ow % oh, t = at / ow / oh % od;
    const long o = at / ow / oh / od % oc, n = at / ow / oh / od / oc;
    const long icg = ic / groups, first = o / (oc / groups) * icg;
    real sum = 0;
    for (long c = 0; c < icg; c++) {
        global const stored *plane = xs + (n * ic + first + c) * id * ih * iw;
        global const stored *taps = ws + (o * icg + c) * kd * kh * kw;
        real part = 0;
        for (int a = 0; a < kd; a++) {
            const int z = t * sd - pd + a * dd;
            if (z < 0 || z >= id) continue;
            for (int i = 0; i < kh; i++) {
                const int r = u * sh - ph + i * dh;
                if (r < 0 || r >= ih) continue;
                for (int j = 0; j < kw; j++) {
                    const int q = v * sw - pw + j * dw;
                    if (q >= 0 && q < iw)
                        part = fma(LOAD(plane, ((long)z * ih + r) * iw + q), LOAD(taps, (a * kh + i) * kw + j), part);
                }
            }
        }
        sum += part;
    }
    if (has_bias) sum += LOAD(OPEN(b), o);
    if (accumulate) sum += LOAD(ys, at);
    STORE(ys, at, sum);
}

kernel void conv_backward_data(CONST_TENSOR(dy), CONST_TENSOR(w), TENSOR(dx), const int accumulate, SHAPE) {
    global const stored *dys = OPEN(dy);
    global const stored *ws = OPEN(w);
    global stored *dxs = OPEN(dx);
    const long at = get_global_id(0);
    const int q = at % iw, r = at / iw % ih, z = at / iw / ih % id;
    const long c = at / iw / ih / id % ic, n = at / iw / ih / id / ic;
    const long icg = ic / groups, ocg = oc / groups, first = c / icg * ocg;
    real sum = 0;
    for (long o = first; o < first + ocg; o++) {
        global const stored *plane = dys + (n * oc + o) * od * oh * ow;
        global const stored *taps = ws + (o * icg + c % icg) * kd * kh * kw;
        real part = 0;
        for (int a = 0; a < kd; a++) {
            const int t = z + pd - a * dd;
            if (t < 0 || t % sd || t / sd >= od) continue;
            for (int i = 0; i < kh; i++) {
                const int u = r + ph - i * dh;
                if (u < 0 || u % sh || u / sh >= oh) continue;
                for (int j = 0; j < kw; j++) {
                    const int v = q + pw - j * dw;
                    if (v >= 0 && v % sw == 0 && v / sw < ow)
                        part = fma(LOAD(plane, ((long)(t / sd) * oh + u / sh) * ow + v / sw), LOAD(taps, (a * kh + i) * kw + j),
                                   part);
                }
            }
        }
        sum += part;
    }
    if (accumulate) sum += LOAD(dxs, at);
    STORE(dxs, at, sum);
}

kernel void conv_backward_filter(CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR(dw), const int accumulate, SHAPE) {
    global const stored *xs = OPEN(x);
    global const stored *dys = OPEN(dy);
    global stored *dws = OPEN(dw);
    const long at = get_global_id(0);
    const long icg = ic / groups;
    const int j = at % kw, i = at / kw % kh, a = at / kw / kh % kd;
    const long c = at / kw / kh / kd % icg, o = at / kw / kh / kd / icg;
    const long channel = o / (oc / groups) * icg + c;
    real sum = 0;
    for (long n = 0; n < batch; n++) {
        global const stored *plane = xs + (n * ic + channel) * id * ih * iw;
        global const stored *grad = dys + (n * oc + o) * od * oh * ow;
        real image = 0;
        for (int t = 0; t < od; t++) {
            const int z = t * sd - pd + a * dd;
            if (z < 0 || z >= id) continue;
            for (int u = 0; u < oh; u++) {
                const int r = u * sh - ph + i * dh;
                if (r < 0 || r >= ih) continue;
                real row = 0;
                for (int v = 0; v < ow; v++) {
                    const int q = v * sw - pw + j * dw;
                    if (q >= 0 && q < iw)
                        row = fma(LOAD(plane, ((long)z * ih + r) * iw + q), LOAD(grad, ((long)t * oh + u) * ow + v), row);
                }
                image += row;
            }
        }
        sum += image;
    }
    if (accumulate) sum += LOAD(dws, at);
    STORE(dws, at, sum);
}

kernel void conv_backward_bias(CONST_TENSOR(dy), TENSOR(db), const int accumulate, SHAPE) {
    global const stored *dys = OPEN(dy);
    global stored *dbs = OPEN(db);
    const long o = get_global_id(0);
    real sum = 0;
    for (long n = 0; n < batch; n++) {
        real image = 0;
        for (long u = 0; u < (long)od * oh; u++) {
            real row = 0;
            for (int v = 0; v < ow; v++) row += LOAD(dys, ((n * oc + o) * od * oh + u) * ow + v);
            image += row;
        }
        sum += image;
    }
    if (accumulate) sum += LOAD(dbs, o);
    STORE(dbs, o, sum);
}
