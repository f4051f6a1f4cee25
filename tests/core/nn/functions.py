"""Runs functions of `clgraft.core.nn` and their gradients, and compares both with a definition in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from clgraft import core
from clgraft.core.graph import Graph, Value
from clgraft.core.graph.reference import evaluate
from clgraft.core.nn.builder import Build, Passes

STEP = 1e-5
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Built:
    """A function for the shapes of some arrays.

    Attributes
    ----------
    passes : Passes
    graph : Graph
        Both passes.
    constants : dict of str to numpy.ndarray
    """

    passes: Passes
    graph: Graph
    constants: dict[str, np.ndarray]

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the function's results."""
        return tuple(tensor.name for tensor in self.passes.outputs)

    def given(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """Return all inputs; the gradients that come in are called by their outputs' places: ``dy0``, ``dy1``, ..."""
        gradients = {
            self.passes.incoming[name].name: arrays[f"dy{i}"].reshape(self.passes.incoming[name].shape)
            for i, name in enumerate(self.outputs)
            if name in self.passes.incoming
        }
        return {**{name: x for name, x in arrays.items() if not name.startswith("dy")}, **self.constants, **gradients}


def built(function: Callable[..., Any], arrays: Arrays, *, training: bool = True) -> Built:
    """Build a function of a builder and of tensors, which are the arrays that are no gradients of outputs."""
    build = Build(training=training)
    named = {name: array for name, array in arrays.items() if not name.startswith("dy")}
    tensors = [build.input(name, array.shape, str(array.dtype)) for name, array in named.items()]
    made = function(build, *tensors)
    outputs = made if isinstance(made, tuple) else (made,)
    passes = build.passes(outputs, list(named), zeros=True)
    inputs = [Value(tensor.name, tensor.shape, tensor.dtype) for tensor in tensors]
    inputs += [Value(name, array.shape, str(array.dtype)) for name, array in build.constants.items()]
    wanted = (*(tensor.name for tensor in outputs), *passes.found.values())
    graph = Graph((*passes.forward, *passes.backward), (*inputs, *passes.incoming.values()), wanted)
    return Built(passes, graph, build.constants)


def expect_like(
    function: Callable[..., Any],
    definition: Callable[..., np.ndarray],
    arrays: dict[str, np.ndarray],
    *,
    near: float = 2e-5,
    training: bool = True,
) -> None:
    """Compare a function of one result with its definition, and its gradients with differences of the definition.

    Parameters
    ----------
    function : callable
        Of a builder and tensors.
    definition : callable
        Of arrays of float64.
    arrays : dict of str to numpy.ndarray
        Of float32.
    near : float
        Greatest difference of the device's results from those of float64, relative to the greatest value.
    training : bool
    """
    rng = np.random.default_rng(3)
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    expected = definition(*wide.values())
    dy = rng.standard_normal(expected.shape).astype(np.float32)
    found = built(function, {**arrays, "dy0": dy}, training=training)
    given = found.given({**arrays, "dy0": dy})
    exact = evaluate(found.graph, given)
    (y,) = found.outputs
    np.testing.assert_allclose(exact[y].reshape(expected.shape), expected, rtol=1e-10, atol=1e-10)
    for name, array in wide.items():
        along = rng.standard_normal(array.shape)
        sides = [definition(*{**wide, name: array + sign * STEP * along}.values()) for sign in (1, -1)]
        slope = ((sides[0] - sides[1]) * dy).sum() / (2 * STEP)
        gradient = exact[found.passes.found[name]].reshape(array.shape)
        np.testing.assert_allclose((gradient * along).sum(), slope, rtol=1e-5, atol=1e-5, err_msg=f"d{name}")
    got = core.context().compile(found.graph).run(given)
    for name in found.graph.outputs:
        most = np.abs(exact[name]).max(initial=0)
        difference = np.abs(got[name].reshape(exact[name].shape) - exact[name]).max(initial=0)
        assert difference <= near * most + 1e-6, f"{name}: {difference} of {most}"
