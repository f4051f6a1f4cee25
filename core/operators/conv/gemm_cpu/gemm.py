"""Convolution on CPU devices, forward and backward data: a product of matrices over cache-sized panels of pixels.

The method is the one of Goto and van de Geijn (Anatomy of high-performance matrix multiplication, 2008) with the
packing of the second matrix replaced by im2col: no im2col buffer ever leaves the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID, TAPS, TARGET, WEIGHT_STRIDES
from clgraft.core.operators.conv.gemm_cpu import backward_filter, phases
from clgraft.core.operators.conv.gemm_cpu.blocking import COSTS, Blocking, ProductWork, blockings, choose_blocking
from clgraft.core.operators.conv.gemm_cpu.dense import can_be_dense, collect, collect_cycles, dense_pixels
from clgraft.core.operators.conv.grid import Grid, backward_data_grids, dense_grid, forward_grid, spatial_grid
from clgraft.core.operators.conv.past_caches import LINE_BYTES, product_past_caches
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.conv.register_tile import RegisterTile, lanes_of
from clgraft.core.planning.epilogue import Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE, arithmetic_bytes, has_32_registers
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
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import SMALL, ceil_div, in_3d

NAME = "cpu_gemm"
PACK = "conv/gemm_cpu/pack.cl"
PACKINGS = {"pack_weights": PACK, "pack_rows": PACK, "pack_amx": "conv/gemm_cpu/pack_amx.cl"}  # kernel -> file
STRUCTS = {**GRID.defines(), **TARGET.defines(), **TAPS.defines(), **WEIGHT_STRIDES.defines()}
PACK_ELEMENTS = 16384  # elements that a work-item of pack_weights packs
PACK_CHANNELS, NEIGHBOURS = 64, 8  # channels and row tiles of a work-item of pack_rows
# settings that a search tries: vectors of the register tile, KiB of a panel, and the splits with the best estimates
VECTORS = (3, 2, 1)
PLAIN_VECTORS = (3, 2)  # of products in place: those whose tiles fill the registers
LINE_VECTORS = 4  # of products of 16 bits in place: their rows are whole lines of a cache
PANELS = (448, 224, 704)
PLAIN_PANELS = (320, 160, 640)  # KiB of a panel for products in place
EACH, MOST = 8, 32


def product_tile(planner: Planner, dtype: str, vectors: int = 3) -> RegisterTile:
    """Return the tile that fills the vector registers, 32 of 512 bits or 16 of 256; or one of fewer vectors."""
    rows = 8 if has_32_registers(planner.device) else 4
    rows = rows * 3 // 4 if vectors == LINE_VECTORS else rows
    return RegisterTile(rows, vectors, lanes_of(planner.device, dtype))


def plain_tile(planner: Planner, dtype: str, vectors: int = 3) -> RegisterTile:
    """Return the tile of a product in place, whose rows need not be a power of two: it has more with two vectors."""
    tile = product_tile(planner, dtype, vectors)
    return replace(tile, rows=tile.rows * 3 // 2) if vectors == 2 else tile


def tile_vectors(problem: ConvProblem, planner: Planner, grid: Grid) -> tuple[int, ...]:
    """Return the vectors that register tiles of a product may have."""
    lines = grid.one_tap and problem.dtype in SMALL and has_32_registers(planner.device)
    return (LINE_VECTORS, *VECTORS) if lines else VECTORS


def candidates(problem: ConvProblem, planner: Planner) -> Iterator[Mapping[str, int | str]]:
    """Return the settings to search: the heuristic's (none), then those with the least estimated times.

    ``vectors`` of the register tile; for one product ``tiles`` of pixels and ``row_tiles`` of a work-item and the
    ``panel`` in KiB; where the stride has phases whether they are ``merged``; for a kernel of one tap with a stride
    whether its pixels are made ``dense``; `backward_filter`'s for filters.
    """
    if not planner.device.is_cpu or problem.direction == "backward_bias":
        return
    if problem.direction == "backward_filter":
        yield from backward_filter.candidates(problem, planner)
        return
    yield {}
    if can_be_dense(problem):
        yield from ({"vectors": vectors, "dense": 1} for vectors in VECTORS)
    if phases.has_phases(problem):
        yield from phases.candidates(problem, planner)
        return
    yield from product_candidates(problem, planner, product_grid(problem))


def product_candidates(
    problem: ConvProblem, planner: Planner, grid: Grid, build: type[GemmBuilder] | None = None
) -> Iterator[Mapping[str, int | str]]:
    """Return the settings of one product with the least estimated times."""
    listed: dict[Any, tuple[float, int, int, int, int]] = {}  # other panels may give the same parts
    for vectors in tile_vectors(problem, planner, grid):
        builder = (build or GemmBuilder)(problem, planner, grid, {"vectors": vectors})
        work = builder.work()
        for panel in PLAIN_PANELS if grid.one_tap else PANELS:
            for cost, b in blockings(work, builder.tile, planner.device, panel * 1024)[:EACH]:
                listed.setdefault((vectors, b), (cost, vectors, panel, b.tiles, b.row_tiles))
    for _, vectors, panel, tiles, row_tiles in sorted(listed.values())[:MOST]:
        yield {"vectors": vectors, "panel": panel, "tiles": tiles, "row_tiles": row_tiles}


def fuses(problem: ConvProblem, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is served: all of them, forward."""
    return problem.direction == "forward"


