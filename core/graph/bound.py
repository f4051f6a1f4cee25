"""Runs of a compiled graph most of whose arrays stay the same ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clgraft.core.errors import ArgumentError
from clgraft.core.runtime.plan import Plan

Output = tuple[str, str, tuple[int, ...], str]  # its name, that of the plan's argument, shape and dtype


class BoundGraph:
    """A compiled graph with some of its arrays, which are looked at once. Made by `CompiledGraph.bind`.

    Parameters
    ----------
    plan : Plan
    arrays : mapping of str to array
        Those that stay. What changes in them is seen by every run, but they must keep their memory.
    outputs : sequence of Output
    """

    def __init__(self, plan: Plan, arrays: Mapping[str, Any], outputs: Sequence[Output]) -> None:
        self._plan, self._kept, self._outputs = plan, dict(arrays), tuple(outputs)
        self._bound = plan.bind_arrays(self._kept)
        known = {argument.name for argument in plan.arguments}
        self._others = known - self._kept.keys() - {place for _, place, _, _ in self._outputs}

    def run(self, arrays: Mapping[str, Any], scalars: Mapping[str, float]) -> dict[str, np.ndarray]:
        """Run the graph and return its outputs.

        Parameters
        ----------
        arrays : mapping of str to array
            The inputs and states that are not bound, and perhaps more.
        scalars : mapping of str to float
            All of the graph's scalars.

        Raises
        ------
        ArgumentError
            Naming the array or the scalar that does not fit.
        ExecutionError
            If the device fails.
        """
        missing = self._others - arrays.keys()
        if missing:
            raise ArgumentError(f"[graph] got no array for {sorted(missing)}, expected all that are not bound")
        if scalars.keys() != set(self._plan.scalars):
            raise ArgumentError(f"[graph] got scalars {sorted(scalars)}, expected {list(self._plan.scalars)}")
        made = {name: np.empty(shape, dtype) for name, _, shape, dtype in self._outputs}
        given = {**arrays, **{place: made[name] for name, place, _, _ in self._outputs}}
        bound = self._plan.bind_arrays(given, self._bound)
        self._plan.run_bound(bound, [scalars[name] for name in self._plan.scalars])
        return made
