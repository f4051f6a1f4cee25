// Backward data for few input channels: a work-item makes all phases and channels of ITEM_PIXELS pixels of the grid.
//
// w  (groups * out_channels, CHANNELS, KH, KW)    dy  (batch, groups * out_channels, oh, ow)
// dx  (batch, groups * CHANNELS, ih, iw)
//
// FORWARD: forward for few output channels at stride 1, which is the same: dy is x and dx is y. The weights (groups *
// CHANNELS, out_channels, KH, KW) are taken backwards.
//
// Pixel (u, v) of the grid stands for the positions (u * SH + a, v * SW + b) of dx, one for each phase (a, b) of the
// stride. Every tap belongs to one phase and one distance in dy, which are constants here: nothing is multiplied that
// is not a part of the result. A work-group passes STEP output channels at a time through local memory, double
// buffered: a tile of dy with zeros around it, and the weights in the order of their use. SLICES work-items share the
// output channels of a pixel; their sums are added in order.
//
// With PARTS 1 a work-item makes all phases. With PARTS SH it makes those of one row, whose taps are TAP_STEP apart:
// all rows run the same code, with zeros as the weights of taps that a row lacks.

#include "common/aligned.cl"
#include "common/epilogue.cl"
#include "common/raw.cl"

#ifndef CHANNELS
#define CHANNELS 3  // input channels of a group
#endif
#ifndef FORWARD
#define FORWARD 0
#endif
#ifndef KH
#define KH 7  // kernel
#define KW 7
#define SH 2  // stride
#define SW 2
#define PH 3  // padding at the beginning
#define PW 3
#define DH 1  // dilation
#define DW 1
#endif
#ifndef TILE_W
#define TILE_W 16  // work-items along and across the rows of a tile
#define TILE_H 8
#define ITEM_PIXELS 4  // of a work-item, one below the other
#define PARTS 1        // 1 or SH
#define TAP_STEP 2     // SH / gcd(SH, DH): from tap to tap of a phase
#define FIRST_H -1     // the least distance in dy, and how many there are
#define REACH_H 4
#define SLICES 1
#define STEP 2    // output channels of a step: a multiple of SLICES
#define PITCH 20  // elements from row to row of a tile of dy
#endif
#ifndef SCALAR_ITEMS
#define SCALAR_ITEMS 0  // 1: keep the compiler from making vectors of work-items
#endif

#define ITEMS (TILE_W * TILE_H)
#define THREADS (ITEMS * PARTS * SLICES)

// The distances in dy, from the first one on, that the taps along a row have.
#define CEIL_DIV(a, b) ((a) >= 0 ? ((a) + (b) - 1) / (b) : -(-(a) / (b)))
#define FIRST_W CEIL_DIV(PW - DW * (KW - 1), SW)
#define REACH_W ((SW - 1 + PW) / SW - FIRST_W + 1)

// The phase to which a tap belongs, and its distance from the first one.
#define PHASE(tap, stride, pad, dilate) (((dilate) * (tap) - (pad) + (stride) * (pad)) % (stride))
#define DISTANCE(tap, stride, pad, dilate, first) \
    ((PHASE(tap, stride, pad, dilate) + (pad) - (dilate) * (tap)) / (stride) - (first))

// The rows of taps of a part: which phase each belongs to, and its distance from the part's first row of dy.
#if PARTS > 1
#define TAPS_H ((KH + TAP_STEP - 1) / TAP_STEP)
#define APART (DH * TAP_STEP / SH)  // rows of dy from tap to tap
#define NEAR_H ((TAPS_H - 1) * APART + ITEM_PIXELS)
#define PHASE_H(h) 0
#define DISTANCE_H(h) ((TAPS_H - 1 - (h)) * APART)
#else
#define TAPS_H KH
#define NEAR_H (REACH_H - 1 + ITEM_PIXELS)
#define PHASE_H(h) PHASE(h, SH, PH, DH)
#define DISTANCE_H(h) DISTANCE(h, SH, PH, DH, FIRST_H)
#endif

#define ROWS (TILE_H * ITEM_PIXELS + REACH_H - 1)
#define COLUMNS (TILE_W + REACH_W - 1)
#define TILE (ROWS * PITCH)
#define TILE_FETCHES ((TILE + THREADS - 1) / THREADS)
#define WEIGHTS (TAPS_H * KW * CHANNELS)  // of a part
#define QUADS ((WEIGHTS + 3) / 4)
#define STEP_WEIGHTS (STEP * PARTS * QUADS * 4)
#define WEIGHT_FETCHES ((STEP_WEIGHTS + THREADS - 1) / THREADS)
// Where a weight stands, and the weights from one channel of dy to the next.
#if FORWARD
#define CHANNEL_WEIGHTS (KH * KW)
#define WEIGHT_AT(channel, c, h, v) ((((c) * out_channels + (channel)) * KH + KH - 1 - (h)) * KW + KW - 1 - (v))
#else
#define CHANNEL_WEIGHTS (KH * KW * CHANNELS)
#define WEIGHT_AT(channel, c, h, v) ((((channel) * CHANNELS + (c)) * KH + (h)) * KW + (v))
#endif
// The channel, within its step, of a weight that a work-item reads.
#define CHANNEL_OF(i) ((id + (i) * THREADS) / (QUADS * 4) / PARTS)
#define SUMS (SH / PARTS * SW * CHANNELS * ITEM_PIXELS)
#define SUM_OF(a, b, c, pixel) ((((a) * SW + (b)) * CHANNELS + (c)) * ITEM_PIXELS + (pixel))
// Sums of a work-item that the tiles of dy have room for.
#define ROOM (2 * STEP * TILE / (ITEMS * PARTS))
#define SHARED_SUMS (ROOM < SUMS ? ROOM : SUMS)
#define LANE(v, lane) ((lane) == 0 ? (v).s0 : (lane) == 1 ? (v).s1 : (lane) == 2 ? (v).s2 : (v).s3)

