// The epilogue: where an element of the product belongs, and bias, overwrite or accumulate.
//
// TO_PIXELS: pixel u of the grid is position u * stride + begin of the target tensor.
// TO_FILTER: the product of each group, as it is.

#include "common/aligned.cl"
#include "common/epilogue.cl"
#include "conv/grid.cl"

// Neighbouring columns that are stored at once.
#ifndef COLUMNS_AT_ONCE
#define COLUMNS_AT_ONCE 4
#endif

// Two neighbours at once: vstore2 would be two accesses to memory, because it cannot rely on their alignment.
#if STORAGE == 64
typedef double2 Pair;
#else
typedef float2 Pair;
#if STORAGE == 16 && COLUMNS_AT_ONCE == 2
SMALL_NUMBERS(2)
#endif
#endif

// A pixel of the grid that is a column of the product.
typedef struct {
    int w, h, d, image;
} Pixel;

Pixel pixel_of(const int column, const Target target) {
    const int rest = column / target.pixels_w, image_d = rest / target.pixels_h;
    const Pixel pixel = {
        column % target.pixels_w, rest % target.pixels_h, image_d % target.pixels_d, image_d / target.pixels_d};
    return pixel;
}

Pixel pixel_after(Pixel pixel, const Target target) {
    if (++pixel.w == target.pixels_w) {
        pixel.w = 0;
        if (++pixel.h == target.pixels_h) {
            pixel.h = 0;
            if (++pixel.d == target.pixels_d) {
                pixel.d = 0;
                pixel.image++;
            }
        }
    }
    return pixel;
}

// Where neighbouring columns of the product are stored.
typedef struct {
    long first[COLUMNS_AT_ONCE];  // of row 0 of the group
    long row_step;
    int count;      // of columns that there are
    bool together;  // all of them, side by side
} Destination;

Destination destination_of(const int column, const int group, const int groups, const int rows, const int columns,
                           const Target target) {
    Destination to;
    to.count = min(columns - column, COLUMNS_AT_ONCE);
#if TARGET == TO_PIXELS
    const long plane = (long)target.size_d * target.size_h * target.size_w;
    to.row_step = plane;
    Pixel pixel = pixel_of(column, target);
#pragma unroll
    for (int i = 0; i < COLUMNS_AT_ONCE; i++) {
        to.first[i] = ((long)pixel.image * groups + group) * rows * plane +
                      ((long)(pixel.d * target.stride_d + target.begin_d) * target.size_h + pixel.h * target.stride_h +
                       target.begin_h) *
                          target.size_w +
                      pixel.w * target.stride_w + target.begin_w;
        pixel = pixel_after(pixel, target);
    }
#else
    to.row_step = columns;
#pragma unroll
    for (int i = 0; i < COLUMNS_AT_ONCE; i++) to.first[i] = (long)group * rows * columns + column + i;
#endif
    to.together = to.count == COLUMNS_AT_ONCE && to.first[1] == to.first[0] + 1 &&
                  to.first[COLUMNS_AT_ONCE - 1] == to.first[0] + COLUMNS_AT_ONCE - 1;
    return to;
}

void finish(real sum, global stored *target, const long channel, const long at, const int accumulate TAKE_EPILOGUE) {
    sum = EPILOGUE_ELEMENT(sum, channel, at);
    if (accumulate) sum += LOAD(target, at);
    STORE(target, at, sum);
}

// Finishes neighbouring columns of a row, with one access to memory where its alignment allows that.
void finish4(realv sum, const Destination *to, const int row, const int channel, global const stored *bias,
             global stored *target, const int has_bias, const int accumulate TAKE_EPILOGUE) {
    if (has_bias) sum += LOAD(bias, channel);
    const long at = to->first[0] + row * to->row_step;
#if COLUMNS_AT_ONCE == 2
    if (to->together && IS_ALIGNED(2, target + at)) {
        Pair pair = (Pair)(EPILOGUE_ELEMENT(sum.s0, channel, at), EPILOGUE_ELEMENT(sum.s1, channel, at + 1));
        if (accumulate) pair += LOAD_ALIGNED(2, target + at);
        STORE_ALIGNED(2, target + at, pair);
        return;
    }
#else
    if (to->together && IS_ALIGNED(4, target + at)) {
        sum = EPILOGUE_VECTOR(sum, channel, at);
        if (accumulate) sum += LOAD_ALIGNED(4, target + at);
        STORE_ALIGNED(4, target + at, sum);
        return;
    }
#endif
    const long row_at = row * to->row_step;
    finish(sum.s0, target, channel, at, accumulate PASS_EPILOGUE);
    if (to->count > 1) finish(sum.s1, target, channel, to->first[1] + row_at, accumulate PASS_EPILOGUE);
#if COLUMNS_AT_ONCE > 2
    if (to->count > 2) finish(sum.s2, target, channel, to->first[2] + row_at, accumulate PASS_EPILOGUE);
    if (to->count > 3) finish(sum.s3, target, channel, to->first[3] + row_at, accumulate PASS_EPILOGUE);
#endif
}

// Leaves four columns of a row to conv_sum.
void leave4(const realv sum, global real *to, const int count) {
    if (count >= 4 && (ulong)to % sizeof(realv) == 0) {
        *(global realv *)to = sum;
        return;
    }
#if COLUMNS_AT_ONCE == 2
    if (count >= 2 && (ulong)to % (2 * sizeof(real)) == 0) {
        *(global Pair *)to = sum.s01;
        return;
    }
#endif
    to[0] = sum.s0;
    if (count > 1) to[1] = sum.s1;
    if (count > 2) to[2] = sum.s2;
    if (count > 3) to[3] = sum.s3;
}
