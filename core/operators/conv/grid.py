"""How a convolution's direction becomes grids of pixels over a source tensor, for products of matrices.

A grid states, per axis, that pixel u meets tap j at source position ``u * stride + begin + j * step`` and writes
target position ``u * target_stride + target_begin``. Forward is one grid. Backward data is one grid per phase of the
stride, so that no multiplication by an inserted zero is ever done.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import gcd, prod

from clgraft.core.operators.conv.arguments import DIVISORS, GRID, PHASE_GRID, STRIDE_PHASE, TAPS, TARGET
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.division import packed_divisor
from clgraft.core.planning.structs import StructConstant
from clgraft.core.problem import ceil_div, in_3d


@dataclass(frozen=True)
class GridAxis:
    """One axis of a grid; `first_tap` and `tap_step` say which taps of the kernel the grid's taps are."""

    size: int
    source: int
    target: int
    taps: int
    stride: int = 1
    begin: int = 0
    step: int = 0
    target_stride: int = 1
    target_begin: int = 0
    first_tap: int = 0
    tap_step: int = 1


@dataclass(frozen=True)
class Grid:
    """Three axes, outermost first."""

    batch: int
    axes: tuple[GridAxis, GridAxis, GridAxis]

    def values(self, name: str) -> tuple[int, ...]:
        """Return one field of all axes."""
        return tuple(getattr(axis, name) for axis in self.axes)

    @cached_property
    def pixels(self) -> int:
        """Number of pixels of all images."""
        return self.batch * prod(self.values("size"))

    @cached_property
    def taps(self) -> int:
        """Number of taps that a pixel meets."""
        return prod(self.values("taps"))

    @cached_property
    def plain(self) -> bool:
        """Whether every pixel meets the one source element of its own number: a product of matrices in place."""
        return all(
            axis.size == axis.source == axis.target
            and (axis.taps, axis.stride, axis.begin, axis.target_stride, axis.target_begin) == (1, 1, 0, 1, 0)
            for axis in self.axes
        )

    @cached_property
    def one_tap(self) -> bool:
        """Whether every pixel meets one source element, and writes the target of its own number."""
        targets = (self.values("size"), (1,) * 3, (0,) * 3)
        own = targets == tuple(self.values(name) for name in ("target", "target_stride", "target_begin"))
        return own and self.taps == 1 and self.inside

    @cached_property
    def inside(self) -> bool:
        """Whether every tap of every pixel falls into the source."""
        return all(
            a.begin >= 0 and (a.size - 1) * a.stride + a.begin + max(a.taps - 1, 0) * a.step < a.source
            for a in self.axes
        )

    @cached_property
    def used_axes(self) -> int:
        """The axes, from the innermost, up to the last one whose positions can differ from 0."""
        trivial = [a.size == a.source == 1 and a.begin == 0 and a.taps <= 1 for a in self.axes]
        return 1 if trivial[0] and trivial[1] else 2 if trivial[0] else 3

    @cached_property
    def source_rows(self) -> int:
        """Number of source rows that a pixel meets in one channel."""
        return self.axes[0].taps * self.axes[1].taps

    @cached_property
    def row_taps(self) -> int:
        """Number of taps in a source row."""
        return self.axes[2].taps

    def argument(self) -> StructConstant:
        """Return the kernels' Grid."""
        return GRID.pack({"batch": self.batch, **{name: self.values(name) for name in GRID.spatial}})

    def divisors_argument(self) -> StructConstant:
        """Return the kernels' Divisors, by which they find a pixel's position."""
        return DIVISORS.pack({"by": [packed_divisor(max(size, 1)) for size in self.values("size")]})

    def target_argument(self) -> StructConstant:
        """Return the kernels' Target."""
        fields = {"size": "target", "stride": "target_stride", "begin": "target_begin", "pixels": "size"}
        return TARGET.pack({name: self.values(field) for name, field in fields.items()})

    def phase_values(self) -> bytes:
        """Return the kernels' StridePhase of a grid of `shared_phases`."""
        fields = {"taps": "taps", "first": "first_tap", "begin": "begin", "place": "target_begin"}
        return STRIDE_PHASE.pack({name: self.values(field) for name, field in fields.items()}).value

    def source_argument(self) -> StructConstant:
        """Return the kernels' Target of the source of a grid of one tap: where pixel u is in it."""
        fields = {"size": "source", "stride": "stride", "begin": "begin", "pixels": "size"}
        return TARGET.pack({name: self.values(field) for name, field in fields.items()})

    def taps_argument(self, kernel: tuple[int, int, int]) -> StructConstant:
        """Return the kernels' Taps: which taps of a kernel of this size are met."""
        fields = {"taps": "taps", "first": "first_tap", "step": "tap_step"}
        return TAPS.pack({"kernel": kernel, **{name: self.values(field) for name, field in fields.items()}})

    def most_runs(self, block: int) -> int:
        """Bound the number of runs, the pieces of rows, in a block of pixels."""
        return min(block, block // max(self.axes[2].size, 1) + 2)

    @property
    def reach(self) -> int:
        """Distance of the first and the last tap of a row."""
        return max(self.row_taps - 1, 0) * self.axes[2].step


def _axes(problem: ConvProblem) -> list[tuple[int, ...]]:
    """Return (in, out, kernel, stride, pad, dilate) of three axes."""
    sizes = (problem.in_size, problem.out_size, problem.kernel, problem.stride, problem.pad_begin, problem.dilate)
    return list(zip(*(in_3d(size, fill) for size, fill in zip(sizes, (1, 1, 1, 1, 0, 1)))))


def _spatial(problem: ConvProblem) -> list[tuple[int, ...]]:
    """Return the axes as `_axes` does; a plain product of matrices is one long row."""
    plain = all(k == 1 for k in problem.kernel + problem.stride) and not any(problem.pad_begin + problem.pad_end)
    if plain:
        pixels = prod(problem.in_size)
        return [(1, 1, 1, 1, 0, 1), (1, 1, 1, 1, 0, 1), (pixels, pixels, 1, 1, 0, 1)]
    return _axes(problem)


def _forward(problem: ConvProblem, sizes: list[tuple[int, ...]]) -> Grid:
    axes = [GridAxis(size=o, source=i, target=o, taps=k, stride=s, begin=-p, step=d) for i, o, k, s, p, d in sizes]
    return Grid(problem.batch, (axes[0], axes[1], axes[2]))


def forward_grid(problem: ConvProblem) -> Grid:
    """Return the grid of y's pixels over x."""
    return _forward(problem, _spatial(problem))


def spatial_grid(problem: ConvProblem) -> Grid:
    """Return the grid of y's pixels over x with the problem's own axes, also where it is a plain product."""
    return _forward(problem, _axes(problem))


def backward_data_grids(problem: ConvProblem) -> list[Grid]:
    """Return the grids of dx's pixels over dy, one for each phase of the stride.

    dx at u * stride + a meets tap k where a + pad - dilate * k is a multiple of the stride, at dy position
    u + (a + pad - dilate * k) / stride: an arithmetic progression of taps, here in the order of rising position.
    """
    per_axis = []
    for i, o, k, s, p, d in _spatial(problem):
        phases = []
        for a in range(min(s, i)):
            taps = [t for t in range(k) if (a + p - d * t) % s == 0][::-1]
            axis = GridAxis(size=ceil_div(i - a, s), source=o, target=i, taps=0, target_stride=s, target_begin=a)
            if taps:
                distance = s // gcd(s, d)
                axis = GridAxis(
                    size=axis.size,
                    source=o,
                    target=i,
                    taps=len(taps),
                    begin=(a + p - d * taps[0]) // s,
                    step=d * distance // s,
                    target_stride=s,
                    target_begin=a,
                    first_tap=taps[0],
                    tap_step=-distance,
                )
            phases.append(axis)
        per_axis.append(phases)
    return [Grid(problem.batch, (outer, middle, inner)) for outer, middle, inner in product(*per_axis)]


def shared_phases(grids: list[Grid]) -> tuple[Grid, list[Grid]]:
    """Return the pixels that all phases of backward data share, the largest one's, and every phase with as many.

    What is beyond a smaller phase lies outside of dx. Taps of all phases are the same distance from each other.
    """
    first = grids[0]
    axes = tuple(
        replace(
            axis,
            size=max(grid.axes[index].size for grid in grids),
            step=max(grid.axes[index].step for grid in grids),
            tap_step=min(grid.axes[index].tap_step if grid.axes[index].taps else 0 for grid in grids),
            target_begin=0,
        )
        for index, axis in enumerate(first.axes)
    )
    shared = Grid(first.batch, (axes[0], axes[1], axes[2]))

    def as_large(grid: Grid) -> Grid:
        large = [replace(axis, size=every.size) for axis, every in zip(grid.axes, shared.axes)]
        return Grid(grid.batch, (large[0], large[1], large[2]))

    return shared, [as_large(grid) for grid in grids]


def phase_grid_argument(problem: ConvProblem) -> StructConstant:
    """Return the kernels' PhaseGrid: all phases of backward data."""
    sizes = (problem.out_size, problem.in_size, problem.kernel, problem.stride, problem.pad_begin, problem.dilate)
    source, target, kernel, stride, pad, dilate = (in_3d(v, f) for v, f in zip(sizes, (1, 1, 1, 1, 0, 1)))
    return PHASE_GRID.pack(
        {
            **{"batch": problem.batch, "groups": problem.groups, "source": source, "target": target},
            **{"kernel": kernel, "stride": stride, "pad": pad, "dilate": dilate},
            "distance": [s // gcd(s, d) for s, d in zip(stride, dilate)],
        }
    )


def dense_grid(problem: ConvProblem) -> Grid:
    """Return the grid of y's pixels over themselves: that of a kernel of one tap, once its stride is taken out."""
    pixels = prod(problem.out_size)
    one, row = GridAxis(size=1, source=1, target=1, taps=1), GridAxis(size=pixels, source=pixels, target=pixels, taps=1)
    return Grid(problem.batch, (one, one, row))


def shared_data_grid(problem: ConvProblem) -> Grid:
    """Return the one grid of all phases of dx over dy: pixel u stands for positions u * stride + a of every phase a.

    Its taps are the source offsets that any phase meets, and what is between them. A phase's taps are an arithmetic
    progression of them, and no two phases meet the same tap of the kernel.
    """
    axes = []
    for i, o, k, s, p, d in _axes(problem):
        # tap t of the kernel meets dx at u * stride + a, where a + pad - dilate * t is a multiple of the stride
        offsets = [-((d * t - p) // s) for t in range(k)]
        first, step = min(offsets), gcd(*(offset - min(offsets) for offset in offsets)) or 1
        taps = (max(offsets) - first) // step + 1
        pixels = ceil_div(i, s)
        axes.append(GridAxis(pixels, source=o, target=i, taps=taps, begin=first, step=step, target_stride=s))
    return Grid(problem.batch, (axes[0], axes[1], axes[2]))
