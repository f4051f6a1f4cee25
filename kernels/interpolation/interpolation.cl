// Interpolation, nearest and linear, of x (planes, id, ih, iw) at the places y (planes, od, oh, ow), and its gradient.
//
// 1-D and 2-D have leading sizes of 1; planes = batch * channels. Every run first writes tables: for each output of an
// axis the pixel below its place and the fraction of the way to the next one, for each input the outputs that may read
// it. So the other kernels divide nothing, and the gradient gathers: nothing is added atomically.
//
// LINEAR       0: nearest; 1: linear along every axis
// COORDINATES  0 half_pixel, 1 half_pixel_one, 2 align_corners, 3 asymmetric
// ROUNDING     of the nearest pixel: 0 halves down, 1 halves up, 2 floor, 3 ceil
// WIDE         1: there are more elements than 32 bits count

#ifndef LINEAR
#define LINEAR 1
#endif
#ifndef COORDINATES
#define COORDINATES 0
#endif
#ifndef ROUNDING
#define ROUNDING 0
#endif
#ifndef WIDE
#define WIDE 1
#endif

#if WIDE
typedef ulong place;
#else
typedef uint place;
#endif

#include "common/sizes.cl"
#include "pointwise/quads.cl"

#define CONST_TABLES                                                                           \
    TENSOR_OF(const int, lower), TENSOR_OF(const real, fraction), TENSOR_OF(const int, first), \
        TENSOR_OF(const int, stop)

// An axis: output o lies at (step * o + shift) / unit.
typedef struct {
    long in, out, step, shift, unit;
} axis_map;

axis_map map_of(const long in, const long out) {
#if COORDINATES == 3
    const axis_map map = {in, out, in, 0, out};
#else
    axis_map map = {in, out, 2 * in, in - out, 2 * out};
#if COORDINATES == 2
    map.step = in - 1;
    map.shift = 0;
    map.unit = out - 1;
#endif
#if COORDINATES != 0
    if (out == 1) {
        map.step = map.shift = 0;
        map.unit = 1;
    }
#endif
#endif
    return map;
}

// The pixel at or below an output's place, and the fraction of the way from there to the next pixel.
int lower_of(const axis_map map, const long output, real *fraction) {
    const long at = map.step * output + map.shift, last = map.in - 1;
    *fraction = 0;
#if LINEAR
    if (at <= 0) return 0;
    const long lower = at / map.unit;
    if (lower >= last) return (int)last;
    *fraction = (real)(at - lower * map.unit) / (real)map.unit;
    return (int)lower;
#else
#if ROUNDING == 0
    const long pixel = (2 * at + map.unit - 1) / (2 * map.unit);
#elif ROUNDING == 1
    const long pixel = (2 * at + map.unit) / (2 * map.unit);
#elif ROUNDING == 2
    const long pixel = at / map.unit;
#else
    const long pixel = (at + map.unit - 1) / map.unit;
#endif
    return (int)clamp(pixel, 0L, last);
#endif
}

// Twice the distances from an input, on both sides, within which outputs may read it.
#if LINEAR
#define BELOW 2
#define ABOVE 2
#elif ROUNDING < 2
#define BELOW 1
#define ABOVE 1
#elif ROUNDING == 2
#define BELOW 0
#define ABOVE 2
#else
#define BELOW 2
#define ABOVE 0
#endif

// The outputs that may read an input: at least all those that do.
int2 readers_of(const axis_map map, const long input) {
    if (map.step == 0) return (int2)(0, (int)map.out);
    const long from = (2 * input - BELOW) * map.unit - 2 * map.shift,
               to = (2 * input + ABOVE) * map.unit - 2 * map.shift;
    const long first = from <= 0 || input == 0 ? 0 : (from + 2 * map.step - 1) / (2 * map.step);
    const long stop = input == map.in - 1 ? map.out : to < 0 ? 0 : to / (2 * map.step) + 1;
    return (int2)((int)min(first, map.out), (int)min(stop, map.out));
}

