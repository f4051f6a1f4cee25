"""Reads models and refuses bad ones: files that cannot be read, invalid graphs, data outside of the model's folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import helper

from clgraft.core.files import FileError, read_file
from clgraft.core.model import Port
from clgraft.plugins.onnx import operators
from clgraft.plugins.onnx.errors import OnnxError, UnsupportedError
from clgraft.plugins.onnx.functions import inlined
from clgraft.plugins.onnx.limits import Budget, Limits, limits
from clgraft.plugins.onnx.nodes import in_default_domain, lowering_of, operator_name
from clgraft.plugins.onnx.tensors import EXTERNAL, Reader, dense_bytes, first_line, graphs
from clgraft.plugins.onnx.values import DTYPES, fault_of

Source = Union[str, os.PathLike, bytes, onnx.ModelProto]
OLDEST = 7  # opset
operators.fill()


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
    limits : Limits
    proto : onnx.ModelProto
        The model as it is in the file.
    """

    graph: onnx.GraphProto
    opset: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    initializers: Mapping[str, np.ndarray] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    proto: onnx.ModelProto = field(default_factory=onnx.ModelProto)


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
    most = limits()
    proto, folder = _read(source)
    opset = _opset(proto)
    reader, budget = Reader(folder), Budget(most)
    initializers = {tensor.name: reader.read(tensor) for tensor in proto.graph.initializer}
    reader.embed(proto)
    for sparse in proto.graph.sparse_initializer:
        budget.spend("bytes", dense_bytes(sparse), f"the sparse tensor {sparse.values.name!r}")
        initializers[sparse.values.name] = reader.read_sparse(sparse)
    _check(proto)
    given, file = set(initializers), proto
    proto = inlined(proto, budget)
    _expect_supported(proto.graph)
    inputs = tuple(_port(info, "input") for info in proto.graph.input if info.name not in given)
    outputs = tuple(_port(info, "output") for info in proto.graph.output)
    return Model(proto.graph, opset, inputs, outputs, initializers, most, file)


def _read(source: Source) -> tuple[onnx.ModelProto, Path | None]:
    if isinstance(source, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(source)
        return copy, None
    if not isinstance(source, (str, os.PathLike, bytes)):
        expected = "the path of an .onnx, its bytes or an onnx.ModelProto"
        raise OnnxError(f"[onnx] got {type(source).__name__}, expected {expected}")
    folder, where = None, f"{len(source)} bytes" if isinstance(source, bytes) else str(source)
    if not isinstance(source, bytes):
        path = Path(source)
        folder = path.resolve().parent
        try:
            source = read_file(path, "onnx", "an ONNX model's .onnx")
        except FileError as error:
            raise OnnxError(str(error)) from None
    try:
        proto = onnx.load_model_from_string(source)
    except (DecodeError, ValueError, TypeError) as error:
        raise OnnxError(f"[onnx] got {where}, which is no ONNX model: {first_line(error)}") from None
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


def _check(proto: onnx.ModelProto) -> None:
    """Let onnx check the model without the elements of its initializers."""
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    for tensor in bare.graph.initializer:
        if tensor.data_location == EXTERNAL:
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
        raise OnnxError(f"[onnx] got an invalid model: {first_line(error)}") from None


def _expect_supported(graph: onnx.GraphProto) -> None:
    """Refuse operators that are not in the table, all of them at once."""
    missing = []
    for inside in graphs(graph):
        for node in inside.node:
            operator = operator_name(node)
            if lowering_of(operator) is None:
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
    fault = fault_of([size for size in shape if isinstance(size, int)])
    if fault:
        raise OnnxError(f"[onnx] got {what} {info.name!r} of shape {shape}, expected {fault}")
    return Port(info.name, dtype, shape)


def _size(dim: Any, axis: int) -> int | str:
    return int(dim.dim_value) if dim.HasField("dim_value") else str(dim.dim_param or f"axis {axis}")
