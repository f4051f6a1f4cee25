"""Tiles of the convolution for GPUs: rows of text for each class of devices, and the choice for a product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.gemm_gpu.stream import streams
from clgraft.core.planning.precision import TF32, precision
from clgraft.core.problem import ceil_div

if TYPE_CHECKING:
    from clgraft.core.planning.device import DeviceInfo

ROWS = Path(__file__).with_name("tiles.txt")
BUSY = ("busy_whole", "busy_mixed", "busy_pixels", "busy_vectors")
NUMBERS = ("bytes", "m", "n", "k", "item_m", "item_n", "patch_m", "patch_n", *BUSY)
STREAM = "stream"
SPEEDS = ("whole", "mixed", "pixels", "vectors")
MICRO_KERNELS = {"fma": 1, "mma": 2, "wgmma": 3}  # the kernels' MICRO_KERNEL
STAGES = 4  # tiles of a work-group in local memory, at most
SUMMED_DEPTH = 2**13  # most products of TF32 that the matrix units, which round towards zero, add up
SHORTEST_DEPTH = 32  # depth from which rounding of operands that are split in two is hidden in that of the sums
LARGEST = 2**31 - 1
SPLIT_BYTES = 256 * 2**20  # most bytes of workspace for the sums of parts
LANES = 90  # multiply-adds of a compute unit in a cycle; only its ratio to what follows counts
LAUNCH_CYCLES = 6000  # cost of a launch, about 4 us
FINISH_CYCLES = 0.25  # cost of an element of a tile before and after its products; twice that where nothing hides it
SUM_CYCLES = 0.5  # cost to write and read one sum of a part, in cycles of a compute unit


@dataclass(frozen=True)
class GroupTile:
    """A row of ``tiles.txt``; the names are its columns'."""

    device_class: str
    bytes: int
    m: int
    n: int
    k: int
    item_m: int
    item_n: int
    patch_m: int
    patch_n: int
    busy_whole: int
    busy_mixed: int
    busy_pixels: int
    busy_vectors: int
    whole: float
    mixed: float
    pixels: float
    vectors: float
    options: tuple[str, ...] = ()
    fixed_group: bool = True
    micro: str = "fma"
    tf32: bool = False  # one product of operands rounded to TF32, instead of three
    stream: bool = False  # of wgmma: work-groups walk over tiles of pixels of one tap, see `stream.py`

    @property
    def name(self) -> str:
        """The tile as a setting: rows, columns and depth, and the micro kernel if it is not the portable one."""
        words = (self.micro if self.micro != "fma" else "", TF32 if self.tf32 else "", STREAM if self.stream else "")
        return "-".join(filter(None, (f"{self.m}x{self.n}x{self.k}", *words)))

    @property
    def threads(self) -> int:
        """Work-items of a work-group."""
        return self.m // self.item_m * (self.n // self.item_n)

    @property
    def images(self) -> int:
        """Numbers that an element of the weights becomes when they are packed."""
        return 2 if self.micro == "wgmma" and not self.tf32 else 1

    @property
    def local_bytes(self) -> int:
        """Local memory, with the padding and the taps of the loader that needs most."""
        if self.micro == "wgmma":  # A in one part or two, on a boundary
            return STAGES * self.k * (self.images * self.m + self.n + 8) * self.bytes + self.n * 16 + 1024
        padding = 16 if self.micro == "mma" else 8
        return 2 * self.k * (self.m + self.n + padding) * self.bytes + self.n * 16

    def load(self, product: ProductShape) -> tuple[int, float]:
        """Return the work-groups that keep a unit busy, and its speed then, with the loader that a product needs."""
        if not product.channels:
            return (self.busy_vectors, self.vectors) if product.vectors else (self.busy_pixels, self.pixels)
        if product.channels % self.k:
            return self.busy_mixed, self.mixed
        return self.busy_whole, self.whole

    def defines(self) -> dict[str, Any]:
        """Return the kernel's macros."""
        return {
            "VL": 4,
            "TILE_M": self.m,
            "TILE_N": self.n,
            "TILE_K": self.k,
            "ITEM_M": self.item_m,
            "ITEM_N": self.item_n,
            "PATCH_M": self.patch_m,
            "PATCH_N": self.patch_n,
            "FIXED_GROUP": int(self.fixed_group),
            **({"MICRO_KERNEL": MICRO_KERNELS[self.micro]} if self.micro != "fma" else {}),
            **({"TF32": 1} if self.tf32 else {}),
            **({"STREAM": 1} if self.stream else {}),
        }


@dataclass(frozen=True)
class ProductShape:
    """The size of `groups` products of matrices, (rows, depth) by (depth, columns).

    `channels` says how many of them a tap has in the depth; 0: the depth is pixels, of which with `vectors` four
    neighbours are read at once. `one_tap`: columns are pixels of the source, of which four neighbours are a vector.
    """

    rows: int
    columns: int
    depth: int
    groups: int
    channels: int = 0
    vectors: bool = False
    one_tap: bool = False

    @property
    def operations(self) -> int:
        """Multiply-adds, counted as two operations."""
        return 2 * self.rows * self.columns * self.depth * self.groups


@dataclass(frozen=True)
class TileChoice:
    """A tile, and how many parts the depth is split into, each of `chunks` tiles' depths.

    `cycles` is the estimated time, in cycles of a compute unit; 0 where nothing was estimated.
    """

    tile: GroupTile
    parts: int
    chunks: int
    cycles: float = 0.0