def plan(
    problem: ConvProblem,
    planner: Planner,
    settings: Mapping[str, int | str] | None = None,
    epilogue: Epilogue | None = None,
) -> Launches:
    """Plan a product of matrices, and the packing of its weights if it needs that; filters are `backward_filter`'s."""
    if not planner.device.is_cpu:
        raise Declined("made for CPU devices")
    if problem.direction == "backward_filter":
        return backward_filter.plan(problem, planner, settings)
    if problem.direction not in ("forward", "backward_data"):
        raise Declined(f"has no {problem.direction}")
    chosen = {name: int(value) for name, value in (settings or {}).items()}
    dense = chosen.get("dense", not chosen and dense_pays(problem, planner, epilogue))
    if phases.has_phases(problem) and not dense:
        chosen.pop("dense", None)
        return phases.plan(problem, planner, chosen)
    grid = dense_grid(problem) if dense else product_grid(problem)
    if chosen or not grid.one_tap:
        product = GemmBuilder(problem, planner, grid, chosen, epilogue).product()
    else:
        product = cheapest(problem, planner, grid, epilogue)
    return product.builder.launches(product.blocking, bool(dense))


def forward_cycles(problem: ConvProblem, planner: Planner, epilogue: Epilogue | None = None) -> float:
    """Estimate the cycles of the longest thread of a forward product in place."""
    return cheapest(problem, planner, forward_grid(problem), epilogue).cost


def cheapest(
    problem: ConvProblem,
    planner: Planner,
    grid: Grid,
    epilogue: Epilogue | None,
    build: type[GemmBuilder] | None = None,
) -> _Product:
    """Choose the tile and the blocking of a product in place.

    Few pixels leave less of narrow tiles empty. A result that is stored past the caches takes longer in parts of lines.
    """
    build = build or GemmBuilder
    vectors: tuple[int, ...] = PLAIN_VECTORS
    past = product_past_caches(planner, problem, LINE_BYTES) and problem.dtype in SMALL
    if past and LINE_VECTORS in tile_vectors(problem, planner, grid):
        vectors = (*PLAIN_VECTORS, LINE_VECTORS)
    products = [build(problem, planner, grid, {"vectors": n}, epilogue).product() for n in vectors]

    def cycles(product: _Product) -> float:
        tile, times = product.builder.tile, {2: COSTS["narrow"], LINE_VECTORS: COSTS["lines"]}
        parts = past and tile.columns * np.dtype(problem.dtype).itemsize % LINE_BYTES
        tiles = ceil_div(grid.pixels, tile.columns) * product.builder.row_tiles * problem.groups
        stores = tiles * COSTS["line_parts"] / planner.device.compute_units if parts else 0
        return product.cost * times.get(tile.vectors, 1.0) + stores

    return min(products, key=cycles)


def product_grid(problem: ConvProblem) -> Grid:
    """Return the grid of a product, forward, or backward data if its stride has no phases."""
    return forward_grid(problem) if problem.direction == "forward" else backward_data_grids(problem)[0]


def dense_pays(problem: ConvProblem, planner: Planner, epilogue: Epilogue | None = None) -> bool:
    """Return whether that is the default.

    Gradients have a product for each phase of the stride otherwise. Forward, a product in place fills its panels with
    the pixels of a stride once for each block of rows, a launch of its own collects them once; with padding it always
    does. In 16 bits no launch collects pixels.
    """
    if problem.direction == "backward_data" or not can_be_dense(problem):
        return can_be_dense(problem)
    if problem.dtype in SMALL:
        return False
    grid = product_grid(problem)
    if not grid.one_tap:
        return True
    dense = cheapest(problem, planner, dense_grid(problem), epilogue).cost + collect_cycles(problem, planner)
    return dense < cheapest(problem, planner, grid, epilogue).cost


