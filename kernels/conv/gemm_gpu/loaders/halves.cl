// Loaders of operands of 16 bits in channels last: vectors of eight neighbouring channels, by copies that run while
// work-items go on (micro/halves.cl). Channels of a group are a multiple of eight.
//
// OPERATION  A (tile rows x 64)                       B
// FORWARD    pixels of y x the depth: tap, channel    output channels x the depth
// DATA       pixels of dx x the depth: tap, channel   the depth x input channels
// FILTER     pixels x output channels                 pixels, at a tap x input channels
//
// WHOLE: channels are a multiple of 64, so that a step has one tap. PHASES: pixels are those of all phases of a stride,
// and the grid's taps and its `begin` are one phase's (halves_phases.cl). WEIGHT_BOXES: where operands are aligned,
// only A is copied here.
//
// Work-item `id` copies vector id % 8 of rows id / 8 + i * ROWS_AT_ONCE, of each block of 64 columns.

#include "conv/gemm_gpu/loaders/positions.cl"

#define B_BLOCKS (TILE_N / 64)

#define IN_PLACE ALWAYS_INLINE

#ifndef WHOLE
#define WHOLE 0
#endif
#ifndef WEIGHT_BOXES
#define WEIGHT_BOXES 0
#endif
#if WHOLE
#define FIRST_OF_ITEM(element) 0
#else
#define FIRST_OF_ITEM(element) (element)
#endif

// A vector of the depth: a channel of a tap; with WHOLE the first of 64, which all work-items have.
typedef struct {
    int channel, w, h, d;
    int distance;  // elements of the source from a pixel's first tap
} Walk;

IN_PLACE void walk_to_tap(Walk *walk, const int pixel_step, const Grid grid) {
    walk->distance = TAP_DISTANCE(walk->d, walk->h, walk->w) * pixel_step;
#if PHASES
    walk->distance += ((grid.begin_d * grid.source_h + grid.begin_h) * grid.source_w + grid.begin_w) * pixel_step;
#endif
}

IN_PLACE Walk walk_from(const int depth, const int channels, const int pixel_step, const Grid grid) {
#if PLAIN
    const Walk walk = {depth, 0, 0, 0, 0};
#else
    const uint tap = (uint)depth / (uint)channels, line = tap / (uint)grid.taps_w;
    Walk walk = {depth - tap * channels, tap - line * grid.taps_w, line, 0, 0};
#if AXES > 1
    const uint plane = line / (uint)grid.taps_h;
    walk.h = line - plane * grid.taps_h;
    walk.d = plane;
#else
    walk.h = 0;
    walk.d = line;
#endif
    walk_to_tap(&walk, pixel_step, grid);
#endif
    return walk;
}

// Whether a vector of the depth is one of a tap's.
IN_PLACE bool has_tap(const Walk walk, const int channels, const Grid grid) {
#if WHOLE
    return true;
#elif PLAIN
    return walk.channel < channels;
#else
    return walk.d < grid.taps_d;
#endif
}

// Goes on by a step of the depth.
IN_PLACE void walk_on(Walk *walk, const int channels, const int pixel_step, const Grid grid) {
    walk->channel += HALVES_DEPTH;
#if !PLAIN
    if (walk->channel < channels) return;
    do {
        walk->channel -= channels;
        if (++walk->w == grid.taps_w) {
            walk->w = 0;
            if (++walk->h == grid.taps_h) {
                walk->h = 0;
                walk->d++;
            }
        }
    } while (walk->channel >= channels);
    walk_to_tap(walk, pixel_step, grid);
#endif
}

// A pixel of the grid.
typedef struct {
    int w, h, d, image;
} GridPixel;

IN_PLACE GridPixel grid_pixel(const int pixel, const Grid grid, const Divisors by) {
    const int line = quotient(pixel, by.by_w);
    GridPixel at = {pixel - line * grid.size_w, 0, 0, line};
#if AXES > 1
    at.image = quotient(line, by.by_h);
    at.h = line - at.image * grid.size_h;
#endif
#if AXES > 2
    const int plane = at.image;
    at.image = quotient(plane, by.by_d);
    at.d = plane - at.image * grid.size_d;
#endif
    return at;
}

IN_PLACE Position first_tap(const GridPixel at, const Grid grid) {
#if PHASES  // from there to the first tap it is `begin`
    const Position position = {at.d, at.h, at.w};
#else
    const Position position = {
        at.d * grid.stride_d + grid.begin_d, at.h * grid.stride_h + grid.begin_h, at.w * grid.stride_w + grid.begin_w};
#endif
    return position;
}

