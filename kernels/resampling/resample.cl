// The middle axis of x (outer, in, inner) resampled to out elements, each a weighted sum of some: index and weight are
// (out, taps). An index outside of the axis adds nothing, and neither does a weight of 0.

kernel void resample_elements(CONST_TENSOR(x), TENSOR_OF(const int, index), TENSOR_OF(const real, weight), TENSOR(y),
                              const int accumulate, const ulong outer, const ulong in, const ulong out,
                              const ulong inner, const ulong taps) {
    const ulong item = get_global_id(0);
    if (item >= outer * out * inner) return;
    global const stored *xs = OPEN(x);
    global const int *indices = OPEN(index);
    global const real *weights = OPEN(weight);
    global stored *ys = OPEN(y);
    const ulong i = item % inner, j = item / inner % out, o = item / inner / out;
    real total = 0;
    for (ulong t = j * taps; t < (j + 1) * taps; t++) {
        const int at = indices[t];
        const real factor = weights[t];
        if (at >= 0 && (ulong)at < in && factor != 0) total += factor * LOAD(xs, (o * in + at) * inner + i);
    }
    STORE(ys, item, accumulate ? LOAD(ys, item) + total : total);
}
