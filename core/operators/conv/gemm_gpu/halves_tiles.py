"""Tiles of products with operands of 16 bits (``halves.txt``), and what kinds of matrix units make of them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clgraft.core.operators.conv.gemm_gpu.constants import HALVES_DEPTH, TABLE
from clgraft.core.planning.halves import WGMMA, work_items
from clgraft.core.problem import ceil_div

if TYPE_CHECKING:
    from clgraft.core.planning.device import DeviceInfo

WGMMA_ROWS = 64  # of a product
RESERVED = 2048  # bytes of a work-group that are the driver's, or for alignment
LEAST_REGISTERS = 32  # of a work-item apart from its sums: products and what they need do not fit fewer
ROWS, COSTS = Path(__file__).with_name("halves.txt"), Path(__file__).with_name("halves_costs.txt")


@dataclass(frozen=True)
class Product:
    """The sizes of `groups` products of matrices, (rows, depth) by (depth, columns).

    `by_depth`: rows of both operands in memory are the depth, as in backward filter.
    """

    rows: int
    columns: int
    depth: int
    groups: int
    by_depth: bool = False

    @property
    def steps(self) -> int:
        """Steps of the depth."""
        return ceil_div(self.depth, HALVES_DEPTH)


@dataclass(frozen=True)
class Costs:
    """A row of ``halves_costs.txt``; the names are its columns'."""

    multiply_adds: float
    shared_bytes: float
    copied_bytes: float
    read_bytes: float
    start: float
    store: float
    copy: float
    copy_rows: float
    copy_columns: float
    compute_units: int


@dataclass(frozen=True)
class HalvesTile:
    """A row of ``halves.txt``; the names are its columns'.

    `warp_m` and `warp_n` are the part of the tile that a warp has, the work-items that multiply together; with
    ``wgmma`` `warp_m` are a warpgroup's rows.
    """

    units: str
    m: int
    n: int
    stages: int
    pending: int
    warp_m: int
    warp_n: int
    busy: int
    slower: float
    slower_windows: float
    slower_stream: float = 0.0
    slower_bulk: float = 0.0
    slower_depth: float = 0.0
    slower_weights: float = 0.0

    def factor(self, bulk: bool, by_depth: bool) -> float:
        """Return the factor of estimates, with operands as boxes or not; 0: the tile is not for these."""
        if not bulk:
            return self.slower
        return self.slower_depth if by_depth else self.slower_bulk

    @property
    def name(self) -> str:
        """The tile as a setting."""
        return f"{self.m}x{self.n}x{self.stages}-{self.pending}"

    @property
    def threads(self) -> int:
        """Work-items of a work-group."""
        return work_items(self.units, self.m, self.n, self.warp_m, self.warp_n)

    @property
    def sums(self) -> int:
        """Sums of a work-item, each in a register."""
        return self.m * self.n // self.threads

    @property
    def local_bytes(self) -> int:
        """Local memory of a work-group: tiles of operands, and later the sums."""
        return self.with_sums(self.stages * (self.m + self.n) * HALVES_DEPTH * 2)

    def with_sums(self, nbytes: int) -> int:
        """Return the local memory of a work-group whose operands take so many bytes, before its sums do."""
        return max(nbytes, self.m * (self.n + 8) * 4) + 1024

    def step(self, copied: float, reading: float) -> float:
        """Estimate the cycles of a step that copies so many rows of the depth, where a share of all places reads."""
        cost, nbytes = costs(self.units), copied * HALVES_DEPTH * 2
        rows, columns = (WGMMA_ROWS, self.n) if self.units == WGMMA else (self.warp_m, self.warp_n)
        read = self.m * self.n * (1 / rows + 1 / columns) * HALVES_DEPTH * 2 / cost.read_bytes if cost.read_bytes else 0
        multiplied = self.m * self.n * HALVES_DEPTH / cost.multiply_adds
        return max(multiplied, nbytes / cost.copied_bytes + read, nbytes * reading / cost.shared_bytes)

    def defines(self) -> dict[str, Any]:
        """Return the kernel's macros."""
        warps = {"WARP_M": self.warp_m, "WARP_N": self.warp_n} if self.warp_n else {}
        return {
            "MICRO": TABLE[f"{self.units.upper()}_UNITS"],
            "TILE_M": self.m,
            "TILE_N": self.n,
            "STAGES": self.stages,
            "PENDING": self.pending,
            "THREADS": self.threads,
            **warps,
        }


@cache
def tiles(units: str) -> tuple[HalvesTile, ...]:
    """Read the tiles for a kind of matrix units."""
    found = []
    for line in ROWS.read_text().splitlines():
        words = line.split("#")[0].split()
        if words and words[0] == units:
            m, n, stages, pending, warp_m, warp_n, busy = map(int, words[1:8])
            found.append(HalvesTile(units, m, n, stages, pending, warp_m, warp_n, busy, *map(float, words[8:])))
    return tuple(found)


@cache
def costs(units: str) -> Costs:
    """Read what products cost with a kind of matrix units."""
    lines = (line.split("#")[0].split() for line in COSTS.read_text().splitlines())
    found = next(words for words in lines if words and words[0] == units)
    named: dict[str, Any] = dict(zip((field.name for field in fields(Costs)), map(float, found[1:])))
    return Costs(**{**named, "compute_units": int(found[-1])})


def places(units: str, compute_units: int) -> int:
    """Return how many of the parts of a device there are that have a work-group's local memory and matrix units."""
    return max(1, compute_units // costs(units).compute_units)


def fitting(units: str, device: DeviceInfo) -> list[HalvesTile]:
    """Return the tiles that a device can run."""
    room = local_memory(units, device)
    return [t for t in tiles(units) if t.threads <= device.max_work_group_size and t.local_bytes <= room]


def local_memory(units: str, device: DeviceInfo) -> int:
    """Return the local memory that a work-group can have."""
    return device.largest_local_memory if units == WGMMA else max(device.local_memory, device.largest_local_memory)
