"""Depthwise convolution on GPUs of planes that pass through local memory, where several work-items share each."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

from clgraft.core.operators.conv.depthwise.axes import PlaneAxis, sum_of_splits
from clgraft.core.operators.conv.depthwise.gpu_planes import MOST_PLANES, MOST_TAPS, launch_planes
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.epilogue import Epilogue, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE, arithmetic_bytes
from clgraft.core.planning.launches import Buffer, Launch, Launches, Workspace, ints
from clgraft.core.problem import ceil_div, round_up

FILE = "conv/depthwise/gpu_staged.cl"
GROUP, FILTER_GROUP = 128, 64  # work-items of a work-group, about
LARGEST_GROUP = 256
WARP = 32
SUMS_KERNEL, FILTER_KERNEL = 1, 2  # the file's MAKES: what a program holds
FILTER_GROUPS_PER_UNIT = 4  # work-groups that each compute unit should get, about, for filters
MOST_SUMS = 25  # taps whose gradients a work-item keeps in registers
GROUPS_PER_UNIT = 2  # for which work-items get fewer rows
MOST_ROWS, FEWEST_ROWS = 14, 4  # of a work-item
# elements of a plane in local memory, with zeros: larger ones are faster with ``gpu_columns``
MOST_HELD, MOST_FILTER_HELD = 512, 1024
MOST_STRIDE = 4


@dataclass(frozen=True)
class _Axis:
    """Rows or columns of a plane, of which a work-item makes `item` neighbouring results."""

    axis: PlaneAxis
    backward: bool
    item: int

    @property
    def source(self) -> int:
        return self.axis.size if self.backward else self.axis.source

    @property
    def results(self) -> int:
        return self.axis.source if self.backward else self.axis.size

    @property
    def blocks(self) -> int:
        return ceil_div(self.results, self.item)

    @property
    def advance(self) -> int:
        """Elements of the source from block to block."""
        return self.item // self.axis.stride if self.backward else self.item * self.axis.stride

    @property
    def met(self) -> tuple[int, int]:
        """The first and the last element of the source that block 0 meets."""
        axis, results, taps = self.axis, range(self.item), range(self.axis.taps)
        if not self.backward:
            return axis.begin, (self.item - 1) * axis.stride + axis.begin + axis.reach
        places = [k - axis.begin - i * axis.step for k in results for i in taps]
        met = [place // axis.stride for place in places if place % axis.stride == 0]
        return min(met), max(met)

    @property
    def gap(self) -> int:
        """Zeros that blocks need in front of the source and after it."""
        first, last = self.met
        return max(0, -first, (self.blocks - 1) * self.advance + last - (self.source - 1))

    def defines(self, name: str) -> dict[str, Any]:
        """Return the macros of an axis, H or W."""
        axis, (first, last) = self.axis, self.met
        found = {"I": self.source, "O": self.results, "K": axis.taps, "S": axis.stride, "D": axis.step}
        found |= {"BEGIN_": f"({axis.begin})", "LOW_": f"({first})", "ITEM_": self.item, "GAP_": self.gap}
        extent = {"LINES" if name == "H" else "SPAN": last - first + 1}
        return extent | {f"{macro}{name}": value for macro, value in found.items()}


@dataclass(frozen=True)
class _Tiling:
    """How a work-group has its planes."""

    height: _Axis
    width: _Axis
    group: int

    @property
    def lanes(self) -> int:
        """Work-items of a plane."""
        return self.height.blocks * self.width.blocks

    @property
    def pitch(self) -> int:
        """Elements from plane to plane in local memory: a plane's work-items use other banks than the one's before."""
        held = (self.height.source + self.height.gap) * (self.width.source + self.width.gap)
        return held + (self.width.blocks * self.width.advance - held) % WARP if self.height.blocks == 1 else held

    @property
    def together(self) -> int:
        """Planes of which so many are whole fours of elements, read and made."""
        return max(4 // gcd(4, elements) for elements in (self.source, self.results))

    @property
    def source(self) -> int:
        """Elements that are read in a plane."""
        return self.height.source * self.width.source

    @property
    def results(self) -> int:
        """Elements that are made in a plane."""
        return self.height.results * self.width.results

    @property
    def planes(self) -> int:
        """Planes of a work-group."""
        return max(self.together, self.group // self.lanes // self.together * self.together)

    def held(self, itemsize: int) -> int:
        """Return the bytes of local memory, of which results take the same place."""
        origin = self.height.gap * (self.width.source + self.width.gap) + self.width.gap
        return round_up(max(origin + self.planes * self.pitch, self.planes * self.results), 4) * itemsize


def _tiling(problem: ConvProblem, planner: Planner, height: PlaneAxis, width: PlaneAxis) -> _Tiling:
    """Choose the blocks of work-items: columns of many rows, which share what they read."""
    backward = problem.direction == "backward_data"
    planes, rows = problem.batch * problem.in_channels, height.source if backward else height.size
    filters = problem.direction == "backward_filter"
    strips = ceil_div(rows, MOST_ROWS)
    while True:
        item = ceil_div(rows, strips)
        item = round_up(item, height.stride) if backward else item
        axes = _Axis(height, backward, item), _Axis(width, backward, width.stride if backward else 1)
        tiling = _Tiling(*axes, FILTER_GROUP if filters else GROUP)
        wanted = GROUPS_PER_UNIT * planner.device.compute_units
        if filters or item < 2 * FEWEST_ROWS or ceil_div(planes, tiling.planes) >= wanted:
            return tiling
        strips *= 2


def reason_against(problem: ConvProblem, planner: Planner, height: PlaneAxis, width: PlaneAxis) -> str:
    """Return why the kernel does not serve a problem; empty if it does."""
    if problem.out_channels != problem.in_channels:
        return f"serves one filter for each channel, not {problem.out_channels // problem.in_channels}"
    filters = problem.direction == "backward_filter"
    most_taps, most_held = (MOST_SUMS, MOST_FILTER_HELD) if filters else (MOST_TAPS, MOST_HELD)
    if height.taps * width.taps > most_taps:
        return f"{height.taps * width.taps} taps are more than {most_taps}"
    if max(height.stride, width.stride) > MOST_STRIDE:
        return f"stride {problem.stride} is more than {MOST_STRIDE}"
    elements = max(height.source * width.source, height.size * width.size)
    if not 0 < elements <= most_held or not min(height.source * width.source, height.size * width.size):
        return f"planes of {elements} elements, not of 1 to {most_held}"
    if not 0 < problem.batch * problem.in_channels < MOST_PLANES:
        return f"{problem.batch * problem.in_channels} planes, not 1 to {MOST_PLANES}"
    tiling = _tiling(problem, planner, height, width)
    if tiling.pitch > most_held:
        return f"planes have {tiling.pitch} elements with zeros around them, more than {most_held}"
    if tiling.planes * tiling.lanes > min(LARGEST_GROUP, planner.device.max_work_group_size):
        return f"{tiling.planes} planes need work-groups of {tiling.planes * tiling.lanes}"
    size = arithmetic_bytes(problem.dtype)
    held = tiling.held(size)
    if filters:
        held = max(held, _group(tiling, planner) * MOST_SUMS * size)
        held += round_up(tiling.planes * tiling.results, 4) * size
    if held > planner.device.local_memory:
        return f"{tiling.planes} planes do not fit the local memory"
    return ""


def plan(
    problem: ConvProblem, planner: Planner, height: PlaneAxis, width: PlaneAxis, epilogue: Epilogue | None = None
) -> Launches:
    """Plan a problem that `reason_against` has nothing against: one launch, or for filters two."""
    tiling = _tiling(problem, planner, height, width)
    group = _group(tiling, planner)
    defines = {"GROUP": group, "PLANES": tiling.planes, "LANES": tiling.lanes, "PITCH": tiling.pitch}
    defines |= {
        "BACKWARD": int(problem.direction == "backward_data"),
        "BLOCKS_W": tiling.width.blocks,
        **epilogue_defines(epilogue),
    }
    defines |= {**tiling.height.defines("H"), **tiling.width.defines("W")}
    if problem.direction == "backward_filter":
        return _filter(problem, planner, tiling, {"MAKES": FILTER_KERNEL, **defines})
    kernel = planner.kernel(FILE, "depthwise_gpu_staged", {"MAKES": SUMS_KERNEL, **defines}, problem.dtype, MAD_ENABLE)
    return launch_planes(problem, kernel, group, tiling.planes, epilogue)


def _group(tiling: _Tiling, planner: Planner) -> int:
    return min(round_up(tiling.planes * tiling.lanes, WARP), planner.device.max_work_group_size)


def _filter(problem: ConvProblem, planner: Planner, tiling: _Tiling, defines: dict[str, Any]) -> Launches:
    """Plan a filter's gradient: sums of some images by neighbouring channels, then the sums of these."""
    channels, size, group = problem.in_channels, arithmetic_bytes(problem.dtype), defines["GROUP"]
    count = channels * tiling.height.axis.taps * tiling.width.axis.taps
    blocks = ceil_div(channels, tiling.planes)
    wanted = ceil_div(FILTER_GROUPS_PER_UNIT * planner.device.compute_units, blocks)
    split_images = ceil_div(problem.batch, min(wanted, problem.batch))
    splits = ceil_div(problem.batch, split_images)
    partial = Workspace(0, size)
    first, second = (
        planner.kernel(FILE, name, defines, problem.dtype, MAD_ENABLE)
        for name in ("depthwise_gpu_staged_filter", "depthwise_sum_splits")
    )
    arguments = (Buffer("x"), Buffer("dy"), partial, *ints(channels, problem.batch, split_images))
    products = Launch(first, (blocks * group, splits), (group, 1), arguments)
    return Launches((products, sum_of_splits(second, partial, splits, count)), splits * count * size)
