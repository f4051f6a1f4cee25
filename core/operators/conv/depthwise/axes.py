"""What the depthwise implementations share: a problem's two axes, and the numbers that kernels get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID, PLANE_SUMS
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import ITEMS_PER_UNIT
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Workspace, ints
from clgraft.core.planning.structs import StructConstant
from clgraft.core.problem import ceil_div

ITEM_BYTES = 512 * 1024  # memory traffic that makes a work-item worth its dispatch
MOST_OF_ONE = 8  # most filters of a single input channel; more of them are a product of matrices


@dataclass(frozen=True)
class PlaneAxis:
    """One spatial axis of a grid: pixel u of `size` meets tap j of `taps` at source u * stride + begin + j * step."""

    source: int
    size: int
    taps: int
    stride: int
    begin: int
    step: int

    @property
    def pad(self) -> int:
        """Elements of padding in front of the source."""
        return -self.begin

    @property
    def turned(self) -> PlaneAxis:
        """The axis of dx's pixels over dy at stride 1, with the taps in the opposite order."""
        return PlaneAxis(self.size, self.source, self.taps, 1, self.pad - self.reach, self.step)

    @property
    def reach(self) -> int:
        """Distance of the first and the last tap."""
        return (self.taps - 1) * self.step

    @property
    def phases(self) -> int:
        """Phases of the stride that taps meet, at most."""
        return min(self.stride, self.reach + 1)

    @property
    def low(self) -> int:
        """Least position in dy that a line of dx meets, less the line's number: ceil((p - reach) / s)."""
        return ceil_div(self.pad - self.reach, self.stride)

    @property
    def more(self) -> int:
        """Positions in dy that a line of dx meets, in all phases together, less one."""
        return (self.stride - 1 + self.pad) // self.stride - self.low


FLAT = PlaneAxis(1, 1, 1, 1, 0, 1)  # an axis that is not there


def axes_of(problem: ConvProblem) -> tuple[PlaneAxis, PlaneAxis]:
    """Return height and width; a 1-D problem is one row.

    Raises
    ------
    Declined
        If the problem is not depthwise, or is backward_bias, or has three axes, or is better a product of matrices.
    """
    if not problem.depthwise:
        raise Declined(f"groups {problem.groups} are not the {problem.in_channels} input channels")
    if problem.in_channels == 1 and problem.out_channels > MOST_OF_ONE:
        raise Declined(f"{problem.out_channels} filters of one channel are a product of matrices")
    return axes_of_groups(problem)


def axes_of_groups(problem: ConvProblem) -> tuple[PlaneAxis, PlaneAxis]:
    """Return height and width for any groups; a 1-D problem is one row.

    Raises
    ------
    Declined
        If the problem is backward_bias, or has three axes.
    """
    if problem.direction == "backward_bias":
        raise Declined("has no backward_bias")
    if problem.ndim > 2:
        raise Declined("has one or two spatial axes")
    sizes = zip(problem.in_size, problem.out_size, problem.kernel, problem.stride, problem.pad_begin, problem.dilate)
    axes = [PlaneAxis(i, o, k, s, -p, d) for i, o, k, s, p, d in sizes]
    return (axes[0], axes[1]) if problem.ndim == 2 else (FLAT, axes[0])


def strips_of(height: PlaneAxis, rows: int) -> int:
    """Count the strips of so many rows that lie a dilation apart: a dilated kernel's rows share lines only so."""
    return ceil_div(height.size, rows * height.step) * height.step


def grid_argument(batch: int, height: PlaneAxis, width: PlaneAxis) -> StructConstant:
    """Return the kernels' Grid of planes."""
    axes = (FLAT, height, width)
    return GRID.pack({"batch": batch, **{name: tuple(getattr(a, name) for a in axes) for name in GRID.spatial}})


def sums_argument(problem: ConvProblem) -> StructConstant:
    """Return the kernels' PlaneSums, for forward and for backward data with flipped weights."""
    forward, multiplier = problem.direction == "forward", problem.out_channels // problem.in_channels
    channels = problem.out_channels if forward else problem.in_channels
    sums, shared = (1, multiplier) if forward else (multiplier, 1)
    return PLANE_SUMS.pack({"channels": channels, "sums": sums, "shared": shared, "flip": not forward})


def long(value: int) -> Constant:
    """Return a constant as a kernel's long parameter."""
    return Constant(np.int64(value))


def sum_of_splits(kernel: Any, partial: Workspace, splits: int, count: int) -> Launch:
    """Return the launch of ``depthwise_sum_splits``: the sum of so many filters of `count` elements in `partial`."""
    return Launch(
        kernel, (count,), None, (partial, Buffer("dw"), Accumulate("dw"), *ints(splits), long(count)), ("dw",)
    )


def planes_per_item(planes: int, tiles: int, plane_bytes: int, planner: Planner) -> int:
    """Choose how many planes a work-item takes, of each the same of `tiles` tiles: enough work, and enough items."""
    most = max(planes * tiles // (planner.device.compute_units * ITEMS_PER_UNIT), 1)
    enough = ceil_div(ITEM_BYTES * tiles, max(plane_bytes, 1))
    return max(min(enough, most, planes), 1)


def splits_of_images(tiles: int, filters: int, planner: Planner) -> tuple[int, int, int]:
    """Choose how a filter's gradient is split where the filters alone leave cores idle.

    Parameters
    ----------
    tiles : int
        Tiles of all images.
    filters : int
        Filters, or groups of them that are summed together.

    Returns
    -------
    splits, split_tiles, item_filters : int
        Number of splits, tiles of a split, and filters of a work-item.
    """
    items = planner.device.compute_units * ITEMS_PER_UNIT
    split_tiles = max(ceil_div(tiles, max(min(tiles, ceil_div(items, filters)), 1)), 1)
    return max(ceil_div(tiles, split_tiles), 1), split_tiles, max(filters // items, 1)
