"""Winograd's gradient of the weights on CPU devices: slices or parts of the tiles, transformed and multiplied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID, TILE_ROWS
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.conv.winograd.tiles import PAD, Geometry, group_rows, keeps_products, winograd_tile
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE
from clgraft.core.planning.launches import (
    Accumulate,
    Buffer,
    Constant,
    Launch,
    Launches,
    Local,
    Tickets,
    Workspace,
    ints,
)
from clgraft.core.planning.structs import StructConstant
from clgraft.core.planning.tickets import turns
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import ceil_div

PART_BYTES = 2 * 2**20  # part of a core's caches that transformed tiles may fill
MOST_PARTS = 64
PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)  # parts that a search tries
RESULT_CHANNELS = 16  # channels of a work-item of filter_result, the kernels' CHANNELS
WHOLE_CHANNELS = (64, 32)  # of products that stay in a core's cache: the more, the less often all tiles are read
WHOLE_BYTES = 640 * 2**10  # of such products, but for the last of these numbers
BUSY = 0.75  # share of the cores' time that such products must fill
SLICES = (1, 2, 4)  # tile rows of a slice that a search tries
SLICE_TILES = 28  # of a slice: each reads and writes all products
SLICED_BYTES = 2**22  # of a core's products, the most that pay
SLICED_SHARE = 2  # bytes of transformed tiles for each byte of all cores' products, the least that pays


def settings_of(geometry: Geometry) -> Iterator[Mapping[str, int | str]]:
    """Return the settings to search: tile rows of slices, products that stay in a core's cache, numbers of parts."""
    yield {"tile": geometry.tile, "whole": 1}
    for rows in sorted({min(rows, geometry.rows) for rows in SLICES}):
        yield {"tile": geometry.tile, "slice": rows}
    for parts in sorted({min(parts, geometry.rows) for parts in PARTS}):
        yield {"tile": geometry.tile, "parts": parts}


def plan_filter(
    problem: ConvProblem, planner: Planner, geometry: Geometry, settings: Mapping[str, int] | None = None
) -> Launches:
    """Plan the gradient of the weights.

    Parameters
    ----------
    problem : ConvProblem
    planner : Planner
    geometry : Geometry
    settings : mapping, optional
        One of ``slice``, ``whole`` and ``parts``. ``slice``: each core transforms and multiplies so many tile rows at a
        time, which stay in its cache, and all its products do; by default where these are few, and the tiles many.
        ``whole``: all tiles are transformed, then each core keeps some of the products in its cache until they are
        filters; by default where products are most of what moves, and all cores have some. ``parts``: the tile rows are
        cut into so many parts, by default as many as keep them in the caches, which follow each other.

    Raises
    ------
    Declined
        If there are fewer tile rows than parts, or than a slice has.
    """
    filters = _Filters(problem, planner, geometry)
    given = dict(settings or filters.chosen())
    for name in ("slice", "parts"):
        if name in given and not 1 <= given[name] <= geometry.rows:
            raise Declined(f"got {name} {given[name]}, expected 1 to {geometry.rows}")
    if "slice" in given:
        return filters.sliced(given["slice"])
    return filters.whole() if "whole" in given else filters.in_parts(given["parts"])


