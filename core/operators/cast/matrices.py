"""Conversions of several arrays, some in one launch: a work-group has a tile of one matrix of one array."""

from __future__ import annotations

from typing import Any

from clgraft.core.operators.cast.elements import NUMBERS
from clgraft.core.operators.cast.together import CastsProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import ARGUMENTS, TENSOR, Accumulate, Buffer, Launch, Launches
from clgraft.core.planning.structs import Struct
from clgraft.core.problem import ceil_div

NAME = "matrices"
GROUP = 256

TILE = 2048  # elements of a work-group
LONG = 8192  # of one that has a part of a row, which does not pass through local memory
SIDE = 45  # rows and columns of a tile of a matrix that is large in both
SIZES = 48  # bytes of the sizes of an array and of its write mode
MATRICES = Struct("Matrices", ("first_group", "rows", "columns", "tile_rows", "tile_columns"), kind="long")


def plan(problem: CastsProblem, planner: Planner) -> Launches:
    """Plan a launch for every so many arrays; those of one row or column are one long row."""
    arrays = []
    for i, (outer, rows, columns) in enumerate(problem.sizes_of_arrays):
        if outer * rows * columns:
            arrays.append((i, *((1, 1, outer * rows * columns) if 1 in (rows, columns) else (outer, rows, columns))))
    most = max(1, ARGUMENTS // (2 * TENSOR + SIZES))
    starts = range(0, len(arrays), most)
    return Launches(tuple(_launch(problem, planner, arrays[start : start + most]) for start in starts))


def _launch(problem: CastsProblem, planner: Planner, arrays: list[tuple[int, int, int, int]]) -> Launch:
    bound: list[Any] = []
    started = 0
    for i, outer, rows, columns in arrays:
        tile_rows, tile_columns = tile(rows, columns)
        sizes = {"rows": rows, "columns": columns, "tile_rows": tile_rows, "tile_columns": tile_columns}
        fields = MATRICES.pack({"first_group": started, **sizes})
        bound += [Buffer(f"x{i}"), Buffer(f"y{i}"), Accumulate(f"y{i}"), fields]
        started += outer * ceil_div(rows, tile_rows) * ceil_div(columns, tile_columns)
    defines = {
        "SOURCE": NUMBERS[problem.source],
        "TARGET": NUMBERS[problem.target],
        "GROUP": GROUP,
        "TILE": TILE,
        "MORE_ARRAYS(F)": " ".join(f"F({i})" for i in range(1, len(arrays))),
        **MATRICES.defines(),
    }
    kernel = planner.kernel("cast/matrices.cl", "cast_matrices", defines, problem.dtype)
    writes = tuple(f"y{i}" for i, *_ in arrays)
    return Launch(kernel, (started * GROUP,), (GROUP,), tuple(bound), writes)


def tile(rows: int, columns: int) -> tuple[int, int]:
    """Return the rows and columns of a work-group's tile: `TILE` elements, with rows at odd distances."""
    if rows == 1:
        return 1, LONG
    if columns <= SIDE:
        return min(rows, TILE // (columns | 1)), columns
    if rows <= SIDE:
        return rows, min(columns, (TILE // rows - 1) | 1)
    return SIDE, SIDE
