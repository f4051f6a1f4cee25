"""Convolution in channels last on CPU devices: a product of matrices whose rows are pixels, read where they lie.

Forward, and backward data with stride 1, which is a convolution with turned kernels. Padding, and the conversion of
float16, cost one copy of the input; without them only the weights are packed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID
from clgraft.core.operators.conv.channels_last.windows import (
    PIXELS_FILE,
    Windows,
    expect_wide_groups,
    padded_source,
    reserved_for_winograd,
    windows_of,
)
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.conv.register_tile import RegisterTile
from clgraft.core.operators.pointwise.generate import outgrows_caches
from clgraft.core.planning.epilogue import Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import ITEMS_PER_UNIT, MAD_ENABLE, arithmetic_bytes, has_32_registers, vector_lanes
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Local, Workspace, ints
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import ceil_div, round_up

NAME = "cpu_pixels"
# register tiles (rows, vectors) for 32 vector registers and for 16, the fastest first
TILES = {True: ((6, 4), (8, 3), (12, 2)), False: ((4, 3), (6, 2))}
FEWEST_CHANNELS = 8  # inputs and outputs of a group: fewer fill no vectors
ITEM_PIXELS = 96
CHUNK_BYTES = 64 * 1024  # weights of a chunk, which stay in a core's own cache
PACK_RANGE = 512  # terms that a work-item packs
# settings that a search tries
SEARCHED_PIXELS = (48, 96, 192)
SEARCHED_KIB = (24, 64, 128)


def choose_tile(outputs: int, wide: bool, lanes: int) -> RegisterTile:
    """Return the register tile that wastes the fewest vectors on outputs that are not there."""
    rows, vectors = min(TILES[wide], key=lambda tile: round_up(outputs, tile[1] * lanes))
    return RegisterTile(rows, vectors, lanes)


def candidates(problem: ConvProblem, planner: Planner) -> Iterator[Mapping[str, int | str]]:
    """Return the settings to search: the heuristic's (none), then all that `plan` takes.

    ``vectors`` of the register tile, ``pixels`` of a work-item, and a ``chunk`` of the weights in KiB.
    """
    if not planner.device.is_cpu or problem.direction not in ("forward", "backward_data"):
        return
    yield {}
    for _, vectors in TILES[has_32_registers(planner.device)]:
        for pixels in SEARCHED_PIXELS:
            for chunk in SEARCHED_KIB:
                yield {"vectors": vectors, "pixels": pixels, "chunk": chunk}


def fuses(problem: ConvProblem, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is served: all of them, forward."""
    return problem.direction == "forward"


def reserved(problem: ConvProblem) -> str:
    """Return why it is not the default for a problem; empty if it is."""
    return reserved_for_winograd(problem)


