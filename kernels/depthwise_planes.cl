// Depthwise convolution of small planes on CPU devices: planes lie in scratch in rows of P elements, zeros between them.
//
// source (planes, ih, iw)   weights (channels, KH, KW)   target (planes, oh, ow)
//
// P, of C elements or twice as many, is wider than a row by what taps reach over its ends: result f = u * P + v of a plane
// then meets a tap at f + offset, and where it would be of another row there is a zero. A source is split by the phases of
// the stride (SH, SW), so that the same holds for each of them. BH, BW: the phase of the first tap.
// Two planes take turns in scratch: one is copied while the other is summed, and no load waits for a store.
// Each work-group is one work-item.

#define TAPS (KH * KW)
#if P < VL
#define C P
#else
#define C VL
#endif
#define OF_C(name) CAT(name, C)
#if STORAGE == 64
typedef OF_C(double) realc;
#define MASK_OF_C OF_C(convert_long)
#else
typedef OF_C(float) realc;
#define MASK_OF_C
#endif
#if STORAGE == 16
#define LOAD_C(p) OF_C(vload_half)(0, (p))
// As whole numbers: see store_halves.
void STORE_C(global half *p, const realc value) {
    OF_C(ushort) bits;
    CAT(OF_C(vstore_half), _rte)(value, 0, (half *)&bits);
    OF_C(vstore)(bits, 0, (global ushort *)p);
}
#else
#define LOAD_C(p) OF_C(vload)(0, (p))
#define STORE_C(p, value) OF_C(vstore)((value), 0, (p))
#endif

constant int NUMBERS[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
// The first `count` lanes of a value, and zeros.
#define FIRST(value, count) select((realc)(0), value, MASK_OF_C(OF_C(vload)(0, NUMBERS) < (int)(count)))

// Elements from `row` on, `count` of them and then zeros; `left` may be read.
realc load_part(global const stored *row, const int count, const long left) {
    if (left >= C) return FIRST(LOAD_C(row), count);
    real lanes[C];
#pragma unroll
    for (int l = 0; l < C; l++) lanes[l] = l < count ? LOAD(row, l) : 0;
    return OF_C(vload)(0, lanes);
}

// Brings a plane into scratch, whose first element is that of row 0; `left` elements may be read.
void copy_plane(local real *scratch, global const stored *plane, const long left, const int ih, const int iw,
                const int phase_size) {
    for (int h = 0; h < ih; h++) {
        const int at = h * iw;
        local real *to = scratch + (h % SH * SW * phase_size + h / SH * P);
#pragma unroll
        for (int c = 0; c < P; c += C) {
#if SW == 1
            OF_C(vstore)(load_part(plane + at + c, iw - c, left - at - c), 0, to + c);
#else
            const realc a = load_part(plane + at + 2 * c, iw - 2 * c, left - at - 2 * c);
            const realc b = load_part(plane + at + 2 * c + C, iw - 2 * c - C, left - at - 2 * c - C);
            OF_C(vstore)((realc)(a.even, b.even), 0, to + c);
            OF_C(vstore)((realc)(a.odd, b.odd), 0, to + phase_size + c);
#endif
        }
    }
}

// Writes `count` elements; what lies behind them is written later, or is not of the `room` elements that may be written.
void put_part(global stored *to, const realc value, const int count, const long room, const int accumulate) {
    if (room >= C) {
        realc all = value;
        if (accumulate) all = LOAD_C(to) + FIRST(value, count);
        STORE_C(to, all);
    } else {
        real lanes[C];
        OF_C(vstore)(value, 0, lanes);
        for (int l = 0; l < count; l++) STORE(to, l, accumulate ? LOAD(to, l) + lanes[l] : lanes[l]);
    }
}

// Target plane t comes of source plane t / shared; `flip` takes the weights backwards. A plane has `blocks` blocks of R
// vectors of results; scratch holds two planes, of SH * SW phases; in each of them `lead` elements lie before row 0.
kernel void depthwise_planes(CONST_TENSOR(x), CONST_TENSOR(w), CONST_TENSOR(b), TENSOR(y), const int has_bias,
                             const int accumulate, const long targets, const int channels, const int shared, const int flip,
                             const int ih, const int iw, const int oh, const int ow, const int first_tap, const int lead,
                             const int blocks, const int phase_size, const int item_planes, local real *scratch) {
    const int source_size = ih * iw, size = oh * ow, plane_size = SH * SW * phase_size;
    const long first = get_global_id(0) * (long)item_planes, last = min(first + item_planes, targets);
    const long all = targets / shared * source_size;
    for (int i = 0; i < 2 * plane_size; i += C) OF_C(vstore)((realc)(0), 0, scratch + i);
    copy_plane(scratch + lead, OPEN(x) + first / shared * source_size, all - first / shared * source_size, ih, iw, phase_size);
    int channel = first % channels;
    for (long t = first; t < last; t++) {
        if (t + 1 < last) {
            const long next = (t + 1) / shared * source_size;
            copy_plane(scratch + lead + ((t - first + 1) % 2 ? plane_size : 0), OPEN(x) + next, all - next, ih, iw, phase_size);
        }
        global const stored *from = OPEN(w) + (long)channel * TAPS;
        real weights[TAPS];
#pragma unroll
        for (int i = 0; i < TAPS; i++) weights[i] = LOAD(from, flip ? TAPS - 1 - i : i);
        const real start = has_bias ? LOAD(OPEN(b), channel) : 0;
        for (int block = 0; block < blocks; block++) {
            local const real *plane =
                scratch + ((t - first) % 2 ? plane_size : 0) + (lead + first_tap + block * (R * VL));
            realv sum[R];
#pragma unroll
            for (int k = 0; k < R; k++) sum[k] = start;
#pragma unroll
            for (int i = 0; i < KH; i++) {
#pragma unroll
                for (int j = 0; j < KW; j++) {
                    const int h = i * DH + BH, v = j * DW + BW;
                    local const real *tap = plane + (h % SH * SW + v % SW) * phase_size + (h / SH * P + v / SW);
#pragma unroll
                    for (int k = 0; k < R; k++)
                        sum[k] = fma(CAT(vload, VL)(0, tap + k * VL), (realv)(weights[i * KW + j]), sum[k]);
                }
            }
#pragma unroll
            for (int k = 0; k < R; k++) {
                const int f = (block * R + k) * VL, u = f / P, v = f % P;
                global stored *to = OPEN(y) + t * size + u * ow + v;
                const long room = (last - t) * size - u * ow - v;
#if P < VL
                if (u < oh) put_part(to, sum[k].lo, ow, room, accumulate);
                if (u + 1 < oh) put_part(to + ow, sum[k].hi, ow, room - ow, accumulate);
#else
                if (u < oh && v < ow) put_part(to, sum[k], ow - v, room, accumulate);
#endif
            }
        }
        if (++channel == channels) channel = 0;
    }
}
