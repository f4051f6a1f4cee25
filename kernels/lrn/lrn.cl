// Local response normalisation across channels, and its gradient.
//
// x, y, dy, dx  (images, channels, pixels)
//
//   level = k + alpha / size * (sum of x^2 over `size` channels around)      y = x * level^-beta
//   dx = dy * level^-beta - 2 * alpha * beta / size * x * (sum of dy * x * level^(-beta - 1) over the channels around)
//
//   lrn_columns_*   CPUs: tiles of TV vectors of pixels through all channels, which are read once
//   lrn_elements_*  a work-item per element; lrn_elements_ratios comes before lrn_elements_backward
//
// HALF   channels of the window on each side
// POWER  how level^-beta is found: 0 by pow, 3 beta is 3/4, 2 it is 1/2, 4 it is 1
// VL     lanes; the kernels for CPU devices exist where it is defined
// TV     vectors of a tile

#ifndef HALF
#define HALF 2
#endif
#ifndef POWER
#define POWER 0
#endif

#ifdef VL
#define ANY realv
#else
#define ANY real
#endif

ANY power_of(const ANY level, const real beta) {
#if POWER == 3
    const ANY root = sqrt(level);
    return REAL(1.0) / (root * sqrt(root));
#elif POWER == 2
    return REAL(1.0) / sqrt(level);
#elif POWER == 4
    return REAL(1.0) / level;
#else
    return pow(level, (ANY)(-beta));
#endif
}

#ifdef VL
#ifndef TV
#define TV 1
#endif
#define WIDE (TV * VL)
#define ITEM get_global_id(0)

#include "common/lanes.cl"
#include "common/prefetch.cl"

// A tile of channels with HALF empty ones on each side; channel c stands at ROW(c).
#define ROW(c) (((c) + HALF) * WIDE)

#define TILE_PARAMETERS                                                                                             \
    const real alpha, const real k, const real beta, TENSOR_OF(real, scratch), const long pitch, const long images, \
        const long item_tiles, const long channels, const long pixels

#define TILES                                      \
    const long tiles = (pixels + WIDE - 1) / WIDE; \
    const real share = alpha / (2 * HALF + 1);     \
    for (long tile = ITEM * item_tiles; tile < min((long)(ITEM + 1) * item_tiles, images * tiles); tile++)

// Ask for a tile's part of channel c of `name`, that of the next tile or that which is written: a processor does not
// foresee them among so many channels.
#define EACH_LINE(name) for (int i = 0; i < WIDE; i += CACHE_LINE / (int)sizeof(*name##_base))
#define ASK_NEXT(name) EACH_LINE(name) PREFETCH_FAR(OPEN(name) + from + c * pixels + WIDE + i);
#define ASK_TO_WRITE(name) EACH_LINE(name) PREFETCH_TO_WRITE(OPEN(name) + from + c * pixels + i);

// Sets to zero what lies before the first channel and after the last one.
void clear_sides(global real *tile, const long channels) {
    for (long i = 0; i < HALF * WIDE; i++) tile[i] = tile[ROW(channels) + i] = 0;
}

