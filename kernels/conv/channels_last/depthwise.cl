// Depthwise convolution in channels last on CPU devices: vectors run along channels, every
// element is read where it lies.
//
//     y[pixel][channel]  =  bias[channel] + sum over taps of x[pixel + tap][channel] * weights[tap][channel]
//
// x, y      (batch, source..., channels) and (batch, size..., channels)
// weights   real, [tap][channels], made by turn_taps from (channels, taps)
//
// The last vector of a pixel begins where it ends with the channels: some lanes are computed twice. A work-group is one
// work-item: some rows of pixels.
//
// KW, SW, DW  taps, stride and step of taps along a row
// TW          pixels of a row that are computed at once, where all of their taps are inside
// ALL_TAPS    on all axes

#include "common/epilogue.cl"
#include "common/prefetch.cl"
#include "conv/grid.cl"

#ifndef KW
#define KW 3
#endif
#ifndef SW
#define SW 1
#endif
#ifndef DW
#define DW 1
#endif
#ifndef TW
#define TW 4
#endif
#ifndef ALL_TAPS
#define ALL_TAPS 9
#endif
#define EACH_TAP _Pragma("unroll") for (int j = 0; j < KW; j++)
#define EACH_PIXEL _Pragma("unroll") for (int t = 0; t < TW; t++)
#define COLUMNS ((TW - 1) * SW + (KW - 1) * DW + 1)  // that TW pixels meet
#define EACH_COLUMN _Pragma("unroll") for (int i = 0; i < COLUMNS; i++)
#define EACH_NEXT _Pragma("unroll") for (int i = 0; i < TW * SW; i++)
#define REALS_AT(p, i) CAT(vload, VL)(0, (p) + (i))
#define BLOCKS for (int block = 0; block < channels; block += VL)
#define CHANNEL min(block, channels - VL)
// Whether taps of TW pixels from position `at` on are all inside of a row.
#define ALL_INSIDE(at) ((at) >= 0 && (at) + (TW - 1) * SW + (KW - 1) * DW < grid.source_w)

// Writes [tap][channel] and a zero for each channel; `turned`: the taps in the opposite order. A work-item takes
// item_channels.
SINGLE void turn_taps(CONST_TENSOR(w), TENSOR_OF(real, weights), TENSOR(zeros), const int channels, const int taps,
                      const int turned, const int item_channels) {
    const int first = get_global_id(0) * item_channels, last = min(first + item_channels, channels);
    for (int channel = first; channel < last; channel++) STORE(OPEN(zeros), channel, (real)0);
    for (int tap = 0; tap < taps; tap++) {
        global const stored *from = OPEN(w) + (turned ? taps - 1 - tap : tap);
        for (int channel = first; channel < last; channel++) {
            OPEN(weights)[(long)tap * channels + channel] = LOAD(from, (long)channel * taps);
        }
    }
}

// Stores a vector, of which the first `again` lanes have been stored before: they must not be added twice.
void store_channels(global stored *y, const long at, const int again, const realv value, const int accumulate) {
    if (!accumulate) {
        VSTORE(y, at, value);
    } else if (!again) {
        VSTORE(y, at, value + VLOAD(y, at));
    } else {
        real lanes[VL];
        CAT(vstore, VL)(value, 0, lanes);
        for (int lane = again; lane < VL; lane++) STORE(y, at + lane, lanes[lane] + LOAD(y, at + lane));
    }
}

// Adds the products of a row of taps: of TW pixels that meet none outside, and of others.
#define ADD_INSIDE                                                                                                   \
    if (b == grid.taps_h - 1) { /* no hardware sees that this row is read next: lines of other pixels lie between */ \
        EACH_NEXT PREFETCH(xs + (long)(COLUMNS + i) * channels);                                                     \
    }                                                                                                                \
    EACH_TAP {                                                                                                       \
        const realv tap = REALS_AT(ws, (long)j * channels);                                                          \
        EACH_PIXEL sums[t] = fma(VLOAD(xs, (long)(t * SW + j * DW) * channels), tap, sums[t]);                       \
    }
#define ADD_AT_EDGE                                                                     \
    realv columns[COLUMNS];                                                             \
    EACH_COLUMN {                                                                       \
        const bool there = from + i >= 0 && from + i < grid.source_w;                   \
        columns[i] = VLOAD(there ? xs + (long)i * channels : OPEN(zeros) + channel, 0); \
    }                                                                                   \
    EACH_TAP {                                                                          \
        const realv tap = REALS_AT(ws, (long)j * channels);                             \
        EACH_PIXEL sums[t] = fma(columns[t * SW + j * DW], tap, sums[t]);               \
    }
