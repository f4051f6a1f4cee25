"""Sizes for ``kernels/conv/gemm_gpu/filters.cl``, whose work-groups copy rows of dy and x some steps ahead.

``m`` and ``n`` are the rows of a tile's operands, TILE_M and TILE_N of the kernel.
"""

from __future__ import annotations

from clgraft.core.operators.conv.gemm_gpu.halo import LOCAL_MEMORY, RESERVED
from clgraft.core.problem import ceil_div

MOST_STAGES, FEWEST_STAGES = 6, 3  # steps in local memory, the kernel's STAGES
ROW_BYTES = 32 * 4  # of a row in local memory: TILE_K numbers


def step_bytes(m: int, n: int) -> int:
    """Return the local memory of a step."""
    return (m + n) * ROW_BYTES


def stages(m: int, n: int, busy: int) -> int:
    """Return the steps that have room in the local memory of each of `busy` work-groups of a compute unit."""
    return min(MOST_STAGES, (LOCAL_MEMORY // busy - RESERVED) // step_bytes(m, n))


def turned(m: int, n: int, rows: int, columns: int) -> bool:
    """Return whether x is the operand with `m` rows: where that takes fewer tiles of a product's."""
    return _tiles(m, n, columns, rows) < _tiles(m, n, rows, columns)


def tiles(m: int, n: int, rows: int, columns: int) -> int:
    """Return the number of tiles of a product."""
    return min(_tiles(m, n, columns, rows), _tiles(m, n, rows, columns))


def _tiles(m: int, n: int, first: int, second: int) -> int:
    return ceil_div(first, m) * ceil_div(second, n)
