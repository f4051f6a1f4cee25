"""The windows of a convolution in channels last as its products on CPU devices see them, and its grid of pixels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID
from clgraft.core.operators.conv.cpu_costs import costs
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.conv.winograd.tiles import choose, cost, expect_served
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE, arithmetic_bytes
from clgraft.core.planning.launches import Buffer, Launch, ints
from clgraft.core.planning.structs import StructConstant
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import SMALL, ceil_div, in_3d
from clgraft.core.problem.layout import FIRST

PIXELS_FILE = "conv/channels_last/pixels.cl"
PAD_ELEMENTS = 16384  # elements that a work-item of pad_pixels writes
COSTS = costs("channels_last")
GROUP_VECTORS = 2  # that the channels of a group must fill
SLACK = 256  # bytes after the padded input, which vectors may read


def pixel_grid(problem: ConvProblem, turned: bool = False) -> StructConstant:
    """Return the pixels and taps of a convolution; `turned`: of the one that backward data with stride 1 is."""
    size, source = in_3d(problem.out_size, 1), in_3d(problem.in_size, 1)
    begin = tuple(-pad for pad in problem.pad_begin)
    if turned:
        size, source = source, size
        begin = tuple(p - d * (k - 1) for p, d, k in zip(problem.pad_begin, problem.dilate, problem.kernel))
    return GRID.pack(
        {
            "batch": problem.batch,
            "size": size,
            "source": source,
            "taps": in_3d(problem.kernel, 1),
            "stride": in_3d(problem.stride, 1),
            "begin": in_3d(begin, 0),
            "step": in_3d(problem.dilate, 1),
        }
    )


@dataclass(frozen=True)
class Windows:
    """A convolution whose windows all lie inside: sizes on three axes, and channels of a group.

    Attributes
    ----------
    before, after : tuple of int
        Pixels that are zero around the source.
    """

    batch: int
    groups: int
    channels: int
    outputs: int
    source: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    size: tuple[int, ...]
    taps: tuple[int, ...]
    stride: tuple[int, ...]
    step: tuple[int, ...]

    @property
    def padded(self) -> tuple[int, ...]:
        """The source with what is around it."""
        return tuple(b + s + a for b, s, a in zip(self.before, self.source, self.after))

    @property
    def run(self) -> int:
        """Terms of a sum whose elements of the source are neighbours in memory."""
        merges = self.groups == 1 and self.step[-1] == 1
        return self.channels * (self.taps[-1] if merges else 1)

    def grid(self) -> StructConstant:
        """Return the pixels and taps as the kernels' argument."""
        return GRID.pack(
            {
                "batch": self.batch,
                "size": self.size,
                "source": self.padded,
                "taps": self.taps,
                "stride": self.stride,
                "begin": (0, 0, 0),
                "step": self.step,
            }
        )

    def padding(self) -> StructConstant:
        """Return the source within the padded one as the argument of pad_pixels."""
        return GRID.pack(
            {
                "batch": self.batch,
                "size": self.padded,
                "source": self.source,
                "taps": (1, 1, 1),
                "stride": (1, 1, 1),
                "begin": tuple(-b for b in self.before),
                "step": (1, 1, 1),
            }
        )


def windows_of(problem: ConvProblem) -> Windows:
    """Return the windows of a direction; backward data with stride 1 is a convolution of its own.

    Raises
    ------
    Declined
        If backward data has a stride, or padding that takes away more than a window reaches.
    """
    inputs, outputs = problem.in_channels // problem.groups, problem.out_channels // problem.groups
    kernel, dilate, stride = in_3d(problem.kernel, 1), in_3d(problem.dilate, 1), in_3d(problem.stride, 1)
    begin, end = in_3d(problem.pad_begin, 0), in_3d(problem.pad_end, 0)
    in_size, out_size = in_3d(problem.in_size, 1), in_3d(problem.out_size, 1)
    if problem.direction != "backward_data":
        return Windows(
            *(problem.batch, problem.groups, inputs, outputs, in_size, begin, end, out_size, kernel, stride, dilate)
        )
    if prod(stride) > 1:
        raise Declined("has backward data with stride 1 only")
    reach = tuple(d * (k - 1) for d, k in zip(dilate, kernel))
    before, after = (tuple(r - p for r, p in zip(reach, pads)) for pads in (begin, end))
    if min(*before, *after) < 0:
        raise Declined("has no backward data where padding is wider than the kernel")
    return Windows(
        *(problem.batch, problem.groups, outputs, inputs, out_size, before, after, in_size, kernel, stride, dilate)
    )


def reserved_for_winograd(problem: ConvProblem) -> str:
    """Return why a product is not the default for a problem; empty if it is.

    It is left to Winograd's method where the transpositions cost less than the multiplications that this saves. The
    constants are in ``cpu_costs.txt``.
    """
    first = replace(problem, layout=FIRST)
    try:
        expect_served(first)
        geometry = choose(first)
    except Declined:
        return ""
    weights = problem.in_channels * problem.out_channels * prod(problem.kernel)
    pixels = problem.batch * prod(problem.out_size)
    moved = pixels * problem.out_channels + problem.batch * prod(problem.in_size) * problem.in_channels
    transposed = cost(geometry) + COSTS["moved"] * moved + COSTS["moved_weights"] * weights + COSTS["launches"]
    packed = COSTS["gradient" if problem.direction == "backward_filter" else "weights"]
    if transposed < weights * (pixels / COSTS["products"] + packed):
        return "Winograd's method between transpositions has less to multiply"
    return ""


def expect_wide_groups(windows: Windows, lanes: int) -> None:
    """Decline groups of channels that fill no vectors: planes with channels first do them better.

    Raises
    ------
    Declined
        If there are several groups, and their channels are few.
    """
    if windows.groups > 1 and min(windows.channels, windows.outputs) < GROUP_VECTORS * lanes:
        raise Declined(f"is for groups of at least {GROUP_VECTORS * lanes} channels")


def padded_source(
    windows: Windows,
    problem: ConvProblem,
    planner: Planner,
    layout: WorkspaceLayout,
    source: str,
    result: str,
    lanes: int,
    copied: bool = False,
) -> tuple[Any, tuple[Launch, ...]]:
    """Return where a product reads its input, and the launch that writes there, if there is one.

    Parameters
    ----------
    source, result : str
        Arguments of the problem.
    lanes : int
        Of vectors.
    copied : bool
        Whether the input must be a copy even if it is not padded, because vectors read beyond its end.
    """
    if not (copied or any((*windows.before, *windows.after)) or problem.dtype in SMALL):
        return Buffer(source), ()
    size, channels = arithmetic_bytes(problem.dtype), windows.channels * windows.groups
    depth, height, width = windows.padded
    rows, of_row = windows.batch * depth * height, width * channels
    padded = layout.take(rows * of_row * size + SLACK, size)
    item_rows = max(PAD_ELEMENTS // of_row, 1)
    kernel = planner.kernel(PIXELS_FILE, "pad_pixels", {"VL": lanes, **GRID.defines()}, problem.dtype, MAD_ENABLE)
    arguments = (Buffer(source), padded, *ints(channels, item_rows), windows.padding())
    return padded, (Launch(kernel, (ceil_div(rows, item_rows),), (1,), arguments, (result,)),)