class _Filters:
    """The launches for the gradient of a problem's weights.

    Parameters
    ----------
    problem : ConvProblem
    planner : Planner
    geometry : Geometry
    """

    def __init__(self, problem: ConvProblem, planner: Planner, geometry: Geometry) -> None:
        self._problem, self._planner, self._geometry = problem, planner, geometry
        self._tile = winograd_tile(planner, geometry.outputs)
        self._rows_at_once, self._pixel_bytes = group_rows(planner, geometry, self._tile.lanes)
        self._units = planner.device.compute_units
        self._blocks = ceil_div(geometry.outputs, self._tile.columns)
        self._chunks = geometry.padded_channels // geometry.chunk
        self._columns = self._blocks * self._tile.columns
        self._row_bytes = geometry.elements * 4 * (geometry.padded_channels + self._columns) * geometry.tile_w
        self._product_bytes = geometry.products * geometry.channels * self._columns * 4
        self._shares = min(self._units, geometry.rows)  # of the tile rows, for a core each

    def chosen(self) -> dict[str, int]:
        """Return the settings of the fastest way."""
        g, all_bytes = self._geometry, self._geometry.rows * self._row_bytes
        kept = self._shares * self._product_bytes
        fits = self._product_bytes <= SLICED_BYTES and kept <= self._planner.device.kept_in_caches
        if fits and all_bytes >= SLICED_SHARE * kept:
            return {"slice": min(ceil_div(SLICE_TILES, g.tile_w), g.rows)}
        if keeps_products(g) and any(self._keeps_busy(channels) for channels in WHOLE_CHANNELS):
            return {"whole": 1}
        parts = min(ceil_div(all_bytes, PART_BYTES * self._units), MOST_PARTS, g.rows)
        return {"parts": min(parts, max(1, 2 * all_bytes // self._product_bytes))}  # each reads and writes all products

    def sliced(self, rows: int) -> Launches:
        """Plan slices of so many tile rows."""
        g, tiles = self._geometry, rows * self._geometry.tile_w
        layout = WorkspaceLayout()
        source_and_gradient = tiles * (g.padded_channels + self._columns) + 2 * PAD
        scratch = layout.take(self._shares * g.elements * source_and_gradient * 4)
        products = layout.take(self._shares * self._size_of_products(g.channels * self._columns))
        launch = self._launch(
            "filter_slices",
            (self._shares,),
            *(Buffer("x"), Buffer("dy"), scratch, products),
            *(*self._channels(), g.argument(), self._part(0, rows, tiles), Local(self._pixel_bytes)),
        )
        return Launches((launch, self._result(products, self._shares)), layout.nbytes)

    def whole(self) -> Launches:
        """Plan products that stay in a core's cache until they are filters."""
        g = self._geometry
        layout = WorkspaceLayout()
        source, gradient, tiles = self._transformed(layout, g.rows)
        channels = self._channels_at_once()
        workers = min(self._units, self._items(channels))
        products = layout.take(workers * self._size_of_products(channels * self._tile.columns))
        part = self._part(0, g.rows, tiles)
        last = self._launch(
            "filter_whole",
            (workers,),
            *(source, gradient, products, Buffer("dw"), Accumulate("dw"), *self._channels()),
            *(g.argument(), part, *ints(channels), Tickets()),
        )
        return Launches((self._transforms(source, gradient, part, g.rows), last), layout.nbytes)

    def in_parts(self, parts: int) -> Launches:
        """Plan parts of the tile rows."""
        g = self._geometry
        part_rows = ceil_div(g.rows, parts)
        layout = WorkspaceLayout()
        source, gradient, tiles = self._transformed(layout, part_rows)
        products = layout.take(self._size_of_products(g.channels * self._columns))
        launches = []
        for first in range(0, g.rows, part_rows):
            rows = min(part_rows, g.rows - first)
            part = self._part(first, rows, tiles)
            launches += [
                self._transforms(source, gradient, part, rows),
                self._launch(
                    "filter_product",
                    (self._chunks, self._blocks, g.elements),
                    *(source, gradient, products, *self._channels(), g.argument(), part),
                ),
            ]
        return Launches((*launches, self._result(products, 1)), layout.nbytes)

    def _channels_at_once(self) -> int:
        """Return the channels of products that stay in a core's cache; they divide a chunk."""
        for channels in WHOLE_CHANNELS:
            at_once = min(channels, self._geometry.chunk)
            fits = self._size_of_products(at_once * self._tile.columns) <= WHOLE_BYTES
            if fits and self._keeps_busy(at_once):
                break
        return at_once

    def _items(self, channels: int) -> int:
        """Return how many items of products there are, of so many channels and a block of outputs each."""
        return self._blocks * ceil_div(self._geometry.channels, min(channels, self._geometry.chunk))

    def _keeps_busy(self, channels: int) -> bool:
        """Return whether all cores have items for most of the time."""
        items = self._items(channels)
        return items >= BUSY * turns(items, self._units) * self._units

    def _transformed(self, layout: WorkspaceLayout, rows: int) -> tuple[Workspace, Workspace, int]:
        """Return room for so many tile rows of the transformed source and gradient, and their tiles."""
        g, tiles = self._geometry, rows * self._geometry.tile_w
        source, gradient = (
            layout.take(g.elements * (count * tiles + PAD) * 4) for count in (g.padded_channels, self._columns)
        )
        return source, gradient, tiles

    def _size_of_products(self, filters: int) -> int:
        return self._geometry.elements * (self._geometry.phases * filters + PAD) * 4

    def _channels(self) -> tuple[Constant, ...]:
        return ints(self._geometry.channels, self._geometry.outputs)

    def _part(self, first: int, rows: int, tiles: int) -> StructConstant:
        return TILE_ROWS.pack({"first_row": first, "rows": rows, "tiles": tiles, "block_rows": self._rows_at_once})

    def _transforms(self, source: Workspace, gradient: Workspace, part: StructConstant, rows: int) -> Launch:
        g, lanes = self._geometry, self._tile.lanes
        return self._launch(
            "filter_transforms",
            (ceil_div(rows, self._rows_at_once), ceil_div(g.channels, lanes) + ceil_div(g.outputs, lanes)),
            *(Buffer("x"), source, Buffer("dy"), gradient),
            *(*self._channels(), g.argument(), part, Local(self._pixel_bytes)),
        )

    def _result(self, products: Workspace, copies: int) -> Launch:
        """Return the launch that makes filters of the sum of so many copies of the products."""
        size = ceil_div(self._geometry.outputs, self._tile.lanes), ceil_div(self._geometry.channels, RESULT_CHANNELS)
        arguments = (products, Buffer("dw"), Accumulate("dw"), *ints(copies), *self._channels())
        return self._launch("filter_result", size, *arguments)

    def _launch(self, name: str, size: tuple[int, ...], *arguments: Any) -> Launch:
        defines = {
            **self._tile.defines(),
            "WC": self._geometry.chunk,
            **self._geometry.defines(),
            **GRID.defines(),
            **TILE_ROWS.defines(),
        }
        file = "conv/winograd/backward_filter.cl"
        kernel = self._planner.kernel(file, name, defines, self._problem.dtype, MAD_ENABLE)
        return Launch(kernel, size, (1,) * len(size), arguments, ("dw",))
