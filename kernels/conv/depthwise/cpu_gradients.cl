// Both gradients of a depthwise convolution on CPU devices in one pass: every vector of dy is loaded once for the
// data's and for the filter's gradient.
//
// x, dx (batch, channels, source_h, source_w)   dy (batch, channels, size_h, size_w)   w, dw (channels, KH, KW)
// `grid` is the forward convolution's, without dilation, at the same stride S on both axes
//
// dx[S u + a][S v + b] sums taps i = a + PAD_H - S r, j = b + PAD_W - S c times dy[u + r + shift_h][v + c + shift_w],
// where PAD_H and PAD_W are the padding's rest after division by S, and the shifts its quotients. The same products of
// dy with x in place of the taps are the taps' gradients. A block makes S R rows of S VL elements of dx; the last block
// and the last vector overlap the ones before. Tables hold a mask for each vector of a row: lanes of x that no vector
// before has, and lanes of dy inside of its row. A work-group is one work-item.
//
// R     rows of a block, in units of the stride; at most the rows that are there
// XH    if defined, XH x XW and IH x IW are the planes' sizes, of one block or two: the compiler knows which lines are
//       there
// DATA  1: dx and dw; 0: dw alone
// PAST_CACHES  dx is too large to be found in a cache again: rows of whole vectors are stored past them

#ifndef R
#define R 4
#define KH 3
#define KW 3
#define S 1
#define PAD_H 0
#define PAD_W 0
#define DATA 1
#endif
#define SH 1  // the lines' own
#define SW 1
#define LOW_H (-((KH - 1 - PAD_H) / S))
#define LOW_W (-((KW - 1 - PAD_W) / S))
#define LINES (R + (S - 1 + PAD_H) / S - LOW_H)
#define COLUMNS ((S - 1 + PAD_W) / S - LOW_W + 1)
#define TAPS (KH * KW)
#define PARTS (R * S * S)  // vectors of a block
#ifdef XH
#define OF_PLANES const int xh = XH, xw = XW, ih = IH, iw = IW, dh = 1, dw = 1;
#else
#define OF_PLANES const int xh = grid.source_h, xw = grid.source_w, ih = grid.size_h, iw = grid.size_w, dh = 1, dw = 1;
#endif
#define OF_HALVES                                                                                 \
    const int half_h = (xh + S - 1) / S, half_w = (xw + S - 1) / S, last_v = max(half_w - VL, 0); \
    const int vectors = (half_w + VL - 1) / VL;                                                   \
    const int shift_h = -(grid.begin_h + PAD_H) / S + LOW_H, shift_w = -(grid.begin_w + PAD_W) / S + LOW_W;

#include "conv/depthwise/cpu_scratch.cl"
#include "conv/depthwise/cpu_lines.cl"
#include "conv/grid.cl"
#include "conv/past_caches.cl"

#define MASKS (S + COLUMNS)  // of a vector

#if DATA
#define ADD_TO_DATA(p, tap, value) sum[p] = fma(value, (realv)(weights[tap]), sum[p]);
#else
#define ADD_TO_DATA(p, tap, value)
#endif
#define ADD_TO_BOTH(r, j, value)                                                                                      \
    _Pragma("unroll") for (int p = 0; p < PARTS; p++) {                                                               \
        const int tap_h = p / S % S + PAD_H - S * (r + LOW_H - p / (S * S)), tap_w = p % S + PAD_W - S * (j + LOW_W); \
        if (tap_h >= 0 && tap_h < KH && tap_w >= 0 && tap_w < KW) {                                                   \
            ADD_TO_DATA(p, tap_h * KW + tap_w, value)                                                                 \
            taps[tap_h * KW + tap_w] = fma(value, xs[p], taps[tap_h * KW + tap_w]);                                   \
        }                                                                                                             \
    }

// A line of a block.
#define ADD_LINE(r)                                                 \
    if ((r) < LINES && (!edge || (h + (r) >= 0 && h + (r) < ih))) { \
        global const stored *line = from + (r) * iw;                \
        _Pragma("unroll") for (int j = 0; j < COLUMNS; j += 2) {    \
            realv a, b = 0;                                         \
            LOAD_PAIR(line, j, a, b)                                \
            a = MASKED(a, masks[j]);                                \
            ADD_TO_BOTH(r, j, a)                                    \
            if (j + 1 < COLUMNS) {                                  \
                b = MASKED(b, masks[j + 1]);                        \
                ADD_TO_BOTH(r, j + 1, b)                            \
            }                                                       \
        }                                                           \
    }

