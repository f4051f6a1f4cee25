"""Reads models and refuses bad ones: files that cannot be read, invalid graphs, data outside of the model's folder."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

import numpy as np
import onnx
import onnx.inliner
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper

from clgraft.plugins.onnx import operators
from clgraft.plugins.onnx.errors import OnnxError, UnsupportedError
from clgraft.plugins.onnx.folding import in_default_domain
from clgraft.plugins.onnx.nodes import lowered_operators, lowering_of
from clgraft.plugins.onnx.values import DTYPES

Source = Union[str, os.PathLike, bytes, onnx.ModelProto]
OLDEST = 7  # opset
operators.fill()


@dataclass(frozen=True)
class Port:
    """An input or output of a model.

    Attributes
    ----------
    name : str
    dtype : str
    shape : tuple of int or str, or None
        A size, or the name of one that is not fixed; None if the model does not say the rank.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None


def fits(port: Port, shape: Sequence[int]) -> bool:
    """Return whether an input or output may have a shape."""
    if port.shape is None:
        return all(size >= 0 for size in shape)
    sizes = zip(port.shape, shape)
    return len(port.shape) == len(shape) and all(
        size == own or (isinstance(size, str) and own >= 0) for size, own in sizes
    )


@dataclass
class Model:
    """A model that was read and checked.

    Attributes
    ----------
    graph : onnx.GraphProto
    opset : int
    inputs, outputs : tuple of Port
        What a run takes and gives.
    initializers : dict of str to numpy.ndarray
    """

    graph: onnx.GraphProto
    opset: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    initializers: Mapping[str, np.ndarray] = field(default_factory=dict)


def load(source: Source) -> Model:
    """Read and check a model.

    Parameters
    ----------
    source : path, bytes or onnx.ModelProto

    Raises
    ------
    OnnxError
        If the file cannot be read or the model is invalid.
    UnsupportedError
        If it has nodes that clgraft does not run.
    """
    proto, folder = _read(source)
    opset = _opset(proto)
    initializers = {tensor.name: _array(tensor, folder) for tensor in proto.graph.initializer}
    _check(proto)
    proto = _inlined(proto)
    _expect_supported(proto.graph)
    given = set(initializers)
    inputs = tuple(_port(info, "input") for info in proto.graph.input if info.name not in given)
    outputs = tuple(_port(info, "output") for info in proto.graph.output)
    return Model(proto.graph, opset, inputs, outputs, initializers)


def _read(source: Source) -> tuple[onnx.ModelProto, Path | None]:
    if isinstance(source, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(source)
        return copy, None
    folder, where = None, f"{len(source)} bytes" if isinstance(source, bytes) else str(source)
    if not isinstance(source, bytes):
        path = Path(source)
        folder = path.resolve().parent
        try:
            source = path.read_bytes()
        except OSError as error:
            raise OnnxError(f"[onnx] got {path}, which cannot be read: {error.strerror or error}") from None
    try:
        proto = onnx.load_model_from_string(source)
    except (DecodeError, ValueError, TypeError) as error:
        raise OnnxError(f"[onnx] got {where}, which is no ONNX model: {_first_line(error)}") from None
    if not proto.graph.node and not proto.graph.output:
        raise OnnxError(f"[onnx] got {where}, which is no ONNX model: it has no graph")
    return proto, folder


def _opset(proto: onnx.ModelProto) -> int:
    versions = {entry.version for entry in proto.opset_import if in_default_domain(entry)}
    newest = onnx.defs.onnx_opset_version()
    if not versions:  # only operators of other domains, which are refused by name
        return newest
    if len(versions) > 1 or max(versions) > newest or min(versions) < 1:
        raise OnnxError(f"[onnx] got opset {sorted(versions)}, expected one from {OLDEST} to {newest}")
    version = int(versions.pop())
    if version < OLDEST:
        raise UnsupportedError([f"{node.op_type} of opset {version}, before {OLDEST}" for node in proto.graph.node])
    return version


def _array(tensor: onnx.TensorProto, folder: Path | None) -> np.ndarray:
    """Return a tensor's elements, after a look at how many there can be."""
    name = tensor.name
    try:
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except (KeyError, ValueError, TypeError):
        raise OnnxError(f"[onnx] got tensor {name!r} of type {tensor.data_type}, expected a type of ONNX") from None
    if dtype.name not in DTYPES:
        raise UnsupportedError([f"tensor {name!r} of type {dtype.name}"])
    if any(size < 0 for size in tensor.dims):
        raise OnnxError(f"[onnx] got tensor {name!r} of shape {tuple(tensor.dims)}, expected sizes of at least 0")
    nbytes = math.prod(tensor.dims) * dtype.itemsize
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return _external(tensor, folder, dtype, nbytes)
    if tensor.HasField("raw_data") and len(tensor.raw_data) != nbytes:
        raise OnnxError(
            f"[onnx] got {len(tensor.raw_data)} bytes for tensor {name!r}, expected {nbytes}: {tuple(tensor.dims)}"
        )
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError) as error:
        raise OnnxError(f"[onnx] got tensor {name!r}, which does not fit its shape: {_first_line(error)}") from None