// Elements from the source's beginning to a position of an image, wherever that is.
IN_PLACE long elements_to(const Position at, const int image, const int pixel_step, const Grid grid) {
    return (((long)image * grid.source_d + at.d) * grid.source_h + at.h) * (grid.source_w * (long)pixel_step) +
           at.w * (long)pixel_step;
}

IN_PLACE bool meets(const Position at, const int d, const int h, const int w, const Grid grid) {
    int4 tap = (int4)(0, d * grid.step_d, h * grid.step_h, w * grid.step_w);
#if PHASES
    tap += (int4)(0, grid.begin_d, grid.begin_h, grid.begin_w);
#endif
    return inside(at, tap, grid);
}

// A row or column that is there: those beyond the last one are not stored, and so many reads of one line would wait for
// each other. They are some of the first ones, as many as a power of two; a branch with a division would take longer.
IN_PLACE int within(const int at, const int count) { return at < count ? at : at & ((1 << (31 - clz(count))) - 1); }

#if OPERATION != FILTER
typedef struct {
    global const stored *a[A_COPIES];  // of a pixel's first tap and channel
    Position at[A_COPIES];
    Walk walk;
#if OPERATION == FORWARD
    global const stored *b[B_COPIES];
    int k;
#else
    global const stored *b[DEPTH_COPIES];
#if WHOLE
    long further;  // from the first weights to the next step's
#else
    Walk b_walks[DEPTH_COPIES];
#endif
    global const stored *weights;
    int columns_left;
#endif
} Loader;

#if OPERATION == DATA
// A tap of the grid as one of the kernel's.
IN_PLACE int kernel_tap(const Walk at, const Taps met) {
    const int tap_d = met.first_d + at.d * met.step_d, tap_h = met.first_h + at.h * met.step_h;
    return (tap_d * met.kernel_h + tap_h) * met.kernel_w + met.first_w + at.w * met.step_w;
}

// Elements from the weights of the first channel and tap to those of another one.
IN_PLACE long weights_to(const Walk at, const int columns, const Taps met) {
    return ((long)at.channel * (met.kernel_d * met.kernel_h * met.kernel_w) + kernel_tap(at, met)) * columns;
}
#endif

// Begins at step `first` of the depth.
IN_PLACE void loader_begin(Loader *loader, const int columns, const int channels, const int pixel_step, const int first,
                           const Grid grid, const Taps met) {
    const int vector = get_local_id(0) % 8 * 8;
    loader->walk = walk_from(first * HALVES_DEPTH + FIRST_OF_ITEM(vector), channels, pixel_step, grid);
#if OPERATION == FORWARD
    loader->k = first * HALVES_DEPTH + vector;
#elif WHOLE
    loader->further = weights_to(loader->walk, columns, met);
#else
#pragma unroll
    for (int i = 0; i < DEPTH_COPIES; i++) {
        const int row = get_local_id(0) / 8 + i * ROWS_AT_ONCE;
        loader->b_walks[i] = walk_from(first * HALVES_DEPTH + row, channels, 0, grid);
        loader->b[i] = loader->weights + weights_to(loader->b_walks[i], columns, met);
    }
#endif
}

IN_PLACE void loader_open(Loader *loader, global const stored *source, global const stored *weights, const int rows,
                          const int columns, const int depth, const int channels, const int row_step, const int groups,
                          const int group, const int row_tile, const int column_tile, const int first, const Grid grid,
                          const Taps met, const Divisors by) {
    const int id = get_local_id(0), vector = id % 8 * 8, pixel_step = groups * channels;
#pragma unroll
    for (int i = 0; i < A_COPIES; i++) {
        const int row = within(row_tile + id / 8 + i * ROWS_AT_ONCE, rows);
#if PLAIN
        loader->a[i] = source + (long)row * pixel_step + group * channels;
#else
        const GridPixel pixel = grid_pixel(row, grid, by);
        loader->at[i] = first_tap(pixel, grid);
        loader->a[i] = source + elements_to(loader->at[i], pixel.image, pixel_step, grid) + group * channels;
#endif
#if WHOLE
        loader->a[i] += vector;
#endif
    }
#if OPERATION == FORWARD
#pragma unroll
    for (int i = 0; i < B_COPIES; i++) {
        const int column = within(column_tile + id / 8 + i * ROWS_AT_ONCE, columns);
        loader->b[i] = weights + ((long)group * columns + column) * depth;
    }
#else
    const int kernel_taps = met.kernel_d * met.kernel_h * met.kernel_w;
    loader->weights = weights + (long)group * channels * kernel_taps * columns + column_tile + vector;
    loader->columns_left = columns - column_tile - vector;
#if WHOLE
#pragma unroll
    for (int i = 0; i < DEPTH_COPIES; i++)
        loader->b[i] = loader->weights + (long)(id / 8 + i * ROWS_AT_ONCE) * kernel_taps * columns;
#endif
#endif
#if !PHASES
    loader_begin(loader, columns, channels, pixel_step, first, grid, met);
#endif
}

