// Regions of interest of x (batch, channels, ih, iw) as images y (regions, channels, oh, ow): each pixel is the
// average, or the maximum, of samples in its part of the region, which lie between the pixels of x. rois (regions, 4)
// is left, top, right, bottom.
//
// MAXIMUM     0: averages of samples; 1: the largest weighted pixel around a sample
// HALF_PIXEL  0: the first pixel's middle is at 0, regions have at least the size 1; 1: it is at 1/2

#ifndef MAXIMUM
#define MAXIMUM 0
#endif
#ifndef HALF_PIXEL
#define HALF_PIXEL 0
#endif

#include "detection/region_pixel.cl"

kernel void roialign_elements(CONST_TENSOR(x), CONST_TENSOR(rois), TENSOR_OF(const int, image), TENSOR(y),
                              const int accumulate, const real scale, const int batch, const int channels,
                              const Sizes sizes, const int samples, const ulong count) {
    FIND_REGION_PIXEL
    const real shift = HALF_PIXEL ? (real)0.5 : (real)0;
    const real left = LOAD(roi, 0) * scale - shift, top = LOAD(roi, 1) * scale - shift;
    real width = LOAD(roi, 2) * scale - shift - left, height = LOAD(roi, 3) * scale - shift - top;
    if (!HALF_PIXEL) {
        width = fmax(width, (real)1);
        height = fmax(height, (real)1);
    }
    const real step_x = width / ow, step_y = height / oh;
    const int across = samples > 0 ? samples : (int)fmin(fmax(ceil(step_x), (real)0), (real)iw * 4 + 4);
    const int down = samples > 0 ? samples : (int)fmin(fmax(ceil(step_y), (real)0), (real)ih * 4 + 4);
    global const stored *plane = OPEN(x) + ((ulong)number * channels + channel) * ih * iw;
    real total = 0;
    int first = 1;
    if (number >= 0 && number < batch)
        for (int sy = 0; sy < down; sy++)
            for (int sx = 0; sx < across; sx++) {
                real at_y = top + (py + (sy + (real)0.5) / down) * step_y,
                     at_x = left + (px + (sx + (real)0.5) / across) * step_x;
                real a = 0, b = 0, c = 0, d = 0;
                if (at_y >= -1 && at_y <= ih && at_x >= -1 && at_x <= iw) {
                    at_y = fmax(at_y, (real)0);
                    at_x = fmax(at_x, (real)0);
                    const int y0 = min((int)at_y, ih - 1), x0 = min((int)at_x, iw - 1);
                    const int y1 = min(y0 + 1, ih - 1), x1 = min(x0 + 1, iw - 1);
                    const real fy = y0 < ih - 1 ? at_y - y0 : 0, fx = x0 < iw - 1 ? at_x - x0 : 0;
                    a = LOAD(plane, y0 * iw + x0) * (1 - fy) * (1 - fx);
                    b = LOAD(plane, y0 * iw + x1) * (1 - fy) * fx;
                    c = LOAD(plane, y1 * iw + x0) * fy * (1 - fx);
                    d = LOAD(plane, y1 * iw + x1) * fy * fx;
                }
                if (MAXIMUM) {
                    const real best = fmax(fmax(a, b), fmax(c, d));
                    total = first ? best : fmax(total, best);
                } else {
                    total += a + b + c + d;
                }
                first = 0;
            }
    if (!MAXIMUM && !first) total /= across * down;
    global stored *ys = OPEN(y);
    STORE(ys, item, accumulate ? LOAD(ys, item) + total : total);
}
