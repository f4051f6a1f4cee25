"""Shapes of which only a part is known: what follows from them, for one operator and for a whole symbol.

A Custom operator may answer MXNet with sizes that are not known (-1), but not with a number of axes that is not known.
Where it would have to, MXNet's partial inference fails, and is done here: on the graph without the clgraft operators,
whose shapes are inferred between the runs.
"""

from __future__ import annotations

import functools
import itertools
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import mxnet as mx

from clgraft.core import ProblemError
from clgraft.mxnet_ops.engine.graphs import replace_nodes
from clgraft.mxnet_ops.engine.operator import FAMILIES, Operator, Shape, Shapes, operator_of

UNKNOWN = -1
# stand in for a size that is not known: what comes out the same for two of them does not depend on it
STANDING_IN = (302400, 604800, 55440, 110880, 64, 128, 8, 9)

Some = Optional[Shape]


class UnknownShape(ProblemError):
    """The number of axes of an input is not known."""


def infer_partly(operator: Operator, given: Sequence[Some]) -> Shapes | None:
    """Return the shapes that follow from an operator's known inputs, with -1 for sizes that are not known.

    None if not even the numbers of axes follow.
    """
    shapes = list(given)
    if operator.inferred == operator.arguments:
        shapes = _unified(shapes)
    if not any(shape is not None and UNKNOWN in shape for shape in shapes):
        return operator.infer(tuple(shapes))
    # a parameter of which only some sizes are known follows from the other inputs; MXNet compares what is known
    certain = operator.infer([None if shape is None or UNKNOWN in shape else shape for shape in shapes])
    if certain is not None:
        return certain
    parameters = {*operator.inferred, *operator.vectors}
    shapes = [
        None if shape and UNKNOWN in shape and name in parameters and operator.inferred != operator.arguments else shape
        for name, shape in zip(operator.arguments, shapes)
    ]
    found: list[Shapes] = []
    for size in STANDING_IN:
        try:
            one = operator.infer([None if s is None else tuple(size if v < 0 else v for v in s) for s in shapes])
        except ProblemError:
            continue
        if one is not None:
            found.append(one)
        if len(found) == 2:
            inputs, outputs, states = ([_common(a, b) for a, b in zip(*groups)] for groups in zip(*found))
            return inputs, outputs, states
    return None


def _common(a: Shape, b: Shape) -> Shape:
    return tuple(one if one == other else UNKNOWN for one, other in zip(a, b))


def _unified(shapes: Sequence[Some]) -> list[Some]:
    """Return the shapes of arrays that have one shape, each with the sizes that any of them tells."""
    known = [shape for shape in shapes if shape is not None]
    if not known or any(len(shape) != len(known[0]) for shape in known):
        return list(shapes)
    whole = tuple(max(sizes) for sizes in zip(*known))
    return [None if s is None else tuple(w if v < 0 else v for v, w in zip(s, whole)) for s in shapes]


def _read(shape: Any) -> Some:
    """Read a shape as MXNet's old convention writes it: () is unknown, and so is a size of 0."""
    return tuple(size or UNKNOWN for size in shape) if shape else None


def _write(shape: Some) -> Shape:
    return () if shape is None else tuple(max(size, 0) for size in shape)


class _Cut(NamedTuple):
    """A clgraft operator that was taken out of a graph."""

    operator: Operator
    places: list[int]  # positions of its inputs among the graph's outputs
    names: list[str]  # names of the variables that its outputs are now


