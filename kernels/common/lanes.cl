// Vectors at the ends of rows, and what their lanes make together: for softmax, its losses and LRN on CPU devices.

#define GET(p, i) CAT(vload, VL)(0, (p) + (i))
#define PUT(p, i, value) CAT(vstore, VL)((value), 0, (p) + (i))

// A vector of which only the first `count` lanes are there.
realv load_some(global const stored *p, const long i, const long count, const real fill) {
    if (count >= VL) return VLOAD(p, i);
    real lanes[VL];
    for (int lane = 0; lane < VL; lane++) lanes[lane] = fill;
    for (int lane = 0; lane < count; lane++) lanes[lane] = LOAD(p, i + lane);
    return CAT(vload, VL)(0, lanes);
}

void store_some(global stored *p, const long i, const long count, realv value, const int accumulate) {
    if (accumulate) value += load_some(p, i, count, 0);
    if (count >= VL) {
        VSTORE(p, i, value);
        return;
    }
    real lanes[VL];
    CAT(vstore, VL)(value, 0, lanes);
    for (int lane = 0; lane < count; lane++) STORE(p, i + lane, lanes[lane]);
}

// The same in a tile of which all vectors are there if `full`: a condition that a compiler takes out of loops.
#define READ(p, i, count, fill) (full ? VLOAD(p, i) : load_some(p, i, count, fill))
#define WRITE(p, i, count, value, accumulate) \
    if (full && !(accumulate))                \
        VSTORE(p, i, value);                  \
    else                                      \
        store_some(p, i, count, value, accumulate);

#if STORAGE == 64
#define REALS(n) CAT(double, n)
#else
#define REALS(n) CAT(float, n)
#endif
#define LARGER(a, b) ((b) > (a) ? (b) : (a))

// What all lanes make together, as a tree.
real largest_lane(const realv value) {
#if VL == 16
    const REALS(8) eight = LARGER(value.lo, value.hi);
#elif VL == 8
    const realv eight = value;
#endif
#if VL >= 8
    const REALS(4) four = LARGER(eight.lo, eight.hi);
#elif VL == 4
    const realv four = value;
#endif
#if VL >= 4
    const REALS(2) two = LARGER(four.lo, four.hi);
#else
    const realv two = value;
#endif
    return LARGER(two.x, two.y);
}

real sum_of_lanes(const realv value) {
#if VL == 16
    const REALS(8) eight = value.lo + value.hi;
#elif VL == 8
    const realv eight = value;
#endif
#if VL >= 8
    const REALS(4) four = eight.lo + eight.hi;
#elif VL == 4
    const realv four = value;
#endif
#if VL >= 4
    const REALS(2) two = four.lo + four.hi;
#else
    const realv two = value;
#endif
    return two.x + two.y;
}

// A row is whole vectors and a last one that overlaps them: its first `again` lanes have been there before. A row of
// fewer channels than lanes is a last vector alone, whose lanes from `beyond` on are the next row's.
#define ROWS                                                                                        \
    real numbers[VL];                                                                               \
    for (int i = 0; i < VL; i++) numbers[i] = i;                                                    \
    const realv lanes = GET(numbers, 0);                                                            \
    const long whole = channels / VL * VL, last = max(channels - VL, 0L);                           \
    const bool tail = whole < channels;                                                             \
    const realv again = channels < VL ? -REAL(1.0) : (real)(whole - last), beyond = (real)channels; \
    for (long row = get_global_id(0) * item_rows; row < min((long)(get_global_id(0) + 1) * item_rows, rows); row++)

// Whether a lane of the last vector is a channel that no whole vector holds.
#define IS_NEW ((lanes >= again) & (lanes < beyond))

// The last vector of a row; after the last row nothing can be read.
#define LAST_OF(xs) \
    (row * channels + last + VL <= rows * channels ? VLOAD(xs, last) : load_some(xs, last, channels - last, 0))

#if STORAGE != 16
#if VL == 16
#define HALF_LANES 8
#elif VL == 8
#define HALF_LANES 4
#elif VL == 4
#define HALF_LANES 2
#endif
#endif

// Stores the last vector of a row, of which lanes may stand there already. A row of fewer channels than lanes has more
// than half as many, and is written as two halves that overlap.
void store_last(global stored *ys, const long channels, const realv value, const int accumulate) {
    if (channels < VL || accumulate) {
        const long whole = channels / VL * VL;
#ifdef HALF_LANES
        if (channels >= HALF_LANES && !accumulate) {
            real kept[VL];
            PUT(kept, 0, value);
            const long rest = channels - HALF_LANES;
            CAT(vstore, HALF_LANES)(value.lo, 0, ys);
            CAT(vstore, HALF_LANES)(CAT(vload, HALF_LANES)(0, kept + rest), 0, ys + rest);
            return;
        }
#endif
        real kept[2 * VL];
        PUT(kept, 0, value);
        PUT(kept, VL, (realv)(0));
        const long again = channels < VL ? 0 : whole - (channels - VL);
        store_some(ys, whole, channels - whole, GET(kept, again), accumulate);
        return;
    }
    VSTORE(ys, channels - VL, value);
}
