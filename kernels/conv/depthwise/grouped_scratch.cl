// What the kernels for groups of few channels share: planes in scratch in rows of P elements, zeros between them.
//
// P, of C elements or twice as many, is wider than a row by what taps reach over its ends: result f = u * P + v of a
// plane then meets a tap at f + offset, and where it would be of another row there is a zero. A source is split by the
// phases of the stride (SH, SW), so that the same holds for each of them. BH, BW: the phase of the first tap.

#include "common/numbers.cl"
#include "conv/depthwise/planes.cl"

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
#if P < VL
SMALL_NUMBERS(C)
#endif
#ifdef BRAIN
#define LOAD_C(p) OF_C(widen)(OF_C(vload)(0, (p)))
#else
#define LOAD_C(p) OF_C(vload_half)(0, (p))
#endif
void STORE_C(global stored *p, const realc value) { OF_C(vstore)(OF_C(narrow)(value), 0, (global ushort *)p); }
#else
#define LOAD_C(p) OF_C(vload)(0, (p))
#define STORE_C(p, value) OF_C(vstore)((value), 0, (p))
#endif

// The first `count` lanes of a value, and zeros.
#define FIRST(value, count) select((realc)(0), value, MASK_OF_C(OF_C(NUMBERS_) < (int)(count)))

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

// The sources of a group, one after the other.
void copy_group(local real *scratch, global const stored *planes, const long left, const int ih, const int iw,
                const int phase_size) {
    for (int s = 0; s < S; s++)
        copy_plane(
            scratch + s * (SH * SW * phase_size), planes + s * (ih * iw), left - s * (ih * iw), ih, iw, phase_size);
}
