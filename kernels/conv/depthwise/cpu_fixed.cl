// Depthwise convolution of planes of one size on CPU devices, straight from memory: all sizes of a plane are known to
// the compiler, and a row of results is NV vectors of VL lanes, of which the last overlaps, or one that is longer.
//
// source (batch, channels / shared, IH, IW)   weights (channels, KH, KW)   target (batch, channels, OH, OW)
//
// Forward, and backward data at stride 1, which is forward with weights in the opposite order (FLIP) and other padding.
// Result (u, v) meets tap (i, j) at row u * SH + BH + i * DH, column v * SW + BW + j * DW. R rows of results, which lie
// DH apart, are summed side by side and share the vectors they load; lanes of other rows are masked. Blocks of R rows
// follow one another, the last of them overlaps. Where a vector is longer than a row, what lies after the row's end
// belongs to rows and planes that the same work-item stores later; DH is 1 then. Where it does not, and where a load
// would leave the tensor, elements are used instead. Each work-group is one work-item.
//
// PAST_CACHES  target is too large to be found in a cache again: rows of whole vectors are stored past them
//
// Vectors of 16 bits are converted at each tap, next to the products. Where a row is one vector, a plane is converted
// once, into private memory with room around it. Not so of bfloat16, two neighbours of which are the halves of a number
// of 32 bits, at stride 2 (LOAD_PAIR), and at stride 1 with PAIRS, for odd numbers of columns of taps: a vector has
// results of even places, another one those of odd places. Where rows are short, these are places of JOINED rows, one
// after the other; source and target then have one width, and the R pairs of vectors are a whole plane.

#include "common/epilogue.cl"
#ifndef PAIRS
#define PAIRS 0
#endif
#ifndef JOINED
#define JOINED 1
#endif
#if PAIRS
#define LINES ((R - 1) * JOINED + KH)
#define COLUMNS KW
#endif
#if STORAGE == 16 && OW <= VL && !PAIRS && !(defined(BRAIN) && SW == 2)
#define CONVERTED  // a plane, before it is read
#endif
#ifdef CONVERTED
#define LINE_VLOAD(p, i) CAT(vload, VL)(0, (p) + (i))
#define OF_LINE const real
#endif
#include "conv/depthwise/cpu_lines.cl"
#include "conv/past_caches.cl"

#define TAPS (KH * KW)
// Inlined, a block's first row is a constant. With many taps of a converted plane or of pairs, compilers may then spill
// a vector for each weight, and loading these takes longer than asking for each line.
#if TAPS <= 9 || !(defined(CONVERTED) || PAIRS)
#define PLACED inline __attribute__((always_inline))
#else
#define PLACED __attribute__((noinline))
#endif
#define WEIGHT(t) (FLIP ? TAPS - 1 - (t) : (t))
#if PAIRS
#define WIDE (2 * VL)  // results side by side
#else
#define WIDE VL
#endif
#define ROW (JOINED * OW)  // results of a row, or of rows that are joined
#define NV ((ROW + WIDE - 1) / WIDE)
#define LAST_V (ROW > WIDE ? ROW - WIDE : 0)  // where the last vector of a row begins
// Lines that the next block is the first to read, and its results, are asked for where each vector of this one is
// summed. In rows of one vector these are few lines, which prefetchers foresee.
#if OW > VL
#define ASK_AHEAD(from, to, past)                                                                     \
    _Pragma("unroll") for (int k = 0; k < R * SH; k++) _Pragma("unroll") for (int q = 0; q < SW; q++) \
        PREFETCH((from) + ((LINES + k) * DH * IW + q * VL));                                          \
    _Pragma("unroll") for (int k = R; !past && k < 2 * R; k++) PREFETCH_TO_WRITE((to) + k * DH * OW);
