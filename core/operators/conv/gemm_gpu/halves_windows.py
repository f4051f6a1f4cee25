"""Windows of products with operands of 16 bits: pixels as positions of planes with room for the padding."""

from __future__ import annotations

from dataclasses import dataclass

from clgraft.core.operators.conv.gemm_gpu.constants import HALVES_DEPTH
from clgraft.core.operators.conv.gemm_gpu.halves_tiles import HalvesTile
from clgraft.core.operators.conv.grid import Grid, GridAxis
from clgraft.core.problem import round_up


@dataclass(frozen=True)
class Windows:
    """Pixels of a convolution with stride 1 as positions of planes with room for the padding (halves_windows.cl).

    Attributes
    ----------
    pitch, lines : int
        Positions of a row of pixels, and rows of an image: what follows the last pixel is as much as any tap needs.
    reach : int
        Positions from the first to the last tap.
    """

    pitch: int
    lines: int
    reach: int
    taps: int

    @classmethod
    def of(cls, grid: Grid) -> Windows | None:
        """Return those of a grid; None where it has strides, three axes or one tap."""
        outer, *plane = grid.axes
        trivial = outer.size == outer.source == 1 and outer.begin == 0 and outer.taps == 1
        if not trivial or grid.taps < 2 or any(a.stride != 1 or a.size != a.target or a.step < 1 for a in plane):
            return None
        (lines, height), (pitch, width) = (_room(axis) for axis in plane)
        return cls(pitch, lines, height * pitch + width, grid.taps)

    def source_rows(self, tile: HalvesTile) -> int:
        """Return the positions in local memory: those of a tile and of its taps."""
        return round_up(tile.m + self.reach, 8)

    def source_bytes(self, tile: HalvesTile, channels: int) -> int:
        """Return the local memory for them, twice where a step does not have all channels, and for their list."""
        planes = 2 if channels > HALVES_DEPTH else 1
        return self.source_rows(tile) * (planes * HALVES_DEPTH * 2 + 4)


def _room(axis: GridAxis) -> tuple[int, int]:
    """Return the positions of an axis, so that no tap beyond one end meets what is at the other, and its taps' span."""
    span = (axis.taps - 1) * axis.step
    beyond = max(-axis.begin, axis.size - 1 + axis.begin + span - (axis.source - 1), 0)
    return max(axis.source + beyond, axis.size), span
