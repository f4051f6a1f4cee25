// The source of a convolution of few channels on CPU devices: lines in local memory, with the padding.

#include "conv/gemm_cpu/panel.cl"

// PAIRS_OF_COLUMNS  with PAIRED: an operand is two neighbours of a row, so that lines are rows as memory has them; else
//                   it is two planes' elements
//
// line_number  an element of a line

#ifndef PAIRS_OF_COLUMNS
#define PAIRS_OF_COLUMNS 0
#endif
#if PAIRS_OF_COLUMNS
typedef number line_number;
typedef numbers line_numbers;
#else
typedef operand line_number;
typedef operandv line_numbers;
#endif

#if PAIRED && !PAIRS_OF_COLUMNS
// Of two planes, the second one `apart` elements after the first; 0: there is none, and its numbers are zeros.
#define LINE_ELEMENT(row, i) (PLANE_NUMBER(row, i) | (apart ? (uint)PLANE_NUMBER(row, (i) + apart) << 16 : 0u))
#define LINE_VECTOR(row, i)                        \
    (CAT(convert_uint, VL)(NUMBERS_FROM(row, i)) | \
     (apart ? CAT(convert_uint, VL)(NUMBERS_FROM(row, (i) + apart)) << 16 : (operandv)(0)))
#else
#define LINE_ELEMENT(row, i) PLANE_NUMBER(row, i)
#define LINE_VECTOR(row, i) NUMBERS_FROM(row, i)
#endif

// Copies rows [first, first + count) of a plane of (ih, iw), or of two as pairs, after `before` zeros into rows of
// `pitch` numbers, a multiple of VL; what lies outside of the plane is zero.
void fill_lines(local line_number *lines, global const stored *plane, const long apart, const int first,
                const int count, const int pitch, const int before, const int ih, const int iw) {
    const int begin = min(before, pitch), length = min(iw, pitch - begin), end = begin + length;
    for (int r = 0; r < count; r++) {
        local line_number *to = lines + r * pitch;
        const int h = first + r;
        if (h < 0 || h >= ih) {
            for (int i = 0; i < pitch; i += VL) STORE_OPERANDS(to + i, (line_numbers)(0));
            continue;
        }
        global const stored *row = plane + (long)h * iw;
        for (int i = 0; i < begin; i++) to[i] = 0;
        COPY_PIECE(length, STORE_OPERANDS(to + begin + i, LINE_VECTOR(row, i)), to[begin + i] = LINE_ELEMENT(row, i))
        for (int i = end; i < pitch; i++) to[i] = 0;
    }
}
