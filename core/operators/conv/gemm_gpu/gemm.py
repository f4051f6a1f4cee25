"""Convolution on GPUs, forward, backward data and backward filter: tiled products of matrices without im2col buffers.

What is common to the directions is one kernel (``kernels/conv/gemm_gpu/gemm.cl``); this module says what its rows,
columns and depth are. Backward data is one product for each phase of the stride, so that no inserted zero is
multiplied. Where a product has too few tiles for the device, its depth is split and the parts' sums are added in a
fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID, PHASE_GRID, TAPS, TARGET
from clgraft.core.operators.conv.gemm_gpu.stream import stream_of
from clgraft.core.operators.conv.gemm_gpu.tiles import (
    LARGEST,
    SUMMED_DEPTH,
    GroupTile,
    ProductShape,
    TileChoice,
    choose,
    counts,
    insist,
)
from clgraft.core.operators.conv.gemm_gpu.tiles import candidates as tiles_for
from clgraft.core.operators.conv.grid import Grid, GridAxis, backward_data_grids, forward_grid
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.epilogue import Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import arithmetic_bytes
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, Workspace, ints
from clgraft.core.planning.precision import TF32
from clgraft.core.planning.workspace import ALIGN, WorkspaceLayout
from clgraft.core.problem import ceil_div, in_3d, round_up

NAME = "gpu_gemm"
STRUCTS = {**GRID.defines(), **TARGET.defines(), **TAPS.defines(), **PHASE_GRID.defines()}
FOR_GPUS = True  # a search on a CPU device does not try it
TAPS_OF_ITEM = 5  # taps that a work-item packs
PACKED_DEPTH, PACKED_ROWS = 32, 8  # work-group that packs weights as tiles lie in local memory
ROWS_OF_ITEM = 4  # rows that a work-item packs then, the kernel's ROWS_OF_ITEM
PHASE_TAPS = 64  # most taps of a phase where all phases are one launch
LONG_DEPTH = 1024  # depth from which a phase by itself is split where it has too few tiles for the device
OUTSIDE = 2**30  # a distance outside of every source, the kernels' OUTSIDE
GATHER, PIXELS, BY_ROWS, BY_COLUMNS = 1, 2, 3, 4  # the kernels' LOADER
TO_PIXELS, TO_FILTER = 1, 2  # the kernels' TARGET
PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # parts of the depth that a search tries


@dataclass(frozen=True)
class Weights:
    """Where the weights of a product stand: elements from row to row, channel to channel and group to group."""

    row_stride: int
    channel_stride: int
    group_stride: int


def candidates(problem: ConvProblem, planner: Planner) -> Iterator[Mapping[str, int | str]]:
    """Return the settings to search: the heuristic's (none), then every tile, whole and in parts.

    The settings are ``tile``, rows, columns and depth of a row of ``tiles.txt``, and ``parts`` of the depth.
    """
    yield {}
    size = arithmetic_bytes(problem.dtype)
    for parts in PARTS:
        for tile in tiles_for(planner.device, size):
            yield {"tile": tile.name, "parts": parts}


def fuses(problem: ConvProblem, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is served: all of them, forward."""
    return problem.direction == "forward"


def plan(
    problem: ConvProblem,
    planner: Planner,
    settings: Mapping[str, int | str] | None = None,
    epilogue: Epilogue | None = None,
) -> Launches:
    """Plan the products of one direction."""
    if problem.direction == "backward_bias":
        raise Declined("has no backward_bias")
    in_channels, out_channels = problem.in_channels // problem.groups, problem.out_channels // problem.groups
    _check_sizes(problem)
    taps = prod(problem.kernel)
    group_stride = out_channels * in_channels * taps
    builder = _Builder(problem, planner, settings or {}, epilogue)
    if problem.direction == "backward_filter":
        builder.filter_product(forward_grid(problem), out_channels, in_channels)
    elif problem.direction == "forward":
        weights = Weights(in_channels * taps, taps, group_stride)
        builder.pixel_products([forward_grid(problem)], "x", "y", out_channels, in_channels, weights)
    else:
        weights = Weights(taps, in_channels * taps, group_stride)
        grids = backward_data_grids(problem)
        if not builder.phases_product(grids, in_channels, out_channels, weights):
            builder.pixel_products(grids, "dy", "dx", in_channels, out_channels, weights)
    return Launches(tuple(builder.launches), builder.layout.nbytes)


