// The end of a depthwise filter's gradient that was summed in splits: dw[o] (+)= sum over s < splits of partial[s][o].

kernel void depthwise_sum_splits(TENSOR_OF(const real, partial), TENSOR(dw_out), const int accumulate, const int splits,
                                 const long count) {
    const long o = get_global_id(0);
    real sum = accumulate ? LOAD(OPEN(dw_out), o) : 0;
    for (int s = 0; s < splits; s++) sum += OPEN(partial)[s * count + o];
    STORE(OPEN(dw_out), o, sum);
}
