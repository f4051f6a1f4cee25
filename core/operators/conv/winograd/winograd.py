"""Winograd's convolutions F(2x2, 3x3), F(4x4, 3x3) and F(2x2, 5x5) on CPU devices: stride 1, all directions.

3 x 3 kernels with stride 2 are F(2x2, 2x2) and F(4x4, 2x2) of the four phases of pixels.

Kernels of one row or one column of 3, 5 or 7 taps are F(2, taps) and F(4, taps) along that axis. With a dilation every
phase has tiles of its own.

A quarter to four ninths of the multiplications of the direct method (rows and columns: 0.36 to 0.67), at its rounding
error or up to seven times that.
Lavin and Gray, Fast algorithms for convolutional neural networks, 2015. ``CLGRAFT_WINOGRAD`` chooses or forbids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID, TARGET, TILE_ROWS, TILE_SPLIT
from clgraft.core.operators.conv.past_caches import past_caches
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.conv.register_tile import RegisterTile
from clgraft.core.operators.conv.winograd import backward_filter as winograd_filter
from clgraft.core.operators.conv.winograd import split as winograd_split
from clgraft.core.operators.conv.winograd import tiles as winograd_tiles
from clgraft.core.operators.conv.winograd.split import TileSplit
from clgraft.core.operators.conv.winograd.tiles import (
    PAD,
    Geometry,
    expect_served,
    group_rows,
    tiles_of,
    winograd_tile,
)
from clgraft.core.planning.epilogue import Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Local, Tickets, Workspace, ints
from clgraft.core.planning.structs import StructConstant
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import ceil_div, round_up

NAME = "winograd"
WEIGHT_CHANNELS = 32  # channels of a work-item that transforms weights
FEWEST_VECTORS = 2  # of a register tile
SEARCHED = 2  # a search tries tiles that are estimated to cost at most so many times the direct method
STRUCTS = {**GRID.defines(), **TARGET.defines(), **TILE_ROWS.defines(), **TILE_SPLIT.defines()}
STORING = ("winograd", "winograd_result")  # kernels that store the result, with an epilogue
NAMES = {"forward": ("x", "y"), "backward_data": ("dy", "dx")}


def _check(problem: ConvProblem, planner: Planner) -> None:
    """Decline what the method does not serve."""
    tiles_of(problem)
    if not planner.device.is_cpu or planner.device.vector_width < 8:
        raise Declined("made for CPU devices with vectors of 8 or more")
    expect_served(problem)


def candidates(problem: ConvProblem, planner: Planner) -> Iterator[Mapping[str, int | str]]:
    """Return the settings to search: the heuristic's (none), then other tiles and splits of the work.

    ``tile``: 2 or 4 outputs along an axis. ``rows`` of tiles of a work-item, ``block_rows`` of them at a time, its
    ``blocks`` of outputs, and ``own_weights``: whether it transforms its weights itself; or ``spread``: every stage as
    a launch of its own. For filters tile rows of a ``slice``, the number of ``parts``, or ``whole``.
    """
    _check(problem, planner)
    yield {}
    for tile in tiles_of(problem):
        geometry = Geometry.of(problem, tile)
        if winograd_tiles.cost(geometry) > SEARCHED * winograd_tiles.direct_cost(geometry):
            continue
        if problem.direction == "backward_filter":
            yield from winograd_filter.settings_of(geometry)
        else:
            register = winograd_tile(planner, geometry.outputs)
            yield from winograd_split.settings_of(geometry, register, planner.device.compute_units)


def fuses(problem: ConvProblem, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is served: all of them, forward."""
    return problem.direction == "forward"


