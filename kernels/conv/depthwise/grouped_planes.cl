// Convolution in groups of few channels, of small planes, on CPU devices: planes lie in scratch in rows of P elements,
// zeros between them.
//
// source (batch, groups, S, source_h, source_w)   weights (groups, OUTPUTS, S, KH, KW)
// target (batch, groups, OUTPUTS, size_h, size_w)
//
// Two groups take turns in scratch: one is copied while the other is summed, and no load waits for a store. Each
// work-group is one work-item.

#include "common/epilogue.cl"
#include "conv/depthwise/grouped_scratch.cl"

#define WEIGHT(o, s, tap) weights[((o) * S + (s)) * TAPS + (tap)]
#if OUTPUTS * S == 1
#define EACH_WEIGHT _Pragma("unroll")
#else
#define EACH_WEIGHT _Pragma("unroll 1")  // thousands of loads would take the compiler seconds
#endif

// Writes `count` elements; what follows them is written later, or is not of the `room` elements that may be written.
void put_part(global stored *to, const realc value, const int count, const long room, const int accumulate) {
    if (room >= C) {
        realc all = value;
        if (accumulate) all = LOAD_C(to) + FIRST(value, count);
        STORE_C(to, all);
    } else {
        real lanes[C];
        OF_C(vstore)(value, 0, lanes);
        for (int l = 0; l < count; l++) STORE(to, l, accumulate ? LOAD(to, l) + lanes[l] : lanes[l]);
    }
}

// `flip` takes the weights backwards, and as (groups, S, OUTPUTS, KH, KW). O outputs are summed side by side, in
// blocks of R vectors; scratch holds two groups of planes of SH * SW phases.
kernel void grouped_planes(CONST_TENSOR(x), CONST_TENSOR(w), CONST_TENSOR(b), TENSOR(y), const int has_bias,
                           const int accumulate, const int groups, const int flip, const Grid grid,
                           const GroupScratch in_scratch, const int item_groups, local real *scratch,
                           local real *shared_weights EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
#if OUTPUTS * S == 1
    real weights[TAPS];  // in registers
#else
    local real *weights = shared_weights;
#endif
    SIZES
    const int first_tap = in_scratch.first_tap, lead = in_scratch.lead, phase_size = in_scratch.phase_size;
    const int plane_size = SH * SW * phase_size, group_size = S * plane_size, size = oh * ow;
    const long all_groups = (long)grid.batch * groups, source_size = (long)S * ih * iw, all = all_groups * source_size;
    const long first = get_global_id(0) * (long)item_groups, last = min(first + item_groups, all_groups);
    for (int i = 0; i < 2 * group_size; i += C) OF_C(vstore)((realc)(0), 0, scratch + i);
    copy_group(scratch + lead, OPEN(x) + first * source_size, all - first * source_size, ih, iw, phase_size);
    for (long t = first; t < last; t++) {
        if (t + 1 < last) {
            const long next = (t + 1) * source_size;
            copy_group(
                scratch + lead + ((t - first) % 2 ? 0 : group_size), OPEN(x) + next, all - next, ih, iw, phase_size);
        }
        const int group = t % groups;
        global const stored *from = OPEN(w) + (long)group * OUTPUTS * S * TAPS;
        EACH_WEIGHT
        for (int o = 0; o < OUTPUTS; o++) EACH_WEIGHT
        for (int s = 0; s < S; s++) {
            global const stored *filter = from + (flip ? s * OUTPUTS + o : o * S + s) * TAPS;
#pragma unroll
            for (int i = 0; i < TAPS; i++) WEIGHT(o, s, i) = LOAD(filter, flip ? TAPS - 1 - i : i);
        }
        for (int o0 = 0; o0 < OUTPUTS; o0 += O) {
            for (int block = 0; block < in_scratch.blocks; block++) {
                realv sum[O][R];
#pragma unroll
                for (int o = 0; o < O; o++) {
                    const int output = min(o0 + o, OUTPUTS - 1);
                    const real start = has_bias ? LOAD(OPEN(b), group * OUTPUTS + output) : 0;
#pragma unroll
                    for (int k = 0; k < R; k++) sum[o][k] = start;
                }
                for (int s = 0; s < S; s++) {
                    local const real *plane = scratch + ((t - first) % 2 ? group_size : 0) + s * plane_size;
                    plane += lead + first_tap + block * (R * VL);
#pragma unroll
                    for (int i = 0; i < KH; i++) {
#pragma unroll
                        for (int j = 0; j < KW; j++) {
                            const int h = i * DH + BH, v = j * DW + BW;
                            local const real *tap = plane + (h % SH * SW + v % SW) * phase_size + (h / SH * P + v / SW);
#pragma unroll
                            for (int k = 0; k < R; k++) {
                                const realv value = CAT(vload, VL)(0, tap + k * VL);
#pragma unroll
                                for (int o = 0; o < O; o++)
                                    sum[o][k] =
                                        fma(value, (realv)(WEIGHT(min(o0 + o, OUTPUTS - 1), s, i * KW + j)), sum[o][k]);
                            }
                        }
                    }
                }
#pragma unroll
                for (int o = 0; o < O; o++) {
                    if (o0 + o >= OUTPUTS) break;
                    // Behind a plane lies one whose rows are there already, but for the last of those side by side.
                    const bool free = O == 1 || o0 + o + 1 == min(o0 + O, OUTPUTS);
                    const long target = t * OUTPUTS + o0 + o;
                    const long end = (free ? last * OUTPUTS - target : 1) * size;
#pragma unroll
                    for (int k = 0; k < R; k++) {
                        const int f = (block * R + k) * VL, u = f / P, v = f % P;
                        sum[o][k] = EPILOGUE_VECTOR(sum[o][k], group * OUTPUTS + o0 + o, 0);  // lanes of a channel only
                        global stored *to = OPEN(y) + target * size + u * ow + v;
                        const long room = end - u * ow - v;
#if P < VL
                        if (u < oh) put_part(to, sum[o][k].lo, ow, room, accumulate);
                        if (u + 1 < oh) put_part(to + ow, sum[o][k].hi, ow, room - ow, accumulate);
#else
                        if (u < oh && v < ow) put_part(to, sum[o][k], ow - v, room, accumulate);
#endif
                    }
                }
            }
        }
    }
}
