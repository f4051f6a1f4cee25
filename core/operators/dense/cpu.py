"""Dense layers on CPU devices: the weights pass the cores once, and everything else stays in registers and caches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.register_tile import RegisterTile
from clgraft.core.operators.dense.matrices import DenseProduct, product_of
from clgraft.core.operators.dense.problem import DenseProblem
from clgraft.core.planning.epilogue import Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import ITEMS_PER_UNIT, MAD_ENABLE, arithmetic_bytes, has_32_registers, vector_lanes
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Local, Workspace, ints
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import ceil_div, round_up

NAME = "cpu"
FILE = "dense/cpu.cl"
# results of the batch in a register tile -> rows of weights that meet them, for 32 vector registers and for 16
ROWS = {True: {1: 8, 2: 8, 4: 6, 8: 3}, False: {1: 6, 2: 4, 4: 3}}
PACKED_KIB = 24  # size of a chunk of the batch, which stays in the L1 cache together with the weights
ITEM_ROWS = 48
SUMS_KIB = 128  # size of a block of sums along columns, which stays in the L2 cache; rows are read in long pieces then
CHUNK_BYTES = 192 * 1024  # of the weights that all blocks of the batch meet from the L2 cache
MOST_BATCH = 64  # most results of the batch of a work-item
MOST_COLUMN_BATCH = 16  # with larger batches, results go through the cache too often
SUM_BYTES = 192 * 1024
STREAM_BYTES = 8 * 2**20  # size from which no cache keeps a gradient
OUTER_ITEM_BYTES = 2**20
PART = 2048  # rows or columns that make a part worth its sum
SUM_RANGE = 4096  # elements that a work-item of dense_sum adds
# settings that a search tries
SEARCHED_ROWS = (24, 48, 96, 192)
SEARCHED_KIB = {"nt": (12, 24, 48), "nn": (32, 64, 128, 256), "tn": (12, 24, 48)}


@dataclass(frozen=True)
class _Shape:
    """What all kernels of a product share: register tile, bytes of an element in arithmetic, local memory, cores.

    And the blocking: wanted rows of weights of a work-item, bytes of a packed chunk of the batch or a block of sums.
    """

    rows: int
    batch: int
    lanes: int
    size: int
    local_bytes: int
    units: int
    item_rows: int
    packed_bytes: int

    def defines(self, epilogue: Epilogue | None = None) -> dict[str, int | str]:
        return {**RegisterTile(self.batch, self.rows, self.lanes).defines(), **epilogue_defines(epilogue)}


def candidates(problem: DenseProblem, planner: Planner) -> Iterator[Mapping[str, int | str]]:
    """Return the settings to search: the heuristic's (none), then ``packed`` KiB of the batch and ``rows`` of weights.

    Rows of a work-item count only for sums along the weights' rows. For those along columns, KiB are those of sums.
    """
    if not planner.device.is_cpu or problem.direction == "backward_bias":
        return
    yield {}
    form = product_of(problem).form
    for packed in SEARCHED_KIB[form]:
        for rows in SEARCHED_ROWS if form == "nt" else (ITEM_ROWS,):
            yield {"packed": packed, "rows": rows}


def fuses(problem: DenseProblem, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is served: all of them, forward."""
    return problem.direction == "forward"


