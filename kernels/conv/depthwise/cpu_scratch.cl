// Depthwise convolution on CPU devices: planes in scratch, rows in and out, and sums over taps as one long row.
//
// A tile of a plane lies in scratch with its padding, split by the phases of the stride, so that neighbours of a phase
// are neighbours in memory. Result (u, v) then meets tap (i, j) at u * pitch + v + offset(i, j): over the whole tile a
// tap is one offset, lanes run across row ends, and no tap has a border. Results between two rows are rubbish and never
// stored. Each work-group is one work-item: local memory is its cache-resident scratch.

#ifndef NV
#define NV 4  // vectors that are summed side by side
#endif
#define SLACK (NV * VL)  // what a row or a sum may write or read beyond its end
#define HALF_V CAT(HALF_, VL)
#define HALF_16 8
#define HALF_8 4
#define HALF_4 2

#define VLOAD_REAL(p) CAT(vload, VL)(0, (p))
#define VSTORE_REAL(p, value) CAT(vstore, VL)((value), 0, (p))

// to[i] = row[start + i * step] or 0 outside [0, size), for i < length; up to VL elements more are written.
// `left` elements may be read from row on.
void read_row(local real *to, global const stored *row, const long left, const int start, const int step,
              const int size, const int length) {
    const int begin = start < 0 ? min((step - 1 - start) / step, length) : 0;
    const int end = start < size ? clamp((size - start + step - 1) / step, begin, length) : begin;
    int i = 0;
    for (; i < begin; i += VL) VSTORE_REAL(to + i, (realv)(0));
    i = begin;
    if (step == 1) {
        for (; i < end && start + i + VL <= left; i += VL) VSTORE_REAL(to + i, VLOAD(row, start + i));
    } else if (step == 2) {
        for (; i < end && start + 2 * (i + VL) <= left; i += VL) {
            const realv a = VLOAD(row, start + 2 * i), b = VLOAD(row, start + 2 * i + VL);
            VSTORE_REAL(to + i, (realv)(a.even, b.even));
        }
    }
    for (; i < end; i++) to[i] = LOAD(row, start + i * step);
    for (i = end; i < length; i += VL) VSTORE_REAL(to + i, (realv)(0));
}

// Reads `rows` rows from (row, column) on into the phases of the steps: row r to plane (r % step_h, q), line r /
// step_h.
void read_tile(local real *scratch, const int pitch, const int plane_size, global const stored *x, const long left,
               const int ih, const int iw, const int row, const int column, const int rows, const int step_h,
               const int step_w, const int phases_h, const int phases_w) {
    for (int r = 0; r < rows; r++) {
        const int a = r % step_h, h = row + r;
        if (a >= phases_h) continue;
        const bool inside = h >= 0 && h < ih;
        const long at = inside ? (long)h * iw : 0;
        local real *to = scratch + a * phases_w * plane_size + r / step_h * pitch;
        for (int q = 0; q < phases_w; q++)
            read_row(to + q * plane_size, x + at, left - at, column + q, step_w, inside ? iw : 0, pitch);
    }
}

// out[f] (+)= sum over taps of weights[t] * scratch[offsets[t] + f] for f < count; up to SLACK elements more are
// written.
void correlate(local real *out, local const real *scratch, local const int *offsets, local const real *weights,
               const int taps, const int count, const bool add, const real first) {
    for (int f = 0; f < count; f += SLACK) {
        realv sum[NV];
#pragma unroll
        for (int k = 0; k < NV; k++) sum[k] = add ? VLOAD_REAL(out + f + k * VL) : (realv)(first);
        for (int t = 0; t < taps; t++) {
            local const real *from = scratch + offsets[t] + f;
            const realv weight = (realv)(weights[t]);
#pragma unroll
            for (int k = 0; k < NV; k++) sum[k] = fma(VLOAD_REAL(from + k * VL), weight, sum[k]);
        }
#pragma unroll
        for (int k = 0; k < NV; k++) VSTORE_REAL(out + f + k * VL, sum[k]);
    }
}

// to[i] (+)= from[i] for i < length. Up to `room` elements from `to` on may be written: they are written again later.
void write_row(global stored *to, local const real *from, const int length, const long room, const int accumulate) {
    int i = 0;
    if (accumulate) {
        for (; i + VL <= length; i += VL) VSTORE(to, i, VLOAD(to, i) + VLOAD_REAL(from + i));
        for (; i < length; i++) STORE(to, i, LOAD(to, i) + from[i]);
        return;
    }
    for (; i + VL <= length; i += VL) VSTORE(to, i, VLOAD_REAL(from + i));
    if (i == length) return;
    if (length >= VL) {
        VSTORE(to, length - VL, VLOAD_REAL(from + length - VL));
    } else if (room >= VL) {
        VSTORE(to, 0, VLOAD_REAL(from));
    } else {
        for (; i < length; i++) STORE(to, i, from[i]);
    }
}

// row[v * step + q] = planes[q][v] for q < step, v * step + q < length; up to 2 * VL elements more are written.
void interleave(local real *row, local const real *planes, const int plane_size, const int step, const int length) {
    if (step == 2) {
        for (int i = 0; i < length; i += 2 * VL) {
            const realv a = VLOAD_REAL(planes + i / 2), b = VLOAD_REAL(planes + plane_size + i / 2);
            realv low, high;
            low.even = a.lo;
            low.odd = b.lo;
            high.even = a.hi;
            high.odd = b.hi;
            VSTORE_REAL(row + i, low);
            VSTORE_REAL(row + i + VL, high);
        }
    } else {
        for (int q = 0; q < step; q++)
            for (int i = q, v = 0; i < length; i += step, v++) row[i] = planes[q * plane_size + v];
    }
}

// The sum of a vector's lanes, in pairs.
real sum_lanes(local const real *vector) {
    real lanes[VL];
    for (int l = 0; l < VL; l++) lanes[l] = vector[l];
    for (int l = VL / 2; l > 0; l /= 2)
        for (int k = 0; k < l; k++) lanes[k] += lanes[k + l];
    return lanes[0];
}
