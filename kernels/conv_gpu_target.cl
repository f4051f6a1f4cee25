// The epilogue: where an element of the product belongs, and bias, overwrite or accumulate.
//
// TARGET 1, pixels: pixel u of the grid is position u * target_stride + target_begin of the target tensor.
// TARGET 2, filter: the product of each group, as it is.

#define TARGET_GRID                                                                                                             \
    const int target_d, const int target_h, const int target_w, const int target_stride_d, const int target_stride_h,           \
        const int target_stride_w, const int target_begin_d, const int target_begin_h, const int target_begin_w,                \
        const int pixels_d, const int pixels_h, const int pixels_w, const int groups

#define TARGET_GRID_VALUES                                                                                                      \
    target_d, target_h, target_w, target_stride_d, target_stride_h, target_stride_w, target_begin_d, target_begin_h,            \
        target_begin_w, pixels_d, pixels_h, pixels_w, groups

// Where a column of the product is stored: its first row, and the distance of rows.
typedef struct {
    long first, row_step;
} Target;

Target target_of(const int column, const int group, const int rows, const int columns, TARGET_GRID) {
    Target to;
#if TARGET == 1
    const long plane = (long)target_d * target_h * target_w;
    const int w = column % pixels_w, rest = column / pixels_w, h = rest % pixels_h, image_d = rest / pixels_h;
    const int d = image_d % pixels_d, image = image_d / pixels_d;
    to.row_step = plane;
    to.first = ((long)image * groups + group) * rows * plane +
               ((long)(d * target_stride_d + target_begin_d) * target_h + h * target_stride_h + target_begin_h) * target_w +
               w * target_stride_w + target_begin_w;
#else
    to.row_step = columns;
    to.first = (long)group * rows * columns + column;
#endif
    return to;
}

void finish(real sum, const int row, const int channel, const Target to, global const stored *bias, global stored *target,
            const int has_bias, const int accumulate) {
    const long at = to.first + row * to.row_step;
    if (has_bias) sum += LOAD(bias, channel);
    if (accumulate) sum += LOAD(target, at);
    STORE(target, at, sum);
}