def plan(
    problem: ConvProblem,
    planner: Planner,
    settings: Mapping[str, int | str] | None = None,
    epilogue: Epilogue | None = None,
) -> Launches:
    """Plan the transforms and the products, in slices of the workspace or as a launch per stage."""
    _check(problem, planner)
    chosen = {name: int(value) for name, value in (settings or {}).items()}
    if chosen:
        tile, allowed = chosen.pop("tile", 0), tiles_of(problem)
        if tile not in allowed:
            raise Declined(f"got tile {tile}, expected one of {allowed}")
        geometry = Geometry.of(problem, tile)
    else:
        geometry = winograd_tiles.choose(problem)
    if problem.direction == "backward_filter":
        if chosen and set(chosen) not in ({"slice"}, {"parts"}) and chosen != {"whole": 1}:
            raise Declined(f"got settings {chosen}, expected tile, and slice, parts or whole=1")
        launches = winograd_filter.plan_filter(problem, planner, geometry, chosen)
        return launches.saving(problem.operations, geometry.operations)
    register, units = winograd_tile(planner, geometry.outputs), planner.device.compute_units

    def planned(register: RegisterTile, split: TileSplit | None) -> Launches:
        launches = _WinogradBuilder(problem, planner, geometry, register, epilogue).plan(split)
        return launches.saving(problem.operations, geometry.operations)

    if settings:
        split = winograd_split.given(chosen, geometry, register)
    else:
        split = winograd_split.heuristic(geometry, register, units)
        tiles = dict.fromkeys((register, winograd_tile(planner, geometry.outputs, FEWEST_VECTORS)))
        own = winograd_split.own_split(geometry, tiles, split, units)
        if own:
            return replace(planned(*own), prepared=planned(register, split))
    if split and split.own_weights:
        return replace(planned(register, split), prepared=planned(register, split._replace(own_weights=False)))
    return planned(register, split)