def _cut(symbol: mx.sym.Symbol) -> tuple[mx.sym.Symbol, list[_Cut]]:
    """Return a symbol without clgraft operators, whose inputs are more of its outputs."""
    graph = json.loads(symbol.tojson())
    nodes: list[dict[str, Any]] = []
    place: dict[int, int] = {}  # old number -> new number, of the first output where it was taken out
    heads: list[list[int]] = []
    taken: dict[int, _Cut] = {}

    def moved(entry: Sequence[int]) -> list[int]:
        number, output = entry[0], entry[1]
        return [place[number] + output, 0, 0] if number in taken else [place[number], output, 0]

    own = len(graph["heads"])
    for number, node in enumerate(graph["nodes"]):
        entries = [moved(entry) for entry in node["inputs"]]
        place[number] = len(nodes)
        if node["op"] == "Custom" and node["attrs"].get("op_type") in FAMILIES:
            operator = operator_of(node)
            names = [f"__{node['name']}_{number}_{output}" for output in operator.outputs]
            first = own + len(heads)
            taken[number] = _Cut(operator, list(range(first, first + len(entries))), names)
            nodes += [{"op": "null", "name": name, "inputs": []} for name in names]
            heads += entries
        else:
            nodes.append({**node, "inputs": entries})
    replace_nodes(graph, nodes, [moved(entry) for entry in graph["heads"]] + heads)
    return mx.sym.load_json(json.dumps(graph)), list(taken.values())


def partial_shapes(
    symbol: mx.sym.Symbol, given: Mapping[str, Shape], infer: Callable[..., Any]
) -> tuple[list[Shape], list[Shape], list[Shape]]:
    """Return the shapes of a symbol's arguments, outputs and auxiliary states as far as they follow from some.

    Parameters
    ----------
    symbol : mx.sym.Symbol
    given : mapping of str to tuple of int
    infer : callable
        MXNet's own `Symbol.infer_shape_partial`.
    """
    cut, operators = _cut(symbol)
    known = {name: tuple(shape) for name, shape in given.items()}
    names = set(cut.list_inputs())
    while True:
        before = dict(known)
        arguments, outputs, states = infer(cut, **{name: shape for name, shape in known.items() if name in names})
        known.update(zip(cut.list_arguments(), arguments))
        known.update(zip(cut.list_auxiliary_states(), states))
        heads = cut.list_outputs()
        for operator, places, made in operators:
            count = len(operator.arguments)
            found = infer_partly(operator, [_read(outputs[p]) for p in places[:count]])
            if found is None:
                continue
            for place, shape in zip(places, (*found[0], *found[2])):
                if heads[place] in names:
                    known[heads[place]] = _write(shape)
            known.update(zip(made, map(_write, found[1])))
        if {k: v for k, v in known.items() if v} == {k: v for k, v in before.items() if v}:
            break
    return (
        [known.get(name, ()) for name in symbol.list_arguments()],
        list(outputs[: len(symbol.list_outputs())]),
        [known.get(name, ()) for name in symbol.list_auxiliary_states()],
    )


def _given(symbol: mx.sym.Symbol, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Shape]:
    given = {name: shape for name, shape in zip(symbol.list_arguments(), args) if shape is not None}
    return {**given, **{name: shape for name, shape in kwargs.items() if shape is not None}}


def install() -> None:
    """Let MXNet's inference of shapes return what it knows of clgraft operators; once per process."""
    partial, whole = mx.sym.Symbol.infer_shape_partial, mx.sym.Symbol.infer_shape
    if getattr(partial, "_returns_what_it_knows", False):
        return

    @functools.wraps(partial)
    def infer_shape_partial(self: mx.sym.Symbol, *args: Any, **kwargs: Any) -> Any:
        try:
            return partial(self, *args, **kwargs)
        except UnknownShape:
            if mx.util.is_np_shape():
                raise
        return partial_shapes(self, _given(self, args, kwargs), partial)

    @functools.wraps(whole)
    def infer_shape(self: mx.sym.Symbol, *args: Any, **kwargs: Any) -> Any:
        try:
            return whole(self, *args, **kwargs)
        except UnknownShape:
            if mx.util.is_np_shape():
                raise
        found = partial_shapes(self, _given(self, args, kwargs), partial)
        names = [*self.list_arguments(), *self.list_outputs(), *self.list_auxiliary_states()]
        open_ = [name for name, shape in zip(names, itertools.chain(*found)) if not shape or 0 in shape]
        if not open_:
            return found
        warnings.warn(f"[shapes] got too few shapes to know those of {open_}", stacklevel=2)
        return None, None, None

    infer_shape_partial._returns_what_it_knows = True  # type: ignore[attr-defined]
    mx.sym.Symbol.infer_shape_partial, mx.sym.Symbol.infer_shape = infer_shape_partial, infer_shape
