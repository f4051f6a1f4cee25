"""What every grafted operator shares: from attributes to plans, from MXNet's arrays to the core's buffers.

A family (convolution, batch norm, ...) is a frozen `Operator` that says which of the core's problems it runs, forward
and backward, and which array fills which argument. Nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from clgraft import core
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.calls import lib

Shape = tuple[int, ...]
Shapes = tuple[list[Shape], list[Shape], list[Shape]]

# where an array of a call stands: MXNet's own tags, and the operator's own arrays
IN, OUT, IN_GRAD = lib.CLG_MX_IN, lib.CLG_MX_OUT, lib.CLG_MX_IN_GRAD
OUT_GRAD, AUX, STATE = lib.CLG_MX_OUT_GRAD, lib.CLG_MX_AUX, lib.CLG_MX_STATE
PARAMETERS = ("weight", "bias", "gamma", "beta")  # inputs of these names are learned


class Call(NamedTuple):
    """One problem of an operator; for each of its arguments the array that fills it, as (group, place), or None."""

    problem: core.Problem
    arrays: tuple[tuple[int, int] | None, ...]
    scalars: tuple[float, ...] = ()


class Draw(NamedTuple):
    """Random numbers of an operator: the array of the state whose 4 words get a new key before a forward that draws.

    Parameters
    ----------
    place : int
        In the state.
    seed : int or None
        The operator's own; None follows ``mx.random.seed``.
    always : bool
        Whether a forward that does not train draws as well.
    """

    place: int
    seed: int | None
    always: bool


class Graft(NamedTuple):
    """What an operator does for given shapes.

    Parameters
    ----------
    forward, backward : mapping
        The calls when training and when not. The core leaves out an output whose write request is null.
    state : tuple of numpy arrays' (shape, dtype, fill)
        Arrays that live from forward to backward; `fill` is their first content.
    zeros : tuple of (int, int)
        Input gradients that are zero: (place, bytes).
    draw : Draw, optional
        Of an operator with random numbers.
    """

    forward: Mapping[bool, tuple[Call, ...]]
    backward: Mapping[bool, tuple[Call, ...]]
    state: tuple[tuple[Shape, str, float], ...] = ()
    zeros: tuple[tuple[int, int], ...] = ()
    draw: Draw | None = None


class Operator:
    """Base class of the families: frozen values made from attributes.

    A subclass sets `op_type`, `arguments`, `outputs` and `auxiliary`, and defines `read`, `infer` and `graft`.
    """

    op_type: ClassVar[str]
    # inputs that are one-dimensional: MXNet never keeps those in a layout of its own, so they need no guard
    vectors: ClassVar[frozenset[str]] = frozenset()
    # whether an output may be the memory of an input
    in_place: ClassVar[bool] = False
    # whether backward reads outputs; those that it does not read are freed after forward
    backward_reads_outputs: ClassVar[bool] = False
    # whether backward reads the outputs' gradients; a loss at the end of a net does not, and then needs none
    backward_reads_gradients: ClassVar[bool] = True
    # whether it is a region, which runs as one graph instead of call by call
    is_region: ClassVar[bool] = False

    @property
    def absent_in_backward(self) -> tuple[int, ...]:
        """Tags of the arrays that backward does not get."""
        return (OUT,) * (not self.backward_reads_outputs) + (OUT_GRAD,) * (not self.backward_reads_gradients)

    @property
    def unread_gradients(self) -> int:
        """Outputs whose gradients backward does not read, as bits; where that is not all or none of them."""
        return 0

    @property
    def inferred(self) -> tuple[str, ...]:
        """Names of the inputs whose shapes follow from others: their guards have to let shapes through backwards."""
        return ()

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return ("data",)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the inputs that are parameters."""
        return tuple(name for name in self.arguments if name in PARAMETERS)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return ("output",)

    @property
    def auxiliary(self) -> tuple[str, ...]:
        """Names of the auxiliary states."""
        return ()

    @classmethod
    def read(cls, attributes: Attributes) -> Operator:
        """Make the operator from its attributes."""
        raise NotImplementedError

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        """Return the shapes of inputs, outputs and auxiliary states from the known inputs'; None if too few."""
        raise NotImplementedError

    def graft(self, shapes: tuple[Shape, ...], dtype: str) -> Graft:
        """Return the calls of the core that stand in for MXNet's operator (its graft) at these input shapes."""
        raise NotImplementedError

    def error(self, name: str, got: Any, expected: str) -> core.ProblemError:
        """Return the error of an input or attribute that does not fit."""
        return core.ProblemError(f"[{self.op_type}] got {name} {got}, expected {expected}")

    def agree(self, given: Sequence[Shape | None], needed: Sequence[Shape]) -> None:
        """Refuse inputs whose known shapes are not the needed ones."""
        for name, shape, right in zip(self.arguments, given, needed):
            if shape is not None and shape != right:
                raise self.error(name, f"of shape {shape}", f"shape {right}")


FAMILIES: dict[str, type[Operator]] = {}


@lru_cache(maxsize=4096)
def _operator(op_type: str, given: tuple[tuple[str, str], ...]) -> Operator:
    family = FAMILIES[op_type]
    attributes = Attributes(op_type, dict(given))
    operator = family.read(attributes)
    attributes.finish()
    return operator


def find_operator(op_type: str, attributes: Mapping[str, Any]) -> Operator:
    """Return the operator that an ``op_type`` and MXNet's attributes name.

    Raises
    ------
    core.ProblemError
        Naming the attribute that does not fit, what came and what was expected.
    """
    return _operator(op_type, tuple(sorted((name, str(value)) for name, value in attributes.items())))


def operator_of(node: Mapping[str, Any]) -> Operator:
    """Return the operator of this package that a node of a symbol's JSON graph is.

    Raises
    ------
    core.ProblemError
        As `find_operator`.
    """
    attributes = dict(node["attrs"])
    return find_operator(attributes.pop("op_type"), attributes)
