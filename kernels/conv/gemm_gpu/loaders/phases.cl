// Backward data of strided convolutions: all phases of the stride in one launch, neighbours of each other in time.
//
// Phase a of an axis is the positions u * stride + a of dx. They meet the taps t where a + pad - dilate * t is a
// multiple of the stride, at u + (a + pad - dilate * t) / stride of dy: every `distance`-th tap, here from the last one
// down.

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

// A work-group's phase and its tile: a product of its own over a grid of the source. Phases are next to each other.
typedef struct {
    PhaseAxis d, h, w;
    Grid grid;
    Target target;
    int row_tile, column_tile, group;
} Phase;

#if PHASES
// The numbers of phases along two axes, and of all phases.
#define PHASES_H min(phases.stride_h, phases.target_h)
#define PHASES_W min(phases.stride_w, phases.target_w)
#define PHASE_COUNT (min(phases.stride_d, phases.target_d) * PHASES_H * PHASES_W)

// Sets the axes, the grid and the target of a phase.
void set_phase(Phase *found, const int phase, const PhaseGrid phases) {
    const int phase_d = phase / PHASES_W / PHASES_H, phase_h = phase / PHASES_W % PHASES_H, phase_w = phase % PHASES_W;
    found->grid.batch = phases.batch;
#define SET_AXIS(a)                                                                                           \
    found->a = phase_axis(phase_##a, phases.target_##a, phases.kernel_##a, phases.stride_##a, phases.pad_##a, \
                          phases.dilate_##a, phases.distance_##a);                                            \
    found->grid.size_##a = found->target.pixels_##a = found->a.size;                                          \
    found->grid.source_##a = phases.source_##a;                                                               \
    found->grid.taps_##a = found->a.taps;                                                                     \
    found->grid.stride_##a = 1;                                                                               \
    found->grid.begin_##a = found->a.begin;                                                                   \
    found->grid.step_##a = phases.dilate_##a * phases.distance_##a / phases.stride_##a;                       \
    found->target.size_##a = phases.target_##a;                                                               \
    found->target.stride_##a = phases.stride_##a;                                                             \
    found->target.begin_##a = phase_##a;
    SET_AXIS(d)
    SET_AXIS(h)
    SET_AXIS(w)
#undef SET_AXIS
}

Phase phase_of_group(const int rows, const PhaseGrid phases) {
    const int largest = phases.batch * ((phases.target_d + phases.stride_d - 1) / phases.stride_d) *
                        ((phases.target_h + phases.stride_h - 1) / phases.stride_h) *
                        ((phases.target_w + phases.stride_w - 1) / phases.stride_w);
    const int row_tiles = (rows + TILE_M - 1) / TILE_M, column_tiles = (largest + TILE_N - 1) / TILE_N;
    Phase found;
    uint id = get_group_id(0);
    found.row_tile = id % row_tiles * TILE_M;
    id /= row_tiles;
    const int phase = id % PHASE_COUNT;
    id /= PHASE_COUNT;
    found.column_tile = id % column_tiles * TILE_N;
    found.group = id / column_tiles;
    set_phase(&found, phase, phases);
    return found;
}

// Writes the distances of a phase's taps from its first one, as pack.cl's, and their numbers in the
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

#define FIND_TILE_OF_PHASE                                                                                   \
    local int4 taps[PHASE_TAPS];                                                                             \
    local int tap_numbers[PHASE_TAPS];                                                                       \
    const Phase phase = phase_of_group(rows, phases);                                                        \
    const Grid grid = phase.grid;                                                                            \
    const Target target = phase.target;                                                                      \
    const int row_tile = phase.row_tile, column_tile = phase.column_tile;                                    \
    const int group = phase.group, groups = phases.groups;                                                   \
    const int columns = grid.batch * grid.size_d * grid.size_h * grid.size_w;                                \
    const int depth = channels * grid.taps_d * grid.taps_h * grid.taps_w, first = 0, steps = depth / TILE_K; \
    if (column_tile >= columns) return;                                                                      \
    list_taps(taps, tap_numbers, phase.d, phase.h, phase.w, grid, phases);
#endif
