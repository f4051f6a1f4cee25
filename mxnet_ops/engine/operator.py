"""What every clgraft operator shares: from attributes to plans, from MXNet's arrays to the core's buffers.

A family (convolution, batch norm, ...) is a frozen `Operator` that says which of the core's problems it runs, forward
and backward, and which array fills which argument. Nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

from clgraft import core
from clgraft.core.nn.builder import Build
from clgraft.mxnet_ops.engine.arrays import (
    AUX,
    IN,
    IN_GRAD,
    OUT,
    OUT_GRAD,
    STATE,
    Array,
    Draw,
    Shape,
    Shapes,
    data_dtype,
    parameter_dtype,
)
from clgraft.mxnet_ops.engine.attributes import Attributes

__all__ = [
    "AUX",
    "FAMILIES",
    "IN",
    "IN_GRAD",
    "LAYER",
    "NORM",
    "OUT",
    "OUT_GRAD",
    "POINTWISE",
    "STATE",
    "Draw",
    "Operator",
    "Shape",
    "Shapes",
    "data_dtype",
    "find_operator",
    "operator_of",
    "parameter_dtype",
]

LAYER, NORM, POINTWISE = range(1, 4)  # in a chain a layer comes first, then a norm, then what works element by element
PARAMETERS = ("weight", "bias", "gamma", "beta")  # inputs of these names are learned


class Operator:
    """Base class of the families: frozen values made from attributes.

    A subclass sets `op_type`, `arguments`, `outputs` and `auxiliary`, and defines `read`, `infer` and `build`.
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
    # inputs, outputs and auxiliary states that MXNet has in float32 where data are float16
    single_names: ClassVar[frozenset[str]] = frozenset()
    # whether it computes nothing: a view of its input, or a constant
    is_view: ClassVar[bool] = False
    # whether its output is its first input in another shape
    is_copy: ClassVar[bool] = False
    # whether its outputs have a type of their own, and not that of its first input
    casts: ClassVar[bool] = False
    # its place in chains of operators (LAYER, NORM, POINTWISE); 0: it is in none
    chain_place: ClassVar[int] = 0
    # whether it is a region
    is_region: ClassVar[bool] = False

    @property
    def single(self) -> tuple[bool, ...]:
        """Whether each input, output and auxiliary state, in this order, may be float32 where data are float16."""
        return tuple(name in self.single_names for name in (*self.arguments, *self.outputs, *self.auxiliary))

    @property
    def absent_in_backward(self) -> tuple[int, ...]:
        """Tags of the arrays that backward does not get."""
        return (OUT,) * (not self.backward_reads_outputs) + (OUT_GRAD,) * (not self.backward_reads_gradients)

    @property
    def unread_gradients(self) -> int:
        """Outputs whose gradients backward does not read, as bits; where that is not all or none of them."""
        return 0

    @property
    def open_sizes(self) -> int:
        """How many sizes of a constant follow from what reads it."""
        return 0

    @property
    def stated_dtype(self) -> str:
        """The type that the attributes of a constant say."""
        return "float32"

    def of_size(self, size: int) -> Operator:
        """Return the operator whose open sizes are this one."""
        return self

    def as_constant(self, shape: Shape, dtype: str) -> Operator:
        """Return the constant of a shape and a dtype."""
        return self

    @property
    def inferred(self) -> tuple[str, ...]:
        """Names of the inputs whose shapes follow from others: their guards have to let shapes through backwards."""
        return ()

    @property
    def whole_numbers(self) -> tuple[str, ...]:
        """Names of the inputs that are whole numbers in MXNet, and float32 here."""
        return ()

    @property
    def draws(self) -> tuple[Draw, ...]:
        """The random numbers that `build` gets keys for, as its last values."""
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
        known = [shape for shape in shapes if shape is not None]
        return (known, self.built(known), []) if len(known) == len(shapes) else None

    def arrays(self, inputs: Sequence[Shape], states: Sequence[Shape], dtype: str) -> tuple[tuple[Array, ...], ...]:
        """Return inputs and auxiliary states with their dtypes, which `single` tells of half precision."""
        kinds = [parameter_dtype(dtype) if single else data_dtype(dtype) for single in self.single]
        after = kinds[len(self.arguments) + len(self.outputs) :]
        return tuple(zip(inputs, kinds)), tuple(zip(states, after))

    def build(self, *values: Any, **more: Any) -> Any:
        """Return the outputs for a builder, the inputs and the auxiliary states, by functions of `clgraft.core.nn`."""
        raise NotImplementedError

    def built(self, known: Sequence[Shape]) -> list[Shape]:
        """Return the outputs' shapes as `build` has them for shapes of the inputs."""
        build = Build()
        values = [build.input(name, shape) for name, shape in zip(self.arguments, known)]
        try:
            made = self.build(build, *values)
        except core.ProblemError as error:
            if str(error).startswith(f"[{self.op_type}]"):
                raise
            raise core.ProblemError(f"[{self.op_type}] data of shape {known[0]} does not fit: {error}") from None
        return [tensor.shape for tensor in (made if isinstance(made, tuple) else (made,))]

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