// Copies a plane to where there is room around it or from there, and returns where.
global stored *copy_plane(global stored *to, global const stored *plane, const int size) {
    for (int i = 0; i < size; i += VL) VSTORE(to, min(i, size - VL), VLOAD(plane, min(i, size - VL)));
    return to;
}

// What the next plane needs, which a processor does not foresee among so many rows: asked for line by line.
typedef struct {
    global const stored *x, *dy;
    global stored *dx;
} Ahead;

// The rows of a block from row u on, of which the last overlaps: results at `to`, where a row shorter than a vector
// writes over its end, and sums to taps. Unless `edge`, all lines are there.
inline __attribute__((always_inline)) void sum_block(
    global const stored *xs_plane, global const stored *dy_plane, global stored *to, const real *weights, realv *taps,
    local const maske *tables, local real *row, const Grid grid, const int u, const bool edge, const bool past,
    Ahead *ahead) {
    OF_PLANES
    OF_HALVES
    const int u0 = edge ? min(u, half_h - R) : u, h = u0 + shift_h;
    for (int n = 0; n < vectors; n++) {
        const int v = min(n * VL, last_v);
#ifndef XH
#pragma unroll
        for (int k = 0; k < PARTS; k++, ahead->x += VL) PREFETCH_FAR(ahead->x);
#pragma unroll
        for (int k = 0; k < R; k++, ahead->dy += VL) PREFETCH_FAR(ahead->dy);
#if DATA
#pragma unroll
        for (int k = 0; !past && k < PARTS; k++, ahead->dx += VL) PREFETCH_TO_WRITE(ahead->dx);
#endif
#endif
        local const maske *table = tables + n * MASKS * VL;
        global const stored *from = dy_plane + (h * iw + v + shift_w);
        maskv masks[COLUMNS];
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) masks[j] = VLOAD_MASK(table + (S + j) * VL);
        realv xs[PARTS];
#pragma unroll
        for (int k = 0; k < R * S; k++) {
            const int line = u0 * S + k;
            global const stored *source = xs_plane + (line * xw + v * S);
            const bool fresh = !edge || (line >= u * S && line < xh);
#if S == 1
            xs[k] = 0;
            if (fresh) xs[k] = MASKED(VLOAD(source, 0), VLOAD_MASK(table));
#else
            xs[2 * k] = xs[2 * k + 1] = 0;
            if (fresh) {
                const realv low = VLOAD(source, 0), high = VLOAD(source, VL);
                xs[2 * k] = MASKED((realv)(low.even, high.even), VLOAD_MASK(table));
                xs[2 * k + 1] = MASKED((realv)(low.odd, high.odd), VLOAD_MASK(table + VL));
            }
#endif
        }
#if DATA
        realv sum[PARTS];
#pragma unroll
        for (int p = 0; p < PARTS; p++) sum[p] = 0;
#endif
        FOR_14_LINES(ADD_LINE)
#if DATA
#pragma unroll
        for (int k = 0; k < R * S; k++) {
            const int line = u0 * S + k, at = line * xw + v * S;
            if (edge && line >= xh) continue;
#if S == 1
            PUT_VECTOR(past, to, at, sum[k])
#else
            const int length = xw - v * S;
            realv low, high;
            low.even = sum[2 * k].lo;
            low.odd = sum[2 * k + 1].lo;
            high.even = sum[2 * k].hi;
            high.odd = sum[2 * k + 1].hi;
            if (!past || v * S + VL > n * VL * S) {  // else it is there already
                PUT_VECTOR(past, to, at, low)
            }
            if (length >= 2 * VL || vectors == 1) {
                PUT_VECTOR(past, to, at + VL, high)
            } else {  // a row that ends with half of a pair
                VSTORE_REAL(row, low);
                VSTORE_REAL(row + VL, high);
                VSTORE(to, at + length - VL, VLOAD_REAL(row + length - VL));
            }
#endif
        }
#endif
    }
}

#define SUM_BLOCK(u, edge) sum_block(xs_plane, dy_plane, to, weights, taps, tables, row, grid, u, edge, past, &ahead);

