"""The tests can fail: with a fault planted in a kernel, the suite that guards the kernel must notice."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clgraft.core.runtime import sources
from clgraft.core.runtime.toolchains.pocl import PoCL
from tests import mutant
from tests.folders import python_path

TESTS = Path(__file__).parent
EVERY_RUN = "core/test_every_run.py::test_matches_float64[%s]"
CONV_CPU = EVERY_RUN % "conv-plain-3x3-bias-%s"
CONV_GPU = "core/test_every_run.py::test_kernels_for_gpus[conv-plain-3x3-bias-%s]"
DENSE = EVERY_RUN % "dense-%s"
DIRECT = EVERY_RUN % "conv-3x3-stride-2-%s"
MICRO = "conv/gemm_gpu/micro/%s_halves.cl"  # of one kind of matrix units
UNITS = "core/test_conv_gpu_halves.py::test_units_are_checked[%s]"
LAST_COLUMNS = "conv forward bf16 n3 ic136 ih4 iw5 oc72 kh1 kw1 layout=nhwc"
HALVES = "core/test_conv_gpu_halves.py::test_matches_float64[%s-%s]"

PHASES_TOGETHER = (
    "core/test_conv_gpu_halves.py::test_phases_together_match_float64[conv backward_data f16 n2 ic16 ih7 iw8 oc40"
    " kh3 kw3 sh2 sw2 ph1 pw1 layout=nhwc-2]"
)
JOINED = f"core/test_conv_gpu_halves.py::test_joined_parts_match_float64[{LAST_COLUMNS}-%s-mma]"
STREAMED = (
    "core/test_conv_gpu_halves.py::test_streams_match_float64[conv backward_data f16 n2 ic40 ih12 iw13 oc72 kh1 kw1"
    " layout=nhwc-mma]"
)
ROUNDED = (
    "core/test_conv_gpu_halves.py::test_streams_match_float64[conv forward bf16 g2 n3 ic144 ih9 iw7 oc208 kh1 kw1"
    " layout=nhwc-mma]"
)

QUICK: dict[str, str] = {}  # variables of the environment of tests on kernels with a fault

# kernel file, what stands there, what is planted, the test that must notice, or a file and pytest's -k
FAULTS = {
    "a phase's taps in the order of the kernel": (
        "conv/gemm_gpu/halves_phases.cl",
        "ahead->met.first_##a = phase.first_##a;",
        "ahead->met.first_##a = 0;",
        PHASES_TOGETHER,
    ),
    "no phase has the last pixel of a row": (
        "conv/gemm_gpu/halves_phases.cl",
        "4 * ((grid.size_w - 1) * place.stride_w + phase.place_w >= place.size_w);",
        "4;",
        PHASES_TOGETHER,
    ),
    "the last part's sums are read in place of all parts'": (
        "conv/gemm_gpu/halves.cl",
        "const float4 four = OF_PART(i, e);",
        "const float4 four = OF_PART(part, e);",
        JOINED % 3,
    ),
    "a tile's counter is not set back": (
        "conv/gemm_gpu/halves.cl",
        "if (before == JOINED - 1) atomic_xchg(counter, 0);",
        "",
        JOINED % 2,
    ),
    "rounded sums of a row's other vector": (
        "conv/gemm_gpu/halves_stream.cl",
        "(staged + ROUNDED_AT(row + i * ROUNDED_ROWS, vector));",
        "(staged + ROUNDED_AT(i * ROUNDED_ROWS, vector));",
        ROUNDED,
    ),
    "the next tile's pixels are those of this one": (
        "conv/gemm_gpu/halves_stream.cl",
        "next->tile += walkers;",
        "",
        STREAMED,
    ),
    "bias forgotten": (
        "conv/gemm_cpu/gemm.cl",
        "START_TILE(acc, has_bias && from == 0,",
        "START_TILE(acc, false && from == 0,",
        CONV_CPU % "forward",
    ),
    "accumulation overwrites": (
        "conv/gemm_cpu/gemm.cl",
        "const bool add = accumulate || from;",
        "const bool add = from;",
        CONV_CPU % "forward",
    ),
    "pixels of a panel's borders kept": (
        "conv/gemm_cpu/panel.cl",
        "CHOOSE(old, new, met)",
        "new",
        CONV_CPU % "forward",
    ),
    "a phase of a stride stored twice": (
        "conv/gemm_cpu/phases.cl",
        "low.odd = b.lo;",
        "low.odd = a.lo;",
        EVERY_RUN % "conv-3x3-stride-2-backward_data",
    ),
    "accumulation of phases overwrites": (
        "conv/gemm_cpu/phases.cl",
        "piece.length, add)",
        "piece.length, false)",
        EVERY_RUN % "conv-3x3-stride-2-backward_data",
    ),
    "accumulation in place overwrites": (
        "conv/gemm_cpu/gemm_in_place.cl",
        "const bool add = accumulate || from;",
        "const bool add = from;",
        EVERY_RUN % "conv-1x1-forward",
    ),
    "a tile of two images read from one": (
        "conv/gemm_cpu/gemm_in_place.cl",
        "readable[tile] = at + columns <= pixels ?",
        "readable[tile] = true ?",
        "core/test_conv_cpu_in_place.py::test_matches_float64[images-forward]",
    ),
    "a piece of a strided row that begins in the row before": (
        "conv/gemm_cpu/gemm_in_place.cl",
        "h = h + 1 < grid.size_h ? h + 1 : 0;",
        "h = h + 1 < grid.size_h ? h : 0;",
        "core/test_conv_cpu_in_place.py::test_strided_pixels_match_float64[rows]",
    ),
    "the last strided pixels taken for neighbours": (
        "conv/gemm_cpu/gemm_in_place.cl",
        "pieces->from[i] + (l - lane) * STRIDE, plane)",
        "pieces->from[i] + (l - lane), plane)",
        "core/test_conv_cpu_in_place.py::test_strided_pixels_match_float64[ends with x]",
    ),
    "zeros where no pixel meets dx forgotten": (
        "conv/gemm_cpu/spread.cl",
        "for (; w < width; w += VL) STORE_REALS(to + w, (realv)(0));",
        "",
        "core/test_conv_cpu_in_place.py::test_pixels_that_are_spread_match_float64[ends with x]",
    ),
    "pixels that are spread not added": (
        "conv/gemm_cpu/spread.cl",
        "if (add) {",
        "if (false) {",
        "core/test_conv_cpu_in_place.py::test_pixels_that_are_spread_match_float64[ends before x]",
    ),
    "pixels of filters collected beyond their row": (
        "conv/gemm_cpu/filter_in_place.cl",
        "*length = min(*length, grid.size_w - w);",
        "",
        "core/test_conv_cpu_in_place.py::test_filters_that_collect_their_pixels[ends with x-1]",
    ),
    "a last tile of two vectors taken for one": (
        "conv/gemm_cpu/gemm_in_place.cl",
        "const bool narrow = NV > 1 && columns <= VL;",
        "const bool narrow = NV > 1 && columns <= 2 * VL;",
        "core/test_conv_cpu_in_place.py::test_every_tile_gives_the_same_bits[17 pixels left-forward]",
    ),
    "a tile's last row of weights forgotten": (
        "conv/gemm_cpu/weights.cl",
        "min(i_, (rows) - 1) * (strides).row",
        "min(i_, (rows) - 2) * (strides).row",
        "core/test_conv_cpu_in_place.py::test_matches_float64[early-forward]",
    ),
    "channels last, a maximum counted twice": (
        "pooling/channels_last.cl",
        "gradient = value == largest ? (realv)(0) : gradient;",
        "",
        "core/test_channels_last.py::test_pooling_matches_float64[pool-max]",
    ),
    "channels last, channels of a whole image twice": (
        "pooling/whole_channels.cl",
        "(again ? (lanes >= (realv)(again) ? (value) : (realv)(0)) : (value))",
        "(value)",
        "core/test_channels_last.py::test_pooling_matches_float64[pool-whole-max]",
    ),
    "the last of Winograd's tiles forgotten": (
        "conv/winograd/winograd.cl",
        "for (; tile < tile_count; tile += LAST_MR)",
        "for (; tile < whole; tile += LAST_MR)",
        "core/test_conv_winograd.py::test_every_number_of_rows[4-64-forward]",
    ),
    "phases of Winograd's tiles twice": (
        "conv/winograd/transforms.cl",
        "phase = h / of_phase + (is_longer ? 0 : longer_phases)",
        "phase = h / of_phase",
        "core/test_conv_winograd.py::test_dilated_match_float64[2-two-dilations-forward]",
    ),
    "products of a stride's phases left out elsewhere": (
        "conv/winograd/transforms.cl",
        "(STRIDE > 1 && (((phase) / STRIDE > 0 && (i) == SIDE_H - 1)",
        "(STRIDE > 1 && (((phase) / STRIDE > 0 && (i) == 0)",
        "core/test_conv_winograd.py::test_strided_match_float64[4-odd-bias-forward]",
    ),
    "taps that a phase of a stride has not stored": (
        "conv/winograd/backward_filter.cl",
        "if (HAS_TAP(phase, i, j)) a[TAP_OF_KERNEL",
        "if (TAP_OF_KERNEL(phase, i, j) < FILTER_TAPS) a[TAP_OF_KERNEL",
        "core/test_conv_winograd.py::test_strided_match_float64[4-odd-bias-backward_filter]",
    ),
    "pixels of a stride's phases one for another": (
        "conv/winograd/transforms.cl",
        "#define COLUMN_OF_TARGET(phase, j) ((j) * TARGET_STRIDE + TARGET_STRIDE - 1 - (phase) % STRIDE)",
        "#define COLUMN_OF_TARGET(phase, j) ((j) * TARGET_STRIDE + (phase) % STRIDE)",
        "core/test_conv_winograd.py::test_strided_match_float64[4-odd-bias-backward_data]",
    ),
    "a row in front of a strided gradient stored": (
        "conv/winograd/winograd.cl",
        "pixels + (done + h - top) * ow * VL",
        "pixels + done * ow * VL",
        "core/test_conv_winograd.py::test_strided_match_float64[2-pad-2-backward_data]",
    ),
    "phases of a stride's filters one for another": (
        "conv/winograd/backward_filter.cl",
        "e * (STRIDE_PHASES * m_phase + PAD) + phase * m_phase",
        "e * (STRIDE_PHASES * m_phase + PAD) + (phase ^ 1) * m_phase",
        "core/test_conv_winograd.py::test_filter_in_parts[2-strided]",
    ),
    "slices of a filter's tiles overwrite": (
        "conv/winograd/backward_filter.cl",
        "count * TILES_W, row > first, v)",
        "count * TILES_W, false, v)",
        "core/test_conv_winograd.py::test_filter_in_slices[2-3x3-many-channels-2-1]",
    ),
    "a share of a filter's tiles left out": (
        "conv/winograd/backward_filter.cl",
        "for (int i = 1; i < copies; i++)",
        "for (int i = 2; i < copies; i++)",
        "core/test_conv_winograd.py::test_filter_in_slices[2-3x3-many-channels-2-1]",
    ),
    "taps of a stride's phases shifted": (
        "conv/winograd/transforms.cl",
        "#define COLUMN_OF_TAP(phase, j) ((j) * STRIDE + (phase) % STRIDE)",
        "#define COLUMN_OF_TAP(phase, j) ((j) * STRIDE + (phase) / STRIDE)",
        "core/test_conv_winograd.py::test_strided_match_float64[2-even-many-channels-forward]",
    ),
    "channels last, the last vector of depthwise gradients": (
        "conv/channels_last/depthwise.cl",
        "CAT(vstore, VL)(sum, 0, lanes);\n        for (int lane = block - channel;",
        "CAT(vstore, VL)(sum, 0, lanes);\n        for (int lane = 0;",
        "core/test_channels_last.py::test_convolution_matches_float64[depthwise-backward_filter]",
    ),
    "filter gradient overwrites": (
        "conv/gemm_cpu/partial_sums.cl",
        "out[i] + (accumulate ? LOAD(to, at) : 0)",
        "out[i]",
        CONV_CPU % "backward_filter",
    ),
    "padding left out": (
        "conv/direct.cl",
        "v * grid.stride_w + grid.begin_w + j * grid.step_w; if (q >= 0 && q < grid.source_w) part",
        "v * grid.stride_w + j * grid.step_w; if (q >= 0 && q < grid.source_w) part",
        DIRECT % "forward",
    ),
    "stride not divisible": (
        "conv/direct.cl",
        "v >= 0 && v % grid.stride_w == 0",
        "v >= 0",
        DIRECT % "backward_data",
    ),
    "bias of the neighbour": (
        "conv/gemm_gpu/store/target.cl",
        "if (accumulate) sum += LOAD(target, at);",
        "",
        CONV_GPU % "forward",
    ),
    "kernels of Winograd's backward data not turned": (
        "conv/winograd_gpu/transforms.cl",
        "flip ? ALL_TAPS - 1 - h * KERNEL_TAPS - w : h * KERNEL_TAPS + w",
        "h * KERNEL_TAPS + w",
        "core/test_conv_gpu_winograd.py::test_matches_float64[4-plain-3x3-backward_data]",
    ),
    "an epilogue's vector read at channel 0": (
        "common/epilogue.cl",
        "SPLAT(LOAD(epilogue.x##n, channel))",
        "SPLAT(LOAD(epilogue.x##n, 0))",
        "core/test_epilogues.py::test_chains_are_fused_whole",
    ),
    "a tie given to the last": (
        "pooling/elements.cl",
        "LOAD(plane, ((place)a * ih + b) * iw + c) == value",
        "LOAD(plane, ((place)a * ih + b) * iw + c) > value",
        "core/test_pooling.py::test_a_tie_goes_to_the_first",
    ),
    "a row of windows twice": (
        "pooling/planes.cl",
        "#define LAST_WINDOW(r) (min(((r) + ph) / sh, oh - 1))",
        "#define LAST_WINDOW(r) (min(((r) + ph) / sh + 1, oh - 1))",
        EVERY_RUN % "pooling-inception-branch-backward",
    ),
    "a kept place in the last row of equals": (
        "pooling/planes.cl",
        "taken = value > column ?",
        "taken = value >= column ?",
        "core/test_pooling_argmax.py::test_matches_the_search[resnet-stem-this one]",
    ),
    "a maximum given to the last": (
        "pooling/planes_max_gradient.cl",
        "TAPS for (int j = KW - 1; j >= 0; j--)",
        "TAPS for (int j = 0; j < KW; j++)",
        "core/test_pooling.py::test_a_tie_goes_to_the_first",
    ),
    "a row's rest in the sums twice": (
        "batchnorm/channels_cpu.cl",
        "(lanes >= (realv)(VL - (real)((count) % VL)) ? (value) : (realv)(0))",
        "(value)",
        EVERY_RUN % "batchnorm-planes-7x7-forward_training",
    ),
    "padding in the divisor": (
        "pooling/operators.cl",
        "return max(count_padding ?",
        "return max(true ?",
        EVERY_RUN % "pooling-average-count-inside-forward",
    ),
    "a dense layer's bias forgotten": (
        "dense/cpu.cl",
        "OPEN(bias) + first + r, has_bias, accumulate",
        "OPEN(bias) + first + r, false, accumulate",
        DENSE % "batch-8-forward",
    ),
    "the rest of a dense layer's rows lost": (
        "dense/cpu.cl",
        "weight[r] = load_part(w[r] + vectors * VL, rest);",
        "weight[r] = 0;",
        DENSE % "batch-8-forward",
    ),
    "a part of a long sum twice": (
        "dense/cpu.cl",
        "OPEN(partial) + part * all + at + i;",
        "OPEN(partial) + at + i;",
        DENSE % "long-sum-forward",
    ),
    "rows beyond the register tile lost": (
        "dense/cpu.cl",
        "for (; row < to; row++) {",
        "for (; row < to - 1; row++) {",
        DENSE % "batch-7-backward_data",
    ),
    "taps between two rows taken": (
        "deconvolution/cpu_columns.cl",
        "qh % grid.stride_h || ",
        "",
        EVERY_RUN % "deconvolution-twice-3x3-adj-forward",
    ),
    "a panel's rest of the batch in the wrong lanes": (
        "common/column_blocks.cl",
        "block[(long)k * COLS + lane + i] = i < left ? OPERAND_AT(first, (long)i * columns + k) : 0;",
        "block[(long)k * COLS + lane + i] = OPERAND_AT(first, (long)max(left - 1 - i, 0) * columns + k);",
        DENSE % "batch-67-forward",
    ),
    "a large stride's padding shifted": (
        "conv/depthwise/cpu_strided.cl",
        "LOAD_REALS(line + at - grid.begin_w) + old",
        "LOAD_REALS(line + at) + old",
        "core/test_every_run.py -k test_matches_float64 and depthwise_strided",
    ),
    "weights not flipped": (
        "conv/depthwise/cpu_rows.cl",
        "flip ? i / taps * taps + taps - 1 - i % taps : i",
        "i",
        "core/test_every_run.py::test_each_implementation_serves_a_set[depthwise]",
    ),
    "rows of overlapping blocks met twice by taps": (
        "conv/depthwise/cpu_gradients.cl",
        "line >= u * S && line < xh",
        "line < xh",
        "core/test_gradients.py",
    ),
    "lanes of overlapping vectors met twice by taps": (
        "conv/depthwise/cpu_gradients.cl",
        "(LANES + v >= n * VL) &",
        "",
        "core/test_gradients.py",
    ),
    "rows of overlapping blocks added twice": (
        "conv/depthwise/cpu_fixed.cl",
        "(rows + R - 1) / R * R - rows",
        "0",
        "core/test_depthwise_fixed.py",
    ),
    "lines below a plane kept": (
        "separable/cpu.cl",
        "-(h + r * dh >= 0 && h + r * dh < ih)",
        "-(h + r * dh >= 0)",
        "core/test_separable.py",
    ),
    "what follows depthwise sums forgotten": (
        "separable/cpu.cl",
        "PROLOGUE_VECTOR(sum[k], channel)",
        "sum[k]",
        "core/test_separable.py",
    ),
    "rows of the next image put over the last one's": (
        "separable/cpu.cl",
        "lead + at - begin",
        "lead - begin",
        "core/test_separable.py",
    ),
    "a level of the sum lost": (
        "pointwise/reduce.cl",
        "a1_##n = COMBINE_##n(a1_##n, a0_##n);",
        "a1_##n = a0_##n;",
        "core/test_pointwise.py::test_long_sums_are_as_accurate_as_numpys[axes1-this one]",
    ),
    "a copy that does not add": (
        "copying/boxes.cl",
        "if (accumulate) new += LOAD(ys, j);",
        "",
        "core/test_copying.py::test_is_exact[join-channels-this one]",
    ),
    "tiles turned wrongly": (
        "copying/boxes.cl",
        "#define HIGH(step, lane) ((lane) & (step) ? VL + (lane) : (lane) + (step))",
        "#define HIGH(step, lane) ((lane) & (step) ? VL + (lane) : (lane))",
        "core/test_copying.py::test_is_exact[square-tiles-this one]",
    ),
    "a round without its key": (
        "dropout/philox.cl",
        "*c0 = high1 ^ *c1 ^ k0;",
        "*c0 = high1 ^ *c1;",
        "core/test_dropout.py::test_numbers_are_the_generators[float32-this one]",
    ),
    "the greatest value not subtracted": (
        "softmax/softmax.cl",
        "const realv value = GET(kept, c * WIDE + v * VL) - top[v], power = EXP_BELOW(value);",
        "const realv value = GET(kept, c * WIDE + v * VL), power = EXP_BELOW(value);",
        "core/test_softmax.py::test_large_numbers_infinities_and_nan[n1 c6 s20-this one]",
    ),
    "a row's last channels counted twice": (
        "common/lanes.cl",
        "#define IS_NEW ((lanes >= again) & (lanes < beyond))",
        "#define IS_NEW (lanes < beyond)",
        EVERY_RUN % "softmax-one-lane-over-forward",
    ),
    "an ignored label that has a gradient": (
        "crossentropy/direct.cl",
        "if (dropped) end = 0;",
        "",
        "core/test_softmax.py::test_cross_entropy_matches_float64[few-classes-this one]",
    ),
    "a window without its last channel": (
        "lrn/lrn.cl",
        "for (int j = -HALF; j <= HALF; j++) sum +=",
        "for (int j = -HALF; j < HALF; j++) sum +=",
        "core/test_every_run.py -k test_matches_float64 and lrn-alexnet",
    ),
    "scaled twice": (
        "pointwise/value.cl",
        "#define BLEND(n, old) y##n = SCALED(y##n)",
        "#define BLEND(n, old) y##n = SCALED(SCALED(y##n))",
        EVERY_RUN % "pointwise-factors",
    ),
    "an update that is lost": (
        "indexing/indexing.cl",
        "lines[place] += update;",
        "lines[place] = update;",
        EVERY_RUN % "indexing-scatter-add",
    ),
    "equal elements in another order": (
        "ordering/topk.cl",
        "return LAST ? i > j : i < j;",
        "return LAST ? i < j : i > j;",
        "core/test_index_operators.py::test_equal_elements_have_an_order[few-this one]",
    ),
    "a box that overlaps stays": (
        "detection/overlap.cl",
        "common / all > most;",
        "common / all > 2 * most;",
        EVERY_RUN % "detection-boxes",
    ),
    "a work-item's steps lost at the end of a row": (
        "batchnorm/steps.cl",
        "place += next_row;",
        "",
        "core/test_batchnorm_gpu.py::test_matches_float64[n13 c2 s49-forward_training]",
    ),
    "parts of rows that meet joined as if their shifts were the same": (
        "batchnorm/rows_teams.cl",
        "PART(p, 0)[e] - middle[e]",
        "0",
        "core/test_batchnorm_gpu.py::test_parts_of_rows_that_meet[n601 c20 s1-forward_training-]",
    ),
    "weights of few channels not turned": (
        "conv/few_channels_gpu.cl",
        "KH + KH - 1 - (h)",
        "KH + (h)",
        "core/test_few_channels_gpu.py::test_matches_float64[forward-conv n2 ic9 ih14 iw9 oc1 kh3 kw2 b1]",
    ),
    "weights of few outputs not turned": (
        "conv/few_planes_cpu.cl",
        "flip ? KH * KW - 1 - (i) * KW - (j) : (i) * KW + (j)",
        "(i) * KW + (j)",
        "core/test_few_planes_cpu.py::test_matches_float64[data]",
    ),
    "a last tap by itself that meets two columns": (
        "conv/few_planes_cpu.cl",
        "(value) & 0xffffu",
        "(value)",
        "core/test_pairs.py::test_last_taps_of_rows_keep_what_is_not_finite_in_its_places",
    ),
    "sums of few outputs begun anew for each chunk": (
        "conv/few_planes_cpu.cl",
        "if (first)",
        "if (first < 0)",
        "core/test_few_planes_cpu.py::test_channels_in_several_chunks[3x3-a channel]",
    ),
    "an outer product that does not add": (
        "dense/outer_gpu.cl",
        "columns, sums, quads, accumulate)",
        "columns, sums, quads, 0)",
        "core/test_dense_outer_gpu.py::test_matches_float64[1-dense n3 i131 o17]",
    ),
    "a reader of a pixel is forgotten": (
        "interpolation/interpolation.cl",
        "to / (2 * map.step) + 1;",
        "to / (2 * map.step);",
        EVERY_RUN % "interpolation-up-and-down-backward",
    ),
    "matrix engines of sub-groups of 16, a column's lanes exchanged": (
        MICRO % "dpas",
        "WIDE_COLUMNS8(b, n, k + lane)",
        "WIDE_COLUMNS8(b, n, k + (lane ^ 1))",
        UNITS % "dpas16",
    ),
    "matrix engines of sub-groups, rows' lanes exchanged": (
        MICRO % "dpas",
        "(ushort16)(DEEP_ROW8(a, m + lane, k), DEEP_ROW8(a, m + lane, k + 8))",
        "(ushort16)(DEEP_ROW8(a, m + (lane ^ 1), k), DEEP_ROW8(a, m + (lane ^ 1), k + 8))",
        UNITS % "dpas16",
    ),
    "matrix engines of sub-groups, sums of another lane stored": (
        MICRO % "dpas",
        "#define BLOCK_ROW(lane) (lane)",
        "#define BLOCK_ROW(lane) ((lane) ^ 1)",
        UNITS % "dpas8",
    ),
    "matrix engines of sub-groups of 8, a pair of the depth turned": (
        MICRO % "dpas",
        "(even.s0, odd.s0, even.s1, odd.s1,",
        "(odd.s0, even.s0, even.s1, odd.s1,",
        UNITS % "dpas8",
    ),
    "matrix engines of sub-groups of 8, pairs of another lane": (
        MICRO % "dpas",
        "(b + B_AT(n + (i), at))",
        "(b + B_AT(n + (i), k + 2 * (lane ^ 1)))",
        HALVES % (LAST_COLUMNS, "dpas8"),
    ),
    "WMMA, both lanes of a row with different rows": (
        MICRO % "wmma",
        "const int row = m + lane % 16;",
        "const int row = m + (lane ^ lane / 16) % 16;",
        UNITS % "wmma",
    ),
    "WMMA, columns in the order of the units": (
        MICRO % "wmma",
        "((i) % 2 * 8 + (i) / 2)",
        "(i)",
        UNITS % "wmma",
    ),
    "WMMA, halves of a wave exchanged in the store": (
        MICRO % "wmma",
        "((lane) / 16 * 8 + (e))",
        "((1 - (lane) / 16) * 8 + (e))",
        UNITS % "wmma",
    ),
    "MFMA, groups of lanes exchanged in one operand": (
        MICRO % "mfma",
        "DEEP_COLUMN8(b, n + lane % UNITS, k + lane / UNITS * 8)",
        "DEEP_COLUMN8(b, n + lane % UNITS, k + (lane / UNITS ^ 1) * 8)",
        UNITS % "mfma",
    ),
    "MFMA, lanes of neighbouring rows exchanged": (
        MICRO % "mfma",
        "DEEP_ROW8(a, m + lane % UNITS,",
        "DEEP_ROW8(a, m + (lane ^ 1) % UNITS,",
        UNITS % "mfma",
    ),
    "MFMA, parts of both operands that do not belong together": (
        MICRO % "mfma",
        "ADD_PART((columns).hi, (rows).hi)",
        "ADD_PART((columns).hi, (rows).lo)",
        UNITS % "mfma",
    ),
    "MFMA, bfloat16's parts on the first generation": (
        MICRO % "mfma",
        "ADD_PART((columns).s45, (rows).s45)",
        "ADD_PART((columns).s45, (rows).s67)",
        UNITS % "mfma",
    ),
    "MFMA, sums of another group of lanes stored": (
        MICRO % "mfma",
        "#define BLOCK_COLUMN(e, lane) UNITS_ROW(e, lane)",
        "#define BLOCK_COLUMN(e, lane) UNITS_ROW(e, (lane) ^ UNITS)",
        UNITS % "mfma",
    ),
    "MFMA of 16 rows, sums of neighbours of a column exchanged": (
        MICRO % "mfma",
        "#define SET_VECTOR(s, v) SET4(s, v)",
        "#define SET_VECTOR(s, v) SET4(s, (v).yxwz)",
        HALVES % (LAST_COLUMNS, "mfma"),
    ),
    "pairs of products, of two columns": (
        MICRO % "dot2",
        "(ushort16)(DEEP_COLUMN8(b, n, k), DEEP_COLUMN8(b, n + 1, k))",
        "(ushort16)(DEEP_COLUMN8(b, n + 1, k), DEEP_COLUMN8(b, n, k))",
        UNITS % "dot2",
    ),
    "pairs of products that do not belong together": (
        MICRO % "dot2",
        "ADD_PAIR(sum, (a).s23, (b).s23)",
        "ADD_PAIR(sum, (a).s23, (b).s32)",
        UNITS % "dot2",
    ),
    "pairs of products, rows of another work-item": (
        MICRO % "dot2",
        "(WARP % WARPS_M + (i) * WARPS_M)",
        "((WARP + (i)) % WARPS_M + (i) / WARPS_M * WARPS_M)",
        UNITS % "dot2",
    ),
    "sums of a wave's blocks in another order": (
        "conv/gemm_gpu/micro/waves_multiply.cl",
        "sums + (i * BLOCKS_N + j) * BLOCK_SUMS",
        "sums + (j * BLOCKS_M + i) * BLOCK_SUMS",
        UNITS % "wmma",
    ),
    "a wave's second four sums exchanged with the first": (
        "conv/gemm_gpu/micro/waves.cl",
        "#define SUMS8(s) (float8)(SUMS4(s), SUMS4((s) + 4))",
        "#define SUMS8(s) (float8)(SUMS4((s) + 4), SUMS4(s))",
        UNITS % "dpas16",
    ),
}
FRAMEWORKS = {
    "mxnet": (
        "conv/gemm_cpu/gemm.cl",
        "START_TILE(acc, has_bias && from == 0,",
        "START_TILE(acc, false && from == 0,",
        "mxnet_ops/test_convolution.py",
    ),
    "caffe": (
        "conv/gemm_cpu/gemm.cl",
        "START_TILE(acc, has_bias && from == 0,",
        "START_TILE(acc, false && from == 0,",
        "caffe_layers/test_convolution.py",
    ),
}


@pytest.fixture(scope="session", autouse=True)
def quick_compiler(context, tmp_path_factory) -> Iterator[None]:
    """Compile without optimisation on PoCL, in half the time, into caches where no other test finds the programs."""
    with pytest.MonkeyPatch.context() as patch:
        if isinstance(context.toolchain, PoCL):
            for name in ("CLGRAFT_CACHE", "POCL_CACHE_DIR"):
                patch.setitem(QUICK, name, str(tmp_path_factory.mktemp(name)))
            patch.setitem(QUICK, "POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable")
        yield


def run_on(fault: tuple[str, str, str], test: str) -> subprocess.CompletedProcess:
    """Run a test on kernels with a fault; with an empty fault, on sound ones."""
    environment = {**os.environ, **QUICK, "CLGRAFT_TEST_FAULT": json.dumps(fault), "PYTHONPATH": python_path()}
    path, _, chosen = test.partition(" -k ")
    command = [sys.executable, "-m", "pytest", "-x", "-p", "tests.mutant", "-p", "no:cacheprovider", str(TESTS / path)]
    command += ["-k", chosen] if chosen else []
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, cwd=TESTS.parent)


def assert_noticed(fault: tuple[str, str, str, str]) -> None:
    done = run_on(fault[:3], fault[3])
    # 1: tests ran and failed; anything else (nothing collected, usage, a crash of pytest) proves nothing
    assert done.returncode == 1 and "failed" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_noticed(context, name):
    if not context.device.is_cpu and any(
        word in FAULTS[name][0] + FAULTS[name][3] for word in ("cpu", "strided", "columns")
    ):
        pytest.skip("the kernel is for CPU devices")
    assert_noticed(FAULTS[name])


@pytest.mark.parametrize("name", [name for name in FRAMEWORKS if importlib.util.find_spec(name)])
def test_a_planted_fault_is_noticed_through_a_framework(name):
    assert_noticed(FRAMEWORKS[name])


def test_sound_kernels_pass_the_same_way():
    sound = ("common/prelude.cl", "#ifndef STORAGE", "#ifndef STORAGE")
    done = run_on(sound, DIRECT % "forward")
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("name", [*FAULTS, *FRAMEWORKS])
def test_a_fault_has_one_place(name):
    """Every fault's text is found once in the kernels, whatever their line breaks are."""
    file, old, new, _ = FAULTS.get(name) or FRAMEWORKS[name]
    _, place = mutant.find(sources.KERNELS, file, old)
    assert place[0] != new


def test_a_fault_is_found_in_other_words(tmp_path):
    (tmp_path / "conv").mkdir()
    (tmp_path / "conv" / "moved.cl").write_text("if (a&&b)\n    sum+= c [i] ;\nint ab;\n")
    path, place = mutant.find(tmp_path, "conv/gone.cl", "if (a && b) sum += c[i];")
    assert path.name == "moved.cl" and place[0] == "if (a&&b)\n    sum+= c [i] ;"
    for text in ("int a b;", "absent", "b"):
        with pytest.raises(ValueError, match="places of"):
            mutant.find(tmp_path, "conv/gone.cl", text)