// Whether the phases of a pixel along a row are stored at once.
#define WIDE (STORAGE != 64 && (SW == 2 || SW == 4))
#if WIDE && SW == 2 && STORAGE == 16
SMALL_NUMBERS(2)
#endif

// Reads a work-item's share of a step, from output channel `next` on, and later leaves it in one half of the tiles.
// clang-format off
#define FETCH(next)                                                                                                    \
    _Pragma("unroll") for (int s = 0; s < STEP; s++) {                                                                 \
        const bool there = (next) + s < out_channels;                                                                  \
        global const stored *plane = gradients + (long)((next) + s) * oh * ow;                                         \
        _Pragma("unroll") for (int i = 0; i < TILE_FETCHES; i++)                                                       \
            fetched[s][i] = there && places[i] >= 0 ? LOAD_RAW(plane, places[i]) : 0;                                  \
    }                                                                                                                  \
    _Pragma("unroll") for (int i = 0; i < WEIGHT_FETCHES; i++) {                                                       \
        const bool there = weight_places[i] >= 0 && (next) + CHANNEL_OF(i) < out_channels;                             \
        fetched_weights[i] = there ? LOAD_RAW(weights, weight_places[i] + (next) * CHANNEL_WEIGHTS) : 0;               \
    }
#define KEEP(half)                                                                                                     \
    _Pragma("unroll") for (int s = 0; s < STEP; s++) {                                                                 \
        _Pragma("unroll") for (int i = 0; i < TILE_FETCHES; i++)                                                       \
            if (id + i * THREADS < TILE)                                                                               \
                tiles[((half) * STEP + s) * TILE + id + i * THREADS] = REAL_OF(fetched[s][i]);                         \
    }                                                                                                                  \
    _Pragma("unroll") for (int i = 0; i < WEIGHT_FETCHES; i++)                                                         \
        if (id + i * THREADS < STEP_WEIGHTS)                                                                           \
            ((local real *)quads)[(half) * STEP_WEIGHTS + id + i * THREADS] = REAL_OF(fetched_weights[i]);
// clang-format on

// The first tap of a phase along the columns; KH if it has none.
int first_tap(const int phase) {
    int first = KH;
    for (int tap = min(TAP_STEP, KH) - 1; tap >= 0; tap--) first = PHASE(tap, SH, PH, DH) == phase ? tap : first;
    return first;
}