// Sums lie in `totals` for `block_filters` filters at a time, and in registers over `group` images, so that planes are
// read in their order, and sums stay short. partial[split][filter][tap], or dw itself if there is one split. `edges`
// has room for three planes at the ends of the tensors, whose loads would leave these, with `edge_room` elements from
// one to the next, of which `lead` lie in front; and for a plane of each work-item: results that are added to dx, or
// whose rows would write over the end of the work-item's planes.
kernel void depthwise_gradients(CONST_TENSOR(x), CONST_TENSOR(dy), CONST_TENSOR(w), TENSOR(dx), TENSOR(dw_out),
                                TENSOR_OF(real, partial), TENSOR(edges), const int add_data, const int add_filter,
                                const int channels, const Grid grid, const int lead, const int edge_room,
                                const int block_filters, const int group, const int split_images,
                                const int item_filters, local real *totals, local maske *tables, local real *row) {
    OF_PLANES
    OF_HALVES
    const int x_size = xh * xw, y_size = ih * iw;
    const int first = get_global_id(1) * item_filters, last = min(first + item_filters, channels);
    const int from_image = get_global_id(0) * split_images, to_image = min(from_image + split_images, grid.batch);
    const long planes = (long)grid.batch * channels;
    const bool wanted = dx_base != 0;
    global stored *own_plane = OPEN(edges) + (3 + get_global_id(1) * get_global_size(0) + get_global_id(0)) * edge_room;
    for (int n = 0; n < vectors; n++) {
        const int v = min(n * VL, last_v);
        local maske *table = tables + n * MASKS * VL;
        const maskv there = TO_MASK(LANES + v < half_w);
        for (int b = 0; b < S; b++)
            VSTORE_MASK(table + b * VL, TO_MASK((LANES + v >= n * VL) & ((LANES + v) * S + b < xw)));
        for (int j = 0; j < COLUMNS; j++) VSTORE_MASK(table + (S + j) * VL, lanes_inside(v + shift_w + j, iw) & there);
    }
    for (int block = first; block < last; block += block_filters) {
        const int end = min(block + block_filters, last);
        for (int i = 0; i < (end - block) * TAPS; i++) VSTORE_REAL(totals + i * VL, (realv)(0));
        for (int images = from_image; images < to_image; images += group) {
            for (int o = block; o < end; o++) {
                local real *own = totals + (o - block) * TAPS * VL;
                real weights[TAPS];
#if DATA
#pragma unroll
                for (int t = 0; t < TAPS; t++) weights[t] = LOAD(OPEN(w), (long)o * TAPS + t);
#endif
                realv taps[TAPS];
#pragma unroll
                for (int t = 0; t < TAPS; t++) taps[t] = 0;
                for (int image = images; image < min(images + group, to_image); image++) {
                    const long t = (long)image * channels + o;
                    global const stored *xs_plane = OPEN(x) + t * x_size, *dy_plane = OPEN(dy) + t * y_size;
                    global stored *edge = OPEN(edges) + lead, *result = OPEN(dx) + t * x_size;
                    const bool apart = (S * VL > xw && o + 1 == last) || !wanted || add_data;
                    global stored *to = apart ? own_plane : result;
                    const bool past = GOES_PAST(to, xw % VL == 0 && !apart);
                    if (t == 0 || t == planes - 1)
                        dy_plane = copy_plane(edge + (t == 0 ? 0 : edge_room), dy_plane, y_size);
                    if (t == planes - 1) xs_plane = copy_plane(edge + 2 * edge_room, xs_plane, x_size);
                    const long next =
                        image + 1 < min(images + group, to_image) ? t + channels : (long)images * channels + o + 1;
                    Ahead ahead = {OPEN(x) + next * x_size, OPEN(dy) + next * y_size, OPEN(dx) + next * x_size};
#ifdef XH
                    SUM_BLOCK(0, true)
                    if (half_h > R) SUM_BLOCK(R, true)
#else
                    for (int u = 0; u < half_h; u += R) {
                        if (u + shift_h >= 0 && u + shift_h + LINES <= ih && (u + R) * S <= xh) {
                            SUM_BLOCK(u, false)
                        } else {
                            SUM_BLOCK(u, true)
                        }
                    }
#endif
#if DATA
                    if (!wanted || !apart) continue;
                    if (!add_data) copy_plane(result, to, x_size);
                    for (int i = 0; add_data && i < x_size; i++) STORE(result, i, LOAD(result, i) + LOAD(to, i));
#endif
                }
#pragma unroll
                for (int t = 0; t < TAPS; t++) VSTORE_REAL(own + t * VL, VLOAD_REAL(own + t * VL) + taps[t]);
            }
        }
        for (int i = 0; i < (end - block) * TAPS; i++) {
            const long place = (long)block * TAPS + i;
            const real all = sum_lanes(totals + i * VL);
            if (get_global_size(0) > 1)
                OPEN(partial)[(long)get_global_id(0) * channels * TAPS + place] = all;
            else if (dw_out_base)
                STORE(OPEN(dw_out), place, add_filter ? LOAD(OPEN(dw_out), place) + all : all);
        }
    }
}
