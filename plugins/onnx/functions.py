"""Functions of a model, and operators that ONNX defines by others: their nodes in place of their calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import onnx
import onnx.inliner
from google.protobuf.message import DecodeError

from clgraft.plugins.onnx.errors import OnnxError, UnsupportedError
from clgraft.plugins.onnx.limits import Budget
from clgraft.plugins.onnx.nodes import DEFAULT_DOMAINS, lowered_operators
from clgraft.plugins.onnx.tensors import graphs

MOST_DEPTH = 100  # calls inside of calls; the inliner recurses


def inlined(proto: onnx.ModelProto, budget: Budget) -> onnx.ModelProto:
    """Return a model with its functions, and those that ONNX defines by others, in place of their calls.

    Raises
    ------
    OnnxError
        If functions call themselves, or the result would be too large.
    UnsupportedError
        If a call cannot be replaced.
    """
    ours = set(lowered_operators())
    functions = {_key(function.domain, function.name, function.overload) for function in proto.functions}
    calls = {_call(node) for graph in graphs(proto.graph) for node in graph.node}
    missing = sorted(call for call in calls if call in functions or (not call[0] and call[1] not in ours))
    size = Sizes(proto.functions, ours).of(proto.graph.node)
    budget.spend("nodes", size.nodes, "a graph" if not missing else f"calls of {missing[0][1]!r}")
    if not missing:
        return proto
    budget.spend("bytes", size.nbytes, f"calls of {missing[0][1]!r}")
    small = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    halves = {info.name for info in proto.graph.input if info.type.tensor_type.elem_type in small}
    for node in proto.graph.node:  # the function's definition rounds after each of its steps
        if node.op_type == "Attention" and halves & set(node.input):
            raise UnsupportedError([f"Attention {node.name or node.output[0]!r} (16 bits)"])
    try:
        kept = [("", name) for name in sorted(ours)]
        return onnx.inliner.inline_selected_functions(proto, kept, exclude=True, inline_schema_functions=True)
    except (onnx.checker.ValidationError, ValueError, TypeError, RuntimeError, DecodeError):
        raise UnsupportedError([f"{name} (its function cannot be inlined)" for _, name, _ in missing]) from None


@dataclass
class Size:
    """How large nodes are with functions in place of their calls.

    Attributes
    ----------
    nodes : int
    nbytes : int
        Without what attributes of the caller add.
    references : int
        How often an attribute of the caller is copied, at most.
    levels : int
        Calls and subgraphs inside of each other.
    """

    nodes: int = 0
    nbytes: int = 0
    references: int = 0
    levels: int = 0

    def add(self, inner: Size, attribute_bytes: int = 0, references: int = 1) -> None:
        """Add what a node contains.

        Parameters
        ----------
        inner : Size
        attribute_bytes : int
            Of a call, with which the function replaces its references.
        references : int
            How many of the call's attributes are references themselves.
        """
        self.nodes += inner.nodes
        self.nbytes += inner.nbytes + inner.references * attribute_bytes
        self.references += inner.references * references
        self.levels = max(self.levels, inner.levels + 1)


SCHEMA = Size(200, 2**14, 200)  # more than an operator needs that ONNX defines by others


class Sizes:
    """Predicts what the inliner makes, without making it: the size of each function is computed once."""

    def __init__(self, functions: Iterable[onnx.FunctionProto], ours: set[str]) -> None:
        self._functions = {_key(f.domain, f.name, f.overload): f for f in functions}
        self._ours = ours
        self._known: dict[tuple[str, str, str], Size] = {}

    def of(self, nodes: Iterable[onnx.NodeProto], depth: int = 0) -> Size:
        """Return the size of nodes, with the nodes of their subgraphs.

        Raises
        ------
        OnnxError
            If there are too many calls and subgraphs inside of each other; functions that call themselves have.
        """
        total = Size()
        if depth > MOST_DEPTH:
            raise _too_deep()
        for node in nodes:
            own = node.ByteSize()
            references = sum(bool(attribute.ref_attr_name) for attribute in node.attribute)
            call = _call(node)
            if call in self._functions:
                if call not in self._known:
                    self._known[call] = self.of(self._functions[call].node, depth + 1)
                total.add(self._known[call], own, references)
            elif not call[0] and call[1] not in self._ours:
                total.add(SCHEMA, own, references)
            else:
                total.add(Size(1, own, references, -1))
            for attribute in node.attribute:
                for inner in (attribute.g, *attribute.graphs):
                    total.add(self.of(inner.node, depth + 1))
        if depth + total.levels > MOST_DEPTH:
            raise _too_deep()
        return total


def _too_deep() -> OnnxError:
    return OnnxError(f"[onnx] got calls of functions inside of each other, expected at most {MOST_DEPTH} levels")


def _key(domain: str, name: str, overload: str) -> tuple[str, str, str]:
    return ("" if domain in DEFAULT_DOMAINS else domain, name, overload)


def _call(node: Any) -> tuple[str, str, str]:
    return _key(node.domain, node.op_type, node.overload)
