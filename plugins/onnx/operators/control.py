"""Branches and loops: unrolled, because their conditions and counts are known while a model is lowered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from clgraft.plugins.onnx.lowering import ModelBuilder
from clgraft.plugins.onnx.nodes import OnnxNode, operator
from clgraft.plugins.onnx.operators.shapes import axis_of, joined, sliced
from clgraft.plugins.onnx.values import OnnxValue, known


def inside(
    on: ModelBuilder,
    node: OnnxNode,
    graph: onnx.GraphProto,
    initializers: Mapping[str, OnnxValue],
    values: Sequence[OnnxValue],
    turn: int = 0,
) -> list[OnnxValue]:
    """Lower the nodes of a subgraph and return its outputs."""
    on.enter(f"{next(iter(node.outputs), '')} {turn}")
    try:
        for info, value in zip(graph.input, values):
            on.define(info.name, value)
        for name, value in initializers.items():
            on.define(name, value)
        on.run(graph.node)
        return [on.find(info.name) for info in graph.output]
    finally:
        on.leave()


@operator("If")
def branch(on: ModelBuilder, node: OnnxNode, condition: OnnxValue) -> list[OnnxValue]:
    """Lower the branch that is taken."""
    graph = node.get("then_branch" if on.number(condition) else "else_branch")
    return inside(on, node, graph, on.initializers(graph), [])


@operator("Loop")
def loop(
    on: ModelBuilder,
    node: OnnxNode,
    count: OnnxValue | None = None,
    condition: OnnxValue | None = None,
    *states: OnnxValue,
) -> list[OnnxValue]:
    """Lower each turn; what a turn gives out is stacked."""
    body = node.get("body")
    initializers = on.initializers(body)
    limit = int(on.number(count)) if count is not None else None
    going = bool(on.number(condition)) if condition is not None else True
    stacks: list[list[OnnxValue]] = [[] for _ in body.output[1 + len(states) :]]
    carried, turn = list(states), 0
    while going and (limit is None or turn < limit):
        on.budget.spend("turns", 1, node)
        given = [known(np.array(turn, np.int64)), known(np.array(True)), *carried]
        asked, *rest = inside(on, node, body, initializers, given, turn)
        going = bool(on.number(asked))
        carried = rest[: len(states)]
        for stack, value in zip(stacks, rest[len(states) :]):
            stack.append(value)
        turn += 1
    node.expect(all(stacks), "no turns")
    return [*carried, *(_stacked(on, stack, 0) for stack in stacks)]


def _stacked(on: ModelBuilder, values: Sequence[OnnxValue], axis: int) -> OnnxValue:
    wide = [on.reshaped(v, (*v.shape[:axis], 1, *v.shape[axis:])) for v in values]
    if all(value.array is not None for value in wide):
        on.make_room(sum(value.array.nbytes for value in wide if value.array is not None))
        return known(np.concatenate([value.array for value in wide if value.array is not None], axis))
    return joined(on, wide, axis)


@operator("Scan")
def scan(on: ModelBuilder, node: OnnxNode, *values: OnnxValue) -> list[OnnxValue]:
    """Lower each turn over the slices of the inputs."""
    node.expect(node.opset >= 9, f"opset {node.opset}")
    body, count = node.get("body"), int(node.get("num_scan_inputs"))
    states, inputs = list(values[: len(values) - count]), values[len(values) - count :]
    results = len(body.output) - len(states)
    axes = [axis_of(a, v.ndim) for a, v in zip(node.get("scan_input_axes", [0] * count), inputs)]
    backward = node.get("scan_input_directions", [0] * count)
    turns = inputs[0].shape[axes[0]]
    node.expect(turns > 0, "no turns")
    on.budget.spend("turns", turns, node)
    initializers = on.initializers(body)
    stacks: list[list[OnnxValue]] = [[] for _ in range(results)]
    for turn in range(turns):
        parts = []
        for value, axis, back in zip(inputs, axes, backward):
            at = turns - 1 - turn if back else turn
            begin = [at if i == axis else 0 for i in range(value.ndim)]
            part = sliced(on, value, begin, [1 if i == axis else size for i, size in enumerate(value.shape)])
            parts.append(on.reshaped(part, (*value.shape[:axis], *value.shape[axis + 1 :])))
        found = inside(on, node, body, initializers, [*states, *parts], turn)
        states = found[: len(states)]
        for stack, value in zip(stacks, found[len(states) :]):
            stack.append(value)
    outward = node.get("scan_output_directions", [0] * results)
    out_axes = node.get("scan_output_axes", [0] * results)
    stacked = []
    for stack, back, axis in zip(stacks, outward, out_axes):
        place = axis_of(axis, stack[0].ndim + 1)
        stacked.append(_stacked(on, stack[::-1] if back else stack, place))
    return [*states, *stacked]
