// Filter gradient of a convolution in groups of few channels, of small planes, on CPU devices: planes of x and of dy
// lie in scratch in rows of P elements, at least a vector, zeros between them.
//
// x (batch, groups, S, source_h, source_w)   dy (batch, groups, OUTPUTS, size_h, size_w)
// dw (groups, OUTPUTS, S, KH, KW)            partial [split of the images][as dw]
//
// A tap's gradient is the sum over f of dy[f] * x[f + offset]: vectors run along f, and their lanes are summed at last.
// For O outputs and a row of taps the sums of a plane are in registers. `totals` holds those of a group over its
// images, which also keeps sums short. Each work-group is one work-item: a split of the images, some groups.

#include "common/lanes.cl"
#include "conv/depthwise/grouped_scratch.cl"

kernel void grouped_planes_filter(CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR(dw_out), TENSOR_OF(real, partial),
                                  const int accumulate, const int groups, const Grid grid,
                                  const GroupScratch in_scratch, const int split_images, const int item_groups,
                                  local real *scratch, local real *gradient, local real *totals) {
    SIZES
    const int first_tap = in_scratch.first_tap, lead = in_scratch.lead, phase_size = in_scratch.phase_size;
    const int group_size = S * SH * SW * phase_size, size = oh * ow, count = OUTPUTS * S * TAPS;
    const long source_size = (long)S * ih * iw, target_size = (long)OUTPUTS * size;
    const long all_source = (long)grid.batch * groups * source_size,
               all_target = (long)grid.batch * groups * target_size;
    const int split = get_global_id(0), first = get_global_id(1) * item_groups, last = min(first + item_groups, groups);
    const int from_image = split * split_images, to_image = min(from_image + split_images, grid.batch);
    for (int i = 0; i < group_size; i += VL) PUT(scratch, i, (realv)(0));
    for (int group = first; group < last; group++) {
        for (int i = 0; i < count; i++) PUT(totals, i * VL, (realv)(0));
        for (int n = from_image; n < to_image; n++) {
            const long source = ((long)n * groups + group) * source_size;
            const long target = ((long)n * groups + group) * target_size;
            copy_group(scratch + lead, OPEN(x) + source, all_source - source, ih, iw, phase_size);
            for (int row = 0; row < OUTPUTS * oh; row++) {
                const long at = target + row * ow;
                for (int c = 0; c < P; c += VL)
                    PUT(gradient, row * P + c, load_part(OPEN(dy) + at + c, ow - c, all_target - at - c));
            }
            for (int o0 = 0; o0 < OUTPUTS; o0 += O) {
                for (int s = 0; s < S; s++) {
                    for (int i = 0; i < KH; i++) {
                        const int h = i * DH + BH;
                        local const real *line =
                            scratch + s * (SH * SW * phase_size) + h % SH * SW * phase_size + h / SH * P;
                        line += lead + first_tap;
                        realv sum[O][KW];
#pragma unroll
                        for (int o = 0; o < O; o++)
#pragma unroll
                            for (int j = 0; j < KW; j++) sum[o][j] = 0;
                        for (int u = 0; u < oh; u++) {
#pragma unroll
                            for (int c = 0; c < P; c += VL) {
                                realv value[O];
#pragma unroll
                                for (int o = 0; o < O; o++)
                                    value[o] = GET(gradient, (min(o0 + o, OUTPUTS - 1) * oh + u) * P + c);
#pragma unroll
                                for (int j = 0; j < KW; j++) {
                                    const int v = j * DW + BW;
                                    // what lies beyond the row may be of another one, and no number
                                    const realv met =
                                        FIRST(GET(line, v % SW * phase_size + v / SW + u * P + c), ow - c);
#pragma unroll
                                    for (int o = 0; o < O; o++) sum[o][j] = fma(met, value[o], sum[o][j]);
                                }
                            }
                        }
#pragma unroll
                        for (int o = 0; o < O; o++) {
                            if (o0 + o >= OUTPUTS) break;
                            local real *to = totals + (((o0 + o) * S + s) * TAPS + i * KW) * VL;
#pragma unroll
                            for (int j = 0; j < KW; j++) PUT(to, j * VL, GET(to, j * VL) + sum[o][j]);
                        }
                    }
                }
            }
        }
        for (int i = 0; i < count; i++) {
            const long place = (long)group * count + i;
            const real sum = sum_of_lanes(GET(totals, i * VL));
            if (get_global_size(0) > 1)
                OPEN(partial)[(long)split * groups * count + place] = sum;
            else
                STORE(OPEN(dw_out), place, accumulate ? LOAD(OPEN(dw_out), place) + sum : sum);
        }
    }
}
