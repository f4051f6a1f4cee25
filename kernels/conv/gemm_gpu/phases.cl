// Backward data of strided convolutions: all phases of the stride in one launch, neighbours of each other in time.
//
// Phase a of an axis is the positions u * stride + a of dx. They meet the taps t where a + pad - dilate * t is a
// multiple of the stride, at u + (a + pad - dilate * t) / stride of dy: every `distance`-th tap, here from the last one
// down.

// Taps that a phase can have.
#ifndef PHASE_TAPS
#define PHASE_TAPS 64
#endif

// One axis of a phase: its pixels, its taps, and the first one's number and source position for pixel 0.
typedef struct {
    int size, taps, first, begin;
} PhaseAxis;

PhaseAxis phase_axis(const int phase, const int target, const int kernel_size, const int stride, const int pad,
                     const int dilate, const int distance) {
    PhaseAxis axis = {(target - phase + stride - 1) / stride, 0, 0, 0};
    for (int tap = max(kernel_size - distance, 0); tap < kernel_size; tap++) {
        const int place = phase + pad - dilate * tap;
        if (place % stride == 0) {
            axis.taps = tap / distance + 1;
            axis.first = tap;
            axis.begin = place / stride;
        }
    }
    return axis;
}

// Writes the distances of a phase's taps from its first one, as conv/gemm_gpu/pack.cl's, and their numbers in the
// kernel.
void list_taps(local int4 *taps, local int *numbers, const PhaseAxis d, const PhaseAxis h, const PhaseAxis w,
               const Grid grid, const PhaseGrid phases) {
    for (int i = get_local_id(0); i < d.taps * h.taps * w.taps; i += THREADS) {
        const int jw = i % w.taps, jh = i / w.taps % h.taps, jd = i / w.taps / h.taps;
        const int at_d = d.first - jd * phases.distance_d, at_h = h.first - jh * phases.distance_h;
        taps[i] = (int4)(TAP_DISTANCE(jd, jh, jw), jd * grid.step_d, jh * grid.step_h, jw * grid.step_w);
        numbers[i] = (at_d * phases.kernel_h + at_h) * phases.kernel_w + w.first - jw * phases.distance_w;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}
