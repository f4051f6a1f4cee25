"""The register tile of products of matrices on CPU devices, which kernels/common/register_tile.cl multiplies."""

from __future__ import annotations

from dataclasses import dataclass

from clgraft.core.planning.device import DeviceInfo
from clgraft.core.problem import round_up


def lanes_of(device: DeviceInfo, dtype: str) -> int:
    """Return the elements of a vector of a CPU device in the arithmetic of a dtype."""
    lanes = max(device.vector_width, 4)
    return lanes // 2 if dtype == "float64" else lanes


@dataclass(frozen=True)
class RegisterTile:
    """Sums that stay in registers: `rows` broadcast elements times `vectors` vectors of `lanes`."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        """Elements of a row."""
        return self.vectors * self.lanes

    @property
    def last_rows(self) -> int:
        """Rows of a smaller tile, which takes the last rows of a product."""
        return (self.rows + 1) // 2 if self.rows % 3 else self.rows // 3 * 2

    def padded(self, count: int) -> int:
        """Return how many rows a product of `count` rows takes: whole tiles, and at most two smaller ones."""
        rest, last = count % self.rows, self.last_rows
        if rest == 0 or rest > last:
            return round_up(count, self.rows)
        return count - rest + (2 * last - self.rows if rest <= 2 * last - self.rows and count > rest else last)

    def defines(self) -> dict[str, int]:
        """Return the kernels' macros."""
        return {"MR": self.rows, "NV": self.vectors, "VL": self.lanes, "HALF_VL": self.lanes // 2}
