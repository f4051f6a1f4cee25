// Regions of interest of x (batch, channels, ih, iw) as images y (regions, channels, oh, ow): each pixel is the largest
// one in its part of the region. rois (regions, 4) is left, top, right, bottom: pixels, the last ones included, after
// they are rounded. Parts may share pixels; one without any is 0.

#include "detection/region_pixel.cl"

#define FARTHEST 1000000  // pixels from the origin

long rounded_pixel(const real place) { return (long)fmin(fmax(round(place), (real)-FARTHEST), (real)FARTHEST); }

kernel void roipool_elements(CONST_TENSOR(x), CONST_TENSOR(rois), TENSOR_OF(const int, image), TENSOR(y),
                             const int accumulate, const real scale, const int batch, const int channels,
                             const Sizes sizes, const ulong count) {
    FIND_REGION_PIXEL
    const long left = rounded_pixel(LOAD(roi, 0) * scale), top = rounded_pixel(LOAD(roi, 1) * scale);
    const long width = max(rounded_pixel(LOAD(roi, 2) * scale) - left + 1, (long)1);
    const long height = max(rounded_pixel(LOAD(roi, 3) * scale) - top + 1, (long)1);
    const int x0 = clamp(left + px * width / ow, (long)0, (long)iw);
    const int x1 = clamp(left + ((px + 1) * width + ow - 1) / ow, (long)0, (long)iw);
    const int y0 = clamp(top + py * height / oh, (long)0, (long)ih);
    const int y1 = clamp(top + ((py + 1) * height + oh - 1) / oh, (long)0, (long)ih);
    real best = 0;
    if (number >= 0 && number < batch && x0 < x1 && y0 < y1) {
        global const stored *plane = OPEN(x) + ((ulong)number * channels + channel) * ih * iw;
        best = LOAD(plane, y0 * iw + x0);
        for (int row = y0; row < y1; row++)
            for (int column = x0; column < x1; column++) best = fmax(best, LOAD(plane, row * iw + column));
    }
    global stored *ys = OPEN(y);
    STORE(ys, item, accumulate ? LOAD(ys, item) + best : best);
}
