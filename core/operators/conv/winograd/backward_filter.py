"""Winograd's gradient of the weights on CPU devices: parts of the tiles, transformed and multiplied in turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID, TILE_ROWS
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.conv.winograd.tiles import PAD, Geometry, group_rows, keeps_products, winograd_tile
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Local, Tickets, ints
from clgraft.core.planning.tickets import turns
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import ceil_div

PART_BYTES = 2 * 2**20  # part of a core's caches that transformed tiles may fill
MOST_PARTS = 64
PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)  # parts that a search tries
RESULT_CHANNELS = 16  # channels of a work-item of filter_result, the kernels' CHANNELS
WHOLE_CHANNELS = 32  # of products that stay in a core's cache; they divide the chunks of Geometry
BUSY = 0.75  # share of the cores' time that such products must fill


def settings_of(geometry: Geometry) -> Iterator[Mapping[str, int | str]]:
    """Return the settings to search: numbers of parts, and products that stay in a core's cache (`whole`)."""
    yield {"tile": geometry.tile, "whole": 1}
    for parts in sorted({min(parts, geometry.rows) for parts in PARTS}):
        yield {"tile": geometry.tile, "parts": parts}


def plan_filter(
    problem: ConvProblem,
    planner: Planner,
    geometry: Geometry,
    parts: int | None = None,
    whole: bool | None = None,
) -> Launches:
    """Plan the gradient of the weights.

    Parameters
    ----------
    parts : int, optional
        Into how many parts the tile rows are cut; by default as many as keep them in the caches.
    whole : bool, optional
        Whether there is one part, of whose products each core keeps some in its cache until they are filters. By
        default where products are most of what moves, and all cores have some, unless `parts` is given.
    """
    g = geometry
    tile = winograd_tile(planner, g.outputs)
    rows_at_once, pixel_bytes = group_rows(planner, g, tile.lanes)
    defines = {
        **tile.defines(),
        "WC": g.chunk,
        **g.defines(),
        **GRID.defines(),
        **TILE_ROWS.defines(),
    }
    blocks, chunks = ceil_div(g.outputs, tile.columns), g.padded_channels // g.chunk
    channels_at_once, units = min(WHOLE_CHANNELS, g.chunk), planner.device.compute_units
    items = blocks * ceil_div(g.channels, channels_at_once)
    if whole is None:
        whole = parts is None and keeps_products(g) and items >= BUSY * turns(items, units) * units
    row_bytes = g.elements * 4 * (g.padded_channels + blocks * tile.columns) * g.tile_w
    if whole:
        parts = 1
    if parts is None:
        parts = min(ceil_div(g.rows * row_bytes, PART_BYTES * units), MOST_PARTS, g.rows)
        # every part reads and writes all products
        parts = min(parts, max(1, 2 * g.rows * row_bytes // (g.products * blocks * g.channels * tile.columns * 4)))
    if not 1 <= parts <= g.rows:
        raise Declined(f"got parts {parts}, expected 1 to {g.rows}")
    part_rows = ceil_div(g.rows, parts)
    tiles = part_rows * g.tile_w
    layout = WorkspaceLayout()
    source = layout.take(g.elements * (chunks * tiles * g.chunk + PAD) * 4)
    gradient = layout.take(g.elements * (blocks * tiles * tile.columns + PAD) * 4)
    workers = min(units, items) if whole else 1
    kept = channels_at_once if whole else blocks * g.channels
    product = layout.take(workers * g.elements * (g.phases * kept * tile.columns + PAD) * 4)

    def launch(name: str, size: tuple[int, ...], *arguments: Any) -> Launch:
        kernel = planner.kernel("conv/winograd/backward_filter.cl", name, defines, problem.dtype, MAD_ENABLE)
        return Launch(kernel, size, (1,) * len(size), arguments, ("dw",))

    launches = []
    for first in range(0, g.rows, part_rows):
        rows = min(part_rows, g.rows - first)
        part = TILE_ROWS.pack({"first_row": first, "rows": rows, "tiles": tiles, "block_rows": rows_at_once})
        row_blocks = ceil_div(rows, rows_at_once)
        launches.append(
            launch(
                "filter_transforms",
                (row_blocks, ceil_div(g.channels, tile.lanes) + ceil_div(g.outputs, tile.lanes)),
                *(Buffer("x"), source, Buffer("dy"), gradient),
                *(*ints(g.channels, g.outputs), g.argument(), part, Local(pixel_bytes)),
            )
        )
        if not whole:
            launches.append(
                launch(
                    "filter_product",
                    (chunks, blocks, g.elements),
                    *(source, gradient, product),
                    *(*ints(g.channels, g.outputs), g.argument(), part),
                )
            )
    if whole:
        last = launch(
            "filter_whole",
            (workers,),
            *(source, gradient, product, Buffer("dw"), Accumulate("dw")),
            *(*ints(g.channels, g.outputs), g.argument(), part, *ints(channels_at_once), Tickets()),
        )
    else:
        last = launch(
            "filter_result",
            (ceil_div(g.outputs, tile.lanes), ceil_div(g.channels, RESULT_CHANNELS)),
            *(product, Buffer("dw"), Accumulate("dw")),
            *ints(g.channels, g.outputs),
        )
    return Launches((*launches, last), layout.nbytes)
