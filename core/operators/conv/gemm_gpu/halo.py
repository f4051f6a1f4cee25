"""Sizes for ``kernels/conv/gemm_gpu/halo.cl``, which has what all taps of a tile's pixels meet in local memory once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clgraft.core.operators.conv.grid import Grid, GridAxis
from clgraft.core.problem import ceil_div, round_up

CHUNK = 32  # channels in local memory at the same time, the kernel's TILE_K
BUFFERS = 2  # chunks in local memory; one more where there is one tap
STAGES = 4  # steps' weights in local memory, the kernel's STAGES
MOST_LOADS = 8  # vectors that a work-item loads for a chunk where there is one tap
MOST_PIECES = 4  # vectors that a work-item loads while a tap is multiplied
FAR_TAPS = 6  # taps from which a piece is stored two steps after it is loaded, instead of one


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

    @property
    def distance(self) -> int:
        """Return the steps from loading a piece of a chunk to storing it."""
        return 2 if self.grid.taps >= FAR_TAPS else 1

    def local_bytes(self, rows: int, pixels: int) -> int:
        """Return the local memory for a tile of so many rows and virtual pixels."""
        held, buffers = self.rows(pixels), BUFFERS + (self.grid.taps == 1)
        return (buffers * held + STAGES * rows) * CHUNK * 4 + (held + pixels) * 8

    def serves(self, pixels: int, threads: int) -> bool:
        """Return whether a work-group loads a chunk fast enough for a tile of so many virtual pixels."""
        loads = ceil_div(self.rows(pixels) * CHUNK // 4, threads)
        return loads <= MOST_LOADS if self.grid.taps == 1 else ceil_div(loads, self.grid.taps - self.distance) <= MOST_PIECES

    def defines(self, pixels: int) -> dict[str, Any]:
        """Return the kernel's macros for a tile of so many virtual pixels."""
        taps = {"HALO_TAPS": self.grid.taps, "HALO_DISTANCE": self.distance}
        return {"HALO": 1, "HALO_ROWS": self.rows(pixels), **taps}


def halo_of(grids: list[Grid], channels: int) -> Halo | None:
    """Return the sizes for the only grid of a product, or None where the kernel does not serve it."""
    if len(grids) != 1 or channels % CHUNK or not grids[0].taps:
        return None
    outer, *axes = grids[0].axes
    flat = (outer.size, outer.source, outer.begin, outer.taps) == (1, 1, 0, 1)
    halo = Halo(grids[0])
    if not flat or any(axis.stride != 1 or axis.begin > 0 for axis in axes) or halo.columns > 2**31 - 2**16:
        return None
    return halo