IN_PLACE void loader_copy(Loader *loader, local ushort *a, local ushort *b, const int columns, const int depth,
                          const int channels, const int groups, const int group, const bool aligned, const Grid grid,
                          const Taps met) {
    const int id = get_local_id(0), vector = id % 8 * 8, row = id / 8;
    const Walk walk = loader->walk;
    const bool there = has_tap(walk, channels, grid);
#pragma unroll
    for (int i = 0; i < A_COPIES; i++) {
#if PLAIN
        const bool valid = there;
#else
        const bool valid = there && meets(loader->at[i], walk.d, walk.h, walk.w, grid);
#endif
        COPY_OR_LOAD(
            a + HALVES_SLOT(vector, row + i * ROWS_AT_ONCE), loader->a[i] + (walk.distance + walk.channel), valid);
    }
    walk_on(&loader->walk, channels, groups * channels, grid);
    if (WEIGHT_BOXES && aligned) return;  // they are not copied here
#if OPERATION == FORWARD
#pragma unroll
    for (int i = 0; i < B_COPIES; i++)
        COPY_OR_LOAD(
            b + HALVES_SLOT(vector, row + i * ROWS_AT_ONCE), loader->b[i] + loader->k, WHOLE || loader->k < depth);
    loader->k += HALVES_DEPTH;
#else
#pragma unroll
    for (int i = 0; i < DEPTH_COPIES; i++) {
#if WHOLE
        const bool in_taps = true;
        global const stored *const from = loader->b[i] + loader->further;
#else
        const bool in_taps = has_tap(loader->b_walks[i], channels, grid);
        global const stored *const from = loader->b[i];
#endif
#pragma unroll
        for (int j = 0; j < B_BLOCKS; j++) {
            const bool valid = in_taps && 64 * j < loader->columns_left;
            COPY_OR_LOAD(b + j * HALVES_BLOCK + HALVES_SLOT(vector, row + i * ROWS_AT_ONCE), from + 64 * j, valid);
        }
#if !WHOLE
        if (loader->b_walks[i].channel + HALVES_DEPTH < channels) {
            loader->b_walks[i].channel += HALVES_DEPTH;
            loader->b[i] += (long)HALVES_DEPTH * (met.kernel_d * met.kernel_h * met.kernel_w) * columns;
        } else {
            walk_on(&loader->b_walks[i], channels, 0, grid);
            loader->b[i] = loader->weights + weights_to(loader->b_walks[i], columns, met);
        }
#endif
    }
#if WHOLE
    loader->further = weights_to(loader->walk, columns, met);  // now, while products run
#endif
#endif
}
#else
#if !PLAIN
// From a pixel to the one that a step later takes its place: of its first tap the position and the place in memory, and
// what an axis changes that is beyond its end.
typedef struct {
    Position by, end, span;
    long further, after_w, after_h, after_d;
} PixelStep;

IN_PLACE PixelStep pixel_step_of(const int pixels, const long element, const Grid grid, const Divisors divisors) {
    const GridPixel by = grid_pixel(pixels, grid, divisors);
    const long line = grid.source_w * element, plane = grid.source_h * line, image = grid.source_d * plane;
    PixelStep step;
#define AXIS(a)                                    \
    step.by.a = by.a * grid.stride_##a;            \
    step.span.a = grid.size_##a * grid.stride_##a; \
    step.end.a = grid.begin_##a + step.span.a;
    AXIS(w)
    AXIS(h)
    AXIS(d)
#undef AXIS
    step.further = by.image * image + step.by.d * plane + step.by.h * line + step.by.w * element;
    step.after_w = (AXES > 1 ? grid.stride_h * line : image) - step.span.w * element;
    step.after_h = (AXES > 2 ? grid.stride_d * plane : image) - step.span.h * line;
    step.after_d = image - step.span.d * plane;
    return step;
}

// Goes on by a step's pixels: each axis carries once at most.
IN_PLACE global const stored *pixel_on(Position *at, global const stored *from, const PixelStep step, const Grid grid) {
    from += step.further;
    at->w += step.by.w;
#if AXES > 1
    at->h += step.by.h;
#endif
#if AXES > 2
    at->d += step.by.d;
#endif
    if (at->w >= step.end.w) {
        at->w -= step.span.w;
        at->h += grid.stride_h;
        from += step.after_w;
    }
#if AXES > 1
    if (at->h >= step.end.h) {
        at->h -= step.span.h;
        at->d += grid.stride_d;
        from += step.after_h;
    }
#endif
#if AXES > 2
    if (at->d >= step.end.d) {
        at->d -= step.span.d;
        from += step.after_d;
    }
#endif
    return from;
}
#endif

