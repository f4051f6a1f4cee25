// The second half of a deconvolution on CPU devices: what a product of matrices gave for every tap of the kernel and
// every input pixel is added up where it meets in the output.
//
//     y[n][c][v]  =  bias[c] + sum over taps t and pixels u with u * s + t * d - p == v of columns[n][c][t][u]
//
// columns (batch, channels, taps, pixels of x), y (batch, channels, grid.source...). `grid` has x's pixels over y, as
// the convolution has that this one transposes: begin is -p, step is d. A work-group is one work-item: some rows of one
// plane of y. `line` is one row of y, its positions sorted by their phase of the stride: pitch elements each.

#include "conv/grid.cl"

#define LOAD_REALS(p) CAT(vload, VL)(0, (p))
#define STORE_REALS(p, value) CAT(vstore, VL)((value), 0, (p))

kernel void add_columns(TENSOR_OF(const real, columns), CONST_TENSOR(bias), TENSOR(y), const int has_bias,
                        const int accumulate, const int channels, const Grid grid, const int item_rows, const int pitch,
                        local real *line) {
    const long plane = get_global_id(1), pixels = (long)grid.size_d * grid.size_h * grid.size_w;
    const int rows = grid.source_d * grid.source_h, stride = grid.stride_w;
    const int first = get_global_id(0) * item_rows, last = min(first + item_rows, rows);
    global const real *of_plane = OPEN(columns) + plane * grid.taps_d * grid.taps_h * grid.taps_w * pixels;
    const real start = has_bias ? LOAD(OPEN(bias), plane % channels) : 0;
    for (int row = first; row < last; row++) {
        const int d = row / grid.source_h - grid.begin_d, h = row % grid.source_h - grid.begin_h;
        for (int i = 0; i < stride * pitch; i += VL) STORE_REALS(line + i, (realv)(start));
        for (int td = 0; td < grid.taps_d; td++) {
            const int qd = d - td * grid.step_d;
            if (qd < 0 || qd % grid.stride_d || qd / grid.stride_d >= grid.size_d) continue;
            for (int th = 0; th < grid.taps_h; th++) {
                const int qh = h - th * grid.step_h;
                if (qh < 0 || qh % grid.stride_h || qh / grid.stride_h >= grid.size_h) continue;
                const long pixel_row = (long)(qd / grid.stride_d) * grid.size_h + qh / grid.stride_h;
                global const real *from =
                    of_plane + (long)(td * grid.taps_h + th) * grid.taps_w * pixels + pixel_row * grid.size_w;
                for (int tw = 0; tw < grid.taps_w; tw++, from += pixels) {
                    const int at = tw * grid.step_w;
                    local real *to = line + at % stride * pitch + at / stride;
                    int u = 0;
                    for (; u + VL <= grid.size_w; u += VL)
                        STORE_REALS(to + u, LOAD_REALS(to + u) + LOAD_REALS(from + u));
                    for (; u < grid.size_w; u++) to[u] += from[u];
                }
            }
        }
        const long out = (plane * rows + row) * grid.source_w;
        for (int w = 0; w < grid.source_w; w++) {
            const int at = w - grid.begin_w;
            real value = line[at % stride * pitch + at / stride];
            if (accumulate) value += LOAD(OPEN(y), out + w);
            STORE(OPEN(y), out + w, value);
        }
    }
}
