"""What Winograd's convolution costs on a GPU, next to the direct product: an estimate in cycles of a compute unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.gemm_gpu.product import LAUNCH_CYCLES, choose
from clgraft.core.operators.conv.gemm_gpu.tile import ProductShape
from clgraft.core.operators.conv.gemm_gpu.transformed import WHOLE, choose_product, chunks, costs
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.conv.winograd.tiles import Geometry
from clgraft.core.operators.conv.winograd.tiles import allowed_tiles as allowed
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.problem import ceil_div

ROWS = Path(__file__).with_name("costs.txt")
# outputs of a tile along an axis, for so many taps; those of 4 are F(4x4, 3x3) for 5 taps, too, whose kernels are cut
TILES: Mapping[tuple[int, ...], tuple[int, ...]] = {(3, 3): (4, 2), (5, 5): (4, 2)}
CUT_TAPS = 3  # taps of a piece


def allowed_tiles(kernel: tuple[int, ...]) -> tuple[int, ...]:
    """Return the tiles for a kernel that ``CLGRAFT_WINOGRAD`` allows (see `winograd.tiles.allowed_tiles`)."""
    return allowed(kernel, TILES.get(kernel, ()))


@dataclass(frozen=True)
class Shape:
    """A problem in tiles: the sizes of its transforms, for each group.

    Attributes
    ----------
    geometry : Geometry
    groups, channels, outputs : int
        The groups, and the source's and the target's channels of one.
    tiles : int
        Tiles of all images.
    kernel_taps : int
        Taps of the kernel along an axis. Where they are more than the geometry's, kernels are cut into `pieces` along
        both axes, which count as channels of their own.
    """

    geometry: Geometry
    groups: int
    kernel_taps: int

    @classmethod
    def of(cls, problem: ConvProblem, tile: int) -> Shape:
        """Return a problem's shape with tiles of `tile` outputs along an axis."""
        geometry, taps = Geometry.of(problem, tile), problem.kernel[0]
        if tile == 4 and taps > CUT_TAPS:
            geometry = replace(geometry, taps=CUT_TAPS)
        return cls(geometry, problem.groups, taps)

    @property
    def gradient(self) -> bool:
        """Whether the problem is the gradient of the weights."""
        return self.geometry.gradient

    @property
    def complex(self) -> bool:
        """Whether the matrices of the products are complex."""
        return False

    @property
    def pieces(self) -> int:
        return ceil_div(self.kernel_taps, self.geometry.taps) ** 2

    @property
    def channels(self) -> int:
        return self.geometry.channels // self.groups * self.pieces

    @property
    def outputs(self) -> int:
        return self.geometry.outputs // self.groups

    @property
    def tiles(self) -> int:
        return self.geometry.rows * self.geometry.tile_w

    @property
    def matrices(self) -> int:
        """Products of matrices."""
        return self.geometry.elements * self.groups

    @property
    def tile_bytes(self) -> int:
        """Bytes of the transforms of a tile."""
        return self.matrices * (self.channels + self.outputs) * 4

    def product(self, tiles: int) -> ProductShape:
        """Return the product of so many tiles."""
        if self.gradient:
            return ProductShape(self.outputs, self.channels, tiles, self.matrices, WHOLE)
        return ProductShape(self.outputs, tiles, self.channels, self.matrices, WHOLE)

    def chunks(self, device: DeviceInfo) -> int:
        """Return into how many chunks tiles are cut, one after the other."""
        return chunks(self, device, costs(ROWS, device.device_class).chunk)


def cost(shape: Shape, device: DeviceInfo) -> float:
    """Estimate the method's time: the products, what the transforms read and write, and the launches.

    What the products read and write is in their own estimate.
    """
    g, count = shape.geometry, shape.chunks(device)
    products = choose_product(shape, ceil_div(shape.tiles, count), device)
    filters = shape.groups * shape.channels * shape.outputs
    pixels = g.batch * (g.channels * shape.pieces * prod(g.source_size) + g.outputs * prod(g.target_size))
    nbytes = 4 * pixels + shape.tiles * shape.tile_bytes
    nbytes += 4 * filters * (g.taps**2 + g.elements * (products.parts * count if g.gradient else 1))
    rate = costs(ROWS, device.device_class).rate * device.compute_units
    return count * (products.cycles + 3 * LAUNCH_CYCLES) + LAUNCH_CYCLES + nbytes / rate


def best_cost(problem: ConvProblem, device: DeviceInfo) -> float:
    """Estimate the method's time with the tiles that cost least, for a kernel with stride 1 and no dilation.

    Raises
    ------
    Declined
        If it does not serve the kernel, or is forbidden.
    """
    tiles = allowed_tiles(problem.kernel)
    if not tiles:
        raise Declined(f"has no tiles for kernel {problem.kernel}")
    return min(cost(Shape.of(problem, tile), device) for tile in tiles)


def direct_cost(problem: ConvProblem, device: DeviceInfo) -> float:
    """Estimate the time of the direct product, with one launch that packs the weights."""
    groups = problem.groups
    inner, outer = problem.in_channels // groups, problem.out_channels // groups
    taps = prod(problem.kernel)
    if problem.direction == "backward_filter":
        product = ProductShape(outer, inner * taps, problem.batch * prod(problem.out_size), groups)
    elif problem.direction == "forward":
        product = ProductShape(outer, problem.batch * prod(problem.out_size), inner * taps, groups, inner)
    else:
        product = ProductShape(inner, problem.batch * prod(problem.in_size), outer * taps, groups, outer)
    return choose(product, device, 4).cycles + 2 * LAUNCH_CYCLES


def worthwhile(problem: ConvProblem, shape: Shape, device: DeviceInfo) -> bool:
    """Return whether the transforms cost less than the multiplications that they save."""
    return cost(shape, device) < direct_cost(problem, device)


def choose_shape(problem: ConvProblem, device: DeviceInfo) -> Shape:
    """Return the tiles that cost least.

    Raises
    ------
    Declined
        If the direct method costs less.
    """
    best = min(
        (Shape.of(problem, tile) for tile in allowed_tiles(problem.kernel)), key=lambda shape: cost(shape, device)
    )
    if not worthwhile(problem, best, device):
        raise Declined("its transforms would cost more than they save")
    return best