#else
#define ASK_AHEAD(from, to, past)
#endif
// Adds the products of line r of a block, vector j, to the rows that it meets.
#define ADD_TO_ROWS(r, j, value)                                                                       \
    _Pragma("unroll") for (int k = 0; k < R; k++) if ((r) - k * SH >= 0 && (r) - k * SH < KH) sum[k] = \
        fma(inner ? value : MASKED(value, masks[j]), (realv)(weights[((r) - k * SH) * KW + (j)]), sum[k]);
#define ADD_LINE(r)                                                            \
    if ((r) < LINES && (middle || (h + (r) * DH >= 0 && h + (r) * DH < IH))) { \
        OF_LINE *line = from + (r) * DH * IW;                                  \
        _Pragma("unroll") for (int j = 0; j < KW; j += 2) {                    \
            realv a, b = 0;                                                    \
            LOAD_PAIR(line, j, a, b)                                           \
            ADD_TO_ROWS(r, j, a)                                               \
            if (j + 1 < KW) ADD_TO_ROWS(r, j + 1, b)                           \
        }                                                                      \
    }

// Results of a row, `apart` from each other, with all checks, where loads of vectors would leave the tensor.
__attribute__((noinline)) realv sum_row(global const stored *plane, global const stored *filter, const int u,
                                        const int v, const int apart, const real start) {
    real row[VL];
    for (int l = 0; l < VL; l++) {
        const int place = v + l * apart, further = JOINED > 1 ? place / OW : 0;
        const int h = (u + further) * SH + BH, column = (place - further * OW) * SW + BW;
        row[l] = start;
        for (int i = 0; i < KH; i++) {
            const int y = h + i * DH;
            if (y < 0 || y >= IH) continue;
            for (int j = 0; j < KW; j++) {
                const int c = column + j * DW, t = i * KW + j;
                if (c >= 0 && c < IW) row[l] = fma(LOAD(plane, y * IW + c), LOAD(filter, WEIGHT(t)), row[l]);
            }
        }
    }
    return CAT(vload, VL)(0, row);
}

// Stores or adds `count` elements one by one, where a vector is longer.
void put_row(global stored *to, const real *row, const int count, const int accumulate) {
    for (int v = 0; v < count; v++) STORE(to, v, accumulate ? LOAD(to, v) + row[v] : row[v]);
}

#ifdef CONVERTED
// Elements around a plane that vectors may meet: from the line of the first tap on, up to that of the last one.
#define MAGNITUDE(n) ((n) < 0 ? -(n) : (n))
#define ROOM (MAGNITUDE(BH) * IW + MAGNITUDE(BW) + (LINES + KH) * IW + (KW - 1) * DW + 2 * SW * VL)
#define IS_LOADABLE(low, high) true
// Two planes where they are small: what is stored now is read in other steps than it was stored in, for which a
// processor waits. The first lines of a large plane have arrived when its last ones are stored, and two would not stay
// in the L1 cache.
#define PLANES_KEPT (IH * IW > 1536 ? 1 : 2)

void convert_plane(real *to, global const stored *plane) {
    int i = 0;
    for (; i + VL <= IH * IW; i += VL) CAT(vstore, VL)(VLOAD(plane, i), 0, to + i);
    if (IH * IW >= VL && i < IH * IW) {
        i = IH * IW - VL;
        CAT(vstore, VL)(VLOAD(plane, i), 0, to + i);
        return;
    }
    for (; i < IH * IW; i++) to[i] = LOAD(plane, i);
}
#else
#define IS_LOADABLE(low, high) (before + (low) >= 0 && (high) <= after)
#endif

#if PAIRS
typedef CAT(uint, VL) wordv;
#define AS_WORDS CAT(as_uint, VL)
#define AS_REALS CAT(as_float, VL)
#define UPPER 0xffff0000u
#define PLACES(p) (2 * LANES + (p))  // of the lanes of the even places, or of the odd ones

