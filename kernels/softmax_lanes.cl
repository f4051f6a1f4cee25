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

real largest_lane(const realv value) {
    real lanes[VL];
    CAT(vstore, VL)(value, 0, lanes);
    for (int rest = VL / 2; rest > 0; rest /= 2)
        for (int i = 0; i < rest; i++) lanes[i] = lanes[i + rest] > lanes[i] ? lanes[i + rest] : lanes[i];
    return lanes[0];
}

real sum_of_lanes(const realv value) {
    real lanes[VL];
    CAT(vstore, VL)(value, 0, lanes);
    for (int rest = VL / 2; rest > 0; rest /= 2)
        for (int i = 0; i < rest; i++) lanes[i] += lanes[i + rest];
    return lanes[0];
}
