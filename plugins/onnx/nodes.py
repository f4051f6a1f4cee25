"""Nodes of a model with their attributes as Python values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import helper

from clgraft.plugins.onnx.errors import UnsupportedError
from clgraft.plugins.onnx.tensors import Reader

DEFAULT_DOMAINS = ("", "ai.onnx")


def in_default_domain(proto: onnx.NodeProto) -> bool:
    """Return whether a node's operator is one of ONNX's own."""
    return proto.domain in DEFAULT_DOMAINS


def operator_name(proto: onnx.NodeProto) -> str:
    """Return the name of a node's operator, after its domain unless it is one of ONNX's own."""
    return proto.op_type if in_default_domain(proto) else f"{proto.domain}.{proto.op_type}"


@dataclass(frozen=True)
class OnnxNode:
    """One node.

    Attributes
    ----------
    proto : onnx.NodeProto
    opset : int
        The version of the operators.
    """

    proto: onnx.NodeProto
    opset: int

    @property
    def operator(self) -> str:
        """The operator's name, after its domain unless it is one of ONNX's own."""
        return operator_name(self.proto)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs; empty ones are left out by the model."""
        return tuple(self.proto.input)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs; nobody reads empty ones."""
        return tuple(self.proto.output)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute: a number, a text, a list of them, an array or a graph."""
        for attribute in self.proto.attribute:
            if attribute.name == name:
                value = helper.get_attribute_value(attribute)
                if isinstance(value, bytes):
                    return value.decode(errors="replace")
                if isinstance(value, onnx.TensorProto):
                    return Reader().read(value)
                if isinstance(value, (str, int, float, onnx.GraphProto, onnx.SparseTensorProto)):
                    return value
                return [item.decode(errors="replace") if isinstance(item, bytes) else item for item in value]
        return default

    def has(self, name: str) -> bool:
        """Return whether an attribute is set."""
        return any(attribute.name == name for attribute in self.proto.attribute)

    def wants(self, output: int) -> bool:
        """Return whether an output is read."""
        return output < len(self.outputs) and bool(self.outputs[output])

    def refuse(self, reason: str) -> UnsupportedError:
        """Return the error of a node that cannot be lowered."""
        return UnsupportedError([f"{self} ({reason})"])

    def expect(self, good: bool, reason: str) -> None:
        """Refuse the node unless `good`."""
        if not good:
            raise self.refuse(reason)

    def __str__(self) -> str:
        name = self.proto.name or next((output for output in self.outputs if output), "")
        return f"{self.operator} {name!r}"


Lowering = Callable[..., Any]
_table: dict[str, Lowering] = {}


def operator(*names: str) -> Callable[[Lowering], Lowering]:
    """Return a decorator that adds a lowering to the table.

    The function is called with the model's builder, the node, and the node's inputs (None where one is left out). It
    returns a value, or a tuple of values for several outputs.
    """

    def add(function: Lowering) -> Lowering:
        for name in names:
            _table[name] = function
        return function

    return add


def lowering_of(name: str) -> Lowering | None:
    """Return an operator's lowering; None if there is none."""
    return _table.get(name)


def lowered_operators() -> tuple[str, ...]:
    """Return the names of the operators with a lowering."""
    return tuple(sorted(_table))