def plan(
    problem: DenseProblem,
    planner: Planner,
    settings: Mapping[str, int | str] | None = None,
    epilogue: Epilogue | None = None,
) -> Launches:
    """Plan one product and, where its sums are split, the launch that adds the parts."""
    device = planner.device
    if not device.is_cpu:
        raise Declined("made for CPU devices")
    if problem.direction == "backward_bias":
        raise Declined("has no backward_bias")
    product = product_of(problem)
    default = {"packed": SUMS_KIB if product.form == "nn" else PACKED_KIB, "rows": ITEM_ROWS}
    chosen = {**default, **{k: int(v) for k, v in (settings or {}).items()}}
    if len(chosen) > 2 or min(chosen.values()) < 1:
        raise Declined(f"got settings {dict(settings or {})}, expected packed and rows from 1")
    if not problem.batch:
        raise Declined("has nothing to multiply")
    wide = has_32_registers(device)
    size = arithmetic_bytes(problem.dtype)
    lanes = vector_lanes(device, problem.dtype)
    batch = next((n for n in ROWS[wide] if n >= product.r), max(ROWS[wide]))
    shape = _Shape(
        *(ROWS[wide][batch], batch, lanes, size, int(device.local_memory) - 1024, int(device.compute_units)),
        *(chosen["rows"], chosen["packed"] * 1024),
    )
    if product.form == "nt":
        return _rows(problem, planner, product, shape, epilogue)
    if product.form == "nn":
        return _columns(problem, planner, product, shape, epilogue)
    return _outer(problem, planner, product, shape)


