// Where the maxima of pooling stand, one work-item per window.
//
// x  (planes, id, ih, iw)    y, mask  (planes, od, oh, ow); planes = batch * channels; 1-D and 2-D have leading sizes of 1
//
// The mask counts within a plane, as a floating-point number: (z * ih + r) * iw + q of the first that equals y, in memory
// order; -1 where a window holds nothing, or nothing above the lowest number.

#include "pooling_operators.cl"

kernel void pool_mask(CONST_TENSOR(x), CONST_TENSOR(y), TENSOR(mask), const int accumulate, const int id, const int ih,
                      const int iw, const int od, const int oh, const int ow, const int kd, const int kh, const int kw,
                      const int sd, const int sh, const int sw, const int pd, const int ph, const int pw,
                      const ulong count) {
    const ulong at = get_global_id(0);
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