class _Product(NamedTuple):
    """A product of matrices. Cost in cycles."""

    builder: GemmBuilder
    blocking: Blocking
    cost: float


class GemmBuilder:
    """What the launches of one problem share: a product of matrices for a grid."""

    def __init__(
        self,
        problem: ConvProblem,
        planner: Planner,
        grid: Grid,
        chosen: Mapping[str, int] | None = None,
        epilogue: Epilogue | None = None,
    ) -> None:
        self.problem, self.planner, self.grid = problem, planner, grid
        self.chosen, self.epilogue = chosen or {}, epilogue
        self.defines: dict[str, Any] = dict(STRUCTS)
        self.one_tap = grid.one_tap  # which has a kernel of its own
        expected, allowed = [{"vectors", "panel", "tiles", "row_tiles"}], tile_vectors(problem, planner, grid)
        if can_be_dense(problem):
            expected.append({"vectors", "dense"})
        if self.chosen and (set(self.chosen) not in ({"vectors"}, *expected) or self.chosen["vectors"] not in allowed):
            names = " or ".join(str(sorted(names)) for names in expected)
            raise Declined(f"got settings {self.chosen}, expected {names}, vectors of {allowed}")
        self.size = arithmetic_bytes(problem.dtype)
        # halves are converted once, where they are packed
        self.in_place = problem.dtype not in SMALL and (problem.direction == "forward" or prod(problem.kernel) == 1)
        tile_of = plain_tile if grid.one_tap and self.in_place else product_tile
        self.tile = tile_of(planner, problem.dtype, self.chosen.get("vectors", 3))
        inputs, outputs = problem.in_channels // problem.groups, problem.out_channels // problem.groups
        taps = prod(problem.kernel)
        # strides of w, (groups * outputs, inputs, taps), along the product's rows, its channels and the groups
        strides = (taps * inputs, taps)
        self.group_stride = taps * inputs * outputs
        if problem.direction == "forward":
            self.source, self.target = "x", "y"
            self.channels, self.outputs, self.weight_strides = inputs, outputs, strides
        else:
            self.source, self.target = "dy", "dx"
            self.channels, self.outputs, self.weight_strides = outputs, inputs, strides[::-1]
        self.row_tiles = ceil_div(self.outputs, self.tile.rows)
        self.weights_apart = self.one_tap and self.in_place and problem.direction == "backward_data"
        # a stride that was taken out of backward data: pixels of dx lie apart
        self.spreads = phases.has_phases(problem)

    def work(self) -> ProductWork:
        """Describe the product for the choice of its blocking."""
        keep = self.problem.dtype in SMALL
        late = self.epilogue is not None or self.spreads
        of_group = self.grid, self.row_tiles, self.channels, self.problem.groups
        lines_shared = self.weights_apart and self.tile.rows * self.size % LINE_BYTES  # by neighbouring row tiles
        apart = self.weight_strides[1] * self.size if lines_shared else 0
        return ProductWork(*of_group, self.size, keep, late, self.spreads, apart=apart)

    def product(self) -> _Product:
        """Choose the blocking, or take it from the settings."""
        work = self.work()
        if "panel" not in self.chosen:
            return _Product(self, *choose_blocking(work, self.tile, self.planner.device)[::-1])
        for cost, blocking in blockings(work, self.tile, self.planner.device, self.chosen["panel"] * 1024):
            if (blocking.tiles, blocking.row_tiles) == (self.chosen["tiles"], self.chosen["row_tiles"]):
                return _Product(self, blocking, cost)
        raise Declined(f"settings {self.chosen} are no split of {work.m_tiles} row tiles that fits local memory")

    def launches(self, blocking: Blocking, dense: bool = False) -> Launches:
        """Return the launch of the product, and what packs its weights or makes pixels dense, where that is needed."""
        launches: list[Launch] = []
        layout = WorkspaceLayout()
        source: Buffer | Workspace = Buffer(self.source)
        if dense and not self.spreads:
            source = dense_pixels(self.problem, layout)
            launches.append(collect(self.problem, self.planner, source, self.target))
        weights: Buffer | Workspace = Buffer("w")
        if not self.in_place:
            packs, weights = self._packing(layout)
            launches += packs
        launches.append(self._multiply(blocking, weights, source))
        return Launches(tuple(launches), layout.nbytes)

    def _kernel(self, name: str, **more_defines: int) -> Any:
        file = "conv/gemm_cpu/gemm_in_place.cl" if self.one_tap else "conv/gemm_cpu/gemm.cl"
        defines = {**self.defines, **self.tile.defines()}
        if name in PACKINGS:
            file = PACKINGS[name]
        else:
            defines = {**defines, **epilogue_defines(self.epilogue), **more_defines}
        return self.planner.kernel(file, name, defines, self.problem.dtype, MAD_ENABLE)

    def _packing(self, layout: WorkspaceLayout) -> tuple[list[Launch], Workspace]:
        """Return the launch that packs the weights, if there are any, and the part of the workspace where it does."""
        nbytes = self.problem.groups * self.row_tiles * self.tile.rows * self.depth * self.size
        packed = layout.take(nbytes, self.size)
        return [replace(self._pack(packed), prepares=(nbytes,))] if nbytes else [], packed

    def _strides(self) -> StructConstant:
        """Return the kernels' WeightStrides."""
        if self.in_place:
            row, step = self.weight_strides[0], self.weight_strides[1] // prod(self.problem.kernel)
            strides = {"group": self.group_stride, "tile": self.tile.rows * row, "row": row, "step": step}
        else:
            tile = self.depth * self.tile.rows
            strides = {"group": self.row_tiles * tile, "tile": tile, "row": 1, "step": self.tile.rows}
        return WEIGHT_STRIDES.pack(strides)

    def _pack(self, packed: Workspace) -> Launch:
        problem = self.problem
        if problem.direction == "backward_data" and prod(problem.kernel) == 1:
            return Launch(
                self._kernel("pack_rows"),
                (ceil_div(self.channels, PACK_CHANNELS), ceil_div(self.row_tiles, NEIGHBOURS), problem.groups),
                (1, 1, 1),
                (Buffer("w"), packed, *ints(self.channels, self.outputs, PACK_CHANNELS)),
                (self.target,),
            )
        return self._pack_by("pack_weights", packed, self._pack_range)

    @property
    def depth(self) -> int:
        """Operands of a row of packed weights."""
        return self.grid.taps * self.channels

    @property
    def _pack_range(self) -> int:
        """Return the channels that a work-item packs of each row of a tile."""
        return max(PACK_ELEMENTS // (prod(self.problem.kernel) * self.tile.rows), 1)

    def _pack_by(self, name: str, packed: Workspace, pack_range: int) -> Launch:
        """Return the launch of a kernel that packs any weights."""
        problem = self.problem
        return Launch(
            self._kernel(name),
            (ceil_div(self.channels, pack_range), self.row_tiles, problem.groups),
            (1, 1, 1),
            (
                *(Buffer("w"), packed),
                *ints(self.channels, self.outputs),
                *(Constant(np.int64(v)) for v in (*self.weight_strides, self.group_stride)),
                *(*ints(pack_range), self.grid.taps_argument(in_3d(problem.kernel, 1))),
            ),
            (self.target,),
        )

    def _multiply(self, blocking: Blocking, weights: Buffer | Workspace, source: Buffer | Workspace) -> Launch:
        problem, grid, target = self.problem, self.grid, Buffer(self.target)
        blocks = ceil_div(grid.pixels, blocking.tiles * self.tile.columns)
        bias = Buffer("b" if problem.bias else self.source)  # without a bias, this is never read
        row_blocks = ceil_div(self.row_tiles, blocking.row_tiles)
        workers = min(blocks * row_blocks * problem.groups, self.planner.device.compute_units)
        past = product_past_caches(self.planner, problem, self.tile.columns, in_order=self.spreads)
        more: dict[str, int] = {}
        if self.one_tap:
            more |= {"WEIGHTS_APART": 1} if self.weights_apart else {}
            more |= {} if grid.plain else {"STRIDE": grid.axes[2].stride}
            more |= {"SPREAD": 1} if self.spreads else {}
        return Launch(
            self._kernel("conv_plain" if self.one_tap else "conv_gather", **past, **more),
            (workers, 1, 1),
            (1, 1, 1),
            (
                *(source, weights, self._strides(), bias, target),
                *ints(problem.bias),
                Accumulate(self.target),
                *ints(self.channels, self.outputs),
                grid.argument(),
                *ints(problem.groups, blocking.tiles, blocking.row_tiles, blocking.part),
                Tickets(),
                *map(Local, self._local_bytes(blocking)),
                *((spatial_grid(problem).source_argument(),) if self.spreads else ()),
                *epilogue_arguments(self.epilogue, problem.dtype),
            ),
            (self.target,),
        )

    def _local_bytes(self, blocking: Blocking) -> tuple[int, ...]:
        """Return the sizes of the kernel's local memory: products in place cut no runs."""
        panel, tile_out, runs, kept = blocking.local_bytes
        return (panel, tile_out, kept) if self.one_tap else (panel, tile_out, runs, kept)
