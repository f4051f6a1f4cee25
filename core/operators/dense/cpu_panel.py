"""Dense layers of large batches along the weights' rows on CPU devices: vectors run along the transposed batch.

The method of Goto and van de Geijn (Anatomy of high-performance matrix multiplication, 2008), with only the smaller
matrix packed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clgraft.core.errors import Declined
from clgraft.core.operators.dense.cpu import even_blocks, finish, parts_of, take_parts
from clgraft.core.operators.dense.matrices import product_of
from clgraft.core.operators.dense.problem import DenseProblem
from clgraft.core.planning.epilogue import Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE, arithmetic_bytes, has_32_registers, vector_lanes
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Local, ints
from clgraft.core.planning.pairs import NUMBERS, pair_defines
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import ceil_div

NAME = "cpu_panel"
FILE = "dense/cpu_panel.cl"
# vectors of the batch in a register tile -> rows of weights that meet them, and the tile's cost in tiles of one vector
# rows that run at full speed, for 32 vector registers and for 16
TILES = {True: {4: (6, 4.0), 2: (12, 2.2), 1: (8, 1.6)}, False: {2: (6, 2.0), 1: (8, 1.3)}}
LEAST_BATCH = 9
CHUNK_KIB = 32  # size of a chunk of the transposed batch, which stays in the L1 cache
ITEM_ROWS = 48
TRANSPOSE_RANGE = 512  # columns that a work-item of dense_transpose transposes
# settings that a search tries, in addition to the vectors of a register tile
SEARCHED_ROWS = (24, 48, 96)
SEARCHED_KIB = (16, 32, 64)


def candidates(problem: DenseProblem, planner: Planner) -> Iterator[Mapping[str, int | str]]:
    """Return the settings to search: the heuristic's (none), then all that `plan` takes.

    ``vectors`` of the batch in a register tile, ``rows`` of weights of a work-item, and a ``chunk`` of the transposed
    batch in KiB.
    """
    if not planner.device.is_cpu or problem.direction == "backward_bias":
        return
    yield {}
    for vectors in TILES[has_32_registers(planner.device)]:
        for rows in SEARCHED_ROWS:
            for chunk in SEARCHED_KIB:
                yield {"vectors": vectors, "rows": rows, "chunk": chunk}


def fuses(problem: DenseProblem, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is served: all of them, forward."""
    return problem.direction == "forward"


def plan(
    problem: DenseProblem,
    planner: Planner,
    settings: Mapping[str, int | str] | None = None,
    epilogue: Epilogue | None = None,
) -> Launches:
    """Plan the transposition of the batch, the product and, where sums are split, the launch that adds the parts."""
    return panel_launches(problem, planner, settings, epilogue)


def panel_launches(
    problem: DenseProblem,
    planner: Planner,
    settings: Mapping[str, int | str] | None,
    epilogue: Epilogue | None,
    numbers: int = 1,
) -> Launches:
    """Plan the product; operands have so many `numbers` of a row."""
    device = planner.device
    chosen = {name: int(value) for name, value in (settings or {}).items()}
    if not device.is_cpu:
        raise Declined("made for CPU devices")
    if problem.direction == "backward_bias":
        raise Declined("has no backward_bias")
    product = product_of(problem)
    if product.form != "nt" or product.r < LEAST_BATCH:
        raise Declined(f"is for sums along the weights' rows, for batches from {LEAST_BATCH}")
    depth = product.t // numbers
    size = arithmetic_bytes(problem.dtype)
    lanes = vector_lanes(device, problem.dtype)
    tiles = TILES[has_32_registers(device)]
    best = min(tiles, key=lambda v: ceil_div(product.r, v * lanes) * tiles[v][1])
    vectors, wanted = chosen.pop("vectors", best), chosen.pop("rows", ITEM_ROWS)
    chunk_bytes = chosen.pop("chunk", CHUNK_KIB) * 1024
    if chosen or vectors not in tiles or wanted < 1 or chunk_bytes < 1:
        raise Declined(f"got settings {settings}, expected vectors of {list(tiles)}, rows and chunk from 1")
    rows, columns = tiles[vectors][0], vectors * lanes
    defines: dict[str, int | str] = {"VL": lanes, "NV": vectors, "MR": rows, **epilogue_defines(epilogue)}
    defines.update(pair_defines(device) if numbers == NUMBERS else {})
    blocks = ceil_div(product.r, columns)
    item_rows = even_blocks(product.s, rows, wanted, device.compute_units)
    row_blocks = ceil_div(product.s, item_rows)
    parts, length = parts_of(row_blocks * blocks, depth, device.compute_units)
    layout = WorkspaceLayout()
    transposed = layout.take(blocks * depth * columns * size, size)
    partial = take_parts(layout, product, parts, product.s, size)
    transpose = Launch(
        planner.kernel(FILE, "dense_transpose", defines, problem.dtype, MAD_ENABLE),
        (ceil_div(depth, TRANSPOSE_RANGE), blocks),
        (1, 1),
        (Buffer(product.a), transposed, *ints(product.r, depth, TRANSPOSE_RANGE)),
        (product.c,),
    )
    multiply = Launch(
        planner.kernel(FILE, "dense_panel", defines, problem.dtype, MAD_ENABLE),
        (row_blocks, blocks, parts),
        (1, 1, 1),
        (
            *(transposed, Buffer(product.b), Buffer("b" if problem.bias else product.a), Buffer(product.c), partial),
            *(*ints(problem.bias), Accumulate(product.c), *ints(product.r, product.s, depth)),
            *ints(item_rows, length, max(chunk_bytes // (columns * size), 16)),
            Local(item_rows * columns * size),
            *epilogue_arguments(epilogue, problem.dtype),
        ),
        (product.c,),
    )
    return finish(problem, planner, product, lanes, (transpose, multiply), layout, partial, parts, product.s, epilogue)
