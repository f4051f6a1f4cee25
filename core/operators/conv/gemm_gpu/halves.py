"""Convolution with operands of 16 bits on GPUs' matrix units (``kernels/conv/gemm_gpu/halves.cl``).

Forward, backward data (a product for each phase of the stride) and backward filter, in channels last: operands are read
as they lie in memory, by vectors of eight channels. Other numbers of channels are padded by a copy, and tensors in
channels first are transposed before and after.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

from clgraft.core.errors import Declined
from clgraft.core.operators.channels_last.transposes import through
from clgraft.core.operators.conv.arguments import DIVISORS, GRID, STRIDE_PHASE, TAPS, TARGET
from clgraft.core.operators.conv.gemm_gpu import halves_stream
from clgraft.core.operators.conv.gemm_gpu.checks import check_sizes
from clgraft.core.operators.conv.gemm_gpu.constants import HALVES_DEPTH, TABLE
from clgraft.core.operators.conv.gemm_gpu.first_layers import Blocks, unfold, unfolded, unfolds
from clgraft.core.operators.conv.gemm_gpu.halves_costs import (
    SPLIT_BYTES,
    VECTOR,
    Choice,
    PhaseChoice,
    adding,
    choose,
    choose_phases,
    windows_cycles,
)
from clgraft.core.operators.conv.gemm_gpu.halves_stream import Stream, choose_stream, with_memory
from clgraft.core.operators.conv.gemm_gpu.halves_tiles import (
    LEAST_REGISTERS,
    RESERVED,
    ROWS,
    HalvesTile,
    Product,
    fitting,
    local_memory,
    places,
)
from clgraft.core.operators.conv.gemm_gpu.halves_windows import Windows
from clgraft.core.operators.conv.gemm_gpu.merge_groups import merged, merges, with_merged_weights
from clgraft.core.operators.conv.gemm_gpu.product import LARGEST
from clgraft.core.operators.conv.grid import (
    Grid,
    backward_data_grids,
    forward_grid,
    shared_phases,
)
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.epilogue import Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.halves import LANES, WARPGROUP, WGMMA, name_of
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import (
    Accumulate,
    Buffer,
    Launch,
    Launches,
    Sums,
    Tickets,
    WantedSums,
    Workspace,
    ints,
)
from clgraft.core.planning.structs import StructConstant
from clgraft.core.planning.tensor_map import TensorMap
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import SMALL, ceil_div, in_3d, round_up
from clgraft.core.problem.layout import LAST

if TYPE_CHECKING:
    from clgraft.core.planning.device import DeviceInfo

FILE, WINDOWS_FILE = "conv/gemm_gpu/halves.cl", "conv/gemm_gpu/halves_windows.cl"
PHASES_FILE = "conv/gemm_gpu/halves_phases.cl"
FEWEST_CHANNELS = 16  # of a group, of inputs and outputs together: with fewer, most of a tile is empty
MOST_STAGES = 4  # steps whose weights are in local memory, with windows
SUMMING = 128  # work-items of a work-group that adds the sums of parts, as the kernel has it
FULL = 0.7  # share of the tiles' columns that are there, from which on sums in them cost less than another pass
MOST_SUMMED = 128  # columns of a tile whose sums work-items keep from phase to phase
REGISTERS_OF_SUMS = 128  # of a work-item that adds up gradients while it stores them: with fewer it spills
SLICES = (16, 8, 4, 2, 1)  # of the parts, which work-items add side by side
MOST_GROUPS = 2**16 - 1  # they are an axis of launches, and devices limit its work-groups
BULK = "bulk-"  # in front of a tile whose operands are copied as boxes, in settings
BOX_ROWS = 128  # of the boxes of larger tiles, as the kernel has it
BULK_WARP = 32  # work-items more of its work-groups, as the kernel has it
MOST_PHASES = 9  # of a stride in one launch: they are a kernel argument
PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # of the depth that a search tries


@dataclass
class Leaving:
    """The sums that one launch is to leave for a batch norm, and the number of tiles of rows of those that do."""

    wanted: WantedSums
    tiles: list[int] = field(default_factory=list)


def serves(tile: HalvesTile, problem: ConvProblem) -> bool:
    """Return whether a tile has whole blocks of columns: forward alone reads rows of them as they are."""
    return tile.n % 64 == 0 or problem.direction == "forward"


class Halves:
    """Convolutions in channels last by one kind of matrix units: ``wgmma``, ``mma`` and others."""

    FOR_GPUS = True  # a search on a CPU device does not try it

    def __init__(self, units: str) -> None:
        self.NAME, self.units = f"gpu_halves_{units}", units

    def candidates(self, problem: ConvProblem, planner: Planner) -> Iterator[Mapping[str, int | str]]:
        """Return the settings to search: the heuristic's (none), then every tile, whole and in parts."""
        yield {}
        for tile in fitting(self.units, planner.device):
            if not serves(tile, problem):
                continue
            if tile.slower_windows:
                yield {"tile": f"windows-{tile.name}", "parts": 1}
            if tile.slower_stream:
                yield {"tile": f"stream-{tile.name}", "parts": 1}
            for parts in PARTS:
                if tile.slower:
                    yield {"tile": tile.name, "parts": parts}
                if tile.factor(True, problem.direction == "backward_filter") and planner.device.has_bulk_copies:
                    yield {"tile": f"{BULK}{tile.name}", "parts": parts}

    def fuses(self, problem: ConvProblem, epilogue: Epilogue) -> bool:
        """Return whether an epilogue is served: all of them, forward and of data gradients."""
        return problem.direction in ("forward", "backward_data")

    def plan(
        self,
        problem: ConvProblem,
        planner: Planner,
        settings: Mapping[str, int | str] | None = None,
        epilogue: Epilogue | None = None,
    ) -> Launches:
        """Plan the products of one direction, and copies with padded channels, or from channels first and back."""
        counts = self._groups(problem, planner)
        last = replace(problem, layout=LAST)
        launches = self._planned(last, counts, planner, settings or {}, epilogue)
        return launches if problem.layout == LAST else through(problem, planner, launches, epilogue)

    def plan_sums(
        self,
        problem: ConvProblem,
        planner: Planner,
        wanted: WantedSums,
        settings: Mapping[str, int | str] | None = None,
        epilogue: Epilogue | None = None,
    ) -> Sums:
        """Plan forward or backward data with one launch whose tiles of rows leave the sums of a batch norm."""
        if problem.direction != ("backward_data" if wanted.gradient else "forward") or problem.layout != LAST:
            raise Declined("leaves sums in channels last, forward for norms and backward data for their gradients")
        if epilogue is not None and (not wanted.gradient or set(epilogue.scalars) & set(wanted.scalars)):
            raise Declined("leaves sums with epilogues in backward data, whose scalars have other names")
        leaving = Leaving(wanted)
        launches = self._planned(problem, self._groups(problem, planner), planner, settings or {}, epilogue, leaving)
        if len(leaving.tiles) != 1:
            raise Declined(f"{len(leaving.tiles)} launches leave sums, expected one")
        return Sums(launches, leaving.tiles[0], problem.in_channels if wanted.gradient else problem.out_channels)

    def check(self, problem: ConvProblem, planner: Planner) -> None:
        """Decline what is not served, without planning it."""
        self._groups(problem, planner)
        if not any(serves(tile, problem) for tile in fitting(self.units, planner.device)):
            raise Declined(f"no tile of {ROWS.name} has room on {planner.device.name}")

    def _groups(self, problem: ConvProblem, planner: Planner) -> list[int]:
        """Return how many groups may be one; decline what is not served."""
        if problem.direction == "backward_bias":
            raise Declined("has no backward_bias")
        if problem.dtype not in SMALL:
            raise Declined("is for 16 bits")
        if not self.runs_on(planner.device, problem.dtype):
            raise Declined(f"needs matrix units with {self.units}")
        counts = list(merges(problem, VECTOR, FEWEST_CHANNELS))
        if not counts:
            raise Declined(
                f"groups, or several together, have multiples of {VECTOR} channels, {FEWEST_CHANNELS} or more"
            )
        check_sizes(problem)
        if problem.groups > MOST_GROUPS:
            raise Declined(f"has {problem.groups} groups, expected at most {MOST_GROUPS}")
        largest = max(problem.in_channels * prod(problem.in_size), problem.out_channels * prod(problem.out_size))
        if largest > LARGEST:
            raise Declined(f"an image has {largest} elements, expected at most {LARGEST}")
        return counts

    def _planned(
        self,
        problem: ConvProblem,
        counts: list[int],
        planner: Planner,
        settings: Mapping[str, int | str],
        epilogue: Epilogue | None,
        leaving: Leaving | None = None,
    ) -> Launches:
        """Plan a problem in channels last: as it is, or as another one with more channels.

        Parameters
        ----------
        counts : list of int
            Groups that may be one.
        leaving : Leaving, optional
            The sums that one launch leaves; without it none does.
        """
        blocks = list(Blocks.all_of(problem)) if problem.in_channels % VECTOR else []
        if blocks:
            if epilogue is not None:
                raise Declined("has no epilogue of few channels' data gradients")
            best = min(blocks, key=lambda each: self._time(each.convolution, planner.device))
            inner = _HalvesBuilder(best.convolution, planner, self.units, settings, None).planned()
            return best.around(planner, inner)
        if unfolds(problem, VECTOR, LARGEST):
            rows = unfolded(problem)
            return _HalvesBuilder(rows, planner, self.units, settings, epilogue, problem, leaving).planned()
        count = counts[0]
        if counts[1:]:
            count = min(counts, key=lambda each: self._time(merged(problem, each), planner.device))
        whole = merged(problem, count)
        launches = _HalvesBuilder(whole, planner, self.units, settings, epilogue, leaving=leaving).planned()
        return launches if count == 1 else with_merged_weights(problem, count, planner, launches)

    def _time(self, problem: ConvProblem, device: DeviceInfo) -> float:
        """Estimate the time of a problem as one product, by which numbers of groups are compared."""
        inputs, outputs = problem.in_channels // problem.groups, problem.out_channels // problem.groups
        pixels, taps = problem.batch * prod(problem.out_size), prod(problem.kernel)
        product = {
            "forward": Product(pixels, outputs, taps * inputs, problem.groups),
            "backward_data": Product(pixels, inputs, taps * outputs, problem.groups),
            "backward_filter": Product(outputs, taps * inputs, pixels, problem.groups),
        }[problem.direction]
        return choose(product, fitting(self.units, device), device.compute_units).time

    def runs_on(self, device: DeviceInfo, dtype: str) -> bool:
        """Return whether a device has the units for a type, or is to compute what they compute (in tests)."""
        return name_of(self.units, dtype) in device.halves


