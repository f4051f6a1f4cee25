"""Collects the nodes and constants of an ONNX graph, and knows the shape that each of its values has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from clgraft.core.model import ModelError


class Writer:
    """Nodes in the order in which they run.

    Parameters
    ----------
    opset : int
        The version of ONNX's operators that is written.

    Attributes
    ----------
    nodes, constants : list
        Of the graph to be.
    """

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._known: dict[Any, str] = {}  # constants and reshaped values
        self._taken: set[str] = set()

    def take(self, name: str, shape: Sequence[int]) -> str:
        """Note a value that is an input or a parameter."""
        self._taken.add(name)
        self._shapes[name] = tuple(shape)
        return name

    def free(self, wish: str) -> str:
        """Return a name that no value has: the one that is wished, or one like it."""
        name, count = wish, 1
        while name in self._taken:
            name, count = f"{wish}_{count}", count + 1
        self._taken.add(name)
        return name

    def shape(self, value: str) -> tuple[int, ...]:
        """Return the shape of a value."""
        return self._shapes[value]

    def parameter(self, name: str, array: np.ndarray) -> str:
        """Add a constant under its name."""
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return self.take(name, array.shape)

    def constant(self, array: Any, dtype: str) -> str:
        """Return a constant; equal ones are stored once."""
        array = np.asarray(array, dtype)
        key = (dtype, array.shape, array.tobytes())
        if key not in self._known:
            scalar = str(array) if array.ndim == 0 else "x".join(map(str, array.shape))
            self._known[key] = self.parameter(self.free(f"constant/{dtype}/{scalar}"), array)
        return self._known[key]

    def add(self, operator: str, reads: Iterable[str], shape: Sequence[int], name: str = "", **attributes: Any) -> str:
        """Add a node with one output and return that."""
        (value,) = self.add_many(operator, reads, [shape], [name], **attributes)
        return value

    def add_many(
        self,
        operator: str,
        reads: Iterable[str],
        shapes: Sequence[Sequence[int]],
        names: Sequence[str],
        **attributes: Any,
    ) -> list[str]:
        """Add a node with several outputs and return them."""
        outputs = [self.free(name or f"{operator.lower()}{len(self.nodes)}") for name in names]
        self.nodes.append(helper.make_node(operator, list(reads), outputs, name=outputs[0], **attributes))
        for output, shape in zip(outputs, shapes):
            self._shapes[output] = tuple(shape)
        return outputs

    def named(self, value: str, name: str) -> str:
        """Return a value under another name: the last node's, or a copy."""
        if not name or name == value:
            return value
        shape = self.shape(value)
        if self.nodes and list(self.nodes[-1].output) == [value]:
            node = self.nodes[-1]
            self._taken.discard(value)
            node.output[0] = node.name = self.free(name)
            self._shapes[node.output[0]] = shape
            return str(node.output[0])
        return self.add("Identity", [value], shape, name)

    def reshaped(self, value: str, shape: Sequence[int], name: str = "") -> str:
        """Return the same elements in another shape, the value itself where it has that."""
        shape = tuple(shape)
        if self.shape(value) == shape:
            return self.named(value, name)
        if math.prod(self.shape(value)) != math.prod(shape):
            raise ModelError(f"[export] got {value} of shape {self.shape(value)}, expected the elements of {shape}")
        key = (value, shape)
        if name:
            return self._reshape(value, shape, name)
        if key not in self._known:
            self._known[key] = self._reshape(value, shape, f"{value}/{'x'.join(map(str, shape))}")
        return self._known[key]

    def _reshape(self, value: str, shape: tuple[int, ...], name: str) -> str:
        sizes = self.constant(shape, "int64")
        more = {"allowzero": 1} if 0 in shape else {}
        return self.add("Reshape", [value, sizes], shape, name, **more)
