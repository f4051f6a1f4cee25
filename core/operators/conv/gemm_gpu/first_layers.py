"""Few input channels in channels last, as products of matrices that have more of them.

Forward and the gradient of filters: what the taps of a row meet lies side by side in memory, and a copy makes channels
of it. A convolution of 7 x 7 taps and 3 channels becomes one of 7 x 1 taps and 21 channels.

The gradient of data: the pixels of a block of dx, of all phases of the stride, are channels of a forward convolution
of dy, whose weights are w's with zeros between them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from clgraft.core.operators.conv.arguments import BLOCK_TAPS
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, Workspace, ints
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import ceil_div, in_3d, round_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clgraft.core.operators.conv.problem import ConvProblem
    from clgraft.core.planning.implementation import Planner

FILE = "conv/gemm_gpu/first_layers.cl"
UNFOLD, BLOCKS = range(2)  # the file's MAKES
MOST_VECTORS = 2**32  # that are copied, which kernels count by 32 bits
FEWER = 0.75  # products of rows of taps as channels, as a part of those of padded channels, that are worth the copy
MOST_COLUMNS = 64  # pixels of a block and their channels: the columns of the smallest tile
LARGEST_BLOCK = 8  # pixels of a block along an axis, if the stride is not more


def unfolds(problem: ConvProblem, vector: int, largest: int) -> bool:
    """Return whether the taps of a row are to become channels.

    Parameters
    ----------
    vector : int
        Channels that are copied at once.
    largest : int
        Most elements of an image.
    """
    if problem.direction not in ("forward", "backward_filter") or problem.groups > 1:
        return False
    taps, channels = problem.kernel[-1], problem.in_channels
    wide = round_up(taps * channels, vector)
    image = prod(problem.in_size[:-1]) * problem.out_size[-1] * wide
    fits = image <= largest and problem.batch * image // vector < MOST_VECTORS
    return wide <= FEWER * taps * round_up(channels, vector) and fits


def unfolded(problem: ConvProblem) -> ConvProblem:
    """Return the problem whose channels are what the taps of a row meet."""
    *in_size, _ = problem.in_size

    def last(values: tuple[int, ...], value: int) -> tuple[int, ...]:
        return (*values[:-1], value)

    return replace(
        problem,
        in_channels=problem.in_channels * problem.kernel[-1],
        in_size=(*in_size, problem.out_size[-1]),
        kernel=last(problem.kernel, 1),
        stride=last(problem.stride, 1),
        pad_begin=last(problem.pad_begin, 0),
        pad_end=last(problem.pad_end, 0),
        dilate=last(problem.dilate, 1),
    )


def unfold(problem: ConvProblem, planner: Planner, to: Workspace, vector: int, result: str) -> Launch:
    """Return the launch that copies x so that the taps of a row are channels, and zeros after them."""
    rows, pixels = problem.batch * prod(problem.in_size[:-1]), problem.out_size[-1]
    vectors = ceil_div(problem.in_channels * problem.kernel[-1], vector)
    names = {"CHANNELS": problem.in_channels, "KW": problem.kernel[-1], "SW": problem.stride[-1]}
    names |= {"PW": f"({problem.pad_begin[-1]})", "DW": problem.dilate[-1]}
    kernel = planner.kernel(FILE, "conv_unfold_rows", {"MAKES": UNFOLD, **names}, problem.dtype)
    arguments = (Buffer("x"), to, *ints(problem.in_size[-1], pixels))
    nbytes = rows * pixels * vectors * vector * 2
    return Launch(kernel, (rows * pixels * vectors,), None, arguments, (result,), (nbytes,))


@dataclass(frozen=True)
class BlockAxis:
    """An axis of dx in blocks of `block` pixels, which meet `taps` neighbours in dy, `first` after the block's own."""

    block: int
    blocks: int
    step: int
    first: int
    taps: int
    pad_end: int

    @classmethod
    def of(cls, block: int, size: int, other: int, kernel: int, stride: int, pad: int, dilate: int) -> BlockAxis:
        """Return the axis of dx of `size` pixels over `other` of dy; `block` is a multiple of the stride."""
        met = [
            (a + pad - dilate * t) // stride
            for a in range(block)
            for t in range(kernel)
            if (a + pad - dilate * t) % stride == 0
        ]
        first = min(0, *met)
        taps, step, blocks = max(0, *met) - first + 1, block // stride, ceil_div(size, block)
        return cls(block, blocks, step, first, taps, max((blocks - 1) * step + taps - other + first, 0))


