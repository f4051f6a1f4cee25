// Positions of pixels and taps in a source tensor.

#include "conv/grid.cl"

#define SOURCE_PLANE (grid.source_d * grid.source_h * grid.source_w)
// Elements of the source from a pixel's first tap to tap (d, h, w).
#define TAP_DISTANCE(d, h, w) \
    (((d) * grid.step_d * grid.source_h + (h) * grid.step_h) * grid.source_w + (w) * grid.step_w)

// A position in one image, or the distance of one.
typedef struct {
    int d, h, w;
} Position;

// Whether a pixel's tap, its distances in y, z and w as in pack.cl, lies in the source.
bool inside(const Position at, const int4 tap, const Grid grid) {
#if !BOUNDED
    return true;
#else
    return (uint)(at.w + tap.w) < (uint)grid.source_w
#if AXES > 1
           && (uint)(at.h + tap.z) < (uint)grid.source_h
#endif
#if AXES > 2
           && (uint)(at.d + tap.y) < (uint)grid.source_d
#endif
        ;
#endif
}
