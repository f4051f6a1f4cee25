// What the depthwise kernels are told about planes: a grid of two axes (conv/grid.cl; the depth is 1), which has y's
// pixels over x. The structs' fields are the tables in core/operators/conv/arguments.py.

#include "conv/grid.cl"

// Short names of what kernels and the macros of lines read: the sizes of x and of y, the stride, the distance of taps.
#define SIZES                                                                             \
    const int ih = grid.source_h, iw = grid.source_w, oh = grid.size_h, ow = grid.size_w; \
    const int sh = grid.stride_h, sw = grid.stride_w, dh = grid.step_h, dw = grid.step_w;

// Target plane t, of `channels` in each image, is the sum over s < sums of source planes t / shared * sums + s. `flip`
// takes the weights backwards: backward data at stride 1, whose source is dy.
#ifdef PLANE_SUMS_FIELDS
typedef struct {
    PLANE_SUMS_FIELDS
} PlaneSums;
#endif

// A tile of h lines of w elements, as it lies in scratch: `pitch` elements from line to line, `plane_size` from phase
// to phase, and `result_size` between the phases of results. Backward data: line 0 meets dy from (low_h, low_w) on, and
// a line meets more_h rows of it beyond one.
#ifdef PLANE_TILE_FIELDS
typedef struct {
    PLANE_TILE_FIELDS
} PlaneTile;
#endif

// A group's planes in scratch: `phase_size` elements from phase to phase, of which `lead` lie before row 0. The first
// tap of result 0 is first_tap elements from there. Results are `blocks` blocks of vectors.
#ifdef GROUP_SCRATCH_FIELDS
typedef struct {
    GROUP_SCRATCH_FIELDS
} GroupScratch;
#endif