typedef struct {
    global const stored *a[DEPTH_COPIES];
    global const stored *x[DEPTH_COPIES];  // of a pixel's first tap
    int left;                              // pixels from the work-item's first one on
#if !PLAIN
    Position at[DEPTH_COPIES];
    PixelStep step;
#endif
    Walk taps[B_BLOCKS];  // those of the work-item's columns
    int rows_left, columns_left;
} Loader;

IN_PLACE void loader_open(Loader *loader, global const stored *dy, global const stored *x, const int rows,
                          const int columns, const int depth, const int channels, const int row_step, const int groups,
                          const int group, const int row_tile, const int column_tile, const int first, const Grid grid,
                          const Taps met, const Divisors by) {
    const int id = get_local_id(0), vector = id % 8 * 8, own = first * HALVES_DEPTH + id / 8;
    global const stored *const of_group = x + (long)group * channels;
    loader->rows_left = rows - row_tile - vector;
    loader->columns_left = columns - column_tile - vector;
    loader->left = depth - own;
#if !PLAIN
    loader->step = pixel_step_of(HALVES_DEPTH, (long)groups * channels, grid, by);
#endif
#pragma unroll
    for (int i = 0; i < DEPTH_COPIES; i++) {
        const int pixel = own + i * ROWS_AT_ONCE;
        loader->a[i] = dy + (long)pixel * row_step + (long)group * rows + row_tile + vector;
#if PLAIN
        loader->x[i] = of_group + (long)pixel * groups * channels;
#else
        const GridPixel at = grid_pixel(pixel, grid, by);
        loader->at[i] = first_tap(at, grid);
        loader->x[i] = of_group + elements_to(loader->at[i], at.image, groups * channels, grid);
#endif
    }
#pragma unroll
    for (int j = 0; j < B_BLOCKS; j++)
        loader->taps[j] = walk_from(column_tile + vector + 64 * j, channels, groups * channels, grid);
}

IN_PLACE void loader_copy(Loader *loader, local ushort *a, local ushort *b, const int depth, const int channels,
                          const int row_step, const int groups, const bool aligned, const Grid grid) {
    const int id = get_local_id(0), vector = id % 8 * 8, row = id / 8;
#pragma unroll
    for (int i = 0; i < DEPTH_COPIES; i++) {
        const bool there = i * ROWS_AT_ONCE < loader->left;
        const int slot = HALVES_SLOT(vector, row + i * ROWS_AT_ONCE);
#pragma unroll
        for (int j = 0; j < TILE_M / 64; j++)
            COPY_OR_LOAD(a + j * HALVES_BLOCK + slot, loader->a[i] + 64 * j, there && 64 * j < loader->rows_left);
        loader->a[i] += (long)HALVES_DEPTH * row_step;
#pragma unroll
        for (int j = 0; j < B_BLOCKS; j++) {
            const Walk tap = loader->taps[j];
            bool valid = there && 64 * j < loader->columns_left;
#if !PLAIN
            valid = valid && meets(loader->at[i], tap.d, tap.h, tap.w, grid);
#endif
            COPY_OR_LOAD(b + j * HALVES_BLOCK + slot, loader->x[i] + (tap.distance + tap.channel), valid);
        }
#if PLAIN
        loader->x[i] += (long)HALVES_DEPTH * groups * channels;
#else
        loader->x[i] = pixel_on(&loader->at[i], loader->x[i], loader->step, grid);
#endif
    }
    loader->left -= HALVES_DEPTH;
}
#endif

// STAGES tiles of both operands follow each other in local memory.
#define TILES_BYTES (STAGES * (A_TILE + B_TILE) * 2)
#define AHEAD (STAGES - 1 - PENDING)  // steps that are copied before they are multiplied
#define A_STAGE(stage) (tiles + (stage) * (A_TILE + B_TILE))
#define B_STAGE(stage) (A_STAGE(stage) + A_TILE)
// Copies the loader's next step.
#if OPERATION == FILTER
#define COPY_STEP(stage, grid, met) \
    loader_copy(&loader, A_STAGE(stage), B_STAGE(stage), depth, channels, row_step, groups, aligned, grid)
#else
#define COPY_STEP(stage, grid, met) \
    loader_copy(&loader, A_STAGE(stage), B_STAGE(stage), columns, depth, channels, groups, group, aligned, grid, met)
#endif
