"""The launches of a convolution's products on GPUs: their rows, columns and depth, operands and workspace.

Backward data is one product for each phase of the stride, so that no inserted zero is multiplied. Where a product has
too few tiles for the device, its depth is split and the parts' sums are added in a fixed order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.gemm_gpu.constants import (
    GATHER,
    PHASE_TAPS,
    PIXELS,
    ROWS_OF_ITEM,
    TAPS_OF_ITEM,
    TO_FILTER,
    TO_PIXELS,
)
from clgraft.core.operators.conv.gemm_gpu.kernels import pack_kernel, product_kernel, sum_kernel
from clgraft.core.operators.conv.gemm_gpu.product import TileChoice, choose, insist
from clgraft.core.operators.conv.gemm_gpu.stream import STREAM, stream_of
from clgraft.core.operators.conv.gemm_gpu.tile import Form, ProductShape, Tile
from clgraft.core.operators.conv.gemm_gpu.wgmma import WGMMA, promotion
from clgraft.core.operators.conv.grid import Grid, GridAxis, phase_grid_argument
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.epilogue import Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import arithmetic_bytes
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Workspace, ints
from clgraft.core.planning.workspace import ALIGN, WorkspaceLayout
from clgraft.core.problem import ceil_div, in_3d, round_up

PACKED_DEPTH, PACKED_ROWS = 32, 8  # work-group that packs weights as tiles lie in local memory
LONG_DEPTH = 1024  # depth from which a phase by itself is split where it has too few tiles for the device


@dataclass(frozen=True)
class Weights:
    """Where the weights of a product stand: elements from row to row, channel to channel and group to group."""

    row_stride: int
    channel_stride: int
    group_stride: int


class Builder:
    """Collects the launches of a plan and lays out their workspace.

    Parameters
    ----------
    problem : ConvProblem
    planner : Planner
    form : Form, optional
        The only form whose tiles are served.
    settings : mapping
        ``tile`` and ``parts``, or nothing.
    epilogue : Epilogue, optional
    """

    def __init__(
        self,
        problem: ConvProblem,
        planner: Planner,
        form: Form | None,
        settings: Mapping[str, int | str],
        epilogue: Epilogue | None = None,
    ) -> None:
        self.problem, self.planner, self.form = problem, planner, form
        self.settings, self.epilogue = settings, epilogue
        if settings and set(settings) != {"tile", "parts"}:
            raise Declined(f"got settings {sorted(settings)}, expected tile and parts")
        self.size = arithmetic_bytes(problem.dtype)
        self.launches: list[Launch] = []
        self.layout = WorkspaceLayout(ALIGN)

    def choose(self, product: ProductShape, split: bool = True, tile: Tile | None = None) -> TileChoice:
        """Choose a product's tile and parts, or take them from the settings; `tile` is one that is chosen already."""
        if self.settings:
            parts = int(self.settings["parts"]) if split else 1
            return insist(product, self.planner.device, self.size, str(self.settings["tile"]), parts)
        return choose(product, self.planner.device, self.size, split, tile)

    def expect_own(self, tile: Tile) -> None:
        """Decline a product whose tile is of another form."""
        if self.form not in (None, tile.form):
            raise Declined(f"{tile.form.name} is expected to be faster")

    def pixel_products(
        self, grids: list[Grid], source: str, target: str, rows: int, channels: int, weights: Weights
    ) -> None:
        """Add forward, or the phases of backward data: rows are the target's channels, columns its pixels in a grid.

        All of them run one program: it has the tile that suits the largest product, and what any of them needs.
        """
        grids = [grid for grid in grids if grid.pixels]
        if not grids:
            return
        one_tap = len(grids) == 1 and self._vectors(grids[0]) and self.problem.dtype == "float32"
        products = [
            ProductShape(rows, grid.pixels, channels * grid.taps, self.problem.groups, channels, one_tap=one_tap)
            for grid in grids
        ]
        choice = self.choose(max(products, key=lambda product: product.columns * product.depth))
        tile = choice.tile
        self.expect_own(tile)
        if tile.form is STREAM:
            self.stream_product(products[0], choice, grids[0], source, target, weights)
            return
        choices = [self.choose(product, tile=tile) for product in products]
        defines = {
            "LOADER": GATHER,
            "TARGET": TO_PIXELS,
            "TAP_MAJOR": int(channels % tile.k == 0),
            "BOUNDED": int(any(g.taps * channels % tile.k or not g.inside for g in grids if g.taps)),
            "AXES": max(grid.used_axes for grid in grids),
            "SPLIT": int(any(choice.parts > 1 for choice in choices)),
            **({"PIXEL_VECTORS": 1} if channels % tile.k == 0 and all(map(self._vectors, grids)) else {}),
        }
        if tile.form is WGMMA and max(choice.chunks for choice in choices) <= 2:
            defines["STAGES"] = 2  # nothing is fetched while products run: more work-groups at the same time
        defines.update(promotion(tile, max(choice.chunks for choice in choices)))
        for grid, product, choice in zip(grids, products, choices):
            packed, taps = self._pack(grid, tile, target, rows, channels, weights)
            self._gemm(product, choice, defines, (packed, taps, Buffer(source)), target, grid)

    def stream_product(
        self, product: ProductShape, choice: TileChoice, grid: Grid, source: str, target: str, weights: Weights
    ) -> None:
        """Add a product by work-groups that walk over tiles of pixels (``kernels/conv/gemm_gpu/stream.cl``)."""
        stream = stream_of(choice.tile, product, self.planner.device.compute_units)
        defines = {
            **stream.defines(),
            "TARGET": TO_PIXELS,
            "SPLIT": 0,
            "WEIGHTS_BY_ROWS": int(weights.channel_stride > 1),
        }
        strides = ints(weights.row_stride, weights.channel_stride)
        self._gemm(product, choice, defines, (Buffer("w"), Buffer(source)), target, grid, strides, stream.work_groups)

    def _vectors(self, grid: Grid) -> bool:
        """Return whether four neighbouring pixels of a grid are a vector of the source: its pixels, as they are."""
        same = all(a.size == a.source and a.begin == 0 and a.stride == 1 for a in grid.axes)
        return grid.taps == 1 and same and prod(a.size for a in grid.axes) % 4 == 0 and self.problem.dtype != "float64"

    def _pack(
        self,
        grid: Grid,
        tile: Tile,
        target: str,
        rows: int,
        channels: int,
        weights: Weights,
    ) -> tuple[Workspace, Workspace]:
        """Add the packing of a grid's weights, if it has taps; return where they and the list of taps will be."""
        problem, taps = self.problem, grid.taps
        rows_up, depth_up = round_up(rows, tile.m), round_up(channels * taps, tile.k)
        nbytes = problem.groups * rows_up * depth_up * self.size * tile.parts_of_element, depth_up * 16
        size, items = (rows_up, ceil_div(depth_up, taps or 1)), (tile.m, 1)
        if tile.form.packs_tiles:  # neighbours in memory are those of the depth
            size, items = (round_up(size[1], PACKED_DEPTH), rows_up // ROWS_OF_ITEM), (PACKED_DEPTH, PACKED_ROWS)
        packed, listed = self.layout.take(nbytes[0], self.size), self.layout.take(nbytes[1], 16)
        if taps:
            self.launches.append(
                Launch(
                    pack_kernel(self.planner, tile, channels % tile.k == 0, problem.dtype),
                    (*size, problem.groups * ceil_div(taps, TAPS_OF_ITEM)),
                    (*items, 1),
                    (
                        *(Buffer("w"), packed, listed, *ints(rows, channels)),
                        *(
                            Constant(np.int64(v))
                            for v in (weights.row_stride, weights.channel_stride, weights.group_stride)
                        ),
                        *(grid.taps_argument(in_3d(problem.kernel, 1)), grid.argument()),
                    ),
                    (target,),
                    nbytes,
                )
            )
        return packed, listed

    def phases_product(self, grids: list[Grid], rows: int, channels: int, weights: Weights) -> bool:
        """Add all phases of backward data as one launch, if there are several and they suit that; say whether."""
        problem, largest = self.problem, grids[0]
        taps = max(grid.taps for grid in grids)
        if len(grids) == 1 or taps > PHASE_TAPS:
            return False
        depth = channels * prod(problem.kernel) // len(grids)  # mean of all phases
        product = ProductShape(rows, largest.pixels * len(grids), depth, problem.groups, channels)
        tile = self.choose(product, split=False).tile
        deepest = ProductShape(rows, largest.pixels, channels * taps, problem.groups, channels)
        work_groups, _ = tile.counts(deepest)  # as many for each phase as for the largest one
        if work_groups * len(grids) <= self.planner.device.compute_units:  # the deepest phase alone decides
            tile = self.choose(deepest, split=False).tile
            work_groups, _ = tile.counts(deepest)
        if channels % tile.k or (work_groups < self.planner.device.compute_units and channels * taps > LONG_DEPTH):
            return False
        self.expect_own(tile)
        source, kernel = in_3d(problem.out_size, 1), in_3d(problem.kernel, 1)
        whole = Grid(problem.batch, tuple(GridAxis(o, o, o, k, tap_step=1) for o, k in zip(source, kernel)))
        defines = {
            "LOADER": GATHER,
            "TARGET": TO_PIXELS,
            "TAP_MAJOR": 1,
            "PHASES": 1,
            "BOUNDED": int(not all(grid.inside for grid in grids)),
            "AXES": max(grid.used_axes for grid in grids),
            **promotion(tile, channels * taps // tile.k),
        }
        packed, _ = self._pack(whole, tile, "dx", rows, channels, weights)
        self.launches.append(
            Launch(
                self._kernel(defines, tile),
                (work_groups * len(grids) * tile.threads,),
                (tile.threads,),
                (
                    *(packed, Buffer("dy"), Buffer("dx"), Buffer("dx"), *ints(0), Accumulate("dx")),
                    *ints(rows, channels),
                    phase_grid_argument(problem),
                ),
                ("dx",),
                precision=tile.precision,
            )
        )
        return True

    def filter_product(self, grid: Grid, rows: int, channels: int) -> None:
        """Add backward filter: rows are output channels, columns input channels' taps, the depth is dy's pixels."""
        vectors = self._vectors(grid)
        product = ProductShape(rows, channels * grid.taps, grid.pixels, self.problem.groups, vectors=vectors)
        choice = self.choose(product)
        self.expect_own(choice.tile)
        defines = {
            "LOADER": PIXELS,
            "TARGET": TO_FILTER,
            "BOUNDED": int(not grid.inside),
            "AXES": grid.used_axes,
            "SPLIT": int(choice.parts > 1),
            **({"PIXEL_VECTORS": 1} if vectors else {}),
            **promotion(choice.tile, choice.chunks),
        }
        self._gemm(product, choice, defines, (Buffer("x"), Buffer("dy")), "dw", grid)

    def _kernel(self, defines: dict[str, Any], tile: Tile) -> Any:
        """Return the product's kernel for this problem."""
        defines = {**defines, **epilogue_defines(self.epilogue)}
        return product_kernel(self.planner, defines, tile, self.problem.dtype)

    def _gemm(
        self,
        product: ProductShape,
        choice: TileChoice,
        defines: dict[str, Any],
        operands: tuple[Any, ...],
        target: str,
        grid: Grid,
        more: tuple[Any, ...] = (),
        work_groups: int = 0,
    ) -> None:
        problem, tile, parts = self.problem, choice.tile, choice.parts
        has_bias = problem.bias
        bias = Buffer("b" if has_bias else target)  # without a bias, this is never read
        finish = (bias, Buffer(target), *ints(has_bias), Accumulate(target))
        groups, where = ints(problem.groups), (grid.target_argument(),)
        last = epilogue_arguments(self.epilogue, problem.dtype)
        sums: tuple[Any, ...] = ()
        split = defines["SPLIT"]
        if split:
            sums = (self.layout.take(parts * product.groups * product.rows * product.columns * self.size, self.size),)
            parts = parts if product.depth else 0
        tiles, _ = tile.counts(product)
        if parts:
            self.launches.append(
                Launch(
                    self._kernel(defines, tile),
                    ((work_groups or tiles * parts) * tile.threads,),
                    (tile.threads,),
                    operands
                    + (sums + ints(has_bias) + (Accumulate(target),) if split else finish)
                    + ints(product.rows, product.columns, product.depth, parts, choice.chunks)
                    + groups
                    + (grid.argument(),)
                    + where
                    + more
                    + (() if split else last),
                    (target,),
                    precision=tile.precision,
                )
            )
        if split:
            self.launches.append(
                Launch(
                    sum_kernel(self.planner, defines["TARGET"], epilogue_defines(self.epilogue), problem.dtype),
                    (product.columns, product.rows, product.groups),
                    None,
                    sums + finish + ints(product.rows, product.columns, parts) + groups + where + last,
                    (target,),
                )
            )
