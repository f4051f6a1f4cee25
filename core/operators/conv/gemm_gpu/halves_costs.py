"""What products with operands of 16 bits cost with each tile, and the choices that follow from that."""

from __future__ import annotations

from dataclasses import dataclass

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.gemm_gpu.constants import HALVES_DEPTH
from clgraft.core.operators.conv.gemm_gpu.halves_stream import with_memory
from clgraft.core.operators.conv.gemm_gpu.halves_tiles import ROWS, HalvesTile, Product, costs, places
from clgraft.core.operators.conv.gemm_gpu.halves_windows import Windows
from clgraft.core.operators.conv.gemm_gpu.product import LARGEST, splits
from clgraft.core.planning.halves import WGMMA
from clgraft.core.problem import ceil_div, round_up

VECTOR = 8  # channels that are read at once
SPLIT_BYTES = 256 * 2**20  # most bytes of workspace for the sums of parts
JOINING = (WGMMA, "mma")  # units with which the last one of a tile's work-groups can add its parts
COUNTERS = 2**13  # of tiles whose work-groups do: ``TICKETS_BYTES`` of core/abi/context.c

# in cycles, as halves_costs.txt has them
LAUNCH = 8200  # of sums' launch
JOIN = 8900  # until a tile's last work-group reads the first sums of its parts
SOURCES = 1.5  # how many times as long windows take that are copied again and again, for 64 channels after the others
PHASE_START = 0.75  # of a tile's start, which phases of a stride need
PHASE_STORE = 0.25  # for each element that a phase stores
PHASES_TOGETHER = 0.6  # as a part of that, what each of the unit's other work-groups adds
DRAINED = 1.2  # the same for phases of strides with tiles whose products are pending: they end before each store
JOINED_BYTES = 64  # of sums that it reads in a cycle
SUM = 0.003  # to write and read a sum of a part, of the whole device


@dataclass(frozen=True)
class Choice:
    """A tile, and how many parts the depth is split into, each of `steps`.

    `joined`: in one launch; `bulk`: operands are copied as boxes.
    """

    tile: HalvesTile
    parts: int
    steps: int
    time: float = 0.0
    joined: bool = False
    bulk: bool = False


def cycles(
    product: Product, tile: HalvesTile, parts: int, units: int, walks: bool = False, bulk: bool = False
) -> float:
    """Estimate the time of a product with a tile in so many parts, in cycles of one of so many compute units.

    `walks`: the depth is pixels whose taps are looked for, as in backward filter. `bulk`: operands are copied as boxes.
    Then the tile's factor is that of its steps alone.
    """
    work_groups = ceil_div(product.rows, tile.m) * ceil_div(product.columns, tile.n) * product.groups * parts
    cost = costs(tile.units)
    rows, columns = (cost.copy_rows, cost.copy_columns) if walks else (cost.copy, cost.copy)
    wait = (rows * tile.m + columns * tile.n) * HALVES_DEPTH / VECTOR / tile.threads
    steps, factor = ceil_div(product.steps, parts), tile.factor(bulk, product.by_depth)
    if not bulk:
        time = factor * _cycles(tile, work_groups, steps, tile.m + tile.n, tile.busy, units, wait)
    else:
        time = _cycles(tile, work_groups, factor * steps, tile.m + tile.n, tile.busy, units)
    if bulk and product.by_depth:  # each element is read once, or by few, from memory
        moved = (product.rows + product.columns) * product.depth * product.groups
        time = with_memory(time, moved, places(tile.units, units), walks=False)
    return time + (adding(product, tile, parts)[0] if parts > 1 else 0)


def adding(product: Product, tile: HalvesTile, parts: int) -> tuple[float, bool]:
    """Estimate the time to add the sums of parts; say whether that is the time of joining them in one launch."""
    launched = LAUNCH + SUM * parts * product.rows * product.columns * product.groups
    tiles = ceil_div(product.rows, tile.m) * ceil_div(product.columns, tile.n) * product.groups
    if tile.units not in JOINING or tiles > COUNTERS:
        return launched, False
    read = parts if parts > 2 else 1
    joined = JOIN + (1 + read) * tile.m * tile.n * 4 / JOINED_BYTES
    return min((launched, False), (joined, True))


