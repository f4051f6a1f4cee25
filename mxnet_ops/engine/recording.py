"""Records what operators and regions build: their passes, and the arrays of MXNet's that values are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Union

import numpy as np

from clgraft.core.nn import dropout
from clgraft.core.nn.builder import Build, Passes, Tensor
from clgraft.mxnet_ops.engine.arrays import AUX, IN, IN_GRAD, OUT, OUT_GRAD, Array, Place

Function = Callable[..., Union[Tensor, "tuple[Tensor, ...]"]]


class Recorded(NamedTuple):
    """The passes of an operator or a region for given shapes.

    Attributes
    ----------
    inputs, auxiliary, keys : tuple of Tensor
        ``in0``, ``in1`` and so on, likewise ``aux`` and ``key``.
    constants : mapping of str to numpy.ndarray
    passes : Passes
    """

    inputs: tuple[Tensor, ...]
    auxiliary: tuple[Tensor, ...]
    keys: tuple[Tensor, ...]
    constants: Mapping[str, np.ndarray]
    passes: Passes

    def places(self) -> dict[str, Place]:
        """Return MXNet's array of each value that has one."""
        found = {tensor.name: (IN, place) for place, tensor in enumerate(self.inputs)}
        found.update({tensor.name: (AUX, place) for place, tensor in enumerate(self.auxiliary)})
        for place, tensor in enumerate(self.passes.outputs):
            found[tensor.name] = (OUT, place)
            if tensor.name in self.passes.incoming:
                found[self.passes.incoming[tensor.name].name] = (OUT_GRAD, place)
        gradients = (self.passes.found.get(tensor.name, "") for tensor in self.inputs)
        found.update({name: (IN_GRAD, place) for place, name in enumerate(gradients) if name})
        return found


def record(
    function: Function,
    inputs: tuple[Array, ...],
    states: tuple[Array, ...],
    keys: int,
    *,
    training: bool,
    learns: bool = True,
) -> Recorded:
    """Return the passes of an operator or a region.

    Parameters
    ----------
    function : callable
        Gets a builder, the inputs, the auxiliary states and the keys of random numbers; returns the outputs.
    inputs, states : tuple of (tuple of int, str)
        Shapes and dtypes of the inputs and of the auxiliary states.
    keys : int
        How many.
    training : bool
    learns : bool
        Whether there is a backward pass, with the gradients of all inputs.
    """
    build = Build(training=training)
    values = tuple(build.input(f"in{place}", *array) for place, array in enumerate(inputs))
    auxiliary = tuple(build.state(f"aux{place}", *array) for place, array in enumerate(states))
    drawn = tuple(dropout.key(build, place) for place in range(keys))
    made = function(build, *values, *auxiliary, *drawn)
    outputs = made if isinstance(made, tuple) else (made,)
    passes = build.passes(outputs, [tensor.name for tensor in values] if learns else [])
    return Recorded(values, auxiliary, drawn, build.constants, passes)
