"""Sizes for ``kernels/conv/gemm_gpu/halo.cl``, which has what all taps of a tile's pixels meet in local memory once."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from clgraft.core.operators.conv.grid import Grid, GridAxis
from clgraft.core.problem import ceil_div, round_up

CHUNK = 64  # channels in local memory at the same time, the kernel's TILE_K
ROW_BYTES = 2 * CHUNK  # of a row in local memory, of halves
BUFFERS = 2  # chunks in local memory, where there are several
FEWEST_TAPS = 6  # of a kernel, if it has more than one: kernels between the two were not measured
FEWEST_CHANNELS = CHUNK // 2  # with fewer, most of a chunk would be zeros
MOST_ROWS = 2  # rows in local memory for each pixel of a tile: with more, loading them costs too much
ITEMS, BLOCK = 256, 64  # of kernels/conv/gemm_gpu/round.cl
MOST_SHARES, SHARED = 8, 256  # work-groups for an image that may have to be rounded once more, and for all images
STAGES = (4, 3)  # steps' weights in local memory, the kernel's STAGES: the fewer where that makes room for GROUPS
ONE_TAP_STAGES = (6, 5, 4, 3)  # the same where pixels have as many places
ROUND_ITEMS, ROUND_VECTORS = 512, 4  # of kernels/conv/gemm_gpu/round_columns.cl: work-items, vectors of one at most
ROUND_COLUMNS = (64, 32, 16, 8)  # its COLUMNS
MOST_CHANNELS = ROUND_ITEMS * ROUND_VECTORS // min(ROUND_COLUMNS) * 8  # that it can round
GROUPS = 2  # most work-groups that tiles want on a compute unit
LOCAL_MEMORY = 228 * 1024  # bytes of a compute unit with wgmma
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
    def one_tap(self) -> bool:
        """Whether the kernel has one tap: the virtual pixels are the source's, and each has a power of its own."""
        return self.grid.taps == 1

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

    def held(self, pixels: int) -> int:
        """Return the virtual pixels in memory for tiles of so many, the last one's rows included."""
        return round_up(self.columns, pixels) - pixels + self.rows(pixels)

    @property
    def blocks(self) -> int:
        """Blocks of pixels of an image that are rounded."""
        return ceil_div(prod(self.sizes), BLOCK)

    def all_blocks(self, pixels: int) -> int:
        """Return the blocks of pixels of all images, and of the zeros after them, for tiles of so many."""
        return self.grid.batch * self.blocks + ceil_div(self.held(pixels) - self.columns, BLOCK)

    def stages(self, rows: int, pixels: int, buffers: int = BUFFERS) -> int:
        """Return how many steps' weights are in local memory for a tile of so many rows and virtual pixels."""
        listed = ONE_TAP_STAGES if self.one_tap else STAGES
        return max(listed, key=lambda stages: min(self._groups(rows, pixels, stages, buffers), GROUPS))

    def groups(self, rows: int, pixels: int, buffers: int = BUFFERS) -> int:
        """Return the work-groups with such a tile that have room in the local memory of a compute unit."""
        return self._groups(rows, pixels, self.stages(rows, pixels, buffers), buffers)

    def _places(self, stages: int, buffers: int) -> int:
        """Return the places for chunks of pixels in local memory."""
        return stages if self.one_tap else buffers

    def _groups(self, rows: int, pixels: int, stages: int, buffers: int) -> int:
        nbytes = (
            (self._places(stages, buffers) * self.rows(pixels) + stages * rows) * ROW_BYTES + pixels * 12 + rows * 8
        )
        return LOCAL_MEMORY // (nbytes + RESERVED)

    def serves(self, rows: int, pixels: int, busy: int, buffers: int) -> bool:
        """Return whether a tile of so many rows and virtual pixels suits, of which `busy` keep a compute unit busy."""
        return self.groups(rows, pixels, buffers) >= busy and self.rows(pixels) <= MOST_ROWS * pixels

    def defines(self, rows: int, pixels: int, buffers: int) -> dict[str, Any]:
        """Return the kernel's macros for a tile of so many rows and virtual pixels, and so many chunks."""
        stages = self.stages(rows, pixels, buffers)
        sizes = {"HALO_ROWS": self.rows(pixels), "HALO_TAPS": self.grid.taps}
        return {"HALO": 1, **sizes, "HALO_BUFFERS": self._places(stages, buffers), "STAGES": stages}


def halo_of(grids: list[Grid], channels: int) -> Halo | None:
    """Return the sizes for the only grid of a product, or None where the kernel does not serve it."""
    if len(grids) != 1 or channels < FEWEST_CHANNELS:
        return None
    outer, *axes = grids[0].axes
    if grids[0].taps < FEWEST_TAPS:
        inside = all(axis.taps == 1 and axis.begin == 0 and axis.size == axis.source for axis in grids[0].axes)
        if not inside or channels > MOST_CHANNELS:
            return None
    flat = (outer.size, outer.source, outer.begin, outer.taps) == (1, 1, 0, 1)
    halo = Halo(grids[0])
    if not flat or any(axis.stride != 1 or axis.begin > 0 for axis in axes) or halo.columns > 2**31 - 2**16:
        return None
    return halo


def round_columns(channels: int, columns: int, compute_units: int) -> tuple[int, int]:
    """Return the columns of a work-group of round_columns.cl, of so many, and the vectors of one of its work-items.

    As many as its registers hold, since neighbours are read together, but few enough that all compute units have some.
    """
    vectors = ceil_div(channels, CHUNK) * CHUNK // 8
    held = [each for each in ROUND_COLUMNS if each * vectors <= ROUND_ITEMS * ROUND_VECTORS]
    chosen = next((each for each in held if columns >= each * compute_units * GROUPS), held[-1])
    return chosen, ceil_div(chosen * vectors, ROUND_ITEMS)