class _HalvesBuilder:
    """Collects the launches of a problem, and lays out their workspace."""

    def __init__(
        self,
        problem: ConvProblem,
        planner: Planner,
        units: str,
        settings: Mapping[str, int | str],
        epilogue: Epilogue | None,
        rows_of: ConvProblem | None = None,  # the problem whose rows of taps are channels
        leaving: Leaving | None = None,
    ) -> None:
        self.leaving = leaving
        self.rows_of = rows_of
        self.problem, self.planner, self.epilogue = problem, planner, epilogue
        self.settings = settings
        if settings and set(settings) != {"tile", "parts"}:
            raise Declined(f"got settings {sorted(settings)}, expected tile and parts")
        self.tiles = [tile for tile in fitting(units, planner.device) if serves(tile, problem)]
        self.room = local_memory(units, planner.device)
        self.native = units in planner.device.matrix_units  # or what they compute through local memory
        self.common = {
            **GRID.defines(),
            **TARGET.defines(),
            **TAPS.defines(),
            **DIVISORS.defines(),
            "VL": 8,
            "SCALAR_ITEMS": int(planner.device.vectorizes_items),
            "EMULATED": int(not self.native),
        }
        self.layout = WorkspaceLayout()
        self.launches: list[Launch] = []
        self.groups = problem.groups
        self.inputs, self.outputs = problem.in_channels // problem.groups, problem.out_channels // problem.groups
        *_, result = problem.arguments()
        self.result = result.name

    def planned(self) -> Launches:
        """Return the launches of the problem's direction."""
        problem = self.problem
        taps = prod(problem.kernel)
        if problem.direction == "backward_filter":
            dy, outputs = self.padded("dy", problem.batch * prod(problem.out_size), self.outputs)
            x, inputs = self.padded("x", problem.batch * prod(problem.in_size), self.inputs)
            self.filter_product(dy, x, outputs * problem.groups, inputs)
        elif problem.direction == "forward":
            x, inputs = self.padded("x", problem.batch * prod(problem.in_size), self.inputs)
            w, _ = self.padded("w", problem.out_channels * taps, self.inputs)
            self.pixel_product("FORWARD", forward_grid(problem), x, w, self.outputs, inputs)
        else:
            dy, outputs = self.padded("dy", problem.batch * prod(problem.out_size), self.outputs)
            if outputs != self.outputs:
                raise Declined(f"backward data is for multiples of {VECTOR} output channels")
            w, inputs = self.padded("w", problem.out_channels * taps, self.inputs)
            if inputs != self.inputs:
                raise Declined(f"backward data is for multiples of {VECTOR} input channels")
            grids = [grid for grid in backward_data_grids(problem) if grid.pixels]
            if not self.phases_product(grids, dy, w, outputs):
                for grid in grids:
                    self.pixel_product("DATA", grid, dy, w, self.inputs, outputs)
        return Launches(tuple(self.launches), self.layout.nbytes)

    def padded(self, name: str, rows: int, channels: int) -> tuple[Buffer | Workspace, int]:
        """Return where an operand's rows of channels are multiples of a vector, and the channels there."""
        count = round_up(channels, VECTOR)
        if self.rows_of is not None and name == "x":
            to = self.layout.take(rows * count * 2, 2)
            if rows:
                self.launches.append(unfold(self.rows_of, self.planner, to, VECTOR, self.result))
            return to, count
        if count == channels:
            return Buffer(name), channels
        to = self.layout.take(rows * count * 2, 2)
        if rows:
            self.launches.append(
                Launch(
                    self.kernel("conv_pad_channels", {"OPERATION": TABLE["FORWARD"]}),
                    (count // VECTOR * rows,),
                    None,
                    (Buffer(name), to, *ints(channels, count)),
                    (self.result,),
                    (rows * count * 2,),
                )
            )
        return to, count

    def kernel(self, name: str, defines: Mapping[str, Any], options: tuple[str, ...] = (), file: str = FILE) -> Any:
        return self.planner.kernel(file, name, {**self.common, **defines}, self.problem.dtype, options)

    def launch_tiles(
        self,
        file: str,
        name: str,
        defines: Mapping[str, Any],
        tile: HalvesTile,
        busy: int,
        groups: tuple[int, ...],
        arguments: tuple[Any, ...],
    ) -> None:
        """Add a launch whose work-groups, so many along each axis, have tiles; `busy` of them share a unit."""
        items = tile.threads + (BULK_WARP if self.native and defines.get("BULK") else 0)
        kernel = self.kernel(name, defines, self.registers_of(tile, items, busy), file)
        size = (groups[0] * items, *groups[1:])
        group = (items, *(1 for _ in groups[1:]))
        self.launches.append(Launch(kernel, size, group, arguments, (self.result,)))

    def choose(self, product: Product, walks: bool = False, bulk: bool = False) -> Choice:
        """Choose a product's tile and parts, or take them from the settings.

        `bulk`: operands may be copied as boxes.
        """
        units = self.planner.device.compute_units
        if not self.settings:
            return choose(product, self.tiles, units, walks, bulk)
        name, parts = str(self.settings["tile"]), int(self.settings["parts"])
        bulk = bulk and name.startswith(BULK)
        name = name[len(BULK) :] if bulk else name
        fit = (tile for tile in self.tiles if tile.name == name and tile.factor(bulk, product.by_depth))
        tile = next(fit, None)
        if tile is None or parts < 1:
            raise Declined(f"no tile {name} of {ROWS.name} in {parts} parts suits {self.planner.device.name}")
        steps = ceil_div(product.steps, parts)
        parts = ceil_div(product.steps, steps) if steps else 1
        if parts > 1 and parts * product.rows * product.columns * product.groups * 4 > SPLIT_BYTES:
            raise Declined(f"the sums of {parts} parts are more than {SPLIT_BYTES} bytes")
        return Choice(tile, parts, steps, joined=parts > 1 and adding(product, tile, parts)[1], bulk=bulk)

    def copies_boxes(self, product: Product, grid: Grid) -> bool:
        """Return whether boxes of both operands, matrices in place, can be copied."""
        plain = grid.plain and product.groups == 1 and product.depth > 0
        return plain and self.planner.device.has_bulk_copies

    def boxes(self, operation: str, product: Product, tile: HalvesTile, row_step: int) -> tuple[Any, ...]:
        """Return the maps of both operands (``kernels/conv/gemm_gpu/micro/bulk.cl``)."""
        rows, columns, depth = product.rows, product.columns, product.depth
        box_m, box_n = (size if size % BOX_ROWS else BOX_ROWS for size in (tile.m, tile.n))
        a, b = TensorMap(depth, rows, depth, box_m), TensorMap(depth, columns, depth, box_n)
        if operation != "FORWARD":
            b = TensorMap(columns, depth, columns, HALVES_DEPTH)
        if operation == "FILTER":
            a = TensorMap(rows, depth, row_step, HALVES_DEPTH)
        return tuple(map(self.tensor_map, (a, b)))

    def weight_boxes(self, product: Product, tile: HalvesTile, channels: int) -> TensorMap | None:
        """Return the boxes of weights in backward data; None where work-items copy them."""
        whole = product.groups == 1 and product.depth > 0 and channels % HALVES_DEPTH == 0
        if not (whole and tile.slower_weights and self.planner.device.has_bulk_copies):
            return None
        columns = prod(self.problem.kernel) * product.columns
        return TensorMap(columns, channels, columns, HALVES_DEPTH)

    def tensor_map(self, matrix: TensorMap) -> StructConstant:
        """Return a map as the device's copy engine takes it, or as kernels that compute what that does."""
        return self.planner.tensor_map(matrix) if self.native else matrix.as_numbers()

    def pixel_product(self, operation: str, grid: Grid, source: Any, weights: Any, columns: int, channels: int) -> None:
        """Add forward, or a phase of backward data: rows are pixels, columns the result's channels."""
        if not grid.pixels:
            return
        product = Product(grid.pixels, columns, channels * grid.taps, self.groups)
        if self.windows_product(operation, product, grid, source, weights, channels):
            return
        if self.stream_product(operation, product, grid, source, weights, channels):
            return
        self.product(operation, product, grid, (source, weights), channels, 0, columns, columns)

    def phases_product(self, grids: list[Grid], dy: Any, weights: Any, channels: int) -> bool:
        """Add all phases of backward data in one launch, unless there is one alone, or too many; say whether."""
        if not 1 < len(grids) <= MOST_PHASES or (self.settings and int(self.settings["parts"]) > 1):
            return False
        products = [Product(grid.pixels, self.inputs, channels * grid.taps, self.groups) for grid in grids]
        choice = self.choose_phases(products)
        tile, problem = choice.tile, self.problem
        self.expect_sums(products[0], tile)
        shared, phases = shared_phases([grids[index] for index in choice.order])
        defines = {
            **tile.defines(),
            **STRIDE_PHASE.defines(),
            "OPERATION": TABLE["DATA"],
            "PHASES": len(grids),
            "WHOLE": int(channels % HALVES_DEPTH == 0),
            "BOUNDED": int(not all(grid.inside for grid in phases)),
            "AXES": max(grid.used_axes for grid in phases),
            **epilogue_defines(self.epilogue),
            **self.sums_defines(),
        }
        tiles = ceil_div(shared.pixels, tile.m) * ceil_div(self.inputs, tile.n)
        arguments = (
            *(dy, weights, Buffer("dx"), Accumulate("dx")),
            *ints(shared.pixels, self.inputs, channels, self.groups, choice.of_set),
            *(shared.argument(), shared.target_argument(), shared.taps_argument(in_3d(problem.kernel, 1))),
            *(shared.divisors_argument(), StructConstant(b"".join(grid.phase_values() for grid in phases))),
            *epilogue_arguments(self.epilogue, problem.dtype),
            *self.sums_arguments(ceil_div(shared.pixels, tile.m) * ceil_div(len(grids), choice.of_set)),
        )
        groups = (tiles, ceil_div(len(grids), choice.of_set), self.groups)
        self.launch_tiles(PHASES_FILE, "conv_phases_halves", defines, tile, tile.busy, groups, arguments)
        return True

    def choose_phases(self, phases: list[Product]) -> PhaseChoice:
        """Choose the tile and the sets of phases, or take the tile from the settings."""
        tiles = [self.choose(phases[0]).tile] if self.settings else self.tiles
        if self.leaving is not None:
            tiles = [tile for tile in tiles if tile.n <= MOST_SUMMED]
        return choose_phases(phases, tiles, self.planner.device.compute_units)

    def windows_product(
        self, operation: str, product: Product, grid: Grid, source: Any, weights: Any, channels: int
    ) -> bool:
        """Add a product of windows if it is expected to be faster; say whether."""
        windows = Windows.of(grid)
        if windows is None:
            return False
        positions = replace(product, rows=grid.batch * windows.pitch * windows.lines)
        if positions.rows > LARGEST - 2**16:
            return False
        choice = self.choose_windows(windows, positions, product, channels)
        if choice is None:
            return False
        tile, stages, busy = choice
        self.expect_sums(product, tile)
        problem, result = self.problem, self.result
        has_bias = int(problem.direction == "forward" and problem.bias)
        defines = {
            **tile.defines(),
            "OPERATION": TABLE[operation],
            "STAGES": stages,
            "SOURCES": 2 if channels > HALVES_DEPTH else 1,
            "SOURCE_ROWS": windows.source_rows(tile),
            "DENSE": 1,
            **epilogue_defines(self.epilogue),
            **self.sums_defines(),
        }
        tiles = ceil_div(positions.rows, tile.m) * ceil_div(product.columns, tile.n) * product.groups
        arguments = (
            *(source, weights, Buffer("b" if has_bias else result), Buffer(result)),
            *(*ints(has_bias), Accumulate(result), *ints(positions.rows, product.columns, channels)),
            *(*ints(windows.pitch, windows.lines, product.groups), grid.argument()),
            grid.taps_argument(in_3d(problem.kernel, 1)),
            *epilogue_arguments(self.epilogue, problem.dtype),
            *self.sums_arguments(ceil_div(positions.rows, tile.m)),
        )
        self.launch_tiles(WINDOWS_FILE, "conv_windows_halves", defines, tile, busy, (tiles,), arguments)
        return True

    def registers_of(self, tile: HalvesTile, items: int, busy: int) -> tuple[str, ...]:
        """Return the compiler's option that lets a unit have so many work-groups, if work-items do with the registers.

        A work-item has at least those that its sums and products need: fewer work-groups share a unit then.
        """
        registers = self.planner.device.registers if self.native else 0
        if not registers:
            return ()
        least = tile.sums + LEAST_REGISTERS
        if self.leaving is not None and self.leaving.wanted.gradient:
            least = max(least, REGISTERS_OF_SUMS)
        shared = registers // (round_up(items, WARPGROUP) * busy) // 8 * 8
        return (f"-cl-nv-maxrregcount={min(255, max(least, shared))}",)

    def stream_product(
        self, operation: str, product: Product, grid: Grid, source: Any, weights: Any, channels: int
    ) -> bool:
        """Add a product by work-groups that walk over tiles if it is expected to be faster; say whether."""
        if self.leaving is not None:  # its store waits longer for what sums need
            return False
        if not grid.plain and (operation != "FORWARD" or channels % HALVES_DEPTH == 0):
            return False  # steps with one tap are no slower without walks
        stream = self.choose_stream(product, grid)
        if stream is None:
            return False
        tile, problem, result = stream.tile, self.problem, self.result
        has_bias = int(problem.direction == "forward" and problem.bias)
        defines = {
            **stream.defines(),
            "OPERATION": TABLE[operation],
            "DENSE": 1,
            "PLAIN": int(grid.plain),
            "BOUNDED": int(not grid.inside),
            "AXES": grid.used_axes,
            "ROUNDED": int(stream.rounded),
            **epilogue_defines(self.epilogue),
        }
        arguments = (
            *(source, weights, Buffer("b" if has_bias else result), Buffer(result)),
            *(*ints(has_bias), Accumulate(result)),
            *ints(product.rows, product.columns, channels, product.groups, stream.walkers),
            *(() if grid.plain else (grid.argument(), grid.divisors_argument())),
            *epilogue_arguments(self.epilogue, problem.dtype),
        )
        groups = (ceil_div(product.columns, tile.n) * stream.walkers, 1, product.groups)
        self.launch_tiles(halves_stream.FILE, halves_stream.KERNEL, defines, tile, stream.busy, groups, arguments)
        return True

    def choose_stream(self, product: Product, grid: Grid) -> Stream | None:
        """Choose how work-groups walk, or take the tile from the settings; None where others are faster."""
        device, tiles = self.planner.device, self.tiles
        pixels = grid.batch * prod(axis.source for axis in grid.axes)  # of the source
        moved = product.groups * (pixels * (product.depth // max(1, grid.taps)) + product.rows * product.columns)
        rounded = self.epilogue is None and not (self.problem.direction == "forward" and self.problem.bias)
        if self.settings:
            tiles = [tile for tile in tiles if f"stream-{tile.name}" == self.settings["tile"]]
            return choose_stream(product, moved, tiles, device, rounded, not grid.plain)
        found = choose_stream(product, moved, tiles, device, rounded, not grid.plain)
        if found is None:
            return None
        bulk = self.copies_boxes(product, grid)
        usual = choose(product, tiles, device.compute_units, bulk=bulk).time
        there = places(found.tile.units, device.compute_units)
        return found if found.time < with_memory(usual, moved, there, walks=False) else None

    def expect_sums(self, product: Product, tile: HalvesTile, split: bool = False) -> None:
        """Decline sums of a tile where another launch has its results, or another pass over them is faster."""
        if self.leaving is not None and (split or product.columns < FULL * round_up(product.columns, tile.n)):
            raise Declined("leaves sums of tiles that are nearly full, and that have the whole depth")

    def sums_defines(self) -> dict[str, Any]:
        """Return the macros of a kernel that leaves sums of its tiles of rows."""
        return {} if self.leaving is None else {**self.leaving.wanted.defines, "BIASED": int(self.problem.bias)}

    def sums_arguments(self, tiles: int) -> tuple[Any, ...]:
        """Return the last arguments of a kernel that leaves sums, and note how many tiles do."""
        if self.leaving is None:
            return ()
        self.leaving.tiles.append(tiles)
        return self.leaving.wanted.arguments

    def choose_windows(
        self, windows: Windows, positions: Product, product: Product, channels: int
    ) -> tuple[HalvesTile, int, int] | None:
        """Return the tile, the stages and the work-groups of a unit of the fastest product by windows.

        None where a product without windows is faster.
        """
        device = self.planner.device
        best = None if self.settings else choose(product, self.tiles, device.compute_units).time
        found = None
        for tile in self.tiles:
            if not tile.slower_windows:
                continue
            if self.settings and f"windows-{tile.name}" != self.settings["tile"]:
                continue
            source = windows.source_bytes(tile, channels)
            for busy in (2, 1) if tile.busy > 1 else (1,):
                room = self.room // busy - RESERVED - source
                stages = min(MOST_STAGES, windows.taps + 1, room // (tile.n * HALVES_DEPTH * 2))
                if stages < tile.pending + 2 or tile.with_sums(0) + source > self.room // busy:
                    continue
                time = windows_cycles(windows, positions, tile, busy, device.compute_units)
                if best is None or time < best:
                    best, found = time, (tile, stages, busy)
        return found

    def filter_product(self, dy: Any, x: Any, row_step: int, inputs: int) -> None:
        """Add backward filter: the depth is dy's pixels, which are `row_step` elements apart."""
        grid = forward_grid(self.problem)
        product = Product(self.outputs, inputs * grid.taps, grid.pixels, self.groups, by_depth=True)
        self.product("FILTER", product, grid, (dy, x), inputs, row_step, inputs, self.inputs)

    def product(
        self,
        operation: str,
        product: Product,
        grid: Grid,
        operands: tuple[Any, Any],
        channels: int,
        row_step: int,
        wide: int,
        kept: int,
    ) -> None:
        """Add a product, and what adds the sums of its parts. `kept` of `wide` channels of a tap are the result's."""
        choice = self.choose(product, operation == "FILTER" and not grid.plain, self.copies_boxes(product, grid))
        split, joined = choice.parts > 1 or kept < wide, choice.joined and kept == wide
        self.expect_sums(product, choice.tile, split and not joined)
        weights = None
        if operation == "DATA" and not choice.bulk:
            weights = self.weight_boxes(product, choice.tile, channels)
        dense = {
            "DENSE": int(all(a.size == a.target and (a.target_stride, a.target_begin) == (1, 0) for a in grid.axes))
        }
        defines = {
            **choice.tile.defines(),
            "OPERATION": TABLE[operation],
            "SPLIT": int(split),
            "JOINED": choice.parts * joined,
            "BOUNDED": int(not grid.inside),
            "PLAIN": int(grid.plain),
            "AXES": grid.used_axes,
            "WHOLE": int(operation != "FILTER" and channels % HALVES_DEPTH == 0),
            **dense,
            **({"BULK": 1} if choice.bulk else {"WEIGHT_BOXES": 1} if weights else {}),
        }
        problem, result = self.problem, self.result
        has_bias = int(problem.direction == "forward" and problem.bias)
        finish = (Buffer("b" if has_bias else result), Buffer(result))
        sizes = (product.rows, product.columns)
        last = epilogue_arguments(self.epilogue, problem.dtype)
        place, divisors = grid.target_argument(), grid.divisors_argument()
        fused = {**epilogue_defines(self.epilogue), **self.sums_defines()}
        sums: tuple[Any, ...] = ()
        tiles = ceil_div(product.rows, choice.tile.m) * ceil_div(product.columns, choice.tile.n)
        if split:
            elements = tiles * choice.tile.m * choice.tile.n if joined else product.rows * product.columns
            sums = (self.layout.take(choice.parts * product.groups * elements * 4, 4),)
        finishes = joined or not split
        arguments = (
            *(self.boxes(operation, product, choice.tile, row_step) if choice.bulk else ()),
            *((self.tensor_map(weights),) if weights else ()),
            *operands,
            *(*sums, *(finish if finishes else ())),
            *(*ints(has_bias), Accumulate(result), *ints(*sizes, product.depth, channels, row_step)),
            *(*ints(choice.steps, product.groups), grid.argument(), place),
            *(grid.taps_argument(in_3d(problem.kernel, 1)), divisors),
            *((Tickets(),) if joined else ()),
            *((*last, *self.sums_arguments(ceil_div(product.rows, choice.tile.m))) if finishes else ()),
        )
        groups = (tiles, choice.parts, product.groups)
        defines.update(fused if finishes else {})
        self.launch_tiles(FILE, "conv_gemm_halves", defines, choice.tile, choice.tile.busy, groups, arguments)
        if not finishes:
            slices = next(count for count in SLICES if count <= max(1, choice.parts // 4))
            items = round_up(ceil_div(product.columns, VECTOR) * product.rows, SUMMING // slices) * slices
            numbers = (*sizes, choice.parts, product.groups, *((kept, wide) if kept < wide else (1, 1)))
            self.launches.append(
                Launch(
                    self.kernel("conv_sum_halves", {"OPERATION": TABLE[operation], "SLICES": slices, **dense, **fused}),
                    (items, 1, product.groups),
                    (SUMMING, 1, 1),
                    (*sums, *finish, *ints(has_bias), Accumulate(result), *ints(*numbers), place, divisors, *last),
                    (result,),
                )
            )


IMPLEMENTATIONS = tuple(Halves(units) for units in (WGMMA, *LANES))