def plan(
    problem: ConvProblem,
    planner: Planner,
    settings: Mapping[str, int | str] | None = None,
    epilogue: Epilogue | None = None,
) -> Launches:
    """Plan the copy of the input where it is padded, the packing of the weights, and the product."""
    device = planner.device
    chosen = {name: int(value) for name, value in (settings or {}).items()}
    if not device.is_cpu:
        raise Declined("made for CPU devices")
    if problem.direction not in ("forward", "backward_data"):
        raise Declined(f"has no {problem.direction}")
    windows = windows_of(problem)
    if min(windows.run, windows.outputs) < FEWEST_CHANNELS:
        raise Declined(f"is for runs and outputs of at least {FEWEST_CHANNELS} elements of a group")
    wide, lanes = has_32_registers(device), vector_lanes(device, problem.dtype)
    expect_wide_groups(windows, lanes)
    tile = choose_tile(windows.outputs, wide, lanes)
    if "vectors" in chosen:
        rows = {vectors: rows for rows, vectors in TILES[wide]}
        vectors = chosen.pop("vectors")
        if vectors not in rows:
            raise Declined(f"got {vectors} vectors, expected one of {list(rows)}")
        tile = RegisterTile(rows[vectors], vectors, lanes)
    wanted, chunk_bytes = chosen.pop("pixels", ITEM_PIXELS), chosen.pop("chunk", CHUNK_BYTES // 1024) * 1024
    if chosen or wanted < 1 or chunk_bytes < 1:
        raise Declined(f"got settings {dict(settings or {})}, expected vectors, and pixels and chunk from 1")
    return _PixelsBuilder(problem, planner, windows, tile, epilogue).launches(wanted, chunk_bytes)


class _PixelsBuilder:
    """What the launches of a problem share."""

    def __init__(
        self, problem: ConvProblem, planner: Planner, windows: Windows, tile: RegisterTile, epilogue: Epilogue | None
    ) -> None:
        self.problem, self.planner, self.windows, self.tile, self.epilogue = problem, planner, windows, tile, epilogue
        self.size = arithmetic_bytes(problem.dtype)
        self.defines: dict[str, Any] = {**tile.defines(), **GRID.defines(), **epilogue_defines(epilogue)}
        self.source, _, self.result = (argument.name for argument in problem.arguments() if argument.name != "b")
        self.layout = WorkspaceLayout()

    def kernel(self, name: str) -> Any:
        return self.planner.kernel(PIXELS_FILE, name, self.defines, self.problem.dtype, MAD_ENABLE)

    def launches(self, wanted: int, chunk_bytes: int) -> Launches:
        """Return the launches for blocks of about `wanted` pixels and chunks of weights of so many bytes."""
        windows, tile, problem = self.windows, self.tile, self.problem
        if outgrows_caches(self.planner, problem.arguments()[-1].nbytes):
            self.defines["PAST_CACHES"] = 1
        depth, tiles = prod(windows.taps) * windows.channels, ceil_div(windows.outputs, tile.columns)
        pixels = windows.batch * prod(windows.size)
        weights, pack = self._packed(depth, tiles)
        source, pad = padded_source(windows, problem, self.planner, self.layout, self.source, self.result, tile.lanes)
        units = self.planner.device.compute_units
        item_pixels = round_up(min(wanted, ceil_div(pixels, ITEMS_PER_UNIT * units)), tile.rows)
        blocks = ceil_div(pixels, item_pixels)
        ranges = min(tiles, ceil_div(ITEMS_PER_UNIT * units, blocks * windows.groups))
        chunk = max(chunk_bytes // (tile.columns * self.size), 1)
        runs = depth // windows.run
        product = Launch(
            self.kernel("multiply_pixels"),
            (blocks, ceil_div(tiles, ceil_div(tiles, ranges)), windows.groups),
            (1, 1, 1),
            (
                *(source, weights, Buffer("b" if problem.bias else "w"), Buffer(self.result)),
                *(*ints(problem.bias), Accumulate(self.result), *ints(windows.channels, windows.outputs)),
                *(*ints(item_pixels, ceil_div(tiles, ranges), chunk, windows.run), windows.grid()),
                *(Local(item_pixels * 8), Local(runs * 8), Local(item_pixels * tile.columns * self.size)),
                *epilogue_arguments(self.epilogue, problem.dtype),
            ),
            (self.result,),
        )
        if (item_pixels + runs) * 8 + item_pixels * tile.columns * self.size > self.planner.device.local_memory:
            raise Declined("needs more local memory than the device has")
        return Launches((*pad, pack, product), self.layout.nbytes)

    def _packed(self, depth: int, tiles: int) -> tuple[Workspace, Launch]:
        windows = self.windows
        nbytes = windows.groups * tiles * depth * self.tile.columns * self.size
        packed = self.layout.take(nbytes, self.size)
        if self.problem.direction == "forward":
            name, numbers = "pack_taps", ints(windows.outputs, depth, PACK_RANGE)
        else:
            name = "pack_turned_taps"
            numbers = ints(windows.outputs, windows.channels, prod(windows.taps), PACK_RANGE)
        grid = (ceil_div(depth, PACK_RANGE), tiles, windows.groups)
        arguments = (Buffer("w"), packed, *numbers)
        return packed, Launch(self.kernel(name), grid, (1, 1, 1), arguments, (self.result,), (nbytes,))
