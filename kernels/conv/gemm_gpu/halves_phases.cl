// Backward data of a strided convolution in channels last by matrix units whose operands are of 16 bits: the products
// of all phases of the stride in one launch (halves.cl has their layouts).
//
// A phase is every stride-th pixel of dx along each axis, those that meet the same taps. All of them have one grid, the
// largest phase's: its pixel u is pixel u * stride + place of dx in a phase. A work-group makes a tile of it in
// `phases_of_set` phases that follow each other in the list of PHASES phases: the first steps of a phase are copied
// while the one before it is multiplied and stored, by way of the memory of its last step. A phase without taps is 0.
// With GRADIENT_SUMS it leaves the sums of a norm's gradient over these phases (store/sums.cl).
//
// Global: work-groups for tiles, columns innermost; sets of phases; groups.

#define STAGED_COLUMNS (TILE_M > TILE_N || TILE_N < 64 ? 32 : 64)  // so that they fit the memory of a step
#define UNROLLED_ROWS _Pragma("unroll 4")

#include "conv/gemm_gpu/halves_product.cl"

#ifdef MICRO
#include "conv/gemm_gpu/loaders/halves.cl"

typedef struct {
    StridePhase all[PHASES];
} StridePhases;

// Where a row of the tile is stored in a phase whose place is 0, and which phases have it.
typedef struct {
    int pixel;
    int last;  // bits: the pixel is the last one of an axis, which a shorter phase does not have; EVERY: no pixel
} RowPlace;
#define EVERY 8

IN_PLACE RowPlace row_place(const int row, const int rows, const Grid grid, const Target place, const Divisors by) {
    const GridPixel at = grid_pixel(row, grid, by);
    RowPlace found;
    found.pixel =
        ((at.image * place.size_d + at.d * place.stride_d) * place.size_h + at.h * place.stride_h) * place.size_w +
        at.w * place.stride_w;
    found.last =
        row >= rows ? EVERY : (at.d == grid.size_d - 1) + 2 * (at.h == grid.size_h - 1) + 4 * (at.w == grid.size_w - 1);
    return found;
}

// Bits of `RowPlace.last` of the rows that a phase does not have.
IN_PLACE int lacks(const StridePhase phase, const Grid grid, const Target place) {
    return EVERY + ((grid.size_d - 1) * place.stride_d + phase.place_d >= place.size_d) +
           2 * ((grid.size_h - 1) * place.stride_h + phase.place_h >= place.size_h) +
           4 * ((grid.size_w - 1) * place.stride_w + phase.place_w >= place.size_w);
}

IN_PLACE int steps_of(const StridePhase phase, const int channels) {
    return (channels * phase.taps_d * phase.taps_h * phase.taps_w + HALVES_DEPTH - 1) / HALVES_DEPTH;
}

// The next step that is copied.
typedef struct {
    int phase, steps;  // steps that are left
    Grid grid;
    Taps met;
} Ahead;

// Stores the sums of a phase.
IN_PLACE void store_phase(const float *sums, local float *staged, local const RowPlace *row_places,
                          const StridePhase phase, const Grid grid, const Target place, const int columns,
                          const int column_tile, const int groups, const int group, TENSOR(target),
                          const int accumulate TAKE_EPILOGUE TAKE_ADDED STATISTICS_PARAMETERS) {
    const int wanted = lacks(phase, grid, place), has_bias = 0;
    const int further = (phase.place_d * place.size_h + phase.place_h) * place.size_w + phase.place_w;
    global const stored *const bias_base = target_base;
    const ulong bias_offset = 0;
#define OF_PHASE(row) \
    (row_places[row].last & wanted ? -1 : ((long)(row_places[row].pixel + further) * groups + group) * columns)
#pragma unroll
    for (int begin = 0; begin < TILE_N; begin += STAGED_COLUMNS) {
        barrier(CLK_LOCAL_MEM_FENCE);  // nobody reads what was there
        stage_sums(sums, staged, begin);
        barrier(CLK_LOCAL_MEM_FENCE);
#ifdef GRADIENT_SUMS
        STORE_AND_ADD(OF_PHASE, begin, added[begin / STAGED_COLUMNS], products[begin / STAGED_COLUMNS])
#else
        STORE_STAGED(OF_PHASE, begin)
#endif
    }
}

IN_PLACE void copy_ahead(Ahead *ahead, Loader *loader, local ushort *to, const int end, local const StridePhase *phases,
                         const int columns, const int channels, const int groups, const int group, const bool aligned) {
    while (ahead->steps == 0 && ++ahead->phase < end) {
        const StridePhase phase = phases[ahead->phase];
        ahead->steps = steps_of(phase, channels);
#define OF_AXIS(a)                           \
    ahead->grid.taps_##a = phase.taps_##a;   \
    ahead->grid.begin_##a = phase.begin_##a; \
    ahead->met.first_##a = phase.first_##a;
        OF_AXIS(d)
        OF_AXIS(h)
        OF_AXIS(w)
        if (ahead->steps) loader_begin(loader, columns, channels, groups * channels, 0, ahead->grid, ahead->met);
    }
    if (ahead->phase >= end) return;
    loader_copy(loader, to, to + A_TILE, columns, 0, channels, groups, group, aligned, ahead->grid, ahead->met);
    ahead->steps--;
}

