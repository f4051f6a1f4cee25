"""Tiles of Winograd's convolutions: their geometry, what they cost, which of them are allowed and pay off."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from clgraft.core import settings
from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID, TARGET
from clgraft.core.operators.conv.cpu_costs import costs
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.conv.register_tile import RegisterTile
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import has_32_registers
from clgraft.core.planning.structs import StructConstant
from clgraft.core.problem import ceil_div, in_3d, round_up

LINES = (3, 5, 7)  # taps of kernels of one row or one column
# kernel -> outputs of a tile along an axis; 6 elements of source at most along both axes, 10 along one
TILES: dict[tuple[int, ...], tuple[int, ...]] = {
    **{(3, 3): (4, 2), (5, 5): (2,)},
    **{kernel: (4, 2) for taps in LINES for kernel in ((1, taps), (taps, 1))},
}
STRIDED = ((3, 3), (2, 2), (1, 1))  # kernel, stride and dilation of what is served with a stride
ALLOWED = {"on": (4, 2), "off": (), "0": (), "2": (2,), "4": (4,)}
# tiles of 4 outputs of so many taps err over ten times as much as the direct method in sums of fewer channels, and in
# gradients of filters
MOST_TAPS, LEAST_CHANNELS = 7, 16
COSTS, DIRECT_COSTS = costs("winograd"), costs("direct")
CHUNKS = (16, 64)  # channels of a row of V, the kernels' WC: the least that has all channels, or the most
PAD = 48  # elements between a transform's elements, the kernels' PAD
LINE_BYTES = 2 * 2**20  # most bytes of a transformed row of a source of long rows
OWN_WEIGHTS_BYTES = 5 * 2**20  # part of a core's L3 cache that a slice with weights of its own may fill
PIXEL_BYTES = 128 * 1024  # most bytes of pixels that are transposed at once


@dataclass(frozen=True)
class Geometry:
    """A problem as tiles: what is transformed (`channels` of the source) and what comes out (`outputs` of the target).

    The gradient of the weights has the geometry of the forward convolution.

    Attributes
    ----------
    tile : int
        Outputs of a tile along a transformed axis, 2 or 4.
    taps : int
        Taps of the kernel along a transformed axis, 3, 5 or 7.
    stride : int
        1, or 2 along both axes: the pixels that leave one remainder are a phase, and meet every second tap.
    phases_of_target : bool
        Whether these are the pixels of the target, in backward data, and not those of the source.
    begin : tuple of int
        Source position of the first output pixel's first tap.
    target_begin : tuple of int
        Target position of the first phase's first output: 0, or -1, outside of it.
    gradient : bool
        Whether the weights' gradient is what is computed.
    transformed : tuple of bool
        Which axes are transformed: both, or that of a kernel of one row or one column.
    dilate : tuple of int
        Pixels from tap to tap along the transformed axes, 1 along the other. Each phase has tiles of its own, which
        interleave with the others'.
    """

    tile: int
    taps: int
    batch: int
    channels: int
    outputs: int
    source_size: tuple[int, ...]
    target_size: tuple[int, ...]
    begin: tuple[int, ...]
    gradient: bool = False
    transformed: tuple[bool, ...] = (True, True)
    dilate: tuple[int, ...] = (1, 1)
    stride: int = 1
    phases_of_target: bool = False
    target_begin: tuple[int, ...] = (0, 0)

    @classmethod
    def of(cls, problem: ConvProblem, tile: int) -> Geometry:
        """Return a problem's geometry; its kernel has as many taps along both axes, or one row or one column."""
        p, kernel, pads = problem, plane_kernel(problem), in_plane(problem.pad_begin, 0)
        taps, transformed = max(kernel), tuple(k > 1 for k in kernel)
        in_size, out_size = in_plane(p.in_size, 1), in_plane(p.out_size, 1)
        dilate = tuple(d if k > 1 else 1 for d, k in zip(in_plane(p.dilate, 1), kernel))
        stride, back = max(p.stride), p.direction == "backward_data"
        target_begin = (0, 0)
        if back and stride > 1:
            # output 0 is the first one with a pixel in the target: 2 u - 1 - pad in the phase of one tap
            first = tuple((pad + 1) // stride for pad in pads)
            target_begin = tuple(stride * u - 1 - pad for u, pad in zip(first, pads))
            begin = tuple(u - 1 for u in first)
        elif back:
            begin = tuple(pad - d * (k - 1) for pad, d, k in zip(pads, dilate, kernel))
        else:
            begin = tuple(-pad for pad in pads)
        sizes = (p.batch, p.in_channels, p.out_channels, in_size, out_size)
        if back:
            sizes = (p.batch, p.out_channels, p.in_channels, out_size, in_size)
        of_target = back and stride > 1
        gradient = p.direction == "backward_filter"
        return cls(tile, taps, *sizes, begin, gradient, transformed, dilate, stride, of_target, target_begin)

    def argument(self) -> StructConstant:
        """Return the kernels' Grid: the outputs of a phase over the source."""
        stride = self.source_stride
        return GRID.pack(
            {
                **{"batch": self.batch, "size": (1, *self.size), "source": (1, *self.source_size)},
                **{
                    "taps": (1, *self.kernel),
                    "stride": (1, stride, stride),
                    "begin": (0, *self.begin),
                    "step": (1, *self.dilate),
                },
            }
        )

    def target_argument(self) -> StructConstant:
        """Return the kernels' Target: where the outputs of the first phase are stored."""
        stride = self.target_stride
        return TARGET.pack(
            {
                **{"size": (1, *self.target_size), "pixels": (1, *self.size)},
                **{"stride": (1, stride, stride), "begin": (0, *self.target_begin)},
            }
        )

    def defines(self) -> dict[str, int]:
        """Return what kernels/conv/winograd/transforms.cl is compiled for."""
        lines = {name: 1 for name, is_one in zip(("TAPS_H", "TAPS_W"), self.transformed) if not is_one}
        special = {"DILATED": max(self.dilate) > 1, "PHASES_OF_TARGET": self.phases_of_target}
        strided = {"STRIDE": self.stride} if self.stride > 1 else {}
        chosen = {name: 1 for name, holds in special.items() if holds}
        return {"TILE": self.tile, "TAPS": self.phase_taps, **lines, **strided, **chosen}

    def along(self, number: int) -> tuple[int, ...]:
        """Return a number of the transformed axes for both axes; it is one along the other."""
        return tuple(number if each else 1 for each in self.transformed)

    @property
    def kernel(self) -> tuple[int, ...]:
        """Taps of the kernel along both axes."""
        return self.along(self.taps)

    @property
    def phase_taps(self) -> int:
        """Most taps that a phase of the stride meets along a transformed axis."""
        return ceil_div(self.taps, self.stride)

    @property
    def phases(self) -> int:
        """Phases of the stride along both axes."""
        return prod(self.along(self.stride))

    @property
    def source_stride(self) -> int:
        """The stride where its phases are those of the source, else 1."""
        return 1 if self.phases_of_target else self.stride

    @property
    def target_stride(self) -> int:
        """The stride where its phases are those of the target, else 1."""
        return self.stride if self.phases_of_target else 1

    @property
    def source_phases(self) -> int:
        return prod(self.along(self.source_stride))

    @property
    def target_phases(self) -> int:
        return prod(self.along(self.target_stride))

    @property
    def size(self) -> tuple[int, ...]:
        """Outputs of a phase along both axes."""
        begin_and_size = zip(self.target_begin, self.target_size)
        return tuple(ceil_div(size - begin, self.target_stride) for begin, size in begin_and_size)

    @property
    def side(self) -> int:
        """Elements of a transformed tile along a transformed axis."""
        return self.tile + self.phase_taps - 1

    @property
    def elements(self) -> int:
        """Elements of a transformed tile."""
        return prod(self.along(self.side))

    @property
    def products(self) -> int:
        """Multiply-adds of a tile's channel and output: the weights' elements that are not zero in all phases."""
        return prod(self.along(self.side + (self.stride - 1) * self.tile))

    @property
    def block(self) -> tuple[int, ...]:
        """Rows and columns of outputs among which those of one tile lie."""
        return tuple(tile * dilate for tile, dilate in zip(self.along(self.tile), self.dilate))

    @property
    def operations(self) -> int:
        """Multiply-adds of the products of all tiles, counted as two operations; transforms are not counted."""
        return 2 * self.rows * self.tile_w * self.products * self.channels * self.outputs

    @property
    def tile_h(self) -> int:
        """Tile rows of an image."""
        return tiles_along(self.size[0], self.block[0], self.dilate[0])

    @property
    def tile_w(self) -> int:
        """Tiles of a row."""
        return tiles_along(self.size[1], self.block[1], self.dilate[1])

    @property
    def rows(self) -> int:
        """Tile rows of all images."""
        return self.batch * self.tile_h

    def row_bytes(self, columns: int) -> int:
        """Return the bytes of a tile row in a slice: its source, and its products of so many outputs."""
        return self.elements * 4 * (self.padded_channels + self.target_phases * columns) * self.tile_w

    def keeps_weights(self, columns: int) -> bool:
        """Return whether all tile rows may be a slice whose work-items have weights of their own."""
        return self.rows * self.row_bytes(columns) <= OWN_WEIGHTS_BYTES

    @property
    def chunk(self) -> int:
        """Channels of a row of the transformed source."""
        return next((chunk for chunk in CHUNKS if self.channels <= chunk), CHUNKS[-1])

    @property
    def padded_channels(self) -> int:
        """Channels of all phases of the transformed source."""
        return self.source_phases * round_up(self.channels, self.chunk)


def tiles_along(size: int, block: int, dilate: int) -> int:
    """Return the tiles of all phases along an axis whose blocks have so many outputs."""
    return size // block * dilate + min(size % block, dilate)


def winograd_tile(planner: Planner, outputs: int, most_vectors: int = 4) -> RegisterTile:
    """Return the register tile that leaves the fewest lanes idle, of at most so many vectors."""
    lanes = planner.device.vector_width
    rows = {4: 6, 3: 8, 2: 12} if has_32_registers(planner.device) else {3: 4, 2: 6}
    vectors = min((v for v in rows if v <= most_vectors), key=lambda v: (ceil_div(outputs, v * lanes) * v, -v))
    return RegisterTile(rows[vectors], vectors, lanes)


def group_rows(planner: Planner, geometry: Geometry, lanes: int) -> tuple[int, int]:
    """Return how many tile rows are transposed at once, and the bytes of their pixels."""
    tile_h, (taps_h, taps_w) = geometry.along(geometry.tile)[0], geometry.kernel
    stride = geometry.stride
    columns = round_up(geometry.size[1], geometry.block[1]) * stride + (taps_w - stride) * geometry.dilate[1]
    for rows in (16 // tile_h, 8 // tile_h, 4 // tile_h, 1):
        nbytes = ((rows * tile_h * stride + taps_h - stride) * columns + lanes) * lanes * 4
        if rows == 1 or nbytes <= min(PIXEL_BYTES, planner.device.local_memory // 2):
            break
    if nbytes > planner.device.local_memory - 4096:
        raise Declined(
            f"rows of {geometry.tile_w} tiles do not fit {planner.device.local_memory} bytes of local memory"
        )
    return rows, nbytes


def in_plane(values: tuple[int, ...], fill: int) -> tuple[int, ...]:
    """Return the last two of a size's axes; a 1-D one is a row."""
    return in_3d(values, fill)[1:]


def plane_kernel(problem: ConvProblem) -> tuple[int, ...]:
    """Return the kernel of a problem in one or two axes as rows and columns, of one in three as it is."""
    return problem.kernel if problem.ndim > 2 else in_plane(problem.kernel, 1)


def expect_served(problem: ConvProblem) -> None:
    """Decline the problems that the method does not serve.

    Raises
    ------
    Declined
        With the reason.
    """
    if problem.direction == "backward_bias":
        raise Declined("has no backward_bias")
    if plane_kernel(problem) not in TILES or problem.groups != 1:
        raise Declined("serves 3 x 3, 5 x 5, rows and columns of 3, 5 or 7 taps, no groups")
    if {*problem.stride} != {1} and (problem.kernel, problem.stride, problem.dilate) != STRIDED:
        raise Declined("serves stride 1, and 3 x 3 kernels with stride 2 that are not dilated")
    if problem.dtype == "float64":
        raise Declined("float64 is asked for where rounding matters")
    if not problem.batch:
        raise Declined("no pixels")


def allowed_tiles(kernel: tuple[int, ...], tiles: tuple[int, ...]) -> tuple[int, ...]:
    """Return the tiles for a kernel that the environment variable ``CLGRAFT_WINOGRAD`` allows, if there are any.

    Parameters
    ----------
    kernel, tiles : tuple of int
        The kernel, and the tiles that an implementation has for it.

    Raises
    ------
    Declined
        If it is ``off``, or allows only tiles that this kernel does not have.
    ArgumentError
        If it holds an unknown word.
    """
    word = settings.WINOGRAD.value()
    if not ALLOWED[word]:
        raise Declined(f"{settings.WINOGRAD.name} is off")
    allowed = tuple(tile for tile in tiles if tile in ALLOWED[word])
    if tiles and not allowed:
        raise Declined(f"{settings.WINOGRAD.name} is {word}, {' x '.join(map(str, kernel))} kernels have tiles {tiles}")
    return allowed


def tiles_of(problem: ConvProblem) -> tuple[int, ...]:
    """Return the tiles for a problem that ``CLGRAFT_WINOGRAD`` allows, see `allowed_tiles`."""
    kernel = plane_kernel(problem)
    tiles = TILES.get(kernel, ())
    channels = problem.out_channels if problem.direction == "backward_data" else problem.in_channels
    if tiles and max(kernel) == MOST_TAPS and (problem.direction == "backward_filter" or channels < LEAST_CHANNELS):
        tiles = (2,)
    return allowed_tiles(kernel, tiles)


def transform_cost(geometry: Geometry) -> float:
    """Estimate the cycles to transform a tile of one channel: of lines, and with a stride, loads and stores most."""
    if geometry.stride > 1:
        return geometry.elements / COSTS["strided_elements"]
    if all(geometry.transformed):
        return geometry.elements**2 / COSTS["transforms"]
    return geometry.elements / COSTS["line_gradients" if geometry.gradient else "line_elements"]


def keeps_products(geometry: Geometry) -> bool:
    """Return whether products of a filter's gradient stay in a core's cache until they are filters.

    That pays where they are at least as many as the transformed numbers of the tiles, which all cores then read several
    times. Otherwise products are written, and read once more.
    """
    g = geometry
    numbers = g.rows * g.tile_w * g.elements * (g.channels * g.phases + g.outputs)
    return g.channels * g.outputs * g.products >= numbers


def weights_cost(geometry: Geometry, constant: str) -> float:
    """Estimate the cycles to transform the weights of one channel and output, by a constant for each element."""
    return COSTS["weights"] * prod(geometry.kernel) + COSTS[constant] * geometry.products


def cost(geometry: Geometry) -> float:
    """Estimate the cycles of one core: the products, the transforms of tiles, and what every filter costs.

    The constants are in ``cpu_costs.txt``. With a stride weights have so many elements that they pass through memory,
    unless work-items transform their own. A filter's gradients are written, read and transformed; its weights are
    gathered first, for any tile.
    """
    g = geometry
    tiles = g.rows * g.tile_w
    filters = g.channels * g.outputs
    products = (
        (tiles if g.gradient else round_up(tiles, int(COSTS["tile_rows"]))) * filters * g.products / COSTS["products"]
    )
    transforms = tiles * (g.channels * g.source_phases + g.outputs * g.target_phases) * transform_cost(g)
    far = g.phases > 1 and not g.keeps_weights(min(g.outputs, CHUNKS[-1]))
    of_filter = weights_cost(g, "far_weight_element" if far else "weight_element")
    if g.gradient:
        kept = "_kept" if keeps_products(g) else ""
        of_filter = COSTS[("filter_element" if all(g.transformed) else "line_filter") + kept] * g.products
    return products + transforms + filters * of_filter


def direct_cost(geometry: Geometry) -> float:
    """Estimate the cycles of one core that the direct method takes: the products, and packing or adding up filters."""
    g = geometry
    taps = prod(g.kernel)
    of_filter = DIRECT_COSTS["weights"] * taps
    if g.gradient:
        of_filter = DIRECT_COSTS["gradient"] if all(g.transformed) else DIRECT_COSTS["line_gradient"] * taps
    size = g.source_size if g.phases_of_target else g.target_size
    return g.channels * g.outputs * (g.batch * prod(size) * taps / DIRECT_COSTS["products"] + of_filter)


def choose(problem: ConvProblem) -> Geometry:
    """Return the tiles that cost least.

    Raises
    ------
    Declined
        If the direct method costs less.
    """
    best = min((Geometry.of(problem, tile) for tile in tiles_of(problem)), key=cost)
    if not worthwhile(best):
        raise Declined("its transforms would cost more than they save")
    return best


def worthwhile(geometry: Geometry) -> bool:
    """Return whether transforms cost less than the multiplications they save, and a row of tiles fits the caches."""
    g = geometry
    row_bytes = g.elements * 4 * g.tile_w * g.padded_channels
    return cost(g) < direct_cost(g) and (all(g.transformed) or row_bytes <= LINE_BYTES)
