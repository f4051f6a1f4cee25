"""Products of transformed tiles on GPUs: what `gpu_winograd` and `gpu_fft` have in common.

Both transform tiles of the image in launches of their own, multiply the transforms on the micro kernels and the tiles
of ``gpu_gemm``, and take tiles in chunks, one after the other, where the workspace would be too large.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID, TARGET
from clgraft.core.operators.conv.gemm_gpu.constants import BY_COLUMNS, BY_ROWS, TO_FILTER
from clgraft.core.operators.conv.gemm_gpu.kernels import product_kernel
from clgraft.core.operators.conv.gemm_gpu.product import LARGEST, TileChoice, choose, insist
from clgraft.core.operators.conv.gemm_gpu.tile import ProductShape, Tile
from clgraft.core.operators.conv.gemm_gpu.tiles import candidates
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Launch, Workspace, ints
from clgraft.core.problem import ceil_div

SPEEDS = Path(__file__).with_name("transformed_speeds.txt")
OPERANDS = {"forward": ("x", "y"), "backward_data": ("dy", "dx"), "backward_filter": ("x", "dw")}  # source and target
MOST_BYTES = 2**30  # bytes of transforms between two launches, on any device
WHOLE = 64  # a number of channels that every tile's depth divides: the product checks nothing


class TileShape(Protocol):
    """A problem in tiles: the sizes of its transforms."""

    @property
    def tiles(self) -> int:
        """Tiles of all images."""

    @property
    def tile_bytes(self) -> int:
        """Bytes of the transforms of a tile."""

    @property
    def gradient(self) -> bool:
        """Whether the products give the gradient of the weights, whose depth is tiles."""

    @property
    def complex(self) -> bool:
        """Whether matrices are complex, so that one side of the products has twins."""

    def product(self, tiles: int) -> ProductShape:
        """Return the product of so many tiles."""


@dataclass(frozen=True)
class Costs:
    """A row of a ``costs.txt``; the names are its columns'."""

    rate: float
    chunk: int


@cache
def costs(rows: Path, device_class: str) -> Costs:
    """Read the row of a class of devices in a file."""
    found = {}
    for line in rows.read_text().splitlines():
        words = line.split("#")[0].split()
        if words:
            found[words[0]] = Costs(float(words[1]), int(words[2]))
    return found.get(device_class) or found["gpu"]


@dataclass(frozen=True)
class Speed:
    """A row of ``transformed_speeds.txt``; the names are its columns'."""

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


def chunks(shape: TileShape, device: DeviceInfo, mebibytes: int) -> int:
    """Return into how many chunks tiles are cut, of so many MiB; 0: of as many as the device allows."""
    most = min(MOST_BYTES, device.global_memory // 8)
    return max(1, ceil_div(shape.tiles * shape.tile_bytes, min(most, mebibytes * 2**20 or most)))


def choose_product(shape: TileShape, tiles: int, device: DeviceInfo) -> TileChoice:
    """Choose the tile of the products of so many tiles' transforms; a gradient's have the depth inside, and parts.

    Tiles that round operands to TF32 are left out: transforms would amplify that.

    Raises
    ------
    Declined
        If the device can run no tile, or there would be too many work-groups.
    """
    product, measured = shape.product(tiles), speeds(device.device_class)
    if shape.complex:
        measured = {**measured, **speeds(f"{device.device_class}:complex")}

    def as_measured(tile: Tile) -> Tile:
        speed = measured.get(tile.name)
        if speed is None:
            return tile
        depth = max(product.depth, 1)
        return replace(tile, whole=speed.columns if shape.gradient else speed.rows * depth / (depth + speed.fill))

    served = [as_measured(tile) for tile in candidates(device, 4) if tile.serves(product) and not tile.precision]
    if not served:
        return choose(product, device, 4)  # says why
    return min((choose(product, device, 4, shape.gradient, tile) for tile in served), key=lambda choice: choice.cycles)


def asked_product(shape: TileShape, device: DeviceInfo, settings: Mapping[str, int | str]) -> tuple[TileChoice, int]:
    """Return the choice that the settings ``product``, ``parts`` and ``chunks`` ask for, and the chunks.

    Raises
    ------
    Declined
        If they do not suit the shape or the device, or name a tile that rounds to TF32.
    """
    parts, count = int(settings["parts"]), int(settings["chunks"])
    if not 1 <= count <= shape.tiles or (parts != 1 and not shape.gradient):
        raise Declined(f"got {parts} parts, {count} chunks, expected 1 to {shape.tiles} chunks, parts for filters")
    tiles = ceil_div(shape.tiles, count)
    if tiles * shape.tile_bytes > MOST_BYTES:
        raise Declined(f"the transforms of {tiles} tiles are more than {MOST_BYTES} bytes")
    choice = insist(shape.product(tiles), device, 4, str(settings["product"]), parts)
    if choice.tile.precision:
        raise Declined("transforms would amplify what TF32 rounds")
    return choice, count


def launch_products(
    planner: Planner,
    tile: Tile,
    matrices: tuple[Workspace, Workspace, Workspace],
    sizes: tuple[int, int, int, int],
    parts: tuple[int, int],
    target: str,
    gradient: bool,
    defines: Mapping[str, int],
) -> Launch:
    """Return the launch of the products of padded matrices, which are float32: the transforms convert halves.

    Parameters
    ----------
    planner : Planner
    tile : Tile
    matrices : tuple of three Workspace
        A and B are multiplied into C.
    sizes : tuple of int
        Rows, columns, depth, and how many products there are.
    parts : tuple of int
        Into how many parts the depth is split, and of how many of the tile's depths each is.
    target : str
        The argument that the plan computes.
    gradient : bool
        Whether matrices are read by columns, as for the gradient of the weights.
    defines : mapping of str to int
        More of the kernel's.
    """
    rows, columns, depth, products = sizes
    defines = {
        **{**tile.defines(), "LOADER": BY_COLUMNS if gradient else BY_ROWS, "TARGET": TO_FILTER, "SPLIT": 1},
        **defines,
    }
    kernel = product_kernel(planner, defines, tile, "float32")
    work_groups = (rows // tile.m) * (columns // tile.n) * parts[0] * products
    if work_groups * tile.threads > LARGEST:
        raise Declined(f"{work_groups} work-groups of {tile.threads} work-items are more than {LARGEST} work-items")
    nowhere: dict[str, Any] = dict.fromkeys((*GRID.spatial, *TARGET.spatial), (0, 0, 0))
    nothing = (
        GRID.pack({"batch": 0, **{name: nowhere[name] for name in GRID.spatial}}),
        TARGET.pack({name: nowhere[name] for name in TARGET.spatial}),
    )
    numbers = ints(0, 0, rows, columns, depth, *parts, products)
    return Launch(kernel, (work_groups * tile.threads,), (tile.threads,), (*matrices, *numbers, *nothing), (target,))
