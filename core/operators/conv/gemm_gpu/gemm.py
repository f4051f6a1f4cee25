"""Convolution on GPUs, forward, backward data and backward filter: tiled products of matrices without im2col buffers.

There is an implementation for each form of the product (`forms.py`), in order of preference. Each computes what a cost
model expects to be fastest with one of its tiles, and declines the rest. The last one, ``gpu_gemm``, never leaves a
product to another form: where it is asked for by name, it computes with the tile that is expected to be fastest, or
that its settings name, in whatever form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.gemm_gpu.builder import Builder, Weights
from clgraft.core.operators.conv.gemm_gpu.checks import check_sizes
from clgraft.core.operators.conv.gemm_gpu.forms import FORMS
from clgraft.core.operators.conv.gemm_gpu.tile import Form
from clgraft.core.operators.conv.gemm_gpu.tiles import candidates as tiles_for
from clgraft.core.operators.conv.grid import backward_data_grids, forward_grid
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.epilogue import Epilogue
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import arithmetic_bytes
from clgraft.core.planning.launches import Launches

PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # parts of the depth that a search tries


class Gemm:
    """The products of a convolution in one form.

    Parameters
    ----------
    form : Form
    any_form : bool
        Whether tiles of other forms are served, too.
    """

    FOR_GPUS = True  # a search on a CPU device does not try it

    def __init__(self, form: Form, any_form: bool) -> None:
        self.NAME, self.form, self.any_form = form.name, form, any_form

    def candidates(self, problem: ConvProblem, planner: Planner) -> Iterator[Mapping[str, int | str]]:
        """Return the settings to search: the heuristic's (none), then every tile of the form, whole and in parts.

        The settings are ``tile``, rows, columns and depth of a row of ``tiles.txt``, and ``parts`` of the depth.
        """
        yield {}
        tiles = [tile for tile in tiles_for(planner.device, arithmetic_bytes(problem.dtype)) if tile.form is self.form]
        for parts in PARTS if self.form.splits else (1,):
            for tile in tiles:
                yield {"tile": tile.name, "parts": parts}

    def fuses(self, problem: ConvProblem, epilogue: Epilogue) -> bool:
        """Return whether an epilogue is served: all of them, forward."""
        return problem.direction == "forward"

    def plan(
        self,
        problem: ConvProblem,
        planner: Planner,
        settings: Mapping[str, int | str] | None = None,
        epilogue: Epilogue | None = None,
    ) -> Launches:
        """Plan the products of one direction."""
        if problem.direction == "backward_bias":
            raise Declined("has no backward_bias")
        size = arithmetic_bytes(problem.dtype)
        if not (self.any_form or any(tile.form is self.form for tile in tiles_for(planner.device, size))):
            raise Declined(f"needs {self.form.needs}")
        check_sizes(problem)
        in_channels, out_channels = problem.in_channels // problem.groups, problem.out_channels // problem.groups
        taps = prod(problem.kernel)
        group_stride = out_channels * in_channels * taps
        builder = Builder(problem, planner, None if self.any_form else self.form, settings or {}, epilogue)
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


IMPLEMENTATIONS = tuple(Gemm(form, form is FORMS[-1]) for form in FORMS)
PORTABLE = IMPLEMENTATIONS[-1]