// Entries of the tables: the outputs of the three axes one after the other, and the inputs of the three axes.
kernel void interpolation_tables(TENSOR_OF(int, lower), TENSOR_OF(real, fraction), TENSOR_OF(int, first),
                                 TENSOR_OF(int, stop), const Sizes sizes) {
    IMAGE_DEPTHS
    IMAGE_PLANES
    const long at = get_global_id(0), outputs = (long)od + oh + ow;
    if (at < outputs) {
        const int axis = (at >= od) + (at >= (long)od + oh);
        const axis_map map = axis == 0 ? map_of(id, od) : axis == 1 ? map_of(ih, oh) : map_of(iw, ow);
        real part;
        OPEN(lower)[at] = lower_of(map, at - (axis > 0 ? od : 0) - (axis > 1 ? oh : 0), &part);
        OPEN(fraction)[at] = part;
    } else if (at < outputs + id + ih + iw) {
        const long input = at - outputs;
        const int axis = (input >= id) + (input >= (long)id + ih);
        const axis_map map = axis == 0 ? map_of(id, od) : axis == 1 ? map_of(ih, oh) : map_of(iw, ow);
        const int2 readers = readers_of(map, input - (axis > 0 ? id : 0) - (axis > 1 ? ih : 0));
        OPEN(first)[input] = readers.x;
        OPEN(stop)[input] = readers.y;
    }
}

// What an output with a lower pixel and a fraction takes of a pixel.
#if LINEAR
#define WEIGHT(lower, fraction, pixel) \
    ((lower) == (pixel) ? REAL(1.0) - (fraction) : (lower) + 1 == (pixel) ? (fraction) : REAL(0.0))
#else
#define WEIGHT(lower, fraction, pixel) ((lower) == (pixel) ? REAL(1.0) : REAL(0.0))
#endif

#define OPEN_TABLES                                                                    \
    global const int *below = OPEN(lower), *firsts = OPEN(first), *stops = OPEN(stop); \
    global const real *fractions = OPEN(fraction);

// The value of output q of a row, among the rows z and r, z + 1 and r + 1 of a plane. Pixels of weight 0 are not read.
real value_at(global const stored *plane, const int z, const int r, const int q, const real fz, const real fr,
              const real fq, const int ih, const int iw) {
#if LINEAR
    real sum = 0;
    for (int a = 0; a <= (fz > 0); a++)
        for (int b = 0; b <= (fr > 0); b++) {
            global const stored *row = plane + ((place)(z + a) * ih + r + b) * iw + q;
            real value = LOAD(row, 0);
            if (fq > 0) value = value * (REAL(1.0) - fq) + LOAD(row, 1) * fq;
            sum += (a ? fz : REAL(1.0) - fz) * (b ? fr : REAL(1.0) - fr) * value;
        }
    return sum;
#else
    return LOAD(plane, ((place)z * ih + r) * iw + q);
#endif
}

// The gradient of a pixel of a row.
real gradient_at(global const stored *plane, global const int *below, global const real *fractions, const int z,
                 const int r, const int q, const int2 zs, const int2 rs, const int2 qs, const int od, const int oh,
                 const int ow) {
    real sum = 0;
    for (int t = zs.x; t < zs.y; t++)
        for (int u = rs.x; u < rs.y; u++) {
            const real weight = WEIGHT(below[t], fractions[t], z) * WEIGHT(below[od + u], fractions[od + u], r);
            if (weight == 0) continue;
            global const stored *row = plane + ((place)t * oh + u) * ow;
            for (int v = qs.x; v < qs.y; v++) {
                const real part = WEIGHT(below[od + oh + v], fractions[od + oh + v], q);
                if (part != 0) sum += weight * part * LOAD(row, v);
            }
        }
    return sum;
}

#define FINISH(result, at, value) STORE(result, at, accumulate ? (value) + LOAD(result, at) : (value))

// A work-item per element of PLANES planes, which share what is read of the tables: for every problem, and for GPUs.

#ifndef PLANES
#define PLANES 4
#endif
#define EACH_PLANE _Pragma("unroll") for (int p = 0; p < PLANES; p++)
// Planes beyond the last one are the last one, and not written.
#define OPEN_PLANES                                               \
    const place number = get_global_id(1) * PLANES;               \
    ulong planes_at[PLANES];                                      \
    EACH_PLANE planes_at[p] = min((ulong)number + p, planes - 1); \
    real sums[PLANES];                                            \
    EACH_PLANE sums[p] = 0;

