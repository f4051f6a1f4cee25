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

// A pixel of the grid that is a column of the product.
typedef struct {
    int w, h, d, image;
} Pixel;

Pixel pixel_of(const int column, TARGET_GRID) {
    const int rest = column / pixels_w, image_d = rest / pixels_h;
    const Pixel pixel = {column % pixels_w, rest % pixels_h, image_d % pixels_d, image_d / pixels_d};
    return pixel;
}

Pixel pixel_behind(Pixel pixel, TARGET_GRID) {
    if (++pixel.w == pixels_w) {
        pixel.w = 0;
        if (++pixel.h == pixels_h) {
            pixel.h = 0;
            if (++pixel.d == pixels_d) {
                pixel.d = 0;
                pixel.image++;
            }
        }
    }
    return pixel;
}

// Where four neighbouring columns of the product are stored.
typedef struct {
    long first[4];  // of row 0 of the group
    long row_step;
    int count;      // of columns that there are
    bool together;  // all four, side by side
} Target;

Target target_of(const int column, const int group, const int rows, const int columns, TARGET_GRID) {
    Target to;
    to.count = min(columns - column, 4);
#if TARGET == 1
    const long plane = (long)target_d * target_h * target_w;
    to.row_step = plane;
    Pixel pixel = pixel_of(column, TARGET_GRID_VALUES);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to.first[i] = ((long)pixel.image * groups + group) * rows * plane +
                      ((long)(pixel.d * target_stride_d + target_begin_d) * target_h + pixel.h * target_stride_h + target_begin_h) *
                          target_w +
                      pixel.w * target_stride_w + target_begin_w;
        pixel = pixel_behind(pixel, TARGET_GRID_VALUES);
    }
#else
    to.row_step = columns;
#pragma unroll
    for (int i = 0; i < 4; i++) to.first[i] = (long)group * rows * columns + column + i;
#endif
    to.together = to.count == 4 && to.first[3] == to.first[0] + 3 && to.first[1] == to.first[0] + 1;
    return to;
}

void finish(real sum, global stored *target, const long at, const int accumulate) {
    if (accumulate) sum += LOAD(target, at);
    STORE(target, at, sum);
}

// Finishes four columns of a row, with one access to memory where its alignment allows that.
void finish4(realv sum, const Target *to, const int row, const int channel, global const stored *bias, global stored *target,
             const int has_bias, const int accumulate) {
    if (has_bias) sum += LOAD(bias, channel);
    const long at = to->first[0] + row * to->row_step;
#if STORAGE == 16
    if (to->together) {
        if (accumulate) sum += VLOAD(target, at);
        VSTORE(target, at, sum);
        return;
    }
#else
    if (to->together && (ulong)(target + at) % sizeof(realv) == 0) {
        global realv *vector = (global realv *)(target + at);
        if (accumulate) sum += *vector;
        *vector = sum;
        return;
    }
#endif
    finish(sum.s0, target, at, accumulate);
    if (to->count > 1) finish(sum.s1, target, to->first[1] + row * to->row_step, accumulate);
    if (to->count > 2) finish(sum.s2, target, to->first[2] + row * to->row_step, accumulate);
    if (to->count > 3) finish(sum.s3, target, to->first[3] + row * to->row_step, accumulate);
}

// Leaves four columns of a row to conv_sum.
void leave4(const realv sum, global real *to, const int count) {
    if (count >= 4 && (ulong)to % sizeof(realv) == 0) {
        *(global realv *)to = sum;
        return;
    }
    to[0] = sum.s0;
    if (count > 1) to[1] = sum.s1;
    if (count > 2) to[2] = sum.s2;
    if (count > 3) to[3] = sum.s3;
}