// Computes all channels of the pixels from w on, and stores those from `tile` on.
#define TILE_OF_PIXELS(ADD)                                                                                    \
    BLOCKS {                                                                                                   \
        const int channel = CHANNEL;                                                                           \
        realv sums[TW];                                                                                        \
        EACH_PIXEL sums[t] = (realv)(0);                                                                       \
        for (int a = 0; a < grid.taps_d; a++) {                                                                \
            const int z = d + a * grid.step_d;                                                                 \
            if (z < 0 || z >= grid.source_d) continue;                                                         \
            for (int b = 0; b < grid.taps_h; b++) {                                                            \
                const int r = h + b * grid.step_h;                                                             \
                if (r < 0 || r >= grid.source_h) continue;                                                     \
                global const stored *xs =                                                                      \
                    OPEN(x) + channel +                                                                        \
                    (((image * grid.source_d + z) * grid.source_h + r) * grid.source_w + from) * channels;     \
                global const real *ws = OPEN(weights) + (long)(a * grid.taps_h + b) * KW * channels + channel; \
                ADD                                                                                            \
            }                                                                                                  \
        }                                                                                                      \
        EACH_PIXEL {                                                                                           \
            if (w + t >= tile && w + t < grid.size_w) {                                                        \
                const long at = (row * grid.size_w + w + t) * channels + channel;                              \
                realv value = sums[t];                                                                         \
                if (has_bias) value += VLOAD(OPEN(bias), channel);                                             \
                value = EPILOGUE_CHANNELS(value, channel, at);                                                 \
                store_channels(OPEN(y), at, block - channel, value, accumulate);                               \
            }                                                                                                  \
        }                                                                                                      \
    }

// Pixel u meets tap j at u * stride + begin + j * step. Also backward data with stride 1, of turned taps.
kernel void depthwise_pixels(CONST_TENSOR(x), TENSOR_OF(const real, weights), CONST_TENSOR(zeros), CONST_TENSOR(bias),
                             TENSOR(y), const int has_bias, const int accumulate, const int channels,
                             const int item_rows, const Grid grid EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    const long rows = (long)grid.batch * grid.size_d * grid.size_h, first = (long)get_global_id(0) * item_rows;
    for (long row = first; row < min(first + item_rows, rows); row++) {
        const long slice = row / grid.size_h, image = slice / grid.size_d;
        const int h = (int)(row - slice * grid.size_h) * grid.stride_h + grid.begin_h;
        const int d = (int)(slice - image * grid.size_d) * grid.stride_d + grid.begin_d;
        for (int tile = 0; tile < grid.size_w; tile += TW) {
            // the last pixels of a row are computed with some that were stored before
            const int w = max(min(tile, grid.size_w - TW), 0), from = w * SW + grid.begin_w;
            if (ALL_INSIDE(from))
                TILE_OF_PIXELS(ADD_INSIDE)
            else
                TILE_OF_PIXELS(ADD_AT_EDGE)
        }
    }
}

// Backward data of any stride: dx[pixel] collects the pixels of dy whose taps meet it.
SINGLE void depthwise_collect(CONST_TENSOR(dy), TENSOR_OF(const real, weights), TENSOR(dx), const int accumulate,
                              const int channels, const int item_rows, const Grid grid) {
    const long rows = (long)grid.batch * grid.source_d * grid.source_h, first = (long)get_global_id(0) * item_rows;
    for (long row = first; row < min(first + item_rows, rows); row++) {
        const long slice = row / grid.source_h, image = slice / grid.source_d;
        const int h = (int)(row - slice * grid.source_h) - grid.begin_h,
                  d = (int)(slice - image * grid.source_d) - grid.begin_d;
        int met = 0, tap_rows[ALL_TAPS];  // rows of taps that meet this row, and the rows of dy where they do
        long dy_rows[ALL_TAPS];
        for (int a = 0; a < grid.taps_d; a++) {
            const int z = d - a * grid.step_d;
            if (z < 0 || z % grid.stride_d || z / grid.stride_d >= grid.size_d) continue;
            for (int b = 0; b < grid.taps_h; b++) {
                const int r = h - b * grid.step_h;
                if (r < 0 || r % grid.stride_h || r / grid.stride_h >= grid.size_h) continue;
                tap_rows[met] = (a * grid.taps_h + b) * KW;
                dy_rows[met++] =
                    ((image * grid.size_d + z / grid.stride_d) * grid.size_h + r / grid.stride_h) * grid.size_w;
            }
        }
        for (int w = 0; w < grid.source_w; w++) {
            int columns = 0, taps[KW], places[KW];
            EACH_TAP {
                const int q = w - grid.begin_w - j * DW;
                if (q >= 0 && q % SW == 0 && q / SW < grid.size_w) {
                    taps[columns] = j;
                    places[columns++] = q / SW;
                }
            }
            BLOCKS {
                const int channel = CHANNEL;
                realv sum = (realv)(0);
                for (int i = 0; i < met; i++) {
                    for (int j = 0; j < columns; j++) {
                        const realv tap = REALS_AT(OPEN(weights), (long)(tap_rows[i] + taps[j]) * channels + channel);
                        sum = fma(VLOAD(OPEN(dy), (dy_rows[i] + places[j]) * channels + channel), tap, sum);
                    }
                }
                store_channels(
                    OPEN(dx), (row * grid.source_w + w) * channels + channel, block - channel, sum, accumulate);
            }
        }
    }
}