def _cycles(
    tile: HalvesTile,
    work_groups: int,
    steps: float,
    copied: float,
    busy: int,
    units: int,
    wait: float = 0.0,
    phases: int = 0,
) -> float:
    """Estimate the time of work-groups that copy so many rows in a step, in cycles of one of so many compute units.

    However few work-groups a unit has, each of them needs `wait` cycles for a step. It stores its tile once, or in so
    many phases of a stride.
    """
    cost, there = costs(tile.units), places(tile.units, units)
    products = steps * tile.step(copied, min(1.0, work_groups / there))

    def of(at_once: int) -> float:
        start, store = cost.start, cost.store
        if phases:
            start, store = PHASE_START * start, PHASE_STORE * phases * (1 + PHASES_TOGETHER * (at_once - 1))
        return max(products * at_once, steps * wait) + store * tile.m * tile.n + start

    full, rest = divmod(ceil_div(work_groups, there), busy)
    return full * of(busy) + (of(rest) if rest else 0.0)


def windows_cycles(windows: Windows, product: Product, tile: HalvesTile, busy: int, units: int) -> float:
    """Estimate the time of a product by windows, whose rows are positions; see `cycles`."""
    work_groups = ceil_div(product.rows, tile.m) * ceil_div(product.columns, tile.n) * product.groups
    chunks = ceil_div(product.depth // windows.taps, HALVES_DEPTH)
    slower = tile.slower_windows * (SOURCES if chunks > 1 else 1.0)
    copied = tile.n + windows.source_rows(tile) / windows.taps
    return slower * _cycles(tile, work_groups, windows.taps * chunks, copied, busy, units)


@dataclass(frozen=True)
class PhaseChoice:
    """A tile, and the phases of a stride in the order of sets, of which each has `of_set` but the last one."""

    tile: HalvesTile
    order: tuple[int, ...]
    of_set: int
    time: float = 0.0


def in_sets(steps: list[int], of_set: int) -> tuple[int, ...]:
    """Return phases, by their steps, in sets of so many with about as many steps; the longest ones are the first."""
    sets: list[list[int]] = [[] for _ in range(ceil_div(len(steps), of_set))]
    room = {index: of_set for index in range(len(sets))}
    room[len(sets) - 1] -= of_set * len(sets) - len(steps)
    for phase in sorted(range(len(steps)), key=lambda each: -steps[each]):
        index = min(
            (index for index in room if room[index]), key=lambda each: sum(steps[phase] for phase in sets[each])
        )
        sets[index].append(phase)
        room[index] -= 1
    return tuple(phase for each in sets for phase in each)


def choose_phases(phases: list[Product], candidates: list[HalvesTile], units: int) -> PhaseChoice:
    """Choose the tile and the sets of phases with the least estimated time; see `cycles`."""
    steps = [phase.steps for phase in phases]
    rows, columns, groups = max(phase.rows for phase in phases), phases[0].columns, phases[0].groups
    best: PhaseChoice | None = None
    for tile in candidates:
        if not tile.slower:
            continue
        tiles = ceil_div(rows, tile.m) * ceil_div(columns, tile.n)
        slower = tile.slower * (DRAINED if tile.pending else 1.0)
        for of_set in range(1, len(steps) + 1):
            sets = ceil_div(len(steps), of_set)
            time = slower * _cycles(
                tile, tiles * groups * sets, sum(steps) / sets, tile.m + tile.n, tile.busy, units, phases=of_set
            )
            if tiles <= LARGEST // tile.threads and (best is None or time < best.time):
                best = PhaseChoice(tile, in_sets(steps, of_set), of_set, time)
    if best is None:
        raise Declined(f"no tile of {ROWS.name} suits {phases}")
    return best


def choose(
    product: Product, candidates: list[HalvesTile], units: int, walks: bool = False, bulk: bool = False
) -> Choice:
    """Choose the tile and the number of parts with the least estimated time; see `cycles`.

    `bulk`: operands may be copied as boxes.
    """
    best: tuple[float, Choice] | None = None
    least = min((tile.m for tile in candidates), default=0)
    for tile in candidates:
        if tile.m > max(least, round_up(product.rows, least)):
            continue  # rows that are not there would be copied from the last one
        count = ceil_div(product.rows, tile.m) * ceil_div(product.columns, tile.n) * product.groups
        for parts in splits(product.steps, count, places(tile.units, units), tile.busy):
            too_many = parts * product.rows * product.columns * product.groups * 4 > SPLIT_BYTES
            if (parts > 1 and too_many) or count * parts > LARGEST:
                continue
            for boxes in (False, True) if bulk else (False,):
                if not tile.factor(boxes, product.by_depth):
                    continue
                time = cycles(product, tile, parts, units, walks, boxes)
                if best is None or time < best[0]:
                    joined = parts > 1 and adding(product, tile, parts)[1]
                    best = time, Choice(tile, parts, ceil_div(product.steps, parts), time, joined, boxes)
    if best is None:
        raise Declined(f"no tile of {ROWS.name} suits {product}")
    return best[1]
