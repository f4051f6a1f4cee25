// Gradients of pooling in channels last on CPU devices: vectors run along channels.
//
// x, dx  (batch, ih, iw, channels)    y, dy  (batch, oh, ow, channels); 1-D has a height of 1
//
// A work-group is one work-item, which owns some rows of dx of one image: it goes over all windows that meet them in
// their order, and adds what each gives to the elements of its rows. The last vector of a pixel begins where it ends
// with the channels; its first `again` lanes have been there before.
//
// OPERATOR  0 max, 1 average, 2 and 3 sum

#ifndef OPERATOR
#define OPERATOR 0
#endif
#define GET(p, i) CAT(vload, VL)(0, (p) + (i))

SINGLE void pool_channels_backward(CONST_TENSOR(x), CONST_TENSOR(y), CONST_TENSOR(dy), TENSOR(dx), const int accumulate,
                                   const int channels, const int ih, const int iw, const int oh, const int ow,
                                   const int kh, const int kw, const int sh, const int sw, const int ph, const int pw,
                                   const int eh, const int ew, const int count_padding, const int item_rows) {
    const int blocks = (ih + item_rows - 1) / item_rows, image = get_global_id(0) / blocks;
    const int first = get_global_id(0) % blocks * item_rows, last = min(first + item_rows, ih);
    const long row_size = (long)iw * channels;
    global const stored *xs = OPEN(x) + image * ih * row_size, *ys = OPEN(y) + (long)image * oh * ow * channels;
    global const stored *dys = OPEN(dy) + (long)image * oh * ow * channels;
    global stored *dxs = OPEN(dx) + image * ih * row_size;
    if (!accumulate)
        for (long i = first * row_size; i < last * row_size; i++) dxs[i] = 0;
    real numbers[VL];
    for (int i = 0; i < VL; i++) numbers[i] = i;
    const realv lanes = GET(numbers, 0);
    // the windows whose rows [o * sh - ph, o * sh - ph + kh) meet those of this work-item
    const int low = first + ph - kh + 1, from = low > 0 ? (low + sh - 1) / sh : 0,
              to = min((last - 1 + ph) / sh + 1, oh);
    for (int o = from; o < to; o++) {
        const int top = o * sh - ph, r0 = max(top, 0), r1 = min(top + kh, ih);
        for (int q = 0; q < ow; q++) {
            const int left = q * sw - pw, c0 = max(left, 0), c1 = min(left + kw, iw);
            const long at = ((long)o * ow + q) * channels;
#if OPERATOR == 1
            const int counted =
                count_padding ? (min(top + kh, eh) - top) * (min(left + kw, ew) - left) : (r1 - r0) * (c1 - c0);
            const real share = counted > 0 ? 1 / (real)counted : 0;
#endif
            for (int block = 0; block < channels; block += VL) {
                const int channel = min(block, channels - VL);
                realv gradient = VLOAD(dys, at + channel);
                if (channel < block) gradient = lanes >= (realv)(block - channel) ? gradient : (realv)(0);
#if OPERATOR == 0
                const realv largest = VLOAD(ys, at + channel);
                for (int r = r0; r < min(r1, last); r++) {
                    for (int c = c0; c < c1; c++) {
                        const long place = r * row_size + (long)c * channels + channel;
                        const realv value = VLOAD(xs, place);
                        const realv passed = value == largest ? gradient : (realv)(0);
                        gradient = value == largest ? (realv)(0) : gradient;  // the first maximum takes all of it
                        if (r >= first) VSTORE(dxs, place, VLOAD(dxs, place) + passed);
                    }
                }
#else
#if OPERATOR == 1
                gradient *= share;
#endif
                for (int r = max(r0, first); r < min(r1, last); r++) {
                    for (int c = c0; c < c1; c++) {
                        const long place = r * row_size + (long)c * channels + channel;
                        VSTORE(dxs, place, VLOAD(dxs, place) + gradient);
                    }
                }
#endif
            }
        }
    }
}