def _check_sizes(problem: ConvProblem) -> None:
    """Decline what the kernels' 32-bit numbers cannot count: one image of one group, or the pixels of a batch."""
    for name, channels, size in (
        ("x", problem.in_channels, problem.in_size),
        ("y", problem.out_channels, problem.out_size),
    ):
        image = channels // problem.groups * prod(size)
        pixels = problem.batch * prod(size)
        if image > LARGEST or pixels > LARGEST - 2**16 or max(size) >= OUTSIDE:
            raise Declined(
                f"{name} has {image} elements in a group of an image, {pixels} pixels; both have to be below 2**31"
            )
    reach = max(d * k + p for d, k, p in zip(problem.dilate, problem.kernel, problem.pad_begin))
    if reach >= OUTSIDE or problem.in_channels // problem.groups * prod(problem.kernel) > LARGEST - 2**16:
        raise Declined(f"the kernel {problem.kernel} has too many taps or reaches too far")


def _axes(grid: Grid) -> int:
    """Count the axes, from the innermost, up to the last one whose positions can differ from 0."""
    trivial = [a.size == a.source == 1 and a.begin == 0 and a.taps <= 1 for a in grid.axes]
    return 1 if trivial[0] and trivial[1] else 2 if trivial[0] else 3


def _inside(grid: Grid) -> bool:
    """Return whether every tap of every pixel falls into the source."""
    return all(
        a.begin >= 0 and (a.size - 1) * a.stride + a.begin + max(a.taps - 1, 0) * a.step < a.source for a in grid.axes
    )


def _promotion(tile: GroupTile, chunks: int) -> dict[str, int]:
    """Return the macro that leaves sums of so many of the tile's depths to the matrix units, where they are TF32's."""
    whole = tile.micro == "wgmma" and tile.tf32 and chunks * tile.k <= SUMMED_DEPTH
    return {"PROMOTE": 0} if whole else {}


def gemm_kernel(planner: Planner, name: str, defines: Mapping[str, Any], tile: GroupTile, dtype: str) -> Any:
    """Build a kernel of gemm.cl, with the tile's options where they were meant for."""
    device = planner.device
    options = tile.options if device.device_class == tile.device_class else ()
    items = {"SCALAR_ITEMS": int(device.vectorizes_items), "PRODUCT": int(name == "conv_gemm")}
    if tile.micro == "mma":
        items["EMULATED"] = int("mma" not in device.matrix_units)
    elif tile.micro == "wgmma":
        items["EMULATED"] = int("wgmma" not in device.matrix_units)
    return planner.kernel("conv/gemm_gpu/gemm.cl", name, {**STRUCTS, **defines, **items}, dtype, options)


