// Images x (batch, channels, id, ih, iw) at the places of grid (batch, od, oh, ow, NDIM), innermost axis first, -1 to 1
// from one end of an axis to the other.
//
// METHOD         0 nearest (halves to the even pixel), 1 linear, 2 cubic convolution with a = -0.75
// PADDING        0 zeros, 1 border, 2 reflection
// ALIGN_CORNERS  1: -1 and 1 are the middles of the outer pixels; 0: their outer edges
// NDIM           spatial axes; the outer ones have the size 1 where there are fewer than three

#ifndef METHOD
#define METHOD 1
#endif
#ifndef PADDING
#define PADDING 0
#endif
#ifndef ALIGN_CORNERS
#define ALIGN_CORNERS 0
#endif
#ifndef NDIM
#define NDIM 2
#endif
#define TAPS (METHOD == 0 ? 1 : METHOD == 1 ? 2 : 4)

#include "common/sizes.cl"

real moved(const real at, const int size) {
#if PADDING == 1
    return fmin(fmax(at, (real)0), (real)(size - 1));
#elif PADDING == 2
    const real low = ALIGN_CORNERS ? (real)0 : (real)-0.5, span = ALIGN_CORNERS ? size - 1 : size;
    if (span == 0) return 0;
    real off = fmod(at - low, 2 * span);
    if (off < 0) off += 2 * span;
    return fmin(fmax(low + (off > span ? 2 * span - off : off), (real)0), (real)(size - 1));
#else
    return at;
#endif
}

real keys(const real d) {
    const real a = (real)-0.75;
    if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
    return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

// The pixels and weights of one axis; a pixel outside is -1.
void taps_of(const real g, const int size, int *index, real *weight) {
    real at = ALIGN_CORNERS ? (g + 1) / 2 * (size - 1) : ((g + 1) * size - 1) / 2;
    if (METHOD != 2) at = moved(at, size);
    // far places, and NaN, stay within whole numbers
    at = fmin(fmax(at, (real)-1e6), (real)size + (real)1e6);
    const real low = METHOD == 0 ? rint(at) : floor(at);
    for (int t = 0; t < TAPS; t++) {
        real place = low + t - (METHOD == 2);
        weight[t] = METHOD == 0 ? 1 : METHOD == 1 ? fmax(1 - fabs(place - at), (real)0) : keys(fabs(place - at));
        if (METHOD == 2) place = rint(moved(place, size));
        index[t] = place >= 0 && place < size ? (int)place : -1;
    }
}

kernel void gridsample_elements(CONST_TENSOR(x), CONST_TENSOR(grid), TENSOR(y), const int accumulate,
                                const int channels, const Sizes sizes, const ulong count) {
    IMAGE_DEPTHS
    IMAGE_PLANES
    const ulong item = get_global_id(0);
    if (item >= count) return;
    const ulong pixels = (ulong)od * oh * ow, pixel = item % pixels, plane = item / pixels;
    global const stored *xs = OPEN(x) + plane * id * ih * iw;
    global const stored *place = OPEN(grid) + (plane / channels * pixels + pixel) * NDIM;
    int at[3][4] = {{0}, {0}, {0}};
    real weight[3][4] = {{1}, {1}, {1}};
    taps_of(LOAD(place, 0), iw, at[2], weight[2]);
#if NDIM > 1
    taps_of(LOAD(place, 1), ih, at[1], weight[1]);
#endif
#if NDIM > 2
    taps_of(LOAD(place, 2), id, at[0], weight[0]);
#endif
    real total = 0;
    for (int d = 0; d < (NDIM > 2 ? TAPS : 1); d++)
        for (int h = 0; h < (NDIM > 1 ? TAPS : 1); h++)
            for (int w = 0; w < TAPS; w++) {
                const real factor = weight[0][d] * weight[1][h] * weight[2][w];
                if (at[0][d] < 0 || at[1][h] < 0 || at[2][w] < 0 || factor == 0) continue;
                total += factor * LOAD(xs, ((ulong)at[0][d] * ih + at[1][h]) * iw + at[2][w]);
            }
    global stored *ys = OPEN(y);
    STORE(ys, item, accumulate ? LOAD(ys, item) + total : total);
}
