"""The form of products with operands of 16 bits for convolutions with few weights.

Its work-groups keep weights in local memory and walk over tiles of pixels (``kernels/conv/gemm_gpu/halves_stream.cl``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clgraft.core.operators.conv.gemm_gpu.constants import HALVES_DEPTH
from clgraft.core.operators.conv.gemm_gpu.halves_tiles import RESERVED, HalvesTile, Product, costs, local_memory, places
from clgraft.core.problem import ceil_div

if TYPE_CHECKING:
    from clgraft.core.planning.device import DeviceInfo

FILE, KERNEL = "conv/gemm_gpu/halves_stream.cl", "conv_stream_halves"
MOST_STAGES = 6  # steps whose pixels are in local memory
MOST_STEPS = 16  # of the depth, whose weights are
STAGED = 64  # columns whose sums pass local memory at once, as the kernel has it
MOST_BUSY = 4  # work-groups of a unit
PLACE, WALK = 24, 20  # bytes in local memory for a row of one of two tiles and for an eighth of a step, with taps
REGISTERS_OF_ITEM = 80  # apart from its sums, with room for the unrolled store

# in cycles, as halves_costs.txt has them
FEW_ITEMS = 256  # of a unit: fewer wait longer
START = 600  # that a work-group waits for a tile
# that it waits for each step, and for each element that it stores, which takes local memory meanwhile
ROUNDED, WIDE = (160, 0.037, 0.052), (73, 0.098, 0.081)
HIDING, HIDING_LITTLE = 4, 2.5  # exponents
MEMORY_BYTES = 13.2  # that each place reads and writes in a cycle, of the device's memory


@dataclass(frozen=True)
class Stream:
    """A tile, the steps whose pixels and weights are in local memory, and the work-groups.

    Attributes
    ----------
    walkers : int
        Work-groups that share the tiles of rows of the same columns.
    busy : int
        Work-groups that a unit has at the same time.
    rounded : bool
        Whether sums are rounded before they pass local memory: nothing follows them.
    """

    tile: HalvesTile
    stages: int
    held: int
    walkers: int
    busy: int
    rounded: bool
    time: float = 0.0

    def defines(self) -> dict[str, Any]:
        """Return the kernel's macros."""
        return {**self.tile.defines(), "STAGES": self.stages, "HELD_STEPS": self.held}


def streams(
    product: Product, moved: int, candidates: list[HalvesTile], device: DeviceInfo, rounded: bool, taps: bool
) -> Iterator[Stream]:
    """Return the forms of a product with each tile, by as many work-groups of a unit as have room there."""
    held = product.steps
    if not 0 < held <= MOST_STEPS:
        return
    for tile in candidates:
        if not tile.slower_stream:
            continue
        lists = 2 * tile.m * PLACE + held * 8 * WALK if taps else 0
        whole = lists + held * tile.n * HALVES_DEPTH * 2 + tile.m * STAGED * (2 if rounded else 4) + RESERVED
        columns = ceil_div(product.columns, tile.n) * product.groups
        rows = ceil_div(product.rows, tile.m)
        for busy in range(1, MOST_BUSY + 1):
            stages = min(MOST_STAGES, (local_memory(tile.units, device) // busy - whole) // (tile.m * HALVES_DEPTH * 2))
            registers = tile.threads * busy * (tile.sums + REGISTERS_OF_ITEM)
            if stages < 2 or registers > (device.registers or registers):
                break
            walkers = min(rows, max(1, places(tile.units, device.compute_units) * busy // columns))
            walkers = ceil_div(rows, ceil_div(rows, walkers))
            stream = Stream(tile, stages, held, walkers, busy, rounded)
            yield replace(stream, time=cycles(product, moved, stream, device.compute_units))


def cycles(product: Product, moved: int, stream: Stream, units: int) -> float:
    """Estimate the time of a product, in cycles of one of so many compute units; see `with_memory`."""
    tile, there = stream.tile, places(stream.tile.units, units)
    work_groups = stream.walkers * ceil_div(product.columns, tile.n) * product.groups
    of_step, of_element, taken = ROUNDED if stream.rounded else WIDE
    elements, step = tile.m * tile.n, tile.step(tile.m, min(1.0, work_groups / there))
    wait, busy = START + of_step * stream.held + of_element * elements, stream.held * step + taken * elements
    rounds = ceil_div(ceil_div(product.rows, tile.m), stream.walkers)
    at_once = min(stream.busy, ceil_div(work_groups, there))
    lone = max(1, FEW_ITEMS / (tile.threads * at_once))
    time = rounds * (wait * lone + at_once * busy)
    weights = stream.held * tile.n * HALVES_DEPTH * 2 / costs(tile.units).copied_bytes
    return costs(tile.units).start + weights + with_memory(tile.slower_stream * time, moved, there, walks=True)


def with_memory(time: float, moved: int, there: int, walks: bool) -> float:
    """Return a product's time with that in which so many places move its elements: of its pixels and its results.

    Most of the shorter one is hidden by the longer one, above all where work-groups walk.
    """
    memory = moved * 2 / MEMORY_BYTES / there
    hiding = HIDING if walks else HIDING_LITTLE
    return (time**hiding + memory**hiding) ** (1 / hiding)


def choose_stream(
    product: Product, moved: int, candidates: list[HalvesTile], device: DeviceInfo, rounded: bool, taps: bool
) -> Stream | None:
    """Choose the form with the least estimated time; None where the product has too many weights."""
    return min(streams(product, moved, candidates, device, rounded, taps), key=lambda each: each.time, default=None)