#ifndef COLUMNS
#define COLUMNS 1  // neighbouring elements of a row that a work-item of forward makes, 4 or 1
#define QUADS 0    // whether rows have a multiple of them
#endif
#ifndef GROWS
#define GROWS 0  // whether rows of y are at least as long as those of x: a work-item's elements meet COLUMNS + 1 pixels
#endif
#define EACH_COLUMN _Pragma("unroll") for (int c = 0; c < COLUMNS; c++)
#define EACH_PIXEL _Pragma("unroll") for (int k = 0; k <= COLUMNS; k++)

// Pixels of weight 0 are read, but have no influence, whatever they are: a branch would wait for its loads.
kernel void interpolation_forward(CONST_TENSOR(x), TENSOR(y), const int accumulate, CONST_TABLES, const Sizes sizes,
                                  const ulong planes) {
    IMAGE_DEPTHS
    IMAGE_PLANES
    const place blocks = (ow + COLUMNS - 1) / COLUMNS, item = get_global_id(0), line = item / blocks;
    if (line >= (place)od * oh) return;
    OPEN_TABLES
    const place number = get_global_id(1) * PLANES;
    const int z = line / oh, r = od + (int)(line % oh), column = (int)(item - line * blocks) * COLUMNS;
    const place plane = (place)id * ih * iw;
    const int lower_z = below[z], lower_r = below[r];
    int q[COLUMNS];
    real sums[PLANES][COLUMNS];
    EACH_COLUMN q[c] = below[od + oh + min(column + c, ow - 1)];
    EACH_PLANE EACH_COLUMN sums[p][c] = 0;
    global const stored *xs = OPEN(x);
#if LINEAR
    const real fz = fractions[z], fr = fractions[r];
    real fq[COLUMNS];
    EACH_COLUMN fq[c] = fractions[od + oh + min(column + c, ow - 1)];
#if GROWS
    real met[PLANES][COLUMNS + 1];  // sums of rows
    EACH_PLANE EACH_PIXEL met[p][k] = 0;
#endif
    for (int a = 0; a <= (fz > 0); a++) {
#pragma unroll
        for (int b = 0; b < 2; b++) {
            const real weight = (a ? fz : REAL(1.0) - fz) * (b ? fr : REAL(1.0) - fr);
            const place row = ((place)(lower_z + a) * ih + min(lower_r + b, ih - 1)) * iw;
            EACH_PLANE {
                // planes beyond the last one are the last one, and not written
                global const stored *from = xs + (min((ulong)number + p, planes - 1) * plane + row);
#if GROWS
                EACH_PIXEL {
                    const real sum = met[p][k] + weight * LOAD(from, min(q[0] + k, iw - 1));
                    met[p][k] = b == 0 || fr > 0 ? sum : met[p][k];
                }
#else
                EACH_COLUMN {
                    const real left = LOAD(from, q[c]), right = LOAD(from, min(q[c] + 1, iw - 1));
                    const real value = fq[c] > 0 ? left * (REAL(1.0) - fq[c]) + right * fq[c] : left;
                    const real sum = sums[p][c] + weight * value;
                    sums[p][c] = b == 0 || fr > 0 ? sum : sums[p][c];
                }
#endif
            }
        }
    }
#if GROWS
    EACH_PLANE EACH_COLUMN {
        real left = met[p][0], right = met[p][1];
#pragma unroll
        for (int k = 1; k <= c; k++) {
            left = q[c] - q[0] == k ? met[p][k] : left;
            right = q[c] - q[0] == k ? met[p][k + 1] : right;
        }
        sums[p][c] = fq[c] > 0 ? left * (REAL(1.0) - fq[c]) + right * fq[c] : left;
    }
#endif
#else
    const place row = ((place)lower_z * ih + lower_r) * iw;
    EACH_PLANE {
        global const stored *from = xs + (min((ulong)number + p, planes - 1) * plane + row);
        EACH_COLUMN sums[p][c] = LOAD(from, q[c]);
    }
#endif
    global stored *ys = OPEN(y) + (ulong)line * ow + column;
    const bool together = QUADS && QUAD_ALIGNED_stored(ys) && !accumulate;
    EACH_PLANE {
        if (number + p >= planes) continue;
        global stored *to = ys + ((ulong)number + p) * ((ulong)od * oh * ow);
#if QUADS
        if (together) {
            WRITE_QUAD_stored(to, sums[p])
            continue;
        }
#endif
        EACH_COLUMN
        if (column + c < ow) FINISH(to, c, sums[p][c]);
    }
}

