"""The register tile of products of matrices on CPU devices, which kernels/common/register_tile.cl multiplies."""

from __future__ import annotations

from dataclasses import dataclass


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

    def defines(self) -> dict[str, int]:
        """Return the kernels' macros."""
        return {"MR": self.rows, "NV": self.vectors, "VL": self.lanes, "HALF_VL": self.lanes // 2}
