// Where the maxima of pooling stand.
//
// x  (planes, id, ih, iw)    y, mask  (planes, od, oh, ow); planes = batch * channels; 1-D and
//    2-D have leading sizes of 1
//
// SW  the stride of the last axis: makes the kernel for CPU devices, a work-item per row of windows; without it there
//     is a work-item per window
//
// The mask counts within a plane, as a floating-point number: (z * ih + r) * iw + q of the first that equals y, in
// memory order; -1 where a window holds nothing, or nothing above the lowest number. `count` is of its elements.

#include "pooling/operators.cl"
#include "pooling/windows.cl"

#ifdef SW
#define CHUNK 64  // windows whose maxima and places stay in the fastest cache

kernel void pool_mask(CONST_TENSOR(x), CONST_TENSOR(y), TENSOR(mask), const int accumulate, const Windows windows,
                      const ulong count) {
    WINDOW_DEPTHS WINDOW_PLANES const ulong row = get_global_id(0), slice = row / oh, number = slice / od;
    global const stored *plane = OPEN(x) + number * id * ih * iw;
    global const stored *results = OPEN(y) + row * ow;
    global stored *masks = OPEN(mask) + row * ow;
    const int z0 = (int)(slice % od) * sd - pd, r0 = (int)(row % oh) * sh - ph;
    real result[CHUNK], found[CHUNK];
    for (int first = 0; first < ow; first += CHUNK) {
        const int size = min(CHUNK, ow - first);
        for (int v = 0; v < size; v++) result[v] = LOAD(results, first + v);
        for (int v = 0; v < size; v++) found[v] = START;
        // backwards, so that the first place is the last one written
        for (int z = min(z0 + kd, id) - 1; z >= max(z0, 0); z--)
            for (int r = min(r0 + kh, ih) - 1; r >= max(r0, 0); r--)
                for (int c = kw - 1; c >= 0; c--) {
                    // the windows v whose tap c lies within the row: 0 <= q + v * SW < iw
                    const int q = first * SW - pw + c;
                    const int low = q >= 0 ? 0 : (-q + SW - 1) / SW;
                    const int high = q >= iw ? 0 : min(size, (iw - 1 - q) / SW + 1);
                    const long line = ((long)z * ih + r) * iw + q;
                    const real base = (real)line;  // the place of window 0: that of v is added below
                    for (int v = low; v < high; v++)
                        found[v] = LOAD(plane, line + v * SW) == result[v] ? base : found[v];
                }
        for (int v = 0; v < size; v++) {
            const real place = result[v] > START && found[v] > START ? found[v] + v * SW : -1;
            STORE(masks, first + v, accumulate ? place + LOAD(masks, first + v) : place);
        }
    }
}
#else
kernel void pool_mask(CONST_TENSOR(x), CONST_TENSOR(y), TENSOR(mask), const int accumulate, const Windows windows,
                      const ulong count) {
    WINDOW_DEPTHS WINDOW_PLANES const ulong at = get_global_id(0);
    if (at >= count) return;
    const ulong row = at / ow, slice = row / oh, number = slice / od;
    global const stored *plane = OPEN(x) + number * id * ih * iw;
    const int z0 = (int)(slice % od) * sd - pd, r0 = (int)(row % oh) * sh - ph, q0 = (int)(at % ow) * sw - pw;
    const real result = LOAD(OPEN(y), at);
    real found = -1;
    if (result > START)
        for (int z = max(z0, 0); z < min(z0 + kd, id) && found < 0; z++)
            for (int r = max(r0, 0); r < min(r0 + kh, ih) && found < 0; r++)
                for (int q = max(q0, 0); q < min(q0 + kw, iw) && found < 0; q++) {
                    const long place = ((long)z * ih + r) * iw + q;
                    if (LOAD(plane, place) == result) found = (real)place;
                }
    global stored *masks = OPEN(mask);
    STORE(masks, at, accumulate ? found + LOAD(masks, at) : found);
}
#endif
