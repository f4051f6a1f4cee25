// Stores a tile of sums in channels last, by vectors of eight channels: in the target with bias and epilogue, or with
// SPLIT in the workspace for conv_sum_halves.
//
// Rows of a product of pixels are pixels of the grid and its columns channels; with TARGET == TO_FILTER rows are
// output channels and columns taps of `channels` input channels, of which the target has the first `kept`.

#define ALIGNED_EXTRAS
#include "common/divide.cl"
#include "common/epilogue.cl"
#include "conv/grid.cl"

#ifndef AXES
#define AXES 3
#endif

// The target's element of a row's first column; `by` divides by the target's `pixels`. Axes that are not used have one
// pixel.
ALWAYS_INLINE long first_of_row(const int row, const int columns, const int groups, const int group, const int rows,
                                const Target target, const Divisors by) {
#if TARGET == TO_PIXELS && DENSE
    return ((long)row * groups + group) * columns;
#elif TARGET == TO_PIXELS
    const int line = quotient(row, by.by_w);
    int image = line, plane_d = 0, line_h = 0;
#if AXES > 1
    image = quotient(line, by.by_h);
    line_h = line - image * target.pixels_h;
#endif
#if AXES > 2
    const int plane = image;
    image = quotient(plane, by.by_d);
    plane_d = plane - image * target.pixels_d;
#endif
    const int w = (row - line * target.pixels_w) * target.stride_w + target.begin_w;
    const int h = line_h * target.stride_h + target.begin_h, d = plane_d * target.stride_d + target.begin_d;
    const long pixel = (((long)image * target.size_d + d) * target.size_h + h) * target.size_w + w;
    return (pixel * groups + group) * columns;
#else
    return ((long)group * rows + row) * columns;
#endif
}

// Finishes eight neighbours, of which there are `count`: element `at` of the target and its channel are the first's.
ALWAYS_INLINE void finish8(float8 sum, global stored *target, const long at, const int channel, const int count,
                           global const stored *bias, const int has_bias, const int accumulate TAKE_EPILOGUE) {
    if (count >= 8) {
        if (has_bias) sum += VLOAD(bias, channel);
        sum = EPILOGUE_CHANNELS(sum, channel, at);
        if ((ulong)(target + at) % 16 == 0) {
            global ushort8 *const to = (global ushort8 *)(target + at);
            if (accumulate) sum += widen8(*to);
            *to = narrow8(sum);
            return;
        }
        if (accumulate) sum += VLOAD(target, at);
        VSTORE(target, at, sum);
        return;
    }
    const float all[8] = {sum.s0, sum.s1, sum.s2, sum.s3, sum.s4, sum.s5, sum.s6, sum.s7};
    for (int i = 0; i < count; i++) {
        real one = all[i];
        if (has_bias) one += LOAD(bias, channel + i);
        one = EPILOGUE_ELEMENT(one, channel + i, at + i);
        if (accumulate) one += LOAD(target, at + i);
        STORE(target, at + i, one);
    }
}
