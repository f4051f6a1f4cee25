// Vectors at the ends of rows, and what their lanes make together: for softmax and its losses on CPU devices.

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