class _WinogradBuilder:
    """What the launches of one problem share."""

    def __init__(
        self,
        problem: ConvProblem,
        planner: Planner,
        geometry: Geometry,
        register: RegisterTile,
        epilogue: Epilogue | None = None,
    ) -> None:
        self.problem, self.planner, self.geometry, self.register = problem, planner, geometry, register
        self.rows_at_once, pixel_bytes = group_rows(planner, geometry, register.lanes)
        self.pixels = Local(pixel_bytes)
        self.defines = {**register.defines(), "WC": geometry.chunk, **geometry.defines(), **STRUCTS}
        self.storing_defines = {**epilogue_defines(epilogue), **past_caches(planner, problem, register.lanes)}
        self.last = epilogue_arguments(epilogue, problem.dtype)
        self.blocks = ceil_div(geometry.outputs, register.columns)
        self.source, self.target = NAMES[problem.direction]
        self.flip = problem.direction == "backward_data"
        self.bias = Buffer("b" if problem.bias else self.source)
        self.layout = WorkspaceLayout()

    def plan(self, split: TileSplit | None) -> Launches:
        if split is None:
            return self.spread()
        return self.fused(split)

    def launch(self, name: str, size: tuple[int, ...], *arguments: Any, **more_defines: str) -> Launch:
        file = "conv/winograd/transforms.cl" if name == "winograd_source" else "conv/winograd/winograd.cl"
        # the others are the same programs for all epilogues and sizes
        defines = {**self.defines, **(self.storing_defines if name in STORING else {}), **more_defines}
        kernel = self.planner.kernel(file, name, defines, self.problem.dtype, MAD_ENABLE)
        return Launch(kernel, size, (1,) * len(size), arguments, (self.target,))

    def weights(self) -> tuple[Launch, Workspace]:
        """Return the transform of all weights, and where it leaves them."""
        g = self.geometry
        elements = g.phases * self.blocks * self.register.columns * g.channels
        transformed = self.take(elements)
        launch = self.launch(
            "winograd_weights",
            (ceil_div(g.outputs, self.register.lanes), ceil_div(g.channels, WEIGHT_CHANNELS)),
            *(Buffer("w"), transformed),
            *ints(g.channels, g.outputs, self.flip, WEIGHT_CHANNELS),
        )
        return replace(launch, prepares=(self.nbytes(elements),)), transformed

    def take(self, elements: int, count: int = 1) -> Workspace:
        """Reserve a part of the workspace for `count` times so many numbers for each element of a tile."""
        return self.layout.take(count * self.nbytes(elements))

    def nbytes(self, elements: int) -> int:
        """Return the bytes of so many numbers for each element of a tile."""
        return self.geometry.elements * (elements + PAD) * 4

    def padded_tiles(self, rows: int) -> int:
        return round_up(rows * self.geometry.tile_w, self.register.rows)

    def fused(self, split: TileSplit) -> Launches:
        """Plan work-items that take all stages, each with a slice of the workspace."""
        g, columns = self.geometry, self.register.columns
        launches = []
        weights = Workspace(0)  # never read where every work-item transforms its own
        if not split.own_weights:
            launch, weights = self.weights()
            launches.append(launch)
        tiles = self.padded_tiles(split.block_rows)
        slice_size = tiles * (g.padded_channels + g.target_phases * columns) + 2 * PAD
        if split.own_weights:
            slice_size += g.phases * g.chunk * columns + PAD
        workers = min(split.items(g, self.blocks), self.planner.device.compute_units)
        slices = self.layout.take(workers * g.elements * slice_size * 4)
        launches.append(
            self.launch(
                "winograd",
                (workers,),
                *(Buffer(self.source), weights, Buffer("w"), self.bias, Buffer(self.target)),
                *(slices, *ints(self.flip, self.problem.bias), Accumulate(self.target)),
                *(*ints(g.channels, g.outputs), g.argument(), g.target_argument(), self.split_argument(split)),
                Tickets(),
                self.pixels,
                *self.last,
                **({"OWN_WEIGHTS": "transform_weights"} if split.own_weights else {}),
            )
        )
        return Launches(tuple(launches), self.layout.nbytes)

    def split_argument(self, split: TileSplit) -> StructConstant:
        sizes = {"rows": split.rows, "block_rows": split.block_rows, "blocks": split.blocks}
        return TILE_SPLIT.pack({**sizes, "group_rows": self.rows_at_once})

    def spread(self) -> Launches:
        """Plan every stage as a launch of its own: work for many cores even where a problem is small."""
        g, columns = self.geometry, self.register.columns
        transform, weights = self.weights()
        tiles = self.padded_tiles(g.rows)
        source = self.take(tiles * g.padded_channels)
        product = self.take(tiles * g.target_phases * columns, self.blocks)
        row_items = ceil_div(g.rows, self.rows_at_once)
        products = self.blocks * g.elements  # products of matrices over all tiles
        ranges = max(1, min(tiles // self.register.rows, 2 * self.planner.device.compute_units // products))
        tile_range = ceil_div(tiles, ranges * self.register.rows) * self.register.rows
        rows = TILE_ROWS.pack({"first_row": 0, "rows": g.rows, "tiles": tiles, "block_rows": self.rows_at_once})
        launches = (
            transform,
            self.launch(
                "winograd_source",
                (row_items, ceil_div(g.channels, self.register.lanes)),
                *(Buffer(self.source), source),
                *(*ints(g.channels), g.argument(), rows, self.pixels),
            ),
            self.launch(
                "winograd_product",
                (self.blocks, g.elements, ceil_div(tiles, tile_range)),
                *(source, weights, product),
                *ints(g.channels, tiles, tile_range),
            ),
            self.launch(
                "winograd_result",
                (row_items, ceil_div(g.outputs, self.register.lanes)),
                *(product, self.bias, Buffer(self.target)),
                *ints(self.problem.bias),
                Accumulate(self.target),
                *(*ints(g.outputs), g.argument(), g.target_argument(), rows, self.pixels, *self.last),
            ),
        )
        return Launches(launches, self.layout.nbytes)
