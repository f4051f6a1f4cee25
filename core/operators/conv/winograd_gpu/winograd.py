"""Winograd's convolutions F(2x2, 3x3), F(4x4, 3x3) and F(2x2, 5x5) on GPUs: stride 1, all directions.

The transforms are launches of their own, with the transformed tiles in the workspace; the products between them run on
the micro kernel and the tiles of ``gpu_gemm``. Where the workspace would be too large, tiles are taken in chunks, one
after the other. The gradient of the weights has the tiles as its depth, which is split where there are few filters;
the parts' sums are added in a fixed order. ``CLGRAFT_WINOGRAD`` chooses or forbids, as on CPU devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID, TILE_PART
from clgraft.core.operators.conv.gemm_gpu.product import LARGEST, TileChoice
from clgraft.core.operators.conv.gemm_gpu.tiles import candidates as tiles_for
from clgraft.core.operators.conv.gemm_gpu.transformed import OPERANDS, asked_product, choose_product, launch_products
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.conv.winograd_gpu import costs
from clgraft.core.operators.conv.winograd_gpu.costs import TILES, Shape, allowed_tiles
from clgraft.core.planning.epilogue import Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Workspace, ints
from clgraft.core.planning.structs import StructConstant
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import ceil_div, round_up

NAME = "gpu_winograd"
FOR_GPUS = True  # a search on a CPU device does not try it
SETTINGS = {"tile", "product", "parts", "chunks"}
PARTS = (1, 2, 4, 8, 16, 32, 64)  # parts of the depth that a search tries
CHUNKS = (1, 4, 16)  # chunks of the tiles that a search tries
FILTER_CHANNELS = 32  # channels of a work-group in the last launch of the weights' gradient, the kernel's CHANNELS
TRANSFORM_ITEMS = (32, 4, 1)  # work-group of a transform: tiles or outputs, channels
WEIGHTS_ITEMS = (16, 16, 1)  # the same where the channels' weights are side by side


def _check(problem: ConvProblem) -> None:
    """Decline what the method does not serve."""
    allowed_tiles(problem.kernel)
    if problem.direction == "backward_bias":
        raise Declined("has no backward_bias")
    if problem.kernel not in TILES or problem.stride != (1, 1) or problem.dilate != (1, 1):
        raise Declined("serves 3 x 3 and 5 x 5 kernels with stride 1, no dilation")
    if problem.dtype == "float64":
        raise Declined("float64 is asked for where rounding matters")
    if not problem.batch:
        raise Declined("no pixels")
    for size in (problem.in_size, problem.out_size):
        if problem.batch * (size[0] + 6) * (size[1] + 6) > LARGEST:
            raise Declined(f"{problem.batch} planes of {size} have more pixels than 2**31")


def candidates(problem: ConvProblem, planner: Planner) -> Iterator[Mapping[str, int | str]]:
    """Return the settings to search: the heuristic's (none), then every tile of the method and of its products.

    The settings are ``tile``, 2 or 4 outputs along an axis, ``product``, rows, columns and depth of a row of gpu_gemm's
    ``tiles.txt``, ``parts`` of the depth (for filters), and ``chunks`` of the tiles.
    """
    _check(problem)
    yield {}
    for chunks in CHUNKS:
        for parts in PARTS if problem.direction == "backward_filter" else (1,):
            for product in (tile for tile in tiles_for(planner.device, 4) if not tile.precision):
                for tile in allowed_tiles(problem.kernel):
                    if chunks <= Shape.of(problem, tile).tiles:
                        yield {"tile": tile, "product": product.name, "parts": parts, "chunks": chunks}


def fuses(problem: ConvProblem, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is served: all of them, forward."""
    return problem.direction == "forward"


