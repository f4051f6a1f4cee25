// The loss of probabilities against labels, and its gradient at the input of the softmax.
//
// y, dy, dx  (images, channels, pixels)    label  (images, pixels), a channel's number each; fractions are cut off
// loss (1)    counts (2), whole numbers: labels that count, and those that count but name no channel
//
//   loss  sum of -log(max(y at the label, lowest)); a label that names no channel adds nothing
//   dx    (y - target) * scale, times dy if WEIGHTED, divided by counts[0] (at least 1) if BY_COUNT; target is 1 -
//         smooth at the label and smooth / (channels - 1) elsewhere. A label that names no channel has no target of 1.
//
//   crossentropy_parts     parts of the sums; crossentropy_join adds them up
//   crossentropy_planes    CPUs: vectors along the pixels of a channel
//   crossentropy_rows      CPUs, one pixel: vectors along a row of channels
//   crossentropy_elements  a work-item per element, any sizes
//
// IGNORING  1: labels that are `ignored` count nowhere, and their gradient is 0
// WEIGHTED, BY_COUNT  as above; dy and counts are else any tensor, and not read
// VL        lanes; the kernels for CPU devices exist where it is defined

#ifndef IGNORING
#define IGNORING 0
#endif
#ifndef WEIGHTED
#define WEIGHTED 0
#endif
#ifndef BY_COUNT
#define BY_COUNT 0
#endif

#if IGNORING
#define IS_IGNORED(label) ((label) == ignored)
#else
#define IS_IGNORED(label) false
#endif

kernel void crossentropy_parts(CONST_TENSOR(y), CONST_TENSOR(label), TENSOR_OF(real, losses), TENSOR_OF(int, found),
                               const real lowest, const real ignored, const int with_loss, const long images,
                               const long channels, const long pixels, const long parts) {
    const long part = get_global_id(0), labels = images * pixels;
    if (part >= parts) return;
    global const stored *ys = OPEN(y), *names = OPEN(label);
    real loss = 0;
    int valid = 0, outside = 0;
    for (long at = labels * part / parts; at < labels * (part + 1) / parts; at++) {
        const real given = LOAD(names, at), name = trunc(given);
        if (IS_IGNORED(name)) continue;
        valid++;
        if (!(name >= 0 && name < channels)) {
            outside++;
        } else if (with_loss) {
            const real probability = LOAD(ys, (at / pixels * channels + (long)name) * pixels + at % pixels);
            // not max(): a NaN has to stay
            loss -= log(probability < lowest ? lowest : probability);
        }
    }
    OPEN(losses)[part] = loss;
    OPEN(found)[2 * part] = valid;
    OPEN(found)[2 * part + 1] = outside;
}

kernel void crossentropy_join(TENSOR_OF(const real, losses), TENSOR_OF(const int, found), TENSOR(loss),
                              const int accumulate, TENSOR_OF(int, counts), const int with_loss, const long parts) {
    if (get_global_id(0) > 0) return;
    real total = 0, some = 0;
    int valid = 0, outside = 0;
    for (long part = 0; part < parts; part++) {
        some += OPEN(losses)[part];
        valid += OPEN(found)[2 * part];
        outside += OPEN(found)[2 * part + 1];
        if (part % 32 == 31 || part + 1 == parts) {
            total += some;
            some = 0;
        }
    }
    global stored *result = OPEN(loss);
    if (with_loss && loss_base != 0) STORE(result, 0, accumulate ? total + LOAD(result, 0) : total);
    if (counts_base != 0) {
        OPEN(counts)[0] = valid;
        OPEN(counts)[1] = outside;
    }
}

#define GRADIENT_PARAMETERS                                                                               \
    CONST_TENSOR(y), CONST_TENSOR(label), CONST_TENSOR(dy), TENSOR_OF(const int, counts), TENSOR(dx),     \
        const int accumulate, const real scale, const real smooth, const real ignored, const long images, \
        const long channels, const long pixels

#if BY_COUNT
#define FACTOR (scale / (real)max(OPEN(counts)[0], 1))
#else
#define FACTOR scale
#endif
#define HIT (REAL(1.0) - smooth)
#define MISS (channels > 1 ? smooth / (real)(channels - 1) : REAL(0.0))

#ifdef VL
#include "common/lanes.cl"

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void crossentropy_planes(GRADIENT_PARAMETERS,
                                                                               const long item_planes) {
    const realv hit = HIT, miss = MISS, factor = FACTOR;
    const long first = get_global_id(0) * item_planes;
    for (long plane = first; plane < min(first + item_planes, images * channels); plane++) {
        global const stored *names = OPEN(label) + plane / channels * pixels;
        const realv own = plane % channels;
        const long from = plane * pixels;
        for (long i = 0; i < pixels; i += VL) {
            const realv name = trunc(load_some(names, i, pixels - i, -1));
            realv value = (load_some(OPEN(y), from + i, pixels - i, 0) - (name == own ? hit : miss)) * factor;
#if WEIGHTED
            value *= load_some(OPEN(dy), from + i, pixels - i, 0);
#endif
#if IGNORING
            value = name == (realv)(ignored) ? (realv)(0) : value;
#endif
            store_some(OPEN(dx), from + i, pixels - i, value, accumulate);
        }
    }
}

#if WEIGHTED
#define WEIGHED(value, weights) ((value) * (weights))
#else
#define WEIGHED(value, weights) (value)
#endif

kernel
    __attribute__((reqd_work_group_size(1, 1, 1))) void crossentropy_rows(GRADIENT_PARAMETERS, const long item_rows) {
    const long rows = images;
    const realv hit = HIT, miss = MISS;
    const real factor = FACTOR;
    ROWS {
        const real given = LOAD(OPEN(label), row), name = trunc(given);
        const bool dropped = IS_IGNORED(name);
        global const stored *ys = OPEN(y) + row * channels, *dys = OPEN(dy) + row * channels;
        global stored *dxs = OPEN(dx) + row * channels;
        realv end = 0;
        if (tail) {
            // before dx is written, which may be y
            end = (LAST_OF(ys) - (lanes + (real)last == (realv)(name) ? hit : miss)) * factor;
            end = WEIGHED(end, LAST_OF(dys));
            if (dropped) end = 0;
        }
        realv own = lanes;
        for (long i = 0; i < whole; i += VL) {
            realv value = WEIGHED((VLOAD(ys, i) - (own == (realv)(name) ? hit : miss)) * factor, VLOAD(dys, i));
            if (dropped) value = 0;
            if (accumulate) value += VLOAD(dxs, i);
            VSTORE(dxs, i, value);
            own += (real)VL;
        }
        if (tail) store_last(dxs, channels, end, accumulate);
    }
}
#else
kernel void crossentropy_elements(GRADIENT_PARAMETERS) {
    const long at = get_global_id(0), pixel = at % pixels, channel = at / pixels % channels,
               image = at / pixels / channels;
    if (image >= images) return;
    global const stored *ys = OPEN(y), *dys = OPEN(dy), *names = OPEN(label);
    global stored *dxs = OPEN(dx);
    const real given = LOAD(names, image * pixels + pixel), name = trunc(given), result = LOAD(ys, at);
    real value = (result - (name == (real)channel ? HIT : MISS)) * FACTOR;
#if WEIGHTED
    value *= LOAD(dys, at);
#endif
    if (IS_IGNORED(name)) value = 0;
    STORE(dxs, at, accumulate ? value + LOAD(dxs, at) : value);
}
#endif
