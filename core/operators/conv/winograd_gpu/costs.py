"""What Winograd's convolution costs on a GPU, next to the direct product: an estimate in cycles of a compute unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.gemm_gpu.tiles import (
    LAUNCH_CYCLES,
    GroupTile,
    ProductShape,
    TileChoice,
    candidates,
    choose,
    serves,
)
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.conv.winograd.tiles import Geometry
from clgraft.core.operators.conv.winograd.tiles import allowed_tiles as allowed
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.problem import ceil_div

ROWS, SPEEDS = (Path(__file__).with_name(name) for name in ("costs.txt", "speeds.txt"))
MOST_BYTES = 2**30  # of transforms between two launches, on any device
# outputs of a tile along an axis, for so many taps; those of 4 are F(4x4, 3x3) for 5 taps, too, whose kernels are cut
TILES: Mapping[tuple[int, ...], tuple[int, ...]] = {(3, 3): (4, 2), (5, 5): (4, 2)}
CUT_TAPS = 3  # of a piece
WHOLE = 64  # a number of channels that every tile's depth divides: the product checks nothing


def allowed_tiles(kernel: tuple[int, ...]) -> tuple[int, ...]:
    """Return the tiles for a kernel that ``CLGRAFT_WINOGRAD`` allows (see `winograd.tiles.allowed_tiles`)."""
    return allowed(kernel, TILES.get(kernel, ()))


@dataclass(frozen=True)
class Costs:
    """A row of ``costs.txt``; the names are its columns'."""

    rate: float
    chunk: int


@cache
def costs(device_class: str) -> Costs:
    """Read the row of a class of devices."""
    found = {}
    for line in ROWS.read_text().splitlines():
        words = line.split("#")[0].split()
        if words:
            found[words[0]] = Costs(float(words[1]), int(words[2]))
    return found.get(device_class) or found["gpu"]


@dataclass(frozen=True)
class Speed:
    """A row of ``speeds.txt``; the names are its columns'."""

    rows: float
    columns: float
    fill: int


@cache
def speeds(device_class: str) -> dict[str, Speed]:
    """Read the rows of a class of devices, by the tile's name."""
    found = {}
    for line in SPEEDS.read_text().splitlines():
        words = line.split("#")[0].split()
        if words and words[0] == device_class:
            found[words[1]] = Speed(float(words[2]), float(words[3]), int(words[4]))
    return found


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
        if self.geometry.gradient:
            return ProductShape(self.outputs, self.channels, tiles, self.matrices, WHOLE)
        return ProductShape(self.outputs, tiles, self.channels, self.matrices, WHOLE)

    def chunks(self, device: DeviceInfo) -> int:
        """Return into how many chunks tiles are cut, one after the other."""
        most = min(MOST_BYTES, device.global_memory // 8)
        wanted = costs(device.device_class).chunk * 2**20
        return max(1, ceil_div(self.tiles * self.tile_bytes, min(most, wanted or most)))


def choose_product(shape: Shape, tiles: int, device: DeviceInfo) -> TileChoice:
    """Choose the tile and the parts of the products of so many tiles.

    Tiles that round operands to TF32 are left out: the transforms would amplify that.

    Raises
    ------
    Declined
        If the device can run no tile, or there would be too many work-groups.
    """
    return choose_matrices(shape.product(tiles), shape.geometry.gradient, device)


def choose_matrices(product: ProductShape, gradient: bool, device: DeviceInfo) -> TileChoice:
    """Choose the tile and the parts of products of padded matrices; a gradient's have the depth inside, and parts.

    Tiles that round operands to TF32 are left out.

    Raises
    ------
    Declined
        If the device can run no tile, or there would be too many work-groups.
    """
    measured = speeds(device.device_class)

    def as_measured(tile: GroupTile) -> GroupTile:
        speed = measured.get(tile.name)
        if speed is None:
            return tile
        depth = max(product.depth, 1)
        return replace(tile, whole=speed.columns if gradient else speed.rows * depth / (depth + speed.fill))

    served = [as_measured(tile) for tile in candidates(device, 4) if serves(tile, product) and not tile.tf32]
    if not served:
        return choose(product, device, 4)  # says why
    return min((choose(product, device, 4, gradient, tile) for tile in served), key=lambda choice: choice.cycles)


def cost(shape: Shape, device: DeviceInfo) -> float:
    """Estimate the method's time: the products, what the transforms read and write, and the launches.

    What the products read and write is in their own estimate.
    """
    g, chunks = shape.geometry, shape.chunks(device)
    tiles = ceil_div(shape.tiles, chunks)
    products = choose_product(shape, tiles, device)
    filters = shape.groups * shape.channels * shape.outputs
    pixels = g.batch * (g.channels * shape.pieces * prod(g.source_size) + g.outputs * prod(g.target_size))
    nbytes = 4 * pixels + shape.tiles * shape.tile_bytes
    nbytes += 4 * filters * (g.taps**2 + g.elements * (products.parts * chunks if g.gradient else 1))
    rate = costs(device.device_class).rate * device.compute_units
    return chunks * (products.cycles + 3 * LAUNCH_CYCLES) + LAUNCH_CYCLES + nbytes / rate


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
    """Whether the transforms cost less than the multiplications that they save."""
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