@dataclass(frozen=True)
class Blocks:
    """A gradient of data as a convolution of dy: blocks of pixels of dx are its channels."""

    problem: ConvProblem
    high: BlockAxis
    wide: BlockAxis

    @classmethod
    def all_of(cls, problem: ConvProblem) -> Iterator[Blocks]:
        """Return those that fit the columns of a tile."""
        channels = problem.in_channels
        if problem.direction != "backward_data" or problem.groups > 1 or problem.ndim > 2:
            return
        if channels * prod(problem.stride) > MOST_COLUMNS or 0 in (*problem.in_size, *problem.out_size):
            return
        sizes = (problem.in_size, problem.out_size, problem.kernel, problem.stride, problem.pad_begin, problem.dilate)
        fills = (1, 1, 1, 1, 0, 1)
        (_, *high), (_, *wide) = zip(*(in_3d(size, fill)[1:] for size, fill in zip(sizes, fills)))
        high_size, wide_size = (in_3d(problem.in_size, 1)[axis] for axis in (1, 2))
        high_stride, wide_stride = high[2], wide[2]
        for rows in range(high_stride, max(LARGEST_BLOCK, high_stride) + 1, high_stride):
            for columns in range(wide_stride, max(LARGEST_BLOCK, wide_stride) + 1, wide_stride):
                if rows * columns * channels <= MOST_COLUMNS and (rows <= high_size or rows == high_stride):
                    yield cls(problem, BlockAxis.of(rows, high_size, *high), BlockAxis.of(columns, wide_size, *wide))

    @property
    def columns(self) -> int:
        """Channels of the convolution's result."""
        return self.high.block * self.wide.block * self.problem.in_channels

    @property
    def convolution(self) -> ConvProblem:
        """The forward convolution."""
        problem, axes = self.problem, (self.high, self.wide)[2 - self.problem.ndim :]
        return replace(
            problem,
            direction="forward",
            in_channels=problem.out_channels,
            out_channels=self.columns,
            in_size=problem.out_size,
            kernel=tuple(axis.taps for axis in axes),
            stride=tuple(axis.step for axis in axes),
            pad_begin=tuple(-axis.first for axis in axes),
            pad_end=tuple(axis.pad_end for axis in axes),
            dilate=(1,) * problem.ndim,
            bias=False,
        )

    def around(self, planner: Planner, inner: Launches) -> Launches:
        """Return the launches of the gradient, made of those of the convolution."""
        problem, convolution = self.problem, self.convolution
        layout = WorkspaceLayout(inner.workspace_bytes)
        elements = self.columns * prod(convolution.kernel) * problem.out_channels
        weights = layout.take(elements * 2, 2)
        (_, blocks_h, blocks_w) = in_3d(convolution.out_size, 1)
        blocks = layout.take(problem.batch * blocks_h * blocks_w * self.columns * 2, 2)
        high, wide = self.high, self.wide
        met = BLOCK_TAPS.pack(
            {
                "block": (1, high.block, wide.block),
                "taps": (1, high.taps, wide.taps),
                "first": (0, high.first, wide.first),
                "kernel": in_3d(problem.kernel, 1),
                "stride": in_3d(problem.stride, 1),
                "pad": in_3d(problem.pad_begin, 0),
                "dilate": in_3d(problem.dilate, 1),
            }
        )
        defines = {"MAKES": BLOCKS, **BLOCK_TAPS.defines()}
        first = Launch(
            planner.kernel(FILE, "conv_block_weights", defines, problem.dtype),
            (elements,),
            None,
            (Buffer("w"), weights, *ints(problem.out_channels, problem.in_channels), met),
            ("dx",),
            (elements * 2,),
        )
        _, height, width = in_3d(problem.in_size, 1)
        pitch, run = width * problem.in_channels, self.wide.block * problem.in_channels
        last = Launch(
            planner.kernel(FILE, "conv_spread_blocks", defines, problem.dtype),
            (ceil_div(pitch, 4), problem.batch * height),
            None,
            (
                *(blocks, Buffer("dx"), Accumulate("dx"), *ints(height, pitch)),
                *ints(blocks_h, blocks_w, self.high.block, run),
            ),
            ("dx",),
        )
        parts: dict[str, Any] = {"x": Buffer("dy"), "w": weights, "y": blocks}
        launches = tuple(_bound(launch, parts) for launch in inner.launches)
        return Launches((first, *launches, last), layout.nbytes)


def _bound(launch: Launch, parts: Mapping[str, Any]) -> Launch:
    """Return a launch of the convolution with the gradient's arguments."""

    def bind(item: Any) -> Any:
        if isinstance(item, Buffer):
            return parts[item.name]
        return Constant(ints(0)[0].value) if isinstance(item, Accumulate) else item

    moved = any(isinstance(item, Buffer) for item in launch.arguments)
    prepares = () if moved else launch.prepares
    return replace(launch, arguments=tuple(map(bind, launch.arguments)), writes=("dx",), prepares=prepares)