// The nearest numbers of 16 bits, side by side.
#if PAIRED
#define WORDS_OF(value) CAT(convert_uint, VL)(CAT(narrow, VL)(value))
wordv rounded(const realv even, const realv odd) { return WORDS_OF(even) | WORDS_OF(odd) << 16; }
#else
wordv nearest(const realv value) {
    const wordv bits = AS_WORDS(value);
    const wordv rounded = bits + 0x7fffu + ((bits >> 16) & 1u), nan = bits | 0x400000u;
    return (bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded;
}
wordv rounded(const realv even, const realv odd) { return (nearest(even) >> 16) | (nearest(odd) & UPPER); }
#endif

#if JOINED > 1
#define FURTHER(p) (PLACES(p) / OW)  // rows
#else
#define FURTHER(p) 0
#endif
// Whether the element that place p meets is in its row, which begins at `column`, or the place has no result.
maskv place_inside(const intv place, const intv further, const int v, const int column) {
    const intv at = place - further * OW + column;
    return TO_MASK(((at >= 0) & (at < IW)) | (place + v >= ROW));
}
// Whether it is in one of the plane's lines, where the vector's first row begins in line h.
maskv line_inside(const intv further, const int h) { return TO_MASK((further + h >= 0) & (further + h < IH)); }

#define ADD_PAIRS(r)                                                                                \
    if ((r) < LINES && (middle || (h + (r) + JOINED > 0 && h + (r) < IH))) {                        \
        global const stored *line = from + (r) * IW;                                                \
        const bool cut = JOINED > 1 && (h + (r) < 0 || h + (r) + JOINED > IH);                      \
        realv x[KW + 1];                                                                            \
        _Pragma("unroll") for (int j = 0; j <= KW; j += 2) {                                        \
            const wordv both = CAT(vload, VL)(0, (global const uint *)(line + j));                  \
            x[j] = AS_REALS(both << 16);                                                            \
            x[j + 1] = AS_REALS(both & UPPER);                                                      \
        }                                                                                           \
        _Pragma("unroll") for (int j = 0; j < KW; j++) {                                            \
            const maskv mask0 = cut ? masks[0][j] & line_inside(FURTHER(0), h + (r)) : masks[0][j]; \
            const maskv mask1 = cut ? masks[1][j] & line_inside(FURTHER(1), h + (r)) : masks[1][j]; \
            const realv a = MASKED(x[j], mask0), b = MASKED(x[j + 1], mask1);                       \
            _Pragma("unroll") for (int k = 0; k < R; k++) {                                         \
                if ((r) < k * JOINED || (r) - k * JOINED >= KH) continue;                           \
                even[k] = fma(a, (realv)(weights[((r) - k * JOINED) * KW + j]), even[k]);           \
                odd[k] = fma(b, (realv)(weights[((r) - k * JOINED) * KW + j]), odd[k]);             \
            }                                                                                       \
        }                                                                                           \
    }

// As the other one.
PLACED void sum_block(global const stored *plane, global const stored *lines, const long before, const long after,
                      global const stored *filter, const real *weights, global stored *to, const int u0,
                      const int again, const bool middle, const bool inner, const long room, const real start,
                      const int accumulate, const bool past, const int channel, const int n TAKE_EPILOGUE) {
    const int h = u0 + BH;
    const int v = min(n * WIDE, LAST_V), column = v + BW, low = max(h, 1 - JOINED) * IW + column;
    const int high = (min(h + LINES, IH) - 1) * IW + column + KW - 1 + WIDE;
    global const stored *from = lines + (h * IW + column);
    realv even[R], odd[R];
    ASK_AHEAD(from - BW, to + (u0 * OW + v), false)
    maskv masks[2][KW];
#pragma unroll
    for (int j = 0; j < KW; j++) {
        masks[0][j] = place_inside(PLACES(0), FURTHER(0), v, column + j);
        masks[1][j] = place_inside(PLACES(1), FURTHER(1), v, column + j);
    }
    if (before + low >= 0 && high <= after) {
#pragma unroll
        for (int k = 0; k < R; k++) even[k] = odd[k] = start;
        FOR_21_LINES(ADD_PAIRS)
    } else {
#pragma unroll
        for (int k = 0; k < R; k++) {
            even[k] = sum_row(plane, filter, u0 + k * JOINED, v, 2, start);
            odd[k] = sum_row(plane, filter, u0 + k * JOINED, v + 1, 2, start);
        }
    }
#pragma unroll
    for (int k = 0; k < R; k++) {
        const int at = (u0 + k * JOINED) * OW + v, count = min(ROW, OH * OW - at);
        even[k] = EPILOGUE_VECTOR(even[k], channel, 0);
        odd[k] = EPILOGUE_VECTOR(odd[k], channel, 0);
        if (accumulate && k < again) continue;
        if (count < WIDE && at + WIDE > room) {
            real both[2][VL], row[WIDE];
            CAT(vstore, VL)(even[k], 0, both[0]);
            CAT(vstore, VL)(odd[k], 0, both[1]);
            for (int l = 0; l < WIDE; l++) row[l] = both[l % 2][l / 2];
            put_row(to + at, row, count, accumulate);
            continue;
        }
        global uint *words = (global uint *)(to + at);
        if (accumulate) {
            const wordv old = CAT(vload, VL)(0, words);
#define MINE(p) TO_MASK((PLACES(p) >= n * WIDE - v) & (PLACES(p) + v < ROW) & (PLACES(p) < OH * OW - at))
            even[k] = AS_REALS(old << 16) + MASKED(even[k], MINE(0));
            odd[k] = AS_REALS(old & UPPER) + MASKED(odd[k], MINE(1));
        }
        CAT(vstore, VL)(rounded(even[k], odd[k]), 0, words);
    }
}
#else
// Vector n of R rows from row u0 on, of which `again` have been stored before; `middle`: no tap lies above or below the
// plane. The tensor has `before` elements before the plane and `after` from its begin on; the work-item's results end
// `room` elements after the begin of this plane's. `lines`: the plane, or what it was converted to.
PLACED void sum_block(global const stored *plane, OF_LINE *lines, const long before, const long after,
                      global const stored *filter, const real *weights, global stored *to, const int u0,
                      const int again, const bool middle, const bool inner, const long room, const real start,
                      const int accumulate, const bool past, const int channel, const int n TAKE_EPILOGUE) {
    const int dw = DW, h = u0 * SH + BH;
    const int v = min(n * VL, LAST_V);
    realv sum[R];
    const int column = v * SW + BW, low = max(h, 0) * IW + column;
    const int high = min(h + (LINES - 1) * DH, IH - 1) * IW + column + (KW - 1) * DW + SW * VL;
    OF_LINE *from = lines + (h * IW + column);
    maskv masks[KW];
#pragma unroll
    for (int j = 0; j < KW; j++) masks[j] = lanes_inside(column + j * DW, IW) | TO_MASK(LANES + v >= OW);
    ASK_AHEAD(from - BW, to + (u0 * OW + v), past)
    if (IS_LOADABLE(low, high)) {
#pragma unroll
        for (int k = 0; k < R; k++) sum[k] = start;
        FOR_21_LINES(ADD_LINE)
    } else {
#pragma unroll
        for (int k = 0; k < R; k++) sum[k] = sum_row(plane, filter, u0 + k * DH, v, 1, start);
    }
#pragma unroll
    for (int k = 0; k < R; k++) {
        const int at = (u0 + k * DH) * OW + v;
        sum[k] = EPILOGUE_VECTOR(sum[k], channel, 0);
        if (accumulate && k < again) continue;
        if (OW < VL && at + VL > room) {
            real row[VL];
            CAT(vstore, VL)(sum[k], 0, row);
            put_row(to + at, row, OW, accumulate);
        } else {
            const maskv mine = TO_MASK((LANES >= n * VL - v) & (LANES + v < OW));
            if (accumulate) sum[k] = VLOAD(to, at) + MASKED(sum[k], mine);
            PUT_VECTOR(past, to, at, sum[k])
        }
    }
}

#endif

// All vectors of a block. A few are no loop: compilers may leave it one, whose masks are not constants. Between the
// first and the last one of many no lane is masked, unless the padding is wider than a vector.
#define SUM_VECTOR(u0, again, middle, inner, n)                                                                       \
    sum_block(from, lines, plane, all - plane, filter, weights, to, u0, again, middle, inner, (last - t) * (OH * OW), \
              start, accumulate, past, channel, n PASS_EPILOGUE);
#define NONE_MASKED (WIDE * SW + BW >= 0 && ((NV - 1) * WIDE - 1) * SW + BW + (KW - 1) * DW < IW)
#if NV > (TAPS <= 9 ? 4 : 2)
#define SUM_BLOCK(u0, again, middle)                                                   \
    {                                                                                  \
        SUM_VECTOR(u0, again, middle, false, 0)                                        \
        for (int n = 1; n < NV - 1; n++) SUM_VECTOR(u0, again, middle, NONE_MASKED, n) \
        SUM_VECTOR(u0, again, middle, false, NV - 1)                                   \
    }
#else
#define SUM_BLOCK(u0, again, middle)                        \
    {                                                       \
        SUM_VECTOR(u0, again, middle, false, 0)             \
        if (NV > 1) SUM_VECTOR(u0, again, middle, false, 1) \
        if (NV > 2) SUM_VECTOR(u0, again, middle, false, 2) \
        if (NV > 3) SUM_VECTOR(u0, again, middle, false, 3) \
    }
#endif

kernel void depthwise_fixed(CONST_TENSOR(x), CONST_TENSOR(w), CONST_TENSOR(b), TENSOR(y), const int has_bias,
                            const int accumulate, const int batch, const int channels, const int shared,
                            const int item_planes EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    const long targets = (long)batch * channels, all = targets / shared * (IH * IW);
    const long first = get_global_id(0) * (long)item_planes, last = min(first + item_planes, targets);
    const bool past = GOES_PAST(OPEN(y), OW % VL == 0 && !accumulate);
    int channel = first % channels, left = shared - (int)(first % shared);
    long plane = first / shared * (IH * IW);
#ifdef CONVERTED
    real kept[PLANES_KEPT][IH * IW + 2 * ROOM];
    for (int i = 0; i < IH * IW + 2 * ROOM; i++) kept[0][i] = kept[PLANES_KEPT - 1][i] = 0;
    int now = 0;
    if (PLANES_KEPT > 1 && first < last) convert_plane(kept[0] + ROOM, OPEN(x) + plane);
#endif
    for (long t = first; t < last; t++) {
        global const stored *from = OPEN(x) + plane, *filter = OPEN(w) + (long)channel * TAPS;
#ifdef CONVERTED
        if (PLANES_KEPT == 1 && (t == first || left == shared)) convert_plane(kept[0] + ROOM, from);
        if (PLANES_KEPT > 1 && left == 1 && t + 1 < last) convert_plane(kept[now ^ 1] + ROOM, from + IH * IW);
        const real *lines = kept[now] + ROOM;
#else
        global const stored *lines = from;
#endif
        global stored *to = OPEN(y) + t * (OH * OW);
        const real start = has_bias ? LOAD(OPEN(b), channel) : 0;
        real weights[TAPS];
#pragma unroll
        for (int i = 0; i < TAPS; i++) weights[i] = LOAD(filter, WEIGHT(i));
        for (int d = 0; d < DH; d++) {  // rows that lie DH apart share lines
            const int rows = (OH - d + DH - 1) / DH;
            SUM_BLOCK(d, 0, false)
            for (int k = R; JOINED == 1 && k + R < rows; k += R) SUM_BLOCK(d + k * DH, 0, true)
            if (rows > R * JOINED) SUM_BLOCK(d + (rows - R) * DH, (rows + R - 1) / R * R - rows, false)
        }
        if (--left == 0) {
            left = shared;
            plane += IH * IW;
#ifdef CONVERTED
            now ^= PLANES_KEPT - 1;
#endif
        }
        if (++channel == channels) channel = 0;
    }
}