def parts_of(items: int, depth: int, units: int) -> tuple[int, int]:
    """Choose into how many parts a sum is split so that all cores are busy; return their number and length."""
    parts = max(min(ceil_div(ITEMS_PER_UNIT * units, items), depth // PART), 1) if items < 2 * units else 1
    length = ceil_div(depth, parts)
    return ceil_div(depth, length), length


def even_blocks(size: int, multiple: int, wanted: int, units: int) -> int:
    """Cut `size` into about equal blocks, multiples of `multiple` of at most about `wanted`: as many for each core."""
    blocks = ceil_div(size, wanted)
    blocks = round_up(blocks, units)
    return max(ceil_div(size, blocks * multiple), 1) * multiple


def take_parts(layout: WorkspaceLayout, product: DenseProduct, parts: int, size: int, itemsize: int) -> Workspace:
    """Reserve the parts of a product's sums, [part][batch][size], if there are several."""
    return layout.take(parts * product.r * size * itemsize if parts > 1 else 0, itemsize)


def finish(
    problem: DenseProblem,
    planner: Planner,
    product: DenseProduct,
    lanes: int,
    launches: tuple[Launch, ...],
    layout: WorkspaceLayout,
    partial: Workspace,
    parts: int,
    size: int,
    epilogue: Epilogue | None,
) -> Launches:
    """Return the launches of a product, with the sum of its parts where there are several.

    Parameters
    ----------
    partial : Workspace
        Where the parts stand, [part][batch][size].
    size : int
        Results for each of the batch.
    """
    if parts == 1:
        return Launches(launches, layout.nbytes)
    total = Launch(
        planner.kernel(FILE, "dense_sum", {"VL": lanes, **epilogue_defines(epilogue)}, problem.dtype, MAD_ENABLE),
        (ceil_div(size, SUM_RANGE), product.r),
        (1, 1),
        (
            *(partial, Buffer("b" if problem.bias else product.a), Buffer(product.c)),
            *(*ints(problem.bias), Accumulate(product.c), *ints(size, parts, SUM_RANGE)),
            *epilogue_arguments(epilogue, problem.dtype),
        ),
        (product.c,),
    )
    return Launches((*launches, total), layout.nbytes)


def _operands(problem: DenseProblem, product: DenseProduct, partial: Workspace) -> tuple[Any, ...]:
    return (
        *(Buffer(product.a), Buffer(product.b), Buffer("b" if problem.bias else product.a), Buffer(product.c)),
        *(partial, *ints(problem.bias), Accumulate(product.c)),
        *ints(product.r, product.s, product.t),
    )


def _rows(
    problem: DenseProblem, planner: Planner, product: DenseProduct, shape: _Shape, epilogue: Epilogue | None
) -> Launches:
    vector = shape.lanes * shape.size
    chunk = max(shape.packed_bytes // (vector * shape.batch), 1) * shape.lanes
    chunk = min(chunk, round_up(product.t, shape.lanes))
    packed = (chunk + shape.lanes) * shape.batch * shape.size
    item_rows = even_blocks(product.s, shape.rows, shape.item_rows, shape.units)
    most = min(SUM_BYTES, shape.local_bytes - packed) // (item_rows * vector) // shape.batch * shape.batch
    item_batch = min(max(most, shape.batch), MOST_BATCH, round_up(product.r, shape.batch))
    sums = item_rows * item_batch * vector
    if packed + sums > shape.local_bytes:
        raise Declined(f"{packed + sums} bytes of sums do not fit {shape.local_bytes} bytes of local memory")
    blocks = (ceil_div(product.s, item_rows), ceil_div(product.r, item_batch))
    parts, length = parts_of(blocks[0] * blocks[1], product.t, shape.units)
    layout = WorkspaceLayout()
    partial = take_parts(layout, product, parts, product.s, shape.size)
    launch = Launch(
        planner.kernel(FILE, "dense_rows", shape.defines(epilogue), problem.dtype, MAD_ENABLE),
        (*blocks, parts),
        (1, 1, 1),
        (
            *_operands(problem, product, partial),
            *ints(item_rows, item_batch, length, chunk),
            *(Local(packed), Local(sums)),
            *epilogue_arguments(epilogue, problem.dtype),
        ),
        (product.c,),
    )
    return finish(problem, planner, product, shape.lanes, (launch,), layout, partial, parts, product.s, epilogue)


def _columns(
    problem: DenseProblem, planner: Planner, product: DenseProduct, shape: _Shape, epilogue: Epilogue | None
) -> Launches:
    if product.r > MOST_COLUMN_BATCH:
        raise Declined(f"is for batches of at most {MOST_COLUMN_BATCH}")
    batch = round_up(product.r, shape.batch)
    wanted = max(min(shape.packed_bytes, shape.local_bytes) // (batch * shape.size), shape.lanes)
    item_columns = even_blocks(product.t, shape.lanes, wanted, shape.units)
    sums = item_columns * batch * shape.size
    chunk = max(CHUNK_BYTES // (item_columns * shape.size * shape.rows), 1) * shape.rows
    blocks = ceil_div(product.t, item_columns)
    parts, length = parts_of(blocks, product.s, shape.units)
    layout = WorkspaceLayout()
    partial = take_parts(layout, product, parts, product.t, shape.size)
    launch = Launch(
        planner.kernel(FILE, "dense_columns", shape.defines(epilogue), problem.dtype, MAD_ENABLE),
        (blocks, parts),
        (1, 1),
        (
            *_operands(problem, product, partial),
            *ints(item_columns, length, chunk),
            Local(sums),
            *epilogue_arguments(epilogue, problem.dtype),
        ),
        (product.c,),
    )
    return finish(problem, planner, product, shape.lanes, (launch,), layout, partial, parts, product.t, epilogue)


def _outer(problem: DenseProblem, planner: Planner, product: DenseProduct, shape: _Shape) -> Launches:
    if product.r > shape.batch:
        raise Declined(f"has backward_weight of batches of at most {shape.batch}")
    wanted = max(shape.packed_bytes // (shape.batch * shape.size), shape.lanes)
    item_columns = even_blocks(product.t, shape.lanes, wanted, 1)
    blocks = ceil_div(product.t, item_columns)
    most = max(OUTER_ITEM_BYTES // (item_columns * shape.size), 1)
    item_rows = even_blocks(product.s, shape.rows, most, 1 if blocks >= ITEMS_PER_UNIT * shape.units else shape.units)
    stream = product.s * product.t * np.dtype(problem.dtype).itemsize >= STREAM_BYTES
    launch = Launch(
        planner.kernel(FILE, "dense_outer", shape.defines(), problem.dtype, MAD_ENABLE),
        (blocks, ceil_div(product.s, item_rows)),
        (1, 1),
        (
            *(Buffer(product.a), Buffer(product.b), Buffer(product.c), Accumulate(product.c)),
            *ints(product.r, product.s, product.t, item_rows, item_columns, stream),
            Local((item_columns + shape.lanes) * shape.batch * shape.size),
        ),
        (product.c,),
    )
    return Launches((launch,))