class _Builder:
    """Collects the launches of a plan and lays out their workspace."""

    def __init__(
        self,
        problem: ConvProblem,
        planner: Planner,
        settings: Mapping[str, int | str],
        epilogue: Epilogue | None = None,
    ) -> None:
        self.problem, self.planner, self.settings, self.epilogue = problem, planner, settings, epilogue
        if settings and set(settings) != {"tile", "parts"}:
            raise Declined(f"got settings {sorted(settings)}, expected tile and parts")
        self.size = arithmetic_bytes(problem.dtype)
        self.launches: list[Launch] = []
        self.layout = WorkspaceLayout(ALIGN)

    def choose(self, product: ProductShape, split: bool = True, tile: GroupTile | None = None) -> TileChoice:
        """Choose a product's tile and parts, or take them from the settings; `tile` is one that is chosen already."""
        if self.settings:
            parts = int(self.settings["parts"]) if split else 1
            return insist(product, self.planner.device, self.size, str(self.settings["tile"]), parts)
        return choose(product, self.planner.device, self.size, split, tile)

    def pixel_products(
        self, grids: list[Grid], source: str, target: str, rows: int, channels: int, weights: Weights
    ) -> None:
        """Add forward, or the phases of backward data: rows are the target's channels, columns its pixels in a grid.

        All of them run one program: it has the tile that suits the largest product, and what any of them needs.
        """
        grids = [grid for grid in grids if grid.pixels]
        if not grids:
            return
        one_tap = len(grids) == 1 and self._vectors(grids[0])
        products = [
            ProductShape(rows, grid.pixels, channels * grid.taps, self.problem.groups, channels, one_tap=one_tap)
            for grid in grids
        ]
        choice = self.choose(max(products, key=lambda product: product.columns * product.depth))
        tile = choice.tile
        if tile.stream:
            self.stream_product(products[0], choice, grids[0], source, target, weights)
            return
        choices = [self.choose(product, tile=tile) for product in products]
        defines = {
            **tile.defines(),
            "LOADER": GATHER,
            "TARGET": TO_PIXELS,
            "TAP_MAJOR": int(channels % tile.k == 0),
            "BOUNDED": int(any(g.taps * channels % tile.k or not _inside(g) for g in grids if g.taps)),
            "AXES": max(_axes(grid) for grid in grids),
            "SPLIT": int(any(choice.parts > 1 for choice in choices)),
            "TAPS_OF_ITEM": TAPS_OF_ITEM,
            **({"PIXEL_VECTORS": 1} if channels % tile.k == 0 and all(map(self._vectors, grids)) else {}),
        }
        if tile.micro == "wgmma" and max(choice.chunks for choice in choices) <= 2:
            defines["STAGES"] = 2  # nothing is fetched while products run: more work-groups at the same time
        defines.update(_promotion(tile, max(choice.chunks for choice in choices)))
        for grid, product, choice in zip(grids, products, choices):
            packed, taps = self._pack(grid, tile, defines, target, rows, channels, weights)
            self._gemm(product, choice, defines, (packed, taps, Buffer(source)), target, grid)

    def stream_product(
        self, product: ProductShape, choice: TileChoice, grid: Grid, source: str, target: str, weights: Weights
    ) -> None:
        """Add a product by work-groups that walk over tiles of pixels (``kernels/conv/gemm_gpu/stream.cl``)."""
        sizes = (product.rows, product.columns, product.depth, product.groups)
        stream = stream_of(choice.tile, *sizes, self.planner.device.compute_units)
        defines = {
            **choice.tile.defines(),
            **stream.defines(),
            "LOADER": GATHER,
            "TARGET": TO_PIXELS,
            "SPLIT": 0,
            "WEIGHTS_BY_ROWS": int(weights.channel_stride > 1),
        }
        strides = ints(weights.row_stride, weights.channel_stride)
        self._gemm(product, choice, defines, (Buffer("w"), Buffer(source)), target, grid, strides, stream.work_groups)

    def _vectors(self, grid: Grid) -> bool:
        """Return whether four neighbouring pixels of a grid are a vector of the source: its pixels, as they are."""
        same = all(a.size == a.source and a.begin == 0 and a.stride == 1 for a in grid.axes)
        return grid.taps == 1 and same and prod(a.size for a in grid.axes) % 4 == 0 and self.problem.dtype == "float32"

    def _pack(
        self,
        grid: Grid,
        tile: GroupTile,
        defines: dict[str, Any],
        target: str,
        rows: int,
        channels: int,
        weights: Weights,
    ) -> tuple[Workspace, Workspace]:
        """Add the packing of a grid's weights, if it has taps; return where they and the list of taps will be."""
        problem, taps = self.problem, grid.taps
        rows_up, depth_up = round_up(rows, tile.m), round_up(channels * taps, tile.k)
        nbytes = problem.groups * rows_up * depth_up * self.size * tile.images, depth_up * 16
        size, items = (rows_up, ceil_div(depth_up, taps or 1)), (tile.m, 1)
        if tile.micro == "wgmma":  # neighbours in memory are those of the depth
            size, items = (round_up(size[1], PACKED_DEPTH), rows_up // ROWS_OF_ITEM), (PACKED_DEPTH, PACKED_ROWS)
        packed, listed = self.layout.take(nbytes[0], self.size), self.layout.take(nbytes[1], 16)
        if taps:
            self.launches.append(
                Launch(
                    self._kernel("conv_pack_weights", defines, tile),
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
        work_groups, _ = counts(deepest, tile)  # as many for each phase as for the largest one
        if work_groups * len(grids) <= self.planner.device.compute_units:  # the deepest phase alone decides
            tile = self.choose(deepest, split=False).tile
            work_groups, _ = counts(deepest, tile)
        if channels % tile.k or (work_groups < self.planner.device.compute_units and channels * taps > LONG_DEPTH):
            return False
        sizes = (problem.out_size, problem.in_size, problem.kernel, problem.stride, problem.pad_begin, problem.dilate)
        source, target, kernel, stride, pad, dilate = (in_3d(v, f) for v, f in zip(sizes, (1, 1, 1, 1, 0, 1)))
        whole = Grid(problem.batch, tuple(GridAxis(o, o, o, k, tap_step=1) for o, k in zip(source, kernel)))
        defines = {
            **tile.defines(),
            "LOADER": GATHER,
            "TARGET": TO_PIXELS,
            "TAP_MAJOR": 1,
            "PHASES": 1,
            "PHASE_TAPS": PHASE_TAPS,
            "BOUNDED": int(not all(_inside(grid) for grid in grids)),
            "AXES": max(_axes(grid) for grid in grids),
            "TAPS_OF_ITEM": TAPS_OF_ITEM,
            **_promotion(tile, channels * taps // tile.k),
        }
        packed, _ = self._pack(whole, tile, defines, "dx", rows, channels, weights)
        self.launches.append(
            Launch(
                self._kernel("conv_gemm", defines, tile),
                (work_groups * len(grids) * tile.threads,),
                (tile.threads,),
                (
                    *(packed, Buffer("dy"), Buffer("dx"), Buffer("dx"), *ints(0), Accumulate("dx")),
                    *ints(rows, channels),
                    PHASE_GRID.pack(
                        {
                            **{"batch": problem.batch, "groups": problem.groups, "source": source, "target": target},
                            **{"kernel": kernel, "stride": stride, "pad": pad, "dilate": dilate},
                            "distance": [s // gcd(s, d) for s, d in zip(stride, dilate)],
                        }
                    ),
                ),
                ("dx",),
                precision=TF32 if tile.tf32 else "",
            )
        )
        return True

    def filter_product(self, grid: Grid, rows: int, channels: int) -> None:
        """Add backward filter: rows are output channels, columns input channels' taps, the depth is dy's pixels."""
        vectors = self._vectors(grid)
        product = ProductShape(rows, channels * grid.taps, grid.pixels, self.problem.groups, vectors=vectors)
        choice = self.choose(product)
        defines = {
            **choice.tile.defines(),
            "LOADER": PIXELS,
            "TARGET": TO_FILTER,
            "BOUNDED": int(not _inside(grid)),
            "AXES": _axes(grid),
            "SPLIT": int(choice.parts > 1),
            **({"PIXEL_VECTORS": 1} if vectors else {}),
            **_promotion(choice.tile, choice.chunks),
        }
        self._gemm(product, choice, defines, (Buffer("x"), Buffer("dy")), "dw", grid)

    def _kernel(self, name: str, defines: dict[str, Any], tile: GroupTile) -> Any:
        """Build a kernel of gemm.cl for this problem."""
        if name != "conv_pack_weights":
            defines = {**defines, **epilogue_defines(self.epilogue)}
        return gemm_kernel(self.planner, name, defines, tile, self.problem.dtype)

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
        tiles, _ = counts(product, tile)
        if parts:
            self.launches.append(
                Launch(
                    self._kernel("conv_gemm", defines, tile),
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
                    precision=TF32 if tile.tf32 else "",
                )
            )
        if split:
            self.launches.append(
                Launch(
                    self._kernel("conv_sum", defines, tile),
                    (product.columns, product.rows, product.groups),
                    None,
                    sums + finish + ints(product.rows, product.columns, parts) + groups + where + last,
                    (target,),
                )
            )
