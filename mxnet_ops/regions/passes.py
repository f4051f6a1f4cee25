"""Passes of regions: compiled graphs, with constants and residents (see `clgraft.mxnet_ops.engine.passes`)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from clgraft import core
from clgraft.core.graph import Call, graph_call
from clgraft.core.graph.passes import Image
from clgraft.core.runtime.plan import ACCUMULATE
from clgraft.mxnet_ops.engine.calls import lib
from clgraft.mxnet_ops.engine.lowering import KEPT, LoweredPass
from clgraft.mxnet_ops.engine.operator import AUX, IN, IN_GRAD, OUT
from clgraft.mxnet_ops.engine.passes import Pass
from clgraft.mxnet_ops.regions.lowering import RegionLowering
from clgraft.mxnet_ops.regions.residents import Residents, output_name


class RegionPass(Pass):
    """A pass of a region.

    Parameters
    ----------
    lowered : LoweredPass
    lowering : RegionLowering
    context : Context
    constants : mapping of str to array
        Values of inputs that are frozen.
    residents : Residents, optional
    last : mapping of str to Image, optional
        Values that lie in channels last between forward and backward.
    """

    def __init__(
        self,
        lowered: LoweredPass,
        lowering: RegionLowering,
        context: core.Context,
        constants: Mapping[str, Any],
        residents: Residents | None = None,
        last: Mapping[str, Image] | None = None,
    ) -> None:
        super().__init__(lowered, lowering, context)
        self._region, self._residents = lowering.region, residents
        every = {**lowered.constants, **constants}
        on_device = [name for name in lowered.bound if self._is_on_device(name)]
        self._compiled = context.compile(
            lowered.graph, constants=every, precision=lowered.precision, last=last, on_device=on_device
        )

    def call(self, wanted: Collection[str], added: Collection[str]) -> Call:
        return graph_call(self._compiled, wanted, added)

    def mode(self, name: str, modes: Sequence[int], pattern: Mapping[str, int]) -> int:
        resident = self._resident(name)
        return pattern[resident] if resident else super().mode(name, modes, pattern)

    def fixed(self, name: str, mode: Mapping[str, int], pattern: Mapping[str, int]) -> tuple[Any, int] | None:
        group, place = self.lowered.bound.get(name, (-1, 0))
        if group == OUT and self._residents is not None and output_name(place) in pattern:
            value = self.lowered.graph.values[name]
            return self._residents.slot(
                place, pattern[output_name(place)], math.prod(value.shape), value.dtype
            ).device, 0
        resident = self._resident(name)
        if not resident or self._residents is None:
            return None
        if self.lowered.bound[name][0] == IN_GRAD:
            return self._residents.device_gradient(resident), lib.CLG_MX_ADDED if mode[name] == ACCUMULATE else 0
        if self.lowered.bound[name][0] == AUX and resident in pattern:
            return self._residents.device_aside(resident, pattern[resident]), 0
        return self._residents.device_array(resident), 0

    def mark(self, pattern: Mapping[str, int]) -> Any:
        turns = [pattern[name] for name in map(output_name, range(len(self._region.heads))) if name in pattern]
        return self._residents.marks + turns[0] if turns and self._residents is not None else super().mark(pattern)

    def _is_on_device(self, name: str) -> bool:
        """Return whether a value is in memory of the device: a resident's, or what lives from forward to backward."""
        return self._residents is not None and (self.lowered.bound[name][0] == KEPT or bool(self._resident(name)))

    def _resident(self, name: str) -> str:
        """Return the name of the resident that a variable, or whose gradient a value, is; empty if it is none."""
        group, place = self.lowered.bound.get(name, (-1, 0))
        if self._residents is None or group not in (IN, IN_GRAD, AUX):
            return ""
        found = (self._region.auxiliary_names if group == AUX else self._region.names)[place]
        return found if found in self._residents.arrays else ""