// Multiplies and stores phases [begin, end).
ALWAYS_INLINE void multiply_phases(
    const int begin, const int end, local ushort *tiles, local const StridePhase *phases,
    local const RowPlace *row_places, CONST_TENSOR(a), CONST_TENSOR(b), TENSOR(target), const int accumulate,
    const int rows, const int columns, const int channels, const int groups, const int group, const int row_tile,
    const int column_tile, const bool aligned, const Grid grid, const Target place, const Taps met,
    const Divisors by TAKE_EXCHANGE TAKE_EPILOGUE STATISTICS_PARAMETERS) {
    Loader loader;
    OPEN_ADDED
    loader_open(&loader, OPEN(a), OPEN(b), rows, columns, 0, channels, 0, groups, group, row_tile, column_tile, 0, grid,
                met, by);
    Ahead ahead = {begin - 1, 0, grid, met};
#define COPY_AHEAD(stage) \
    copy_ahead(&ahead, &loader, A_STAGE(stage), end, phases, columns, channels, groups, group, aligned)
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        COPY_AHEAD(i);
        COPIES_COMMIT;
    }
    int now = 0, next = AHEAD % STAGES, last = 0;
#pragma unroll 1
    for (int index = begin; index < end; index++) {
        const StridePhase phase = phases[index];
        float sums[SUMS];
#pragma unroll
        for (int e = 0; e < SUMS; e++) sums[e] = 0;
        const int steps = steps_of(phase, channels);
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            COPIES_WAIT(AHEAD - 1);
            FENCE_TILES;
            barrier(CLK_LOCAL_MEM_FENCE);  // the step's tiles are there, and those of `next` are not read any more
            MULTIPLY(sums, A_STAGE(now), 0, B_STAGE(now));
            COPY_AHEAD(next);
            COPIES_COMMIT;
            PRODUCTS_WAIT(sums, PENDING);
            last = now;
            now = now + 1 == STAGES ? 0 : now + 1;
            next = next + 1 == STAGES ? 0 : next + 1;
        }
        PRODUCTS_WAIT(sums, 0);
        store_phase(sums, (local float *)A_STAGE(last), row_places, phase, grid, place, columns, column_tile, groups,
                    group, target_base, target_offset, accumulate PASS_EPILOGUE PASS_ADDED PASS_STATISTICS);
    }
    COPIES_WAIT(0);
#ifdef GRADIENT_SUMS
    local float *const staged = (local float *)tiles;
    const int part = get_group_id(1) * ((rows + TILE_M - 1) / TILE_M) + row_tile / TILE_M;
#pragma unroll
    for (int i = 0; i < STAGED_PARTS; i++) LEAVE_GRADIENT_SUMS(part, i * STAGED_COLUMNS, added[i], products[i])
#endif
}

ONE_BY_ONE OF_WAVES __attribute__((reqd_work_group_size(THREADS, 1, 1))) kernel void conv_phases_halves(
    CONST_TENSOR(a), CONST_TENSOR(b), TENSOR(target), const int accumulate, const int rows, const int columns,
    const int channels, const int groups, const int phases_of_set, const Grid grid, const Target place, const Taps met,
    const Divisors by, const StridePhases list EPILOGUE_PARAMETERS STATISTICS_PARAMETERS) {
    OPEN_EPILOGUE
    const uint column_tiles = (uint)(columns + TILE_N - 1) / TILE_N, tile = get_group_id(0);
    const int row_tile = tile / column_tiles * TILE_M, column_tile = tile % column_tiles * TILE_N;
    const int group = get_group_id(2), begin = get_group_id(1) * phases_of_set,
              end = min(begin + phases_of_set, PHASES);
    const bool aligned = ((ulong)OPEN(a) | (ulong)OPEN(b)) % 16 == 0;
    local uchar memory[TILES_BYTES] TILE_ALIGNMENT;
    local StridePhase phases[PHASES];
    local RowPlace row_places[TILE_M];
    DECLARE_EXCHANGE
    local ushort *const tiles = (local ushort *)memory;

    // a struct's element whose number is known: others would be copied to private memory first
#pragma unroll
    for (int i = 0; i < PHASES; i++)
        if (get_local_id(0) == i) phases[i] = list.all[i];
    for (int row = get_local_id(0); row < TILE_M; row += THREADS)
        row_places[row] = row_place(row_tile + row, rows, grid, place, by);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (aligned)
        multiply_phases(begin, end, tiles, phases, row_places, a_base, a_offset, b_base, b_offset, target_base,
                        target_offset, accumulate, rows, columns, channels, groups, group, row_tile, column_tile, true,
                        grid, place, met, by PASS_EXCHANGE PASS_EPILOGUE PASS_STATISTICS);
    else
        multiply_phases(begin, end, tiles, phases, row_places, a_base, a_offset, b_base, b_offset, target_base,
                        target_offset, accumulate, rows, columns, channels, groups, group, row_tile, column_tile, false,
                        grid, place, met, by PASS_EXCHANGE PASS_EPILOGUE PASS_STATISTICS);
}
#endif
