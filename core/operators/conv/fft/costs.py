"""What a convolution by Fourier transforms costs on a GPU: an estimate in cycles of a compute unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.gemm_gpu.product import LAUNCH_CYCLES
from clgraft.core.operators.conv.gemm_gpu.tile import ProductShape
from clgraft.core.operators.conv.gemm_gpu.transformed import WHOLE, choose_product, chunks, costs
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.conv.winograd_gpu import costs as winograd_costs
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.problem import ceil_div

ROWS = Path(__file__).with_name("costs.txt")
SIDES = (32, 16)  # elements of a tile along an axis, the kernels' SIDE
TWINS = ("rows", "columns")  # which operand of the products has twins
LEAST_TAPS = 25  # taps of a kernel from which the method may be the default choice


def outputs_of_tile(side: int, source: int, target: int, taps: int, begin: int) -> int:
    """Return how many outputs along an axis a tile of `side` elements gives.

    Where one tile holds the source and its opposite edges meet in zeros only, all of its elements are outputs. Else
    those count whose taps all lie within the tile (overlap-save); 0 or less if there are none.
    """
    wraps_over_zeros = target <= side and begin + side >= source and begin + target + taps - 2 < side
    return side if wraps_over_zeros else side - taps + 1


@dataclass(frozen=True)
class Shape:
    """A problem in tiles: the sizes of its transforms.

    Attributes
    ----------
    problem : ConvProblem
    side : int
        Elements of a tile along an axis.
    twin : str
        Whether rows (A) or columns (B) of the products have twins, which give their imaginary parts.
    """

    problem: ConvProblem
    side: int
    twin: str

    @property
    def gradient(self) -> bool:
        """Whether the weights' gradient is what is computed; its geometry is that of the forward convolution."""
        return self.problem.direction == "backward_filter"

    @property
    def complex(self) -> bool:
        """Whether the matrices of the products are complex."""
        return True

    @property
    def _backward(self) -> bool:
        return self.problem.direction == "backward_data"

    @property
    def channels(self) -> int:
        """Channels of the source."""
        return self.problem.out_channels if self._backward else self.problem.in_channels

    @property
    def outputs(self) -> int:
        """Channels of the target."""
        return self.problem.in_channels if self._backward else self.problem.out_channels

    @property
    def source_size(self) -> tuple[int, ...]:
        return self.problem.out_size if self._backward else self.problem.in_size

    @property
    def target_size(self) -> tuple[int, ...]:
        return self.problem.in_size if self._backward else self.problem.out_size

    @property
    def begin(self) -> tuple[int, ...]:
        """Source position of the first output's first tap."""
        p = self.problem
        return tuple(pad - (taps - 1) if self._backward else -pad for pad, taps in zip(p.pad_begin, p.kernel))

    @property
    def step(self) -> tuple[int, ...]:
        """Outputs of a tile."""
        axes = zip(self.source_size, self.target_size, self.problem.kernel, self.begin)
        return tuple(outputs_of_tile(self.side, *axis) for axis in axes)

    @property
    def tiles(self) -> int:
        """Tiles of all images."""
        return self.problem.batch * prod(ceil_div(size, step) for size, step in zip(self.target_size, self.step))

    @property
    def points(self) -> int:
        """Points of a tile's transform, the kernels' POINTS: products of matrices."""
        return self.side**2 // 2 + 2

    def twins(self, operand: str) -> int:
        """Return 2 for the operand, ``rows`` or ``columns``, that has twins, else 1."""
        return 2 if self.twin == operand else 1

    @property
    def point_bytes(self) -> int:
        """Bytes of the transform of a plane."""
        return self.points * 8

    @property
    def tile_bytes(self) -> int:
        """Bytes of the transforms of a tile."""
        return (self.channels + self.outputs) * self.point_bytes

    def product(self, tiles: int) -> ProductShape:
        """Return the product of so many tiles."""
        rows, columns = self.outputs, self.channels if self.gradient else tiles
        depth = tiles if self.gradient else self.channels
        return ProductShape(rows * self.twins("rows"), columns * self.twins("columns"), 2 * depth, self.points, WHOLE)

    def chunks(self, device: DeviceInfo) -> int:
        """Return into how many chunks tiles are cut, one after the other."""
        return chunks(self, device, costs(ROWS, device.device_class).chunk)


def shapes(problem: ConvProblem) -> Iterator[Shape]:
    """Return the shapes with tiles that give outputs, at least a fourth of them along an axis."""
    for side in SIDES:
        for twin in TWINS:
            shape = Shape(problem, side, twin)
            if max(problem.kernel) <= side and 4 * min(shape.step) >= side:
                yield shape


def cost(shape: Shape, device: DeviceInfo) -> float:
    """Estimate the method's time: the products, what transforms and products read and write, and the launches."""
    problem, count = shape.problem, shape.chunks(device)
    tiles = ceil_div(shape.tiles, count)
    product, choice = shape.product(tiles), choose_product(shape, tiles, device)
    rate = costs(ROWS, device.device_class).rate * device.compute_units
    pixels = problem.batch * (shape.channels * prod(shape.source_size) + shape.outputs * prod(shape.target_size))
    weights = shape.channels * shape.outputs
    of_weight = shape.point_bytes * (choice.parts * count if shape.gradient else 1)
    transforms = 4 * pixels + shape.tiles * shape.tile_bytes + weights * (4 * prod(problem.kernel) + of_weight)
    # rows and columns are padded to whole tiles; twins are not in memory
    rows, columns = (ceil_div(n, m) * m for n, m in ((product.rows, choice.tile.m), (product.columns, choice.tile.n)))
    in_memory = rows // shape.twins("rows") + columns // shape.twins("columns")
    matrices = 4 * shape.points * (product.depth * in_memory + choice.parts * rows * columns)
    products = max(choice.cycles, matrices / rate)
    return count * (products + 3 * LAUNCH_CYCLES) + LAUNCH_CYCLES + transforms / rate


def others_cost(problem: ConvProblem, device: DeviceInfo) -> float:
    """Estimate the time of the direct product or of Winograd's method, whichever takes less."""
    direct = winograd_costs.direct_cost(problem, device)
    try:
        return min(direct, winograd_costs.best_cost(problem, device))
    except Declined:
        return direct


def worthwhile(shape: Shape, device: DeviceInfo) -> bool:
    """Return whether the method costs less than the others."""
    return cost(shape, device) < others_cost(shape.problem, device)


def choose_shape(problem: ConvProblem, device: DeviceInfo) -> Shape:
    """Return the tiles that cost least.

    Raises
    ------
    Declined
        If the kernel is small, no tile suits it, or other methods cost less.
    """
    if prod(problem.kernel) < LEAST_TAPS:
        raise Declined(f"kernel {problem.kernel} has fewer than {LEAST_TAPS} taps, which other methods serve well")
    best = min(shapes(problem), key=lambda shape: cost(shape, device), default=None)
    if best is None:
        raise Declined(f"kernel {problem.kernel} is too large for tiles of {SIDES[0]} x {SIDES[0]}")
    if not worthwhile(best, device):
        raise Declined("its transforms would cost more than they save")
    return best
