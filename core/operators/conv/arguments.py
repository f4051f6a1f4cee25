"""Structs that describe grids, targets and taps to the convolution's kernels; see kernels/conv/grid.cl."""

from __future__ import annotations

from clgraft.core.planning.structs import Struct

# pixels over a source tensor: pixel u meets tap j at source position u * stride + begin + j * step
GRID = Struct("Grid", ("batch",), ("size", "source", "taps", "stride", "begin", "step"))
# where a grid's pixels are stored: pixel u of `pixels` at position u * stride + begin of a tensor of `size`
TARGET = Struct("Target", (), ("size", "stride", "begin", "pixels"))
# what divides by a grid's `size`, see core/planning/division.py
DIVISORS = Struct("Divisors", (), ("by",), kind="long")
# a phase of a stride as kernels/conv/gemm_gpu/halves_phases.cl has it: pixel 0 meets the kernel's tap `first` at source
# position `begin`, and is stored at `place`
STRIDE_PHASE = Struct("StridePhase", (), ("taps", "first", "begin", "place"))
# which taps of the kernel a grid meets: tap j of `taps` is the kernel's tap first + j * step
TAPS = Struct("Taps", (), ("kernel", "taps", "first", "step"))
# which taps of the kernel pixels of a block of dx meet at `taps` pixels of dy, from pixel `first` on
BLOCK_TAPS = Struct("BlockTaps", (), ("block", "taps", "first", "kernel", "stride", "pad", "dilate"))
# where a product of matrices on a CPU device reads weights, see kernels/conv/gemm_cpu/weights.cl
WEIGHT_STRIDES = Struct("WeightStrides", ("group", "tile", "row", "step"), kind="long")
# how the gradient of filters of one tap is split, see kernels/conv/gemm_cpu/filter_in_place.cl
FILTER_SPLIT = Struct("FilterSplit", ("direct", "block", "blocks", "rows", "tiles"))
# the phases of a stride over a tensor of `size`: a phase meets every `distance`-th tap of the kernel, at offsets that
# are `tap_step` taps of a grid apart
PHASE_TAPS = Struct("PhaseTaps", (), ("size", "kernel", "stride", "pad", "dilate", "distance", "tap_step"))
# all phases of backward data, from which a kernel derives the grid of each; a phase meets every `distance`-th tap
PHASE_GRID = Struct(
    "PhaseGrid", ("batch", "groups"), ("source", "target", "kernel", "stride", "pad", "dilate", "distance")
)
# the depthwise kernels' planes, see kernels/conv/depthwise/planes.cl
PLANE_SUMS = Struct("PlaneSums", ("channels", "sums", "shared", "flip"))
PLANE_TILE = Struct("PlaneTile", ("h", "w", "pitch", "plane_size", "result_size", "low_h", "low_w", "more_h"))
GROUP_SCRATCH = Struct("GroupScratch", ("first_tap", "lead", "blocks", "phase_size"))
# parts of Winograd's tile rows, see kernels/conv/winograd/transforms.cl; how they are split, see winograd.cl
TILE_ROWS = Struct("TileRows", ("first_row", "rows", "tiles", "block_rows"))
TILE_SPLIT = Struct("TileSplit", ("rows", "block_rows", "blocks", "group_rows"))
# a part of the tiles of Winograd's convolution on GPUs, see kernels/conv/winograd_gpu/tiles.cl
TILE_PART = Struct("TilePart", ("first", "count", "pitch", "filled"))
# planes of a convolution by Fourier transforms and where their points are, see kernels/conv/fft/gpu.cl
FFT_PART = Struct(
    "FftPart",
    (
        *("first", "count", "filled", "rows", "pitch"),
        *("step_h", "step_w", "extent_h", "extent_w", "down", "across"),
    ),
)
