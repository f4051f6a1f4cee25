"""Convolution by Fourier transforms of tiles of 32 x 32 or 16 x 16 elements on GPUs: stride 1, all directions.

The transforms are launches of their own, with the transformed tiles in the workspace. Each of their points is a product
of complex matrices, computed as a real one of twice the depth, and twice the rows or columns, on the micro kernels and
the tiles of ``gpu_gemm``. Where the workspace would be too large, tiles are taken in chunks, one after the other. The
gradient of the weights has the tiles as its depth, which is split where there are few filters; the parts' sums are
added in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import FFT_PART, GRID
from clgraft.core.operators.conv.fft import costs
from clgraft.core.operators.conv.fft.costs import SIDES, TWINS, Shape
from clgraft.core.operators.conv.gemm_gpu.product import LARGEST, TileChoice
from clgraft.core.operators.conv.gemm_gpu.tiles import candidates as tiles_for
from clgraft.core.operators.conv.gemm_gpu.transformed import OPERANDS, asked_product, choose_product, launch_products
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.epilogue import Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Workspace, ints
from clgraft.core.planning.structs import StructConstant
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import ceil_div, round_up

NAME = "gpu_fft"
FOR_GPUS = True  # a search on a CPU device does not try it
SETTINGS = {"tile", "twin", "product", "parts", "chunks"}
PARTS = (1, 4, 16, 64)  # parts of the depth that a search tries
CHUNKS = (1, 4)  # chunks of the tiles that a search tries
PLANES = (8, 4, 2)  # planes of a work-group
TOGETHER = 2  # matrices of points that are interleaved in memory
FEW = 8  # taps along an axis for which the transforms of weights are shorter
SKEW = 32  # most elements between the rows of two planes in local memory, besides the rows' own


def _check(problem: ConvProblem) -> None:
    """Decline what the method does not serve."""
    if problem.direction == "backward_bias":
        raise Declined("has no backward_bias")
    ones = (1, 1)
    if problem.ndim != 2 or problem.stride != ones or problem.dilate != ones or problem.groups != 1:
        raise Declined("serves two axes with stride 1, no dilation, no groups")
    if problem.dtype == "float64":
        raise Declined("computes in float32")
    if not problem.batch:
        raise Declined("no pixels")
    for size in (problem.in_size, problem.out_size):
        if problem.batch * (size[0] + SIDES[0]) * (size[1] + SIDES[0]) > LARGEST:
            raise Declined(f"{problem.batch} planes of {size} have more pixels than 2**31")


def _planes(side: int, planner: Planner) -> int:
    """Return how many planes a work-group transforms; as many as the device has local memory and work-items for."""
    device = planner.device
    for planes in PLANES:
        nbytes = planes * (side * (side + 1) + SKEW) * 4 + side * 8  # and the angles
        if nbytes <= device.local_memory and planes * side // 2 <= device.max_work_group_size:
            return planes
    raise Declined(f"{device.local_memory} bytes of local memory hold no planes of {side} x {side}")


def candidates(problem: ConvProblem, planner: Planner) -> Iterator[Mapping[str, int | str]]:
    """Return the settings to search: the heuristic's (none), then every tile of the method and of its products.

    The settings are ``tile``, 32 or 16 elements along an axis, ``twin``, ``rows`` or ``columns``: which side of the
    products gives their imaginary parts, ``product``, rows, columns and depth of a row of gpu_gemm's ``tiles.txt``,
    ``parts`` of the depth (for filters), and ``chunks`` of the tiles.
    """
    _check(problem)
    yield {}
    for chunks in CHUNKS:
        for parts in PARTS if problem.direction == "backward_filter" else (1,):
            for product in (tile for tile in tiles_for(planner.device, 4) if not tile.precision):
                for shape in costs.shapes(problem):
                    if chunks <= shape.tiles:
                        yield {
                            **{"tile": shape.side, "twin": shape.twin, "product": product.name},
                            **{"parts": parts, "chunks": chunks},
                        }


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
        side = int(settings["tile"])
        shape = Shape(problem, side, str(settings["twin"]))
        if side not in SIDES or shape.twin not in TWINS or max(problem.kernel) > side or min(shape.step) < 1:
            raise Declined(f"got tile {side}, twin {shape.twin}, expected {SIDES} with room for the kernel, {TWINS}")
        choice, chunks = asked_product(shape, device, settings)
    builder = _FourierBuilder(problem, planner, shape, choice, chunks, epilogue)
    launches = builder.filters() if shape.gradient else builder.pixels()
    return launches.saving(problem.operations, shape.product(shape.tiles).operations)


class _FourierBuilder:
    """Lays out the workspace and makes the launches of one problem.

    Rows, columns and depth of the matrices are padded to whole tiles of the product. Half of the depth are imaginary
    parts; so are half of the rows or columns of the products, those of twins.
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
        self.planes = _planes(shape.side, planner)
        self.layout = WorkspaceLayout()
        self.source, self.target = OPERANDS[problem.direction]
        product, tile = shape.product(self.count), choice.tile
        self.rows, self.columns = round_up(product.rows, tile.m), round_up(product.columns, tile.n)
        self.depth = round_up(product.depth, max(tile.k, 16))  # half of it is whole vectors that are interleaved
        steps = self.depth // tile.k
        self.steps = ceil_div(steps, choice.parts)  # steps of a part
        self.parts = ceil_div(steps, self.steps)
        # rows of A and columns of B in memory
        self.a_rows, self.b_columns = self.rows // shape.twins("rows"), self.columns // shape.twins("columns")
        if TOGETHER * max(self.rows * self.columns, self.rows * self.depth, self.depth * self.columns) > LARGEST:
            raise Declined(f"{TOGETHER} matrices have more than 2**31 elements")

    def take(self, rows: int, columns: int, parts: int = 1) -> Workspace:
        """Reserve a part of the workspace for matrices."""
        return self.layout.take(parts * self.nbytes(rows, columns))

    def nbytes(self, rows: int, columns: int) -> int:
        """Return the bytes of the matrices of all points."""
        return round_up(self.shape.points, TOGETHER) * rows * columns * 4

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Return each chunk's first tile and its number of tiles."""
        for first in range(0, self.shape.tiles, self.count):
            yield first, min(self.count, self.shape.tiles - first)

    def grid(self, of_gradient: bool = False) -> StructConstant:
        """Return the kernels' Grid: the target's pixels over the source, or over those of dy alone."""
        shape = self.shape
        source, begin = (shape.target_size, (0, 0)) if of_gradient else (shape.source_size, shape.begin)
        return GRID.pack(
            {
                **{"batch": self.problem.batch, "size": (1, *shape.target_size), "source": (1, *source)},
                **{"taps": (1, *self.problem.kernel), "stride": (1, 1, 1), "begin": (0, *begin), "step": (1, 1, 1)},
            }
        )

    def part(
        self,
        matrix: tuple[int, int],
        tiles: tuple[int, int, int] = (0, 0, 0),
        extent: tuple[int, ...] | None = None,
    ) -> StructConstant:
        """Return the kernels' FftPart: `matrix` is its rows and columns, `tiles` the first one, their count, filled."""
        step = self.shape.step
        extent = extent or (self.shape.side, self.shape.side)
        first, count, filled = tiles
        return FFT_PART.pack(
            {
                **{"first": first, "count": count, "filled": filled, "rows": matrix[0], "pitch": matrix[1]},
                **{"step_h": step[0], "step_w": step[1], "extent_h": extent[0], "extent_w": extent[1]},
                **dict(zip(("down", "across"), map(ceil_div, self.shape.target_size, step))),
            }
        )

    def product_part(self, tiles: tuple[int, int, int] = (0, 0, 0)) -> StructConstant:
        """Return the kernels' FftPart of products, half of whose rows or columns are imaginary parts."""
        return self.part((self.rows, self.columns), tiles)

    def transform(self, name: str, size: tuple[int, int], *arguments: Any, prepares: tuple[int, ...] = ()) -> Launch:
        """Return the launch of a transform over `size` planes: those of a row of a matrix, and rows."""
        side = self.shape.side
        defines = {"SIDE": side, "PLANES": self.planes, "TOGETHER": TOGETHER, **GRID.defines(), **FFT_PART.defines()}
        if name in ("fft_weights", "fft_filter"):
            defines["USED"] = FEW if max(self.problem.kernel) <= FEW else side
        if name in ("fft_result", "fft_filter"):
            defines["TWIN_ROWS"] = int(self.shape.twin == "rows")
        if name == "fft_result":
            defines.update(epilogue_defines(self.epilogue))
        kernel = self.planner.kernel("conv/fft/gpu.cl", name, defines, self.problem.dtype)
        threads = self.planes * self.shape.side // 2
        global_size = (ceil_div(size[0], self.planes) * threads, size[1], 1)
        return Launch(kernel, global_size, (threads, 1, 1), arguments, (self.target,), prepares)

    def product(self, a: Workspace, b: Workspace, c: Workspace) -> Launch:
        """Return the launch of the products."""
        shape, sizes = self.shape, (self.rows, self.columns, self.depth, self.shape.points)
        defines = {"INTERLEAVED": TOGETHER, "TWINS": 1 + ("rows", "columns").index(shape.twin)}
        parts = self.parts, self.steps
        return launch_products(
            self.planner, self.choice.tile, (a, b, c), sizes, parts, self.target, shape.gradient, defines
        )

    def pixels(self) -> Launches:
        """Return forward or backward data: rows are the target's channels, columns tiles, the depth is channels."""
        shape, problem, channels = self.shape, self.problem, self.depth // 2
        of_a, of_b = (channels, 2 * self.a_rows), (channels, 2 * self.b_columns)
        weights, source, products = self.take(*of_a), self.take(*of_b), self.take(self.rows, self.columns)
        flip = problem.direction == "backward_data"
        has_bias = problem.bias and not flip
        bias = Buffer("b" if has_bias else self.source)  # without a bias, this is never read
        launches = [
            self.transform(
                "fft_weights",
                (shape.outputs, channels),
                *(Buffer("w"), weights, *ints(shape.channels, shape.outputs, flip), self.grid()),
                self.part(of_a),
                prepares=(self.nbytes(*of_a),),
            )
        ]
        for first, count in self.chunks():
            tiles = first, count, count
            launches += [
                self.transform(
                    "fft_pixels",
                    (count, channels),
                    *(Buffer(self.source), source, *ints(shape.channels), self.grid()),
                    self.part(of_b, tiles),
                ),
                self.product(weights, source, products),
                self.transform(
                    "fft_result",
                    (count, shape.outputs),
                    *(products, bias, Buffer(self.target), *ints(has_bias), Accumulate(self.target)),
                    *(*ints(shape.outputs), self.grid(), self.product_part(tiles)),
                    *epilogue_arguments(self.epilogue, problem.dtype),
                ),
            ]
        return Launches(tuple(launches), self.layout.nbytes)

    def filters(self) -> Launches:
        """Return backward filter: rows are output channels, columns input channels, the depth is tiles."""
        shape, parts, half = self.shape, self.parts, self.depth // 2
        of_a, of_b = (self.a_rows, self.depth), (self.b_columns, self.depth)
        gradient, source = self.take(*of_a), self.take(*of_b)
        # every part of every chunk has products of its own
        chunks = list(self.chunks())
        products = self.take(self.rows, self.columns, len(chunks) * parts)
        launches = []
        for i, (first, count) in enumerate(chunks):
            tiles = first, count, half
            own = Workspace(products.offset_bytes + i * parts * self.nbytes(self.rows, self.columns))
            launches += [
                self.transform(
                    "fft_pixels",
                    (half, shape.channels),
                    *(Buffer("x"), source, *ints(shape.channels), self.grid()),
                    self.part(of_b, tiles),
                ),
                self.transform(
                    "fft_pixels",
                    (half, shape.outputs),
                    *(Buffer("dy"), gradient, *ints(shape.outputs), self.grid(of_gradient=True)),
                    self.part(of_a, tiles, shape.step),
                ),
                self.product(gradient, source, own),
            ]
        launches.append(
            self.transform(
                "fft_filter",
                (shape.channels, shape.outputs),
                *(products, Buffer("dw"), Accumulate("dw"), *ints(shape.channels, len(chunks) * parts)),
                *(self.grid(), self.product_part()),
            )
        )
        return Launches(tuple(launches), self.layout.nbytes)
