"""What a product costs with a tile, and the choice of a tile and of parts for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.gemm_gpu.tile import ProductShape, Tile
from clgraft.core.operators.conv.gemm_gpu.tiles import ROWS, candidates
from clgraft.core.problem import ceil_div

if TYPE_CHECKING:
    from clgraft.core.planning.device import DeviceInfo

LARGEST = 2**31 - 1
SPLIT_BYTES = 256 * 2**20  # most bytes of workspace for the sums of parts
LANES = 90  # multiply-adds of a compute unit in a cycle; only its ratio to what follows counts
LAUNCH_CYCLES = 6000  # cost of a launch, about 4 us
FINISH_CYCLES = 0.25  # cost of an element of a tile before and after its products; twice that where nothing hides it
SUM_CYCLES = 0.5  # cost to write and read one sum of a part, in cycles of a compute unit


@dataclass(frozen=True)
class TileChoice:
    """A tile, and how many parts the depth is split into, each of `chunks` tiles' depths.

    `cycles` is the estimated time, in cycles of a compute unit; 0 where nothing was estimated.
    """

    tile: Tile
    parts: int
    chunks: int
    cycles: float = 0.0


def splits(chunks: int, tiles: int, units: int, busy: int) -> list[int]:
    """Return the numbers of parts to consider, of at least two chunks of the depth a part.

    They are powers of two, and those that give every unit whole work-groups, up to three times `busy`.
    """
    wanted = {each * units // tiles for each in range(1, 3 * busy + 1)} | {2**i for i in range(1, chunks.bit_length())}
    lengths = {ceil_div(chunks, parts) for parts in wanted if 1 < 2 * parts <= chunks}
    return sorted({1} | {ceil_div(chunks, length) for length in lengths})


def choose(
    product: ProductShape, device: DeviceInfo, size: int, split: bool = True, only: Tile | None = None
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
        if not (only or tile.serves(product)):
            continue
        tiles, chunks = tile.counts(product)
        (busy, speed), area = tile.load(product), tile.m * tile.n
        for parts in splits(chunks, tiles, device.compute_units, busy) if split and tile.form.splits else (1,):
            length = ceil_div(chunks, parts) if chunks else 0
            sums = parts * product.rows * product.columns * product.groups
            if parts > 1 and sums * size > SPLIT_BYTES:
                continue
            finish = FINISH_CYCLES * area * tile.form.unhidden(busy)
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
    if tile is None or parts < 1 or (parts > 1 and not tile.form.splits) or not tile.serves(product):
        raise Declined(f"no tile {name} of {ROWS.name} in {parts} parts suits {device.name}")
    tiles, chunks = tile.counts(product)
    length = ceil_div(chunks, parts) if chunks else 0
    parts = ceil_div(chunks, length) if chunks else 1
    if tiles * parts > LARGEST:
        raise Declined(f"{tiles * parts} work-groups are more than {LARGEST}")
    if parts > 1 and parts * product.rows * product.columns * product.groups * size > SPLIT_BYTES:
        raise Declined(f"the sums of {parts} parts are more than {SPLIT_BYTES} bytes")
    return TileChoice(tile, parts, length)
