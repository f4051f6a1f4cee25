// Lines of a plane as vectors: loads for the depthwise kernels that read straight from memory.
//
// A block reads LINES lines, and of each of them COLUMNS vectors, which lie as far apart as taps do. In a block that
// touches the plane's border, lines are left out and lanes are masked, so that no element of another row or plane takes
// part.

#include "common/numbers.cl"
#include "common/prefetch.cl"

#ifndef R
#define R 4  // rows of results that share their loads
#endif
#ifndef KH
#define KH 3
#define KW 3
#define SH 1
#define SW 1
#endif
#ifndef LINES
#define LINES ((R - 1) * SH + KH)
#define COLUMNS KW
#endif

// For as many lines; not a loop: compilers may not unroll it where it knows which lines are not there.
// clang-format off
#define FOR_14_LINES(ADD) \
    ADD(0) ADD(1) ADD(2) ADD(3) ADD(4) ADD(5) ADD(6) ADD(7) ADD(8) ADD(9) ADD(10) ADD(11) ADD(12) ADD(13)
#define FOR_21_LINES(ADD) FOR_14_LINES(ADD) ADD(14) ADD(15) ADD(16) ADD(17) ADD(18) ADD(19) ADD(20)
// clang-format on

#if STORAGE == 64
typedef long maske;
typedef CAT(long, VL) maskv;
#define MASKED(value, mask) CAT(as_double, VL)(CAT(as_long, VL)(value) & (mask))
#define TO_MASK(value) CAT(convert_long, VL)(value)
#else
typedef int maske;
typedef CAT(int, VL) maskv;
#define MASKED(value, mask) CAT(as_float, VL)(CAT(as_int, VL)(value) & (mask))
#define TO_MASK(value) (value)
#endif
// LINE_VLOAD(p, i): a vector of a line, where these are not those of a tensor; OF_LINE: what `line` points to.
#ifndef LINE_VLOAD
#define LINE_VLOAD(p, i) VLOAD(p, i)
#define OF_LINE global const stored
#define LINES_OF_TENSORS
#endif

typedef CAT(int, VL) intv;
// masks in tables
#define VLOAD_MASK(p) CAT(vload, VL)(0, (p))
#define VSTORE_MASK(p, value) CAT(vstore, VL)((value), 0, (p))
#define LANES CAT(NUMBERS_, VL)

// Which lanes of a vector have their element lane * SW + column in [0, size).
maskv lanes_inside(const int column, const int size) {
    const intv at = LANES * SW + column;
    return TO_MASK((at >= 0) & (at < size));
}

// Vectors j and j + 1 of a line.
#if SW == 1
#define LOAD_PAIR(line, j, a, b)    \
    a = LINE_VLOAD(line, (j) * dw); \
    if ((j) + 1 < COLUMNS) b = LINE_VLOAD(line, ((j) + 1) * dw);
#elif defined(BRAIN) && defined(LINES_OF_TENSORS)
// Two numbers of 16 bits are the halves of one of 32.
#define LOAD_PAIR(line, j, a, b)                                                           \
    {                                                                                      \
        const CAT(uint, VL) both = CAT(vload, VL)(0, (global const uint *)((line) + (j))); \
        a = CAT(as_float, VL)(both << 16);                                                 \
        if ((j) + 1 < COLUMNS) b = CAT(as_float, VL)(both & 0xffff0000u);                  \
    }
#else
#define LOAD_PAIR(line, j, a, b)                                                  \
    {                                                                             \
        const realv low = LINE_VLOAD(line, j), high = LINE_VLOAD(line, (j) + VL); \
        a = (realv)(low.even, high.even);                                         \
        if ((j) + 1 < COLUMNS) b = (realv)(low.odd, high.odd);                    \
    }
#endif

// DO(r, j, value) for each line r and vector j. `from` is the block's first element, in line h of [0, ih).
#define FOR_LINES(DO, EDGE)                                           \
    _Pragma("unroll") for (int r = 0; r < LINES; r++) {               \
        if (EDGE && (h + r * dh < 0 || h + r * dh >= ih)) continue;   \
        global const stored *line = from + (long)r * dh * iw;         \
        _Pragma("unroll") for (int j = 0; j < COLUMNS; j += 2) {      \
            realv a, b = 0;                                           \
            LOAD_PAIR(line, j, a, b)                                  \
            if (EDGE) a = MASKED(a, masks[j]);                        \
            if (EDGE && j + 1 < COLUMNS) b = MASKED(b, masks[j + 1]); \
            DO(r, j, a)                                               \
            if (j + 1 < COLUMNS) DO(r, j + 1, b)                      \
        }                                                             \
    }

// Whether a block at (h, column) touches no border.
bool block_inside(const int h, const int column, const int ih, const int iw, const int dh, const int dw) {
    return h >= 0 && h + (LINES - 1) * dh < ih && column >= 0 && column + (COLUMNS - 1) * dw + SW * VL <= iw;
}

// Whether a block's loads stay in the tensor of `all` elements, of which `plane` lie before the plane.
bool block_loadable(const long plane, const long all, const int h, const int column, const int ih, const int iw,
                    const int dh, const int dw) {
    const long low = plane + max(h, 0) * (long)iw + column;
    const long high = plane + min(h + (LINES - 1) * dh, ih - 1) * (long)iw + column + (COLUMNS - 1) * dw + SW * VL;
    return low >= 0 && high <= all;
}