def _external(tensor: onnx.TensorProto, folder: Path | None, dtype: np.dtype, nbytes: int) -> np.ndarray:
    """Return elements that stand in another file, which has to lie in the model's folder."""
    fields = {entry.key: entry.value for entry in tensor.external_data}
    location, name = fields.get("location", ""), tensor.name
    if folder is None:
        raise OnnxError(f"[onnx] got external data for {name!r}, expected a model that is read from its file")
    path = (folder / location).resolve()
    if not location or not path.is_relative_to(folder) or not path.is_file():
        raise OnnxError(f"[onnx] got external data {location!r} for {name!r}, expected a file in the model's folder")
    try:
        offset, length = int(fields.get("offset", 0)), int(fields.get("length", nbytes))
    except ValueError:
        raise OnnxError(f"[onnx] got external data {fields} for {name!r}, expected whole numbers") from None
    size = path.stat().st_size
    if offset < 0 or length != nbytes or offset + length > size:
        raise OnnxError(
            f"[onnx] got {length} bytes at {offset} of {location!r} ({size} bytes) for {name!r}, expected {nbytes}"
        )
    shape = tuple(tensor.dims)
    array = np.fromfile(path, dtype, math.prod(shape), offset=offset)
    return array.reshape(shape)


def _check(proto: onnx.ModelProto) -> None:
    """Let onnx check the model without the elements of its initializers."""
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    for tensor in bare.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.ClearField("data_location")
            tensor.ClearField("external_data")
            tensor.dims[:] = [0]
            tensor.raw_data = b""
    for info in (*bare.graph.input, *bare.graph.output):
        if info.type.HasField("tensor_type"):  # a missing shape is no fault
            info.type.tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(bare)
    except (onnx.checker.ValidationError, ValueError, TypeError, RuntimeError) as error:
        raise OnnxError(f"[onnx] got an invalid model: {_first_line(error)}") from None


def _inlined(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with its functions, and those that ONNX defines by others, in place of their calls."""
    calls = {(node.domain, node.op_type) for graph in _graphs(proto.graph) for node in graph.node}
    ours = set(lowered_operators())
    functions = {(function.domain, function.name) for function in proto.functions}
    missing = sorted(
        call for call in calls if call in functions or (call[0] in ("", "ai.onnx") and call[1] not in ours)
    )
    if not missing:
        return proto
    halves = {info.name for info in proto.graph.input if info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16}
    for node in proto.graph.node:  # the function's definition rounds after each of its steps
        if node.op_type == "Attention" and halves & set(node.input):
            raise UnsupportedError([f"Attention {node.name or node.output[0]!r} (float16)"])
    try:
        kept = [("", name) for name in sorted(ours)]
        return onnx.inliner.inline_selected_functions(proto, kept, exclude=True, inline_schema_functions=True)
    except (onnx.checker.ValidationError, ValueError, TypeError, RuntimeError, DecodeError):
        raise UnsupportedError([f"{name} (its function cannot be inlined)" for _, name in missing]) from None


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and the graphs inside of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def _expect_supported(graph: onnx.GraphProto) -> None:
    """Refuse operators that are not in the table, all of them at once."""
    missing = []
    for inside in _graphs(graph):
        for node in inside.node:
            operator = node.op_type if in_default_domain(node) else f"{node.domain}.{node.op_type}"
            if not in_default_domain(node) or lowering_of(operator) is None:
                missing.append(f"{operator} {node.name or next(iter(node.output), '')!r}")
    if missing:
        raise UnsupportedError(missing)


def _port(info: Any, what: str) -> Port:
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        raise UnsupportedError([f"{what} {info.name!r} of type {kind}"])
    tensor = info.type.tensor_type
    try:
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    except (KeyError, ValueError, TypeError):
        raise OnnxError(f"[onnx] got {what} {info.name!r} of type {tensor.elem_type}, expected one of ONNX") from None
    if dtype not in DTYPES:
        raise UnsupportedError([f"{what} {info.name!r} of type {dtype}"])
    if not tensor.HasField("shape"):
        return Port(info.name, dtype, None)
    shape = tuple(_size(dim, i) for i, dim in enumerate(tensor.shape.dim))
    return Port(info.name, dtype, shape)


def _size(dim: Any, axis: int) -> int | str:
    return int(dim.dim_value) if dim.HasField("dim_value") else str(dim.dim_param or f"axis {axis}")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
