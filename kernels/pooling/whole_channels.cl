// Pooling of whole images to one value for each channel, in channels last on CPU devices: vectors run along channels.
//
// x, dx  (batch, pixels, channels)    y, dy  (batch, channels)
//
// A work-group is one work-item, which owns item_channels of an image; the last one of an image owns the rest, too. It
// takes BLOCK vectors of channels at a time over all pixels, then single ones. The last vector begins where
// it ends with the channels; its first lanes have been there before. Sums are sums of those of RUN pixels,
// for any block of channels.
//
// OPERATOR  as in operators.cl; backward has no norms of power 2 and 3
// BLOCK     vectors that registers hold twice

#include "pooling/operators.cl"

#ifndef BLOCK
#define BLOCK 4
#endif
#define RUN 64
#define EACH(n) _Pragma("unroll") for (int v = 0; v < (n); v++)

#define CHANNELS_SHAPE \
    const int channels, const int items, const int item_channels, const long pixels, const long divisor
#define OPEN_CHANNELS                                                        \
    real numbers[VL];                                                        \
    for (int i = 0; i < VL; i++) numbers[i] = i;                             \
    const realv lanes = CAT(vload, VL)(0, numbers);                          \
    const long image = get_global_id(0) / items;                             \
    const int item = get_global_id(0) % items, first = item * item_channels; \
    const int last = item + 1 < items ? first + item_channels : channels;

// WORK(n, channel, again) on n vectors from `channel` on, of which the first `again` lanes have been there before.
#define EACH_BLOCK(WORK)                                                 \
    int at = first;                                                      \
    for (; at + BLOCK * VL <= last; at += BLOCK * VL) WORK(BLOCK, at, 0) \
    for (; at < last; at += VL) WORK(1, min(at, last - VL), max(at + VL - last, 0))

// What lanes that have been there before add once more is nothing.
#define FRESH(value) (again ? (lanes >= (realv)(again) ? (value) : (realv)(0)) : (value))

#define POOL(n, from, lanes_before)                                                             \
    {                                                                                           \
        const int channel = from, again = lanes_before;                                         \
        realv totals[n];                                                                        \
        EACH(n) totals[v] = START;                                                              \
        for (long run = 0; run < pixels; run += RUN) {                                          \
            global const stored *pixel = OPEN(x) + (image * pixels + run) * channels + channel; \
            realv parts[n];                                                                     \
            EACH(n) parts[v] = START;                                                           \
            for (long i = run; i < min(run + RUN, pixels); i++) {                               \
                EACH(n) {                                                                       \
                    const realv value = VLOAD(pixel, v * VL), raised = RAISE(value);            \
                    parts[v] = JOIN(parts[v], raised);                                          \
                }                                                                               \
                pixel += channels;                                                              \
            }                                                                                   \
            EACH(n) totals[v] = JOIN(totals[v], parts[v]);                                      \
        }                                                                                       \
        EACH(n) {                                                                               \
            const long to = image * channels + channel + v * VL;                                \
            const realv mean = OPERATOR == 1 ? totals[v] / (realv)(divisor) : totals[v];        \
            const realv result = ROOT(mean);                                                    \
            VSTORE(ys, to, accumulate ? FRESH(result) + VLOAD(ys, to) : result);                \
        }                                                                                       \
    }

SINGLE void pool_whole_channels_forward(CONST_TENSOR(x), TENSOR(y), const int accumulate, CHANNELS_SHAPE) {
    OPEN_CHANNELS
    global stored *ys = OPEN(y);
    EACH_BLOCK(POOL)
}

// What a pixel's vector gets; the first maximum takes all of it.
#if OPERATOR == 0
#define PASS(pixel)                                                       \
    const realv value = VLOAD(OPEN(x), pixel);                            \
    const realv passed = value == largest[v] ? gradients[v] : (realv)(0); \
    gradients[v] = value == largest[v] ? (realv)(0) : gradients[v];
#else
#define PASS(pixel) const realv passed = gradients[v];
#endif

#define SPREAD(n, from, lanes_before)                                                   \
    {                                                                                   \
        const int channel = from, again = lanes_before;                                 \
        realv gradients[n], largest[n];                                                 \
        EACH(n) {                                                                       \
            const long of = image * channels + channel + v * VL;                        \
            const realv gradient = VLOAD(OPEN(dy), of);                                 \
            const realv share = OPERATOR == 1 ? gradient / (realv)(divisor) : gradient; \
            gradients[v] = accumulate ? FRESH(share) : share;                           \
            largest[v] = OPERATOR == 0 ? VLOAD(OPEN(y), of) : (realv)(0);               \
        }                                                                               \
        long pixel = image * pixels * channels + channel;                               \
        for (long i = 0; i < pixels; i++) {                                             \
            EACH(n) {                                                                   \
                const long to = pixel + v * VL;                                         \
                PASS(to)                                                                \
                VSTORE(dxs, to, accumulate ? passed + VLOAD(dxs, to) : passed);         \
            }                                                                           \
            pixel += channels;                                                          \
        }                                                                               \
    }

SINGLE void pool_whole_channels_backward(CONST_TENSOR(x), CONST_TENSOR(y), CONST_TENSOR(dy), TENSOR(dx),
                                         const int accumulate, CHANNELS_SHAPE) {
    OPEN_CHANNELS
    global stored *dxs = OPEN(dx);
    EACH_BLOCK(SPREAD)
}
