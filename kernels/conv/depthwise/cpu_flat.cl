// Filter gradient of a depthwise convolution of small planes on CPU devices: a plane of rows shorter than vectors is
// one row of its pixels.
//
// x (planes, source_h, source_w)   dy (planes, size_h, size_w)   dw (filters, KH, KW)
//
// Stride 1 and padding that keeps the width: pixel f of dy meets a tap at f + offset, whatever row it is in. A mask for
// each vector and tap, made once for all planes, leaves out pixels of other rows and planes. The last vector overlaps.

#include "conv/depthwise/cpu_scratch.cl"
#include "conv/depthwise/cpu_lines.cl"
#include "conv/grid.cl"

#define TAPS (KH * KW)

// Where vector k of a plane lies.
#define PLACE(k) min((k) * VL, size - VL)

void make_tables(local maske *masks, local int *offsets, const int vectors, const Grid grid) {
    const int width = grid.size_w, size = grid.size_h * width;
    for (int t = 0; t < TAPS; t++) {
        const int i = t / KW * grid.step_h + grid.begin_h, j = t % KW * grid.step_w + grid.begin_w;
        offsets[t] = i * width + j;
        for (int k = 0; k < vectors; k++)
            for (int l = 0; l < VL; l++) {
                const int u = (PLACE(k) + l) / width + i, v = (PLACE(k) + l) % width + j;
                masks[(k * TAPS + t) * VL + l] = -(u >= 0 && u < grid.source_h && v >= 0 && v < width);
            }
    }
}

// Whether all vectors of a plane can be loaded: `before` elements lie before it in the tensor of `all`.
bool plane_loadable(local const int *offsets, const long before, const long all, const int size) {
    return before + offsets[0] >= 0 && before + offsets[TAPS - 1] + size <= all;
}

real masked_element(global const stored *plane, local const maske *masks, const int k, const int t, const int l,
                    const int at) {
    return masks[(k * TAPS + t) * VL + l] ? LOAD(plane, at) : 0;
}

// Sums of filters over GROUP images at a time, FILTERS filters at a time: the planes of neighbouring filters lie one
// after the other, so that what is read next is what the processor fetches ahead. `totals` holds them in between,
// which also keeps sums short: rounding errors grow with their length.
#define GROUP 4

// As depthwise_rows_filter of cpu_rows_backward_filter.cl, in splits of whole images.
kernel void depthwise_flat_filter(CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR(dw_out), TENSOR_OF(real, partial),
                                  const int accumulate, const int channels, const int multiplier, const Grid grid,
                                  const int vectors, const int split_images, const int item_filters, local real *totals,
                                  local int *offsets, local maske *masks) {
    const int size = grid.size_h * grid.size_w, source_size = grid.source_h * grid.source_w;
    const int filters = channels * multiplier;
    const int split = get_global_id(0), first = get_global_id(1) * item_filters,
              last = min(first + item_filters, filters);
    const int from_image = split * split_images, to_image = min(from_image + split_images, grid.batch);
    const long all = (long)grid.batch * channels * source_size;
    make_tables(masks, offsets, vectors, grid);
    for (int block = first; block < last; block += FILTERS) {
        const int count = min(last - block, FILTERS);
        for (int i = 0; i < count * TAPS; i++) VSTORE_REAL(totals + i * VL, (realv)(0));
        for (int group = from_image; group < to_image; group += GROUP) {
            for (int o = block; o < block + count; o++) {
                local real *own = totals + (o - block) * TAPS * VL;
                realv sum[TAPS];
#pragma unroll
                for (int t = 0; t < TAPS; t++) sum[t] = 0;
                for (int n = group; n < min(group + GROUP, to_image); n++) {
                    const long source = ((long)n * channels + o / multiplier) * source_size;
                    global const stored *plane = OPEN(x) + source;
                    global const stored *grads = OPEN(dy) + ((long)n * filters + o) * size;
                    const bool loadable = plane_loadable(offsets, source, all, size);
                    for (int k = 0; k < vectors; k++) {
                        const int at = PLACE(k);
                        PREFETCH(plane + source_size + at);
                        PREFETCH(grads + size + at);
                        const realv gradient = MASKED(VLOAD(grads, at), TO_MASK(LANES + at >= k * VL));
                        if (loadable) {
#pragma unroll
                            for (int t = 0; t < TAPS; t++) {
                                const maskv mask = VLOAD_MASK(masks + (k * TAPS + t) * VL);
                                sum[t] = fma(MASKED(VLOAD(plane, at + offsets[t]), mask), gradient, sum[t]);
                            }
                        } else {
                            for (int l = k * VL - at; l < VL; l++)
                                for (int t = 0; t < TAPS; t++)
                                    own[t * VL + l] += LOAD(grads, at + l) *
                                                       masked_element(plane, masks, k, t, l, at + l + offsets[t]);
                        }
                    }
                }
#pragma unroll
                for (int t = 0; t < TAPS; t++) VSTORE_REAL(own + t * VL, VLOAD_REAL(own + t * VL) + sum[t]);
            }
        }
        for (int i = 0; i < count * TAPS; i++) {
            const long place = (long)block * TAPS + i;
            const real sum_of_lanes = sum_lanes(totals + i * VL);
            if (get_global_size(0) > 1)
                OPEN(partial)[(long)split * filters * TAPS + place] = sum_of_lanes;
            else
                STORE(OPEN(dw_out), place, accumulate ? LOAD(OPEN(dw_out), place) + sum_of_lanes : sum_of_lanes);
        }
    }
}
