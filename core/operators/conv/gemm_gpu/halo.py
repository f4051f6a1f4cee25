"""Sizes for ``kernels/conv/gemm_gpu/halo.cl``, which has what all taps of a tile's pixels meet in local memory once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clgraft.core.operators.conv.grid import Grid, GridAxis
from clgraft.core.problem import ceil_div, round_up

CHUNK = 32  # channels in local memory at the same time, the kernel's TILE_K
BUFFERS = 2  # chunks in local memory
FEWEST_TAPS = 6  # of a kernel: one tap is slower in this way, and kernels between the two were not measured
DISTANCE = 2  # taps from loading vectors to storing them, the kernel's HALO_DISTANCE
MOST_PIECES = 4  # vectors that a work-item loads while a tap is multiplied
MOST_ROWS = 2  # rows in local memory for each pixel of a tile: with more, loading them costs too much
STAGES = (4, 3)  # steps' weights in local memory, the kernel's STAGES: the fewer where that makes room for GROUPS
GROUPS = 2  # most work-groups that tiles want on a compute unit
LOCAL_MEMORY = 228 * 1024  # bytes of a compute unit of Hopper
RESERVED = 2048  # bytes of a work-group that are the driver's, or for alignment


def _virtual(axis: GridAxis) -> int:
    """Return the positions of an axis with the zeros that follow pixels, if they are not those in front of the next."""
    reach = (axis.taps - 1) * axis.step
    return max(axis.size, axis.size + reach + axis.begin)


@dataclass(frozen=True)
class Halo:
    """A grid whose pixels meet a source with zeros between its rows and images."""

    grid: Grid

    @property
    def sizes(self) -> tuple[int, int]:
        """Rows and columns of an image of virtual pixels."""
        _, rows, columns = self.grid.axes
        return _virtual(rows), _virtual(columns)

    @property
    def columns(self) -> int:
        """Virtual pixels of all images."""
        rows, columns = self.sizes
        return self.grid.batch * rows * columns

    def rows(self, pixels: int) -> int:
        """Return the rows in local memory for a tile of so many virtual pixels."""
        _, rows, columns = self.grid.axes
        distance = (rows.taps - 1) * rows.step * self.sizes[1] + (columns.taps - 1) * columns.step
        return round_up(pixels + distance, 8)

    def stages(self, rows: int, pixels: int) -> int:
        """Return how many steps' weights are in local memory for a tile of so many rows and virtual pixels."""
        return max(STAGES, key=lambda stages: min(self._groups(rows, pixels, stages), GROUPS))

    def groups(self, rows: int, pixels: int) -> int:
        """Return the work-groups with such a tile that have room in the local memory of a compute unit."""
        return self._groups(rows, pixels, self.stages(rows, pixels))

    def _groups(self, rows: int, pixels: int, stages: int) -> int:
        held = self.rows(pixels)
        nbytes = (BUFFERS * held + stages * rows) * CHUNK * 4 + (held + pixels) * 8
        return LOCAL_MEMORY // (nbytes + RESERVED)

    def serves(self, rows: int, pixels: int, threads: int, busy: int) -> bool:
        """Return whether a tile of so many rows and virtual pixels suits, of which `busy` keep a compute unit busy."""
        pieces = ceil_div(ceil_div(self.rows(pixels) * CHUNK // 4, threads), self.grid.taps - DISTANCE)
        return self.groups(rows, pixels) >= busy and pieces <= MOST_PIECES and self.rows(pixels) <= MOST_ROWS * pixels

    def defines(self, rows: int, pixels: int) -> dict[str, Any]:
        """Return the kernel's macros for a tile of so many rows and virtual pixels."""
        stages = self.stages(rows, pixels)
        return {"HALO": 1, "HALO_ROWS": self.rows(pixels), "HALO_TAPS": self.grid.taps, "STAGES": stages}


def halo_of(grids: list[Grid], channels: int) -> Halo | None:
    """Return the sizes for the only grid of a product, or None where the kernel does not serve it."""
    if len(grids) != 1 or channels % CHUNK or grids[0].taps < FEWEST_TAPS:
        return None
    outer, *axes = grids[0].axes
    flat = (outer.size, outer.source, outer.begin, outer.taps) == (1, 1, 0, 1)
    halo = Halo(grids[0])
    if not flat or any(axis.stride != 1 or axis.begin > 0 for axis in axes) or halo.columns > 2**31 - 2**16:
        return None
    return halo