ONE_BY_ONE kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void conv_few_channels(
    CONST_TENSOR(w), CONST_TENSOR(dy), CONST_TENSOR(b), TENSOR(dx), const int has_bias, const int accumulate,
    const int groups, const int out_channels, const int ih, const int iw, const int oh, const int ow, const int tiles_h,
    const int tiles_w EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    local real tiles[2 * STEP * TILE];
    local realv quads[2 * STEP * PARTS * QUADS];
    uint number = get_group_id(0);
    const int first_v = number % tiles_w * TILE_W;
    number /= tiles_w;
    const int first_u = number % tiles_h * (TILE_H * ITEM_PIXELS);
    number /= tiles_h;  // of the image and the group
    const int id = get_local_id(0), item = id % ITEMS, part = id / ITEMS % PARTS, slice = id / (ITEMS * PARTS);
    const int item_v = item % TILE_W, item_u = item / TILE_W * ITEM_PIXELS;
    global const stored *gradients = OPEN(dy) + (ulong)number * out_channels * oh * ow;
    const int group = number % groups;
    global const stored *weights = OPEN(w) + (ulong)group * out_channels * (KH * KW * CHANNELS);

    // where this work-item's elements of a tile stand in a plane of dy, and its weights in a step's; -1 for none
    int places[TILE_FETCHES], weight_places[WEIGHT_FETCHES];
#pragma unroll
    for (int i = 0; i < TILE_FETCHES; i++) {
        const int at = id + i * THREADS, r = first_u + FIRST_H + at / PITCH, q = first_v + FIRST_W + at % PITCH;
        places[i] = r >= 0 && r < oh && q >= 0 && q < ow && at % PITCH < COLUMNS ? r * ow + q : -1;
    }
#pragma unroll
    for (int i = 0; i < WEIGHT_FETCHES; i++) {
        const int weight = (id + i * THREADS) % (QUADS * 4), part_of = (id + i * THREADS) / (QUADS * 4) % PARTS;
        const int c = weight % CHANNELS, row = weight / CHANNELS / KW;
        const int h = PARTS > 1 ? first_tap(part_of) + row * TAP_STEP : row;
        weight_places[i] = weight < WEIGHTS && h < KH ? WEIGHT_AT(CHANNEL_OF(i), c, h, weight / CHANNELS % KW) : -1;
    }
#if PARTS > 1
    const int begin = first_tap(part);
    const int begin_row = begin < KH ? (part + PH - DH * begin) / SH - FIRST_H - (TAPS_H - 1) * APART : 0;
#else
    const int begin_row = 0;
#endif
    real sums[SUMS];
    raw fetched[STEP][TILE_FETCHES], fetched_weights[WEIGHT_FETCHES];
#pragma unroll
    for (int i = 0; i < SUMS; i++) sums[i] = 0;

    FETCH(0)
    KEEP(0)
    barrier(CLK_LOCAL_MEM_FENCE);
    int now = 0;
    for (int first = 0; first < out_channels; first += STEP) {
        const bool more = first + STEP < out_channels;
        if (more) {
            FETCH(first + STEP)
        }
        for (int s = slice * (STEP / SLICES); s < (slice + 1) * (STEP / SLICES); s++) {
            local const real *tile = tiles + (now * STEP + s) * TILE + (item_u + begin_row) * PITCH + item_v;
            local const realv *quad = quads + ((now * STEP + s) * PARTS + part) * QUADS;
            real near[NEAR_H][REACH_W];
#pragma unroll
            for (int r = 0; r < NEAR_H; r++)
#pragma unroll
                for (int q = 0; q < REACH_W; q++) near[r][q] = tile[r * PITCH + q];
#pragma unroll
            for (int i = 0; i < QUADS; i++) {
                const realv four = quad[i];
#pragma unroll
                for (int lane = 0; lane < 4; lane++) {
                    const int weight = i * 4 + lane, c = weight % CHANNELS, tap = weight / CHANNELS;
                    const int h = tap / KW, v = tap % KW, b = PHASE(v, SW, PW, DW);
                    if (weight < WEIGHTS) {
#pragma unroll
                        for (int pixel = 0; pixel < ITEM_PIXELS; pixel++) {
                            const real other = near[pixel + DISTANCE_H(h)][DISTANCE(v, SW, PW, DW, FIRST_W)];
                            const int sum = SUM_OF(PHASE_H(h), b, c, pixel);
                            sums[sum] = fma(LANE(four, lane), other, sums[sum]);
                        }
                    }
                }
            }
        }
        now ^= 1;
        if (more) {
            KEEP(now)
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }

#if SLICES > 1
    const int place = id % (ITEMS * PARTS);
#pragma unroll
    for (int from = 0; from < SUMS; from += SHARED_SUMS) {
        for (int other = 1; other < SLICES; other++) {
            barrier(CLK_LOCAL_MEM_FENCE);
            if (slice == other) {
#pragma unroll
                for (int i = from; i < from + SHARED_SUMS; i++)
                    if (i < SUMS) tiles[(i - from) * (ITEMS * PARTS) + place] = sums[i];
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            if (slice == 0) {
#pragma unroll
                for (int i = from; i < from + SHARED_SUMS; i++)
                    if (i < SUMS) sums[i] += tiles[(i - from) * (ITEMS * PARTS) + place];
            }
        }
    }
    if (slice > 0) return;
#endif

    global stored *dxs = OPEN(dx) + (ulong)number * CHANNELS * ih * iw;
#if WIDE
    const bool together = !accumulate && iw % SW == 0 && IS_ALIGNED(SW, dxs);
#endif
#pragma unroll
    for (int pixel = 0; pixel < ITEM_PIXELS; pixel++) {
#pragma unroll
        for (int a = 0; a < SH / PARTS; a++) {
            const int row = (first_u + item_u + pixel) * SH + a + part, column = (first_v + item_v) * SW;
            if (row >= ih) continue;
#pragma unroll
            for (int c = 0; c < CHANNELS; c++) {
                global stored *to = dxs + ((ulong)c * ih + row) * iw + column;
#if WIDE
                if (together) {
                    if (column < iw) {
                        CAT(float, SW) wide;
#pragma unroll
                        for (int b = 0; b < SW; b++) ((real *)&wide)[b] = sums[SUM_OF(a, b, c, pixel)];
                        STORE_ALIGNED(SW, to, wide);
                    }
                    continue;
                }
#endif
#pragma unroll
                for (int b = 0; b < SW; b++) {
                    if (column + b >= iw) continue;
                    real sum = sums[SUM_OF(a, b, c, pixel)];
#if FORWARD
                    const int channel = group * CHANNELS + c;
                    if (has_bias) sum += LOAD(OPEN(b), channel);
                    sum = EPILOGUE_ELEMENT(sum, channel, to + b - OPEN(dx));
#endif
                    STORE(to, b, accumulate ? sum + LOAD(to, b) : sum);
                }
            }
        }
    }
}
