"""A net as an ONNX model: its inputs, parameters and values keep their names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

from clgraft import __version__
from clgraft.core.graph import Graph
from clgraft.core.graph.passes import optimise
from clgraft.core.graph.structure import SKIPPED
from clgraft.core.model import Chosen, ModelError, Net
from clgraft.core.nn.builder import Tensor
from clgraft.plugins.onnx.writing.expressions import TYPES
from clgraft.plugins.onnx.writing.operators import Call, write
from clgraft.plugins.onnx.writing.writer import Writer

OPSETS = range(13, 24)  # whose operators are written
USUAL = 17


def to_onnx(
    net: Net,
    shapes: Mapping[str, tuple[int, ...]],
    opset: int = USUAL,
    parameters: Mapping[str, np.ndarray] | None = None,
) -> ModelProto:
    """Return a net for some shapes of its inputs as an ONNX model.

    Parameters
    ----------
    net : Net
    shapes : mapping of str to tuple of int
        Of all inputs.
    opset : int
        The version of ONNX's operators.
    parameters : mapping of str to numpy.ndarray, optional
        In place of the net's own.

    Raises
    ------
    ModelError
        If the opset is not known, or ONNX has no operators for what the net computes.
    """
    if opset not in OPSETS:
        raise ModelError(f"[export] got opset {opset}, expected {OPSETS[0]} to {OPSETS[-1]}")
    lowered, writer = net.lower(shapes), Writer(opset)
    inputs = [_port(name, tensor.dtype, tensor.shape) for name, tensor in lowered.inputs.items()]
    values = {tensor.name: writer.take(name, tensor.shape) for name, tensor in lowered.inputs.items()}
    outputs = {port.name: lowered.values[port.name] for port in net.outputs}
    known = {*values, *lowered.parameters, *lowered.build.constants}
    flags = [chosen.flags for name, chosen in lowered.chosen.items() if name in outputs]
    wanted = dict.fromkeys(tensor.name for tensor in (*outputs.values(), *flags))
    computed = [name for name in wanted if name not in known]
    graph = _simplified(lowered.build.graph.graph(*computed), lowered.values) if computed else None
    read = {name for node in graph.nodes for name in node.reads} if graph else set()
    for inside, name in lowered.parameters.items():
        if inside in read:
            values[inside] = writer.parameter(name, net.array(name) if parameters is None else parameters[name])
    for inside, array in lowered.build.constants.items():
        if inside in read or any(tensor.name == inside for tensor in outputs.values()):
            values[inside] = writer.parameter(writer.free(inside), array)
    wishes = _wishes(lowered.values, outputs, lowered.chosen)
    for node in graph.nodes if graph else ():
        _add(writer, node, values, wishes)
    for name, chosen in lowered.chosen.items():
        if name in outputs:
            _choose(writer, name, chosen, outputs[name], values)
    for name, tensor in outputs.items():
        if name in lowered.chosen:
            continue
        value = values[tensor.name]
        if value != name or writer.shape(value) != tensor.shape:
            values[tensor.name] = writer.reshaped(value, tensor.shape, name)
    sizes = {name: _sizes(name, tensor.shape, lowered.chosen.get(name)) for name, tensor in outputs.items()}
    named = [_port(name, tensor.dtype, sizes[name]) for name, tensor in outputs.items()]
    made = helper.make_graph(writer.nodes, net.kind, inputs, named, writer.constants)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(
        made,
        opset_imports=opsets,
        ir_version=helper.find_min_ir_version_for(opsets),
        producer_name="clgraft",
        producer_version=__version__,
    )


def _choose(writer: Writer, name: str, chosen: Chosen, whole: Tensor, values: dict[str, str]) -> None:
    """Add an output whose size depends on elements."""
    flags = writer.reshaped(values[chosen.flags.name], (chosen.flags.size,))
    no = writer.constant(0, chosen.flags.dtype)
    kept = writer.add("Not", [writer.add("Equal", [flags, no], (chosen.flags.size,))], (chosen.flags.size,))
    rows = writer.reshaped(values[whole.name], whole.shape)
    writer.add("Compress", [rows, kept], whole.shape, name, axis=chosen.axis)


def _sizes(name: str, shape: tuple[int, ...], chosen: Chosen | None) -> tuple[int | str, ...]:
    """Return the shape of an output, with a name for a size that depends on elements."""
    return tuple(f"{name}/count" if chosen and axis == chosen.axis else size for axis, size in enumerate(shape))


def _simplified(graph: Graph, named: Mapping[str, Any]) -> Graph:
    """Return a graph without what is computed twice or for nothing, but with all values that have a name."""
    whole = optimise(graph, "-all,dead")
    made = {name for node in whole.nodes for name in node.writes}
    shown = dict.fromkeys(tensor.name for tensor in named.values() if tensor.name in made)
    single = optimise(whole.with_outputs(dict.fromkeys((*whole.outputs, *shown))), "-all,duplicates")
    return optimise(single.with_outputs(graph.outputs), "-all,dead")


def _port(name: str, dtype: str, shape: tuple[int | str, ...]) -> Any:
    """Return an input or output."""
    kinds = {**TYPES, "int32": TensorProto.INT32, "int64": TensorProto.INT64, "uint8": TensorProto.UINT8}
    if dtype not in kinds:
        raise ModelError(f"[export] got {name} of {dtype}, expected one of {sorted(kinds)}")
    return helper.make_tensor_value_info(name, kinds[dtype], shape)


def _wishes(
    values: Mapping[str, Any], outputs: Mapping[str, Any], open_ones: Collection[str]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the name and the shape that the net gives to each value of the graph; outputs come first.

    Names of values whose size depends on elements are left to what is made of them.
    """
    wishes: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, tensor in (*outputs.items(), *values.items()):
        if name not in open_ones:
            wishes.setdefault(tensor.name, (name, tuple(tensor.shape)))
    return wishes


def _add(writer: Writer, node: Any, values: dict[str, str], wishes: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    """Add the nodes of a node of the graph."""
    reads, written = {}, []
    for argument, name in zip(node.problem.arguments(), node.arguments):
        if argument.role == "in":
            reads[argument.name] = writer.reshaped(values[name], argument.shape)
        elif argument.role == "out":
            written.append(name)
        else:
            raise ModelError(f"[export] got {node.problem}, which changes a state; expected a net for inference")
    numbers = dict(zip(node.problem.scalars(), node.scalars))
    names = []
    for argument, name in zip([each for each in node.problem.arguments() if each.role == "out"], written):
        wish, shape = wishes.get(name, (name, argument.shape))
        names.append("" if name == SKIPPED else wish if shape == argument.shape else f"{wish}/values")
    for name, value in zip(written, write(Call(writer, node.problem, reads, numbers, names))):
        if name == SKIPPED:
            continue
        wish, shape = wishes.get(name, (name, writer.shape(value)))
        values[name] = value if shape == writer.shape(value) else writer.reshaped(value, shape, wish)