realv level_at(global const real *kept, const long c, const int v, const real share, const real k) {
    realv sum = 0;
#pragma unroll
    for (int j = -HALF; j <= HALF; j++) {
        const realv value = GET(kept, ROW(c + j) + v * VL);
        sum += value * value;
    }
    return sum * share + k;
}

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void lrn_columns_forward(CONST_TENSOR(x), TENSOR(y),
                                                                               const int accumulate, TILE_PARAMETERS) {
    global real *kept = OPEN(scratch) + ITEM * pitch;
    clear_sides(kept, channels);
    TILES {
        const long column = tile % tiles * WIDE, left = pixels - column;
        const bool full = left >= WIDE;
        const long from = tile / tiles * channels * pixels + column;
        for (long c = 0; c < channels; c++) {
#pragma unroll
            for (int v = 0; v < TV; v++)
                PUT(kept, ROW(c) + v * VL, READ(OPEN(x), from + c * pixels + v * VL, left - v * VL, 0));
        }
        for (long c = 0; c < channels; c++) {
            ASK_NEXT(x)
#pragma unroll
            for (int v = 0; v < TV; v++) {
                const realv value = GET(kept, ROW(c) + v * VL) * power_of(level_at(kept, c, v, share, k), beta);
                WRITE(OPEN(y), from + c * pixels + v * VL, left - v * VL, value, accumulate)
            }
        }
    }
}

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void lrn_columns_backward(
    CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR(dx), const int accumulate, TILE_PARAMETERS) {
    global real *kept = OPEN(scratch) + ITEM * pitch, *ratios = kept + ROW(channels + HALF);
    global real *gradients = ratios + ROW(channels + HALF);
    clear_sides(kept, channels);
    clear_sides(ratios, channels);
    TILES {
        const long column = tile % tiles * WIDE, left = pixels - column;
        const bool full = left >= WIDE;
        const long from = tile / tiles * channels * pixels + column;
        for (long c = 0; c < channels; c++) {
#pragma unroll
            for (int v = 0; v < TV; v++)
                PUT(kept, ROW(c) + v * VL, READ(OPEN(x), from + c * pixels + v * VL, left - v * VL, 0));
        }
        for (long c = 0; c < channels; c++) {
            ASK_NEXT(x)
            ASK_TO_WRITE(dx)
#pragma unroll
            for (int v = 0; v < TV; v++) {
                const realv level = level_at(kept, c, v, share, k);
                const realv gradient =
                    READ(OPEN(dy), from + c * pixels + v * VL, left - v * VL, 0) * power_of(level, beta);
                PUT(gradients, c * WIDE + v * VL, gradient);
                PUT(ratios, ROW(c) + v * VL, gradient * GET(kept, ROW(c) + v * VL) / level);
            }
        }
        for (long c = 0; c < channels; c++) {
            ASK_NEXT(dy)
#pragma unroll
            for (int v = 0; v < TV; v++) {
                realv sum = 0;
#pragma unroll
                for (int j = -HALF; j <= HALF; j++) sum += GET(ratios, ROW(c + j) + v * VL);
                const realv value =
                    GET(gradients, c * WIDE + v * VL) - 2 * share * beta * GET(kept, ROW(c) + v * VL) * sum;
                WRITE(OPEN(dx), from + c * pixels + v * VL, left - v * VL, value, accumulate)
            }
        }
    }
}
#else
#define ELEMENT_PARAMETERS \
    const real alpha, const real k, const real beta, const long images, const long channels, const long pixels

#define PLACE                                                                           \
    const long at = get_global_id(0), channel = at / pixels % channels;                 \
    if (at >= images * channels * pixels) return;                                       \
    const long low = max(channel - HALF, 0L), high = min(channel + HALF, channels - 1); \
    const real share = alpha / (2 * HALF + 1);

real level_of(global const stored *xs, const long at, const long before, const long after, const long pixels,
              const real share, const real k) {
    real sum = 0;
    for (long j = -before; j <= after; j++) {
        const real value = LOAD(xs, at + j * pixels);
        sum += value * value;
    }
    return sum * share + k;
}

kernel void lrn_elements_forward(CONST_TENSOR(x), TENSOR(y), const int accumulate, ELEMENT_PARAMETERS) {
    PLACE
    global const stored *xs = OPEN(x);
    global stored *ys = OPEN(y);
    const real value = LOAD(xs, at), level = level_of(xs, at, channel - low, high - channel, pixels, share, k);
    const real result = value * power_of(level, beta);
    STORE(ys, at, accumulate ? result + LOAD(ys, at) : result);
}

kernel void lrn_elements_ratios(CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR_OF(real, ratios), ELEMENT_PARAMETERS) {
    PLACE
    global const stored *xs = OPEN(x), *dys = OPEN(dy);
    const real value = LOAD(xs, at), gradient = LOAD(dys, at);
    const real level = level_of(xs, at, channel - low, high - channel, pixels, share, k);
    OPEN(ratios)[at] = gradient * value * power_of(level, beta) / level;
}

kernel void lrn_elements_backward(CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR(dx), const int accumulate,
                                  TENSOR_OF(const real, ratios), ELEMENT_PARAMETERS) {
    PLACE
    global const stored *xs = OPEN(x), *dys = OPEN(dy);
    global stored *dxs = OPEN(dx);
    const real value = LOAD(xs, at), gradient = LOAD(dys, at);
    const real level = level_of(xs, at, channel - low, high - channel, pixels, share, k);
    real sum = 0;
    for (long j = low; j <= high; j++) sum += OPEN(ratios)[at + (j - channel) * pixels];
    const real result = gradient * power_of(level, beta) - 2 * share * beta * value * sum;
    STORE(dxs, at, accumulate ? result + LOAD(dxs, at) : result);
}
#endif
