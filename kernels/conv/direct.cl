// Convolution in all directions, one work-item per result, straight from the definition. Serves every problem; slow.
//
// x  (batch, in_channels, grid.source...)     w  (out_channels, in_channels / groups, grid.taps...)
// y  (batch, out_channels, grid.size...)      1-D and 2-D have leading sizes of 1
//
// `grid` has y's pixels over x, in every direction. Sums are nested (row, plane, channel) so that rounding grows with
// the longest of them and not with their product.

#include "common/epilogue.cl"
#include "conv/grid.cl"

#define CHANNELS const int in_channels, const int out_channels, const int groups

// Elements of one plane of x, of y, and of w.
#define PLANES                                                               \
    const long source = (long)grid.source_d * grid.source_h * grid.source_w; \
    const long pixels = (long)grid.size_d * grid.size_h * grid.size_w;       \
    const long taps = (long)grid.taps_d * grid.taps_h * grid.taps_w;         \
    const long inner = in_channels / groups, outer = out_channels / groups;

kernel void conv_forward(CONST_TENSOR(x), CONST_TENSOR(w), CONST_TENSOR(b), TENSOR(y), const int has_bias,
                         const int accumulate, CHANNELS, const Grid grid EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    PLANES
    global stored *ys = OPEN(y);
    const long at = get_global_id(0), row = at / grid.size_w, plane = at / pixels;
    const int v = at % grid.size_w, u = row % grid.size_h, t = row / grid.size_h % grid.size_d;
    const long o = plane % out_channels, n = plane / out_channels, first = o / outer * inner;
    real sum = 0;
    for (long c = 0; c < inner; c++) {
        global const stored *xs = OPEN(x) + (n * in_channels + first + c) * source;
        global const stored *ws = OPEN(w) + (o * inner + c) * taps;
        real part = 0;
        for (int a = 0; a < grid.taps_d; a++) {
            const int z = t * grid.stride_d + grid.begin_d + a * grid.step_d;
            if (z < 0 || z >= grid.source_d) continue;
            for (int i = 0; i < grid.taps_h; i++) {
                const int r = u * grid.stride_h + grid.begin_h + i * grid.step_h;
                if (r < 0 || r >= grid.source_h) continue;
                global const stored *x_row = xs + ((long)z * grid.source_h + r) * grid.source_w;
                global const stored *w_row = ws + (a * grid.taps_h + i) * grid.taps_w;
                for (int j = 0; j < grid.taps_w; j++) {
                    const int q = v * grid.stride_w + grid.begin_w + j * grid.step_w;
                    if (q >= 0 && q < grid.source_w) part = fma(LOAD(x_row, q), LOAD(w_row, j), part);
                }
            }
        }
        sum += part;
    }
    if (has_bias) sum += LOAD(OPEN(b), o);
    sum = EPILOGUE_ELEMENT(sum, o, at);
    if (accumulate) sum += LOAD(ys, at);
    STORE(ys, at, sum);
}

kernel void conv_backward_data(CONST_TENSOR(dy), CONST_TENSOR(w), TENSOR(dx), const int accumulate, CHANNELS,
                               const Grid grid) {
    PLANES
    global stored *dxs = OPEN(dx);
    const long at = get_global_id(0), row = at / grid.source_w, plane = at / source;
    const int q = at % grid.source_w, r = row % grid.source_h, z = row / grid.source_h % grid.source_d;
    const long c = plane % in_channels, n = plane / in_channels, first = c / inner * outer;
    real sum = 0;
    for (long o = first; o < first + outer; o++) {
        global const stored *dys = OPEN(dy) + (n * out_channels + o) * pixels;
        global const stored *ws = OPEN(w) + (o * inner + c % inner) * taps;
        real part = 0;
        for (int a = 0; a < grid.taps_d; a++) {
            const int t = z - grid.begin_d - a * grid.step_d;
            if (t < 0 || t % grid.stride_d || t / grid.stride_d >= grid.size_d) continue;
            for (int i = 0; i < grid.taps_h; i++) {
                const int u = r - grid.begin_h - i * grid.step_h;
                if (u < 0 || u % grid.stride_h || u / grid.stride_h >= grid.size_h) continue;
                global const stored *dy_row =
                    dys + ((long)(t / grid.stride_d) * grid.size_h + u / grid.stride_h) * grid.size_w;
                global const stored *w_row = ws + (a * grid.taps_h + i) * grid.taps_w;
                for (int j = 0; j < grid.taps_w; j++) {
                    const int v = q - grid.begin_w - j * grid.step_w;
                    if (v >= 0 && v % grid.stride_w == 0 && v / grid.stride_w < grid.size_w)
                        part = fma(LOAD(dy_row, v / grid.stride_w), LOAD(w_row, j), part);
                }
            }
        }
        sum += part;
    }
    if (accumulate) sum += LOAD(dxs, at);
    STORE(dxs, at, sum);
}

kernel void conv_backward_filter(CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR(dw), const int accumulate, CHANNELS,
                                 const Grid grid) {
    PLANES
    global stored *dws = OPEN(dw);
    const long at = get_global_id(0), tap_row = at / grid.taps_w, filter = at / taps;
    const int j = at % grid.taps_w, i = tap_row % grid.taps_h, a = tap_row / grid.taps_h % grid.taps_d;
    const long c = filter % inner, o = filter / inner, channel = o / outer * inner + c;
    real sum = 0;
    for (long n = 0; n < grid.batch; n++) {
        global const stored *xs = OPEN(x) + (n * in_channels + channel) * source;
        global const stored *dys = OPEN(dy) + (n * out_channels + o) * pixels;
        real image = 0;
        for (int t = 0; t < grid.size_d; t++) {
            const int z = t * grid.stride_d + grid.begin_d + a * grid.step_d;
            if (z < 0 || z >= grid.source_d) continue;
            for (int u = 0; u < grid.size_h; u++) {
                const int r = u * grid.stride_h + grid.begin_h + i * grid.step_h;
                if (r < 0 || r >= grid.source_h) continue;
                global const stored *x_row = xs + ((long)z * grid.source_h + r) * grid.source_w;
                global const stored *dy_row = dys + ((long)t * grid.size_h + u) * grid.size_w;
                real row = 0;
                for (int v = 0; v < grid.size_w; v++) {
                    const int q = v * grid.stride_w + grid.begin_w + j * grid.step_w;
                    if (q >= 0 && q < grid.source_w) row = fma(LOAD(x_row, q), LOAD(dy_row, v), row);
                }
                image += row;
            }
        }
        sum += image;
    }
    if (accumulate) sum += LOAD(dws, at);
    STORE(dws, at, sum);
}

kernel void conv_backward_bias(CONST_TENSOR(dy), TENSOR(db), const int accumulate, CHANNELS, const Grid grid) {
    PLANES
    global stored *dbs = OPEN(db);
    const long o = get_global_id(0);
    real sum = 0;
    for (long n = 0; n < grid.batch; n++) {
        global const stored *dys = OPEN(dy) + (n * out_channels + o) * pixels;
        real image = 0;
        for (long u = 0; u < (long)grid.size_d * grid.size_h; u++) {
            real row = 0;
            for (int v = 0; v < grid.size_w; v++) row += LOAD(dys, u * grid.size_w + v);
            image += row;
        }
        sum += image;
    }
    if (accumulate) sum += LOAD(dbs, o);
    STORE(dbs, o, sum);
}
