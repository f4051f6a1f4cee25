// A grid of pixels over a source tensor: pixel u meets tap j at source position u * stride + begin + j * step, on each axis.

#define GRID                                                                                                                   \
    const int batch, const int size_d, const int size_h, const int size_w, const int source_d, const int source_h,             \
        const int source_w, const int taps_d, const int taps_h, const int taps_w, const int stride_d, const int stride_h,      \
        const int stride_w, const int begin_d, const int begin_h, const int begin_w, const int step_d, const int step_h,       \
        const int step_w

#define GRID_VALUES                                                                                                           \
    batch, size_d, size_h, size_w, source_d, source_h, source_w, taps_d, taps_h, taps_w, stride_d, stride_h, stride_w,        \
        begin_d, begin_h, begin_w, step_d, step_h, step_w

#define SOURCE_PLANE (source_d * source_h * source_w)

// A position in one image, or the distance of one.
typedef struct {
    int d, h, w;
} Position;

// Whether a pixel's tap, its distances in y, z and w as in conv_gpu_pack.cl, lies in the source.
bool inside(const Position at, const int4 tap, const int size_d, const int size_h, const int size_w) {
#if !BOUNDED
    return true;
#else
    return (uint)(at.w + tap.w) < (uint)size_w
#if AXES > 1
           && (uint)(at.h + tap.z) < (uint)size_h
#endif
#if AXES > 2
           && (uint)(at.d + tap.y) < (uint)size_d
#endif
        ;
#endif
}