kernel void interpolation_backward(CONST_TENSOR(dy), TENSOR(dx), const int accumulate, CONST_TABLES, const Sizes sizes,
                                   const ulong planes) {
    IMAGE_DEPTHS
    IMAGE_PLANES
    const place at = get_global_id(0), line = at / iw, size = (place)id * ih * iw;
    if (at >= size) return;
    OPEN_TABLES
    OPEN_PLANES
    const int q = at % iw, r = line % ih, z = line / ih;
    const ulong plane = (ulong)od * oh * ow;
    global const stored *dys = OPEN(dy);
    for (int t = firsts[z]; t < stops[z]; t++)
        for (int u = firsts[id + r]; u < stops[id + r]; u++) {
            const real weight = WEIGHT(below[t], fractions[t], z) * WEIGHT(below[od + u], fractions[od + u], r);
            if (weight == 0) continue;
            global const stored *row = dys + ((ulong)t * oh + u) * ow;
            for (int v = firsts[id + ih + q]; v < stops[id + ih + q]; v++) {
                const real part = WEIGHT(below[od + oh + v], fractions[od + oh + v], q);
                if (part == 0) continue;
                EACH_PLANE sums[p] += weight * part * LOAD(row, planes_at[p] * plane + v);
            }
        }
    global stored *dxs = OPEN(dx);
    EACH_PLANE
    if (number + p < planes) FINISH(dxs, planes_at[p] * size + at, sums[p]);
}

// A work-item per some rows: for CPU devices.

kernel void interpolation_rows_forward(CONST_TENSOR(x), TENSOR(y), const int accumulate, CONST_TABLES,
                                       const Sizes sizes, const ulong rows, const ulong item_rows) {
    IMAGE_DEPTHS
    IMAGE_PLANES
    OPEN_TABLES
    const ulong begin = get_global_id(0) * item_rows;
    for (ulong line = begin; line < min(begin + item_rows, rows); line++) {
        const int r = od + (int)(line % oh), z = (int)(line / oh % od);
        const real fz = fractions[z], fr = fractions[r];
        const int lz = below[z], lr = below[r];
        global const stored *plane = OPEN(x) + line / oh / od * ((ulong)id * ih * iw);
        global stored *ys = OPEN(y) + line * ow;
        for (int q = 0; q < ow; q++) {
            const real value = value_at(plane, lz, lr, below[od + oh + q], fz, fr, fractions[od + oh + q], ih, iw);
            FINISH(ys, q, value);
        }
    }
}

kernel void interpolation_rows_backward(CONST_TENSOR(dy), TENSOR(dx), const int accumulate, CONST_TABLES,
                                        const Sizes sizes, const ulong rows, const ulong item_rows) {
    IMAGE_DEPTHS
    IMAGE_PLANES
    OPEN_TABLES
    const ulong begin = get_global_id(0) * item_rows;
    for (ulong line = begin; line < min(begin + item_rows, rows); line++) {
        const int r = (int)(line % ih), z = (int)(line / ih % id);
        const int2 zs = (int2)(firsts[z], stops[z]), rs = (int2)(firsts[id + r], stops[id + r]);
        global const stored *plane = OPEN(dy) + line / ih / id * ((ulong)od * oh * ow);
        global stored *dxs = OPEN(dx) + line * iw;
        for (int q = 0; q < iw; q++) {
            const int2 qs = (int2)(firsts[id + ih + q], stops[id + ih + q]);
            const real value = gradient_at(plane, below, fractions, z, r, q, zs, rs, qs, od, oh, ow);
            FINISH(dxs, q, value);
        }
    }
}
