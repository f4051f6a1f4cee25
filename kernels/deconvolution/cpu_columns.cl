// The second half of a deconvolution on CPU devices: what a product of matrices gave for every tap of the kernel and
// every input pixel is added up where it meets in the output.
//
//     y[n][c][v]  =  bias[c] + sum over taps t and pixels u with u * s + t * d - p == v of columns[n][c][t][u]
//
// columns (batch, channels, kd * kh * kw, id * ih * iw), y (batch, channels, od, oh, ow). A work-group is one
// work-item: some rows of one plane of y. `line` is one row of y, its positions sorted by their phase of the stride:
// pitch elements each.

#define LOAD_REALS(p) CAT(vload, VL)(0, (p))
#define STORE_REALS(p, value) CAT(vstore, VL)((value), 0, (p))

kernel void add_columns(TENSOR_OF(const real, columns), CONST_TENSOR(bias), TENSOR(y), const int has_bias, const int accumulate,
                        const int channels, const int id, const int ih, const int iw, const int od, const int oh, const int ow,
                        const int kd, const int kh, const int kw, const int sd, const int sh, const int sw, const int pd,
                        const int ph, const int pw, const int dd, const int dh, const int dw, const int item_rows,
                        const int pitch, local real *line) {
    const long plane = get_global_id(1), pixels = (long)id * ih * iw;
    const int first = get_global_id(0) * item_rows, last = min(first + item_rows, od * oh);
    global const real *of_plane = OPEN(columns) + plane * kd * kh * kw * pixels;
    const real start = has_bias ? LOAD(OPEN(bias), plane % channels) : 0;
    for (int row = first; row < last; row++) {
        const int d = row / oh + pd, h = row % oh + ph;
        for (int i = 0; i < sw * pitch; i += VL) STORE_REALS(line + i, (realv)(start));
        for (int td = 0; td < kd; td++) {
            const int qd = d - td * dd;
            if (qd < 0 || qd % sd || qd / sd >= id) continue;
            for (int th = 0; th < kh; th++) {
                const int qh = h - th * dh;
                if (qh < 0 || qh % sh || qh / sh >= ih) continue;
                global const real *from = of_plane + (long)(td * kh + th) * kw * pixels + ((long)(qd / sd) * ih + qh / sh) * iw;
                for (int tw = 0; tw < kw; tw++, from += pixels) {
                    const int at = tw * dw;
                    local real *to = line + at % sw * pitch + at / sw;
                    int u = 0;
                    for (; u + VL <= iw; u += VL) STORE_REALS(to + u, LOAD_REALS(to + u) + LOAD_REALS(from + u));
                    for (; u < iw; u++) to[u] += from[u];
                }
            }
        }
        const long out = (plane * od * oh + row) * ow;
        for (int w = 0; w < ow; w++) {
            const int at = w + pw;
            real value = line[at % sw * pitch + at / sw];
            if (accumulate) value += LOAD(OPEN(y), out + w);
            STORE(OPEN(y), out + w, value);
        }
    }
}
