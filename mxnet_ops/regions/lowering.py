"""Lowers regions to graphs of the core (see `clgraft.mxnet_ops.engine.lowering`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from clgraft.core.planning.precision import FLOAT32
from clgraft.mxnet_ops.engine.lowering import KEPT, LoweredPass, Lowering
from clgraft.mxnet_ops.engine.operator import AUX, IN, Shape, data_dtype, parameter_dtype
from clgraft.mxnet_ops.regions.region import OUTSIDE, RegionOperator


class RegionLowering(Lowering):
    """A region for given shapes.

    Parameters
    ----------
    region : RegionOperator
    shapes : tuple of tuple of int
        Of the region's arguments.
    dtype : str
        Of the data, or `MIXED`.
    mixed : str, optional
        As of `Lowering`; other data than float32 have none.
    """

    joins: ClassVar[bool] = True

    def __init__(self, region: RegionOperator, shapes: tuple[Shape, ...], dtype: str, mixed: str | None = None) -> None:
        self.region = region
        known, states = region.infer_all(shapes)
        entries, singles = region.singles
        outside = [(OUTSIDE, place) for place in range(len(region.names))]

        def dtype_if(single: bool) -> str:
            return parameter_dtype(dtype) if single else data_dtype(dtype)

        super().__init__(
            region.build,
            tuple((known[entry], dtype_if(entry in entries)) for entry in outside),
            tuple((shape, dtype_if(place in singles)) for place, shape in sorted(states.items())),
            len(region.draws),
            len(region.heads),
            learns=region.number is None,  # those with constants infer only
            mixed=mixed if dtype == FLOAT32 else None,
        )
        self.taken, self.tokens = len(region.taken), region.tokens

    def named(self, lowered: LoweredPass, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return arrays that are known by the names of the region's variables by those of a graph's inputs."""
        variables = {IN: self.region.names, AUX: self.region.auxiliary_names}
        found = {}
        for value in lowered.graph.inputs:
            group, place = lowered.bound.get(value.name, (KEPT, 0))
            if group in variables and variables[group][place] in arrays:
                found[value.name] = arrays[variables[group][place]]
        return found