def plan(
    problem: ConvProblem,
    planner: Planner,
    settings: Mapping[str, int | str] | None = None,
    epilogue: Epilogue | None = None,
) -> Launches:
    """Plan the transforms and the products, for each chunk of the tiles."""
    _check(problem)
    device = planner.device
    if not settings:
        shape = costs.choose_shape(problem, device)
        chunks = shape.chunks(device)
        choice = choose_product(shape, ceil_div(shape.tiles, chunks), device)
    else:
        if set(settings) != SETTINGS:
            raise Declined(f"got settings {sorted(settings)}, expected {sorted(SETTINGS)}")
        tile = int(settings["tile"])
        if tile not in allowed_tiles(problem.kernel):
            raise Declined(f"got tile {tile}, expected one of {allowed_tiles(problem.kernel)}")
        shape = Shape.of(problem, tile)
        choice, chunks = asked_product(shape, device, settings)
    builder = _WinogradGpuBuilder(problem, planner, shape, choice, chunks, epilogue)
    launches = builder.filters() if shape.gradient else builder.pixels()
    return launches.saving(problem.operations, shape.product(shape.tiles).operations)


class _WinogradGpuBuilder:
    """Lays out the workspace and makes the launches of one problem.

    Rows, columns and depth of the matrices are padded to whole tiles of the product.
    """

    def __init__(
        self,
        problem: ConvProblem,
        planner: Planner,
        shape: Shape,
        choice: TileChoice,
        chunks: int,
        epilogue: Epilogue | None,
    ) -> None:
        self.problem, self.planner, self.shape, self.choice, self.epilogue = problem, planner, shape, choice, epilogue
        self.count = ceil_div(shape.tiles, chunks)  # tiles of a chunk, the last one may have fewer
        self.source, self.target = OPERANDS[problem.direction]
        self.layout = WorkspaceLayout()
        device = planner.device
        most = device.max_work_group_size
        self.items = TRANSFORM_ITEMS if most >= 128 else (most, 1, 1)
        self.filter_channels = min(FILTER_CHANNELS, most // shape.geometry.side)
        self.scalar_items = int(device.vectorizes_items)

    def take(self, matrices: int, rows: int, columns: int) -> Workspace:
        """Reserve a part of the workspace for matrices."""
        return self.layout.take(matrices * rows * columns * 4)

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Return each chunk's first tile and its number of tiles."""
        for first in range(0, self.shape.tiles, self.count):
            yield first, min(self.count, self.shape.tiles - first)

    def part(self, first: int, count: int, pitch: int, filled: int) -> StructConstant:
        return TILE_PART.pack({"first": first, "count": count, "pitch": pitch, "filled": filled})

    def transform(
        self, file: str, name: str, size: tuple[int, int], *arguments: Any, prepares: tuple[int, ...] = ()
    ) -> Launch:
        """Return the launch of a transform over `size` and the groups."""
        g = self.shape.geometry
        defines = {**g.defines(), "VL": g.tile, "SCALAR_ITEMS": self.scalar_items}
        defines.update({"KERNEL_TAPS": self.shape.kernel_taps} if self.shape.pieces > 1 else {})
        defines.update({**GRID.defines(), **TILE_PART.defines()})
        local: tuple[int, ...] = self.items
        if name == "winograd_weights" and self.problem.direction == "forward":
            local = WEIGHTS_ITEMS if self.planner.device.max_work_group_size >= 256 else local
        if name == "winograd_filter":
            defines["CHANNELS"] = self.filter_channels
            local = (self.filter_channels * g.side, 1, 1)
        if name == "winograd_result":
            defines.update(epilogue_defines(self.epilogue))
        kernel = self.planner.kernel(f"conv/winograd_gpu/{file}", name, defines, self.problem.dtype)
        global_size = tuple(round_up(n, items) for n, items in zip((*size, self.shape.groups), local))
        return Launch(kernel, global_size, local, arguments, (self.target,), prepares)

    def product(
        self, a: Workspace, b: Workspace, c: Workspace, sizes: tuple[int, int, int], parts: tuple[int, int]
    ) -> Launch:
        """Return the launch of the products of padded matrices, of `sizes` rows, columns and depth."""
        shape, tile = self.shape, self.choice.tile
        return launch_products(
            self.planner, tile, (a, b, c), (*sizes, shape.matrices), parts, self.target, shape.gradient, {}
        )

    def pixels(self) -> Launches:
        """Return forward or backward data: rows are the target's channels, columns tiles, the depth is channels."""
        shape, tile, problem = self.shape, self.choice.tile, self.problem
        grid, matrices = shape.geometry.argument(), shape.matrices
        rows, depth = round_up(shape.outputs, tile.m), round_up(shape.channels, tile.k)
        pitch = round_up(self.count, tile.n)
        weights, source = self.take(matrices, depth, rows), self.take(matrices, depth, pitch)
        products = self.take(matrices, rows, pitch)
        flip = problem.direction == "backward_data"
        bias = Buffer("b" if problem.bias and not flip else self.source)
        launches = [
            self.transform(
                "transforms.cl",
                "winograd_weights",
                (shape.outputs, depth),
                *(Buffer("w"), weights, *ints(shape.channels, shape.outputs, depth, rows, flip)),
                prepares=(matrices * depth * rows * 4,),
            )
        ]
        for first, count in self.chunks():
            part = self.part(first, count, pitch, count)
            launches += [
                self.transform(
                    "transforms.cl",
                    "winograd_source",
                    (count, depth),
                    *(Buffer(self.source), source, *ints(shape.channels, depth, depth), grid, part),
                ),
                self.product(weights, source, products, (rows, pitch, depth), (1, depth // tile.k)),
                self.transform(
                    "transforms.cl",
                    "winograd_result",
                    (count, shape.outputs),
                    *(products, bias, Buffer(self.target), *ints(problem.bias and not flip), Accumulate(self.target)),
                    *(*ints(shape.outputs, rows), grid, part),
                    *epilogue_arguments(self.epilogue, problem.dtype),
                ),
            ]
        return Launches(tuple(launches), self.layout.nbytes)

    def filters(self) -> Launches:
        """Return backward filter: rows are output channels, columns input channels, the depth is tiles."""
        shape, tile = self.shape, self.choice.tile
        grid, matrices, parts = shape.geometry.argument(), shape.matrices, self.choice.parts
        rows, columns = round_up(shape.outputs, tile.m), round_up(shape.channels, tile.n)
        depth = round_up(self.count, tile.k)
        gradient, source = self.take(matrices, rows, depth), self.take(matrices, columns, depth)
        # every part of every chunk has products of its own
        nbytes = parts * matrices * rows * columns * 4
        chunks = list(self.chunks())
        products = self.layout.take(len(chunks) * nbytes)
        launches = []
        for i, (first, count) in enumerate(chunks):
            part = self.part(first, count, depth, depth)
            own = Workspace(products.offset_bytes + i * nbytes)
            launches += [
                self.transform(
                    "transforms.cl",
                    "winograd_source",
                    (depth, shape.channels),
                    *(Buffer("x"), source, *ints(shape.channels, shape.channels, columns), grid, part),
                ),
                self.transform(
                    "filter.cl",
                    "winograd_gradient",
                    (depth, shape.outputs),
                    *(Buffer("dy"), gradient, *ints(shape.outputs, rows), grid, part),
                ),
                self.product(gradient, source, own, (rows, columns, depth), (parts, self.choice.chunks)),
            ]
        items = self.filter_channels * shape.geometry.side
        launches.append(
            self.transform(
                "filter.cl",
                "winograd_filter",
                (ceil_div(shape.channels, self.filter_channels) * items, shape.outputs),
                *(products, Buffer("dw"), Accumulate("dw")),
                *ints(shape.channels, rows, columns, len(chunks) * parts),
            )
        )
        return Launches(tuple(launches), self.layout.nbytes)