@cache
def rows(device_class: str, size: int) -> tuple[GroupTile, ...]:
    """Read the rows of a class of devices for an element size in bytes; without any, those of the class ``gpu``."""
    found: dict[str, list[GroupTile]] = {}
    for line in ROWS.read_text().splitlines():
        words = line.split("#")[0].split()
        if words and int(words[1]) == size:
            speeds, settings = words[1 + len(NUMBERS) :][: len(SPEEDS)], words[1 + len(NUMBERS) + len(SPEEDS) :]
            numbers: dict[str, Any] = dict(zip(NUMBERS, map(int, words[1:])))
            numbers.update(zip(SPEEDS, map(float, speeds)))
            options = tuple(word for word in settings if word.startswith("-"))
            micro = next((word for word in settings if word in MICRO_KERNELS), "fma")
            fixed_group = "free" not in settings
            name, _, mode = words[0].partition(":")
            tile = GroupTile(
                name,
                **numbers,
                options=options,
                fixed_group=fixed_group,
                micro=micro,
                tf32=mode == TF32,
                stream=STREAM in settings,
            )
            found.setdefault(words[0], []).append(tile)
    return tuple(found.get(device_class) or found["gpu"])


def candidates(device: DeviceInfo, size: int) -> Iterator[GroupTile]:
    """Return the tiles that a device can run."""
    listed = rows(device.device_class, size)
    if precision() == TF32:
        listed += tuple(tile for tile in rows(f"{device.device_class}:{TF32}", size) if tile.tf32)
    for tile in listed:
        if not _has_units(tile, device):
            continue
        memory = device.largest_local_memory if tile.micro == "wgmma" else device.local_memory
        if tile.threads <= device.max_work_group_size and tile.local_bytes <= memory:
            yield tile


def _has_units(tile: GroupTile, device: DeviceInfo) -> bool:
    """Return whether a device has the units of a tile's micro kernel, and has gains by them."""
    if tile.micro == "mma":
        return "mma" in device.matrix_units if tile.tf32 else device.splits_float32
    return tile.micro == "fma" or device.has_wgmma


def serves(tile: GroupTile, product: ProductShape) -> bool:
    """Return whether a tile is meant for a product and computes it with the accuracy of its dtype."""
    if tile.stream:
        return product.one_tap and streams(tile, product.rows, product.depth)
    return tile.micro == "fma" or product.depth >= SHORTEST_DEPTH


def counts(product: ProductShape, tile: GroupTile) -> tuple[int, int]:
    """Return a product's number of tiles, and how many of the tile's depths its depth has."""
    tiles = ceil_div(product.rows, tile.m) * ceil_div(product.columns, tile.n)
    return tiles * product.groups, ceil_div(product.depth, tile.k)


def splits(chunks: int, tiles: int, units: int, busy: int) -> list[int]:
    """Return the numbers of parts to consider, of at least two chunks of the depth a part.

    They are powers of two, and those that give every unit whole work-groups, up to three times `busy`.
    """
    wanted = {each * units // tiles for each in range(1, 3 * busy + 1)} | {2**i for i in range(1, chunks.bit_length())}
    lengths = {ceil_div(chunks, parts) for parts in wanted if 1 < 2 * parts <= chunks}
    return sorted({1} | {ceil_div(chunks, length) for length in lengths})


def choose(
    product: ProductShape, device: DeviceInfo, size: int, split: bool = True, only: GroupTile | None = None
) -> TileChoice:
    """Choose the tile, `only` one or any, and the split with the least estimated time.

    A compute unit that is left with fewer than `busy` work-groups works on at half of what they leave free.

    Raises
    ------
    Declined
        If the device can run no tile, or there would be too many work-groups.
    """
    best: tuple[float, TileChoice] | None = None
    for tile in (only,) if only else candidates(device, size):
        if not (only or serves(tile, product)):
            continue
        tiles, chunks = counts(product, tile)
        (busy, speed), area = tile.load(product), tile.m * tile.n
        for parts in splits(chunks, tiles, device.compute_units, busy) if split and not tile.stream else (1,):
            length = ceil_div(chunks, parts) if chunks else 0
            sums = parts * product.rows * product.columns * product.groups
            if parts > 1 and sums * size > SPLIT_BYTES:
                continue
            finish = FINISH_CYCLES * area * (1 if tile.stream else 1 + 1 / busy)
            each = length * tile.k * area / LANES * (size // 4) / speed + finish
            full, rest = divmod(ceil_div(tiles * parts, device.compute_units), busy)
            time = each * (full * busy + ((rest + busy) / 2 if rest else 0))
            if parts > 1:
                time += LAUNCH_CYCLES + sums * SUM_CYCLES * (size // 4) / device.compute_units
            if tiles * parts <= LARGEST and (best is None or time < best[0]):
                best = time, TileChoice(tile, parts, length, time)
    if best is None:
        raise Declined(f"no tile of {ROWS.name} suits {product} on {device.name}")
    return best[1]


def insist(product: ProductShape, device: DeviceInfo, size: int, name: str, parts: int) -> TileChoice:
    """Return the choice of a tile by its name and of a number of parts, or as many as have a step each.

    Raises
    ------
    Declined
        If the device cannot run such a tile, or it gives too many work-groups or sums.
    """
    tile = next((tile for tile in candidates(device, size) if tile.name == name), None)
    if tile is None or parts < 1 or (tile.stream and parts > 1) or not serves(tile, product):
        raise Declined(f"no tile {name} of {ROWS.name} in {parts} parts suits {device.name}")
    tiles, chunks = counts(product, tile)
    length = ceil_div(chunks, parts) if chunks else 0
    parts = ceil_div(chunks, length) if chunks else 1
    if tiles * parts > LARGEST:
        raise Declined(f"{tiles * parts} work-groups are more than {LARGEST}")
    if parts > 1 and parts * product.rows * product.columns * product.groups * size > SPLIT_BYTES:
        raise Declined(f"the sums of {parts} parts are more than {SPLIT_BYTES} bytes")
    return TileChoice(tile, parts, length)