#define TILE_INSIDE(w, at) ((w) + TW <= grid.size_w && ALL_INSIDE(at))

// Sums of one part of the rows: partial[part][tap][pitch], a vector for each of `BLOCKS`.
SINGLE void depthwise_filters(CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR_OF(real, partial), const int channels,
                              const int part_rows, const Grid grid) {
    const int pitch = (channels + VL - 1) / VL * VL, taps = grid.taps_d * grid.taps_h * KW;
    const long rows = (long)grid.batch * grid.size_d * grid.size_h, first = (long)get_global_id(0) * part_rows;
    global real *sums = OPEN(partial) + (long)get_global_id(0) * taps * pitch;
    for (long i = 0; i < (long)taps * pitch; i++) sums[i] = 0;
    for (long row = first; row < min(first + part_rows, rows); row++) {
        const long slice = row / grid.size_h, image = slice / grid.size_d;
        const int h = (int)(row - slice * grid.size_h) * grid.stride_h + grid.begin_h;
        const int d = (int)(slice - image * grid.size_d) * grid.stride_d + grid.begin_d;
        for (int w = 0, together; w < grid.size_w; w += together) {
            const int from = w * SW + grid.begin_w, left = from < 0 ? (SW - 1 - from) / SW : 0;
            const bool inside = TILE_INSIDE(w, from);
            // TW pixels, or those in front of the next TW, or the rest of the row
            together = inside ? TW : left && TILE_INSIDE(w + left, from + left * SW) ? left : grid.size_w - w;
            global const stored *dys = OPEN(dy) + (row * grid.size_w + w) * channels;
            for (int a = 0; a < grid.taps_d; a++) {
                const int z = d + a * grid.step_d;
                if (z < 0 || z >= grid.source_d) continue;
                for (int b = 0; b < grid.taps_h; b++) {
                    const int r = h + b * grid.step_h;
                    if (r < 0 || r >= grid.source_h) continue;
                    global const stored *xs =
                        OPEN(x) + (((image * grid.source_d + z) * grid.source_h + r) * grid.source_w + from) * channels;
                    global real *of_row = sums + (long)(a * grid.taps_h + b) * KW * pitch;
                    BLOCKS {
                        const int channel = CHANNEL;
                        realv acc[KW];
                        EACH_TAP acc[j] = REALS_AT(of_row, j * pitch + block);
                        if (inside) {
                            EACH_PIXEL {
                                const realv slope = VLOAD(dys, (long)t * channels + channel);
                                EACH_TAP acc[j] =
                                    fma(VLOAD(xs, (long)(t * SW + j * DW) * channels + channel), slope, acc[j]);
                            }
                        } else {
                            for (int t = 0; t < together; t++) {
                                const realv slope = VLOAD(dys, (long)t * channels + channel);
                                EACH_TAP {
                                    const int at = t * SW + j * DW;
                                    if (from + at >= 0 && from + at < grid.source_w)
                                        acc[j] = fma(VLOAD(xs, (long)at * channels + channel), slope, acc[j]);
                                }
                            }
                        }
                        EACH_TAP CAT(vstore, VL)(acc[j], 0, of_row + j * pitch + block);
                    }
                }
            }
        }
    }
}

// Adds the parts in their order and writes dw, (channels, taps).
SINGLE void add_depthwise_filters(TENSOR_OF(const real, partial), TENSOR(dw), const int accumulate, const int channels,
                                  const int taps, const int parts) {
    const int pitch = (channels + VL - 1) / VL * VL, block = get_global_id(0) * VL, channel = CHANNEL;
    for (int tap = 0; tap < taps; tap++) {
        global const real *from = OPEN(partial) + (long)tap * pitch + block;
        realv sum = REALS_AT(from, 0);
        for (int part = 1; part < parts; part++) sum += REALS_AT(from, (long)part * taps * pitch);
        real lanes[VL];
        CAT(vstore, VL)(sum, 0, lanes);
        for (int lane = block - channel; lane < VL; lane++) {
            const long at = (long)(channel + lane) * taps + tap;
            STORE(OPEN(dw), at, accumulate ? lanes[lane] + LOAD(OPEN(dw), at) : lanes[lane]);
        }
    }
}
