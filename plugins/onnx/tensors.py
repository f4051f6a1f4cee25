"""Elements of a model's tensors, in the model or in a file of its folder."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from clgraft.plugins.onnx.errors import OnnxError, UnsupportedError
from clgraft.plugins.onnx.values import DTYPES, fault_of

EXTERNAL = onnx.TensorProto.EXTERNAL


class Reader:
    """Reads the tensors of one model.

    Parameters
    ----------
    folder : Path, optional
        The model's folder, in which external data may be; without one external data is refused.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._external = 0  # bytes from other files

    def read(self, tensor: onnx.TensorProto) -> np.ndarray:
        """Return a tensor's elements.

        Raises
        ------
        OnnxError
            If its type, its shape and its elements do not fit each other, or its external data is not in the model's
            folder.
        UnsupportedError
            If clgraft has no such type.
        """
        name, shape = tensor.name, tuple(tensor.dims)
        dtype = _dtype(tensor)
        fault = fault_of(shape)
        if fault:
            raise OnnxError(f"[onnx] got tensor {name!r} of shape {_short(shape)}, expected {fault}")
        nbytes = math.prod(shape) * dtype.itemsize
        if tensor.data_location == EXTERNAL:
            return self._from_file(tensor, dtype, nbytes)
        if tensor.HasField("raw_data") and len(tensor.raw_data) != nbytes:
            raise OnnxError(f"[onnx] got {len(tensor.raw_data)} bytes for tensor {name!r}, expected {nbytes}: {shape}")
        try:
            return numpy_helper.to_array(tensor)
        except (ValueError, TypeError, OverflowError) as error:
            raise OnnxError(f"[onnx] got tensor {name!r}, which does not fit its shape: {first_line(error)}") from None

    def _from_file(self, tensor: onnx.TensorProto, dtype: np.dtype, nbytes: int) -> np.ndarray:
        """Return elements that are in another file."""
        given = {entry.key: entry.value for entry in tensor.external_data}
        location, name = given.get("location", ""), tensor.name
        if self._folder is None:
            raise OnnxError(f"[onnx] got external data for {name!r}, expected a model that is read from its file")
        try:
            offset, length = int(given.get("offset", 0)), int(given.get("length", nbytes))
        except ValueError:
            raise OnnxError(f"[onnx] got external data {given} for {name!r}, expected whole numbers") from None
        self._external += nbytes
        if self._external > _memory():
            raise OnnxError(
                f"[onnx] got external data of {self._external} bytes with {name!r}, expected at most the memory of this"
                f" machine, {_memory()} bytes"
            )
        try:
            with open(self._inside(location), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if offset < 0 or length != nbytes or offset + length > size:
                    raise OnnxError(
                        f"[onnx] got {length} bytes at {offset} of {location!r} ({size} bytes) for {name!r}, expected"
                        f" {nbytes}"
                    )
                return np.fromfile(file, dtype, math.prod(tensor.dims), offset=offset).reshape(tuple(tensor.dims))
        except (OSError, ValueError) as error:  # ValueError: a name that no file can have
            raise OnnxError(
                f"[onnx] got external data {location[:80]!r} for {name!r}, expected a file in the model's folder:"
                f" {getattr(error, 'strerror', None) or error}"
            ) from None
        except MemoryError:
            raise OnnxError(f"[onnx] got external data of {nbytes} bytes for {name!r}, expected less memory") from None

    def _inside(self, location: str) -> Path:
        """Return the path of a file in the model's folder.

        Raises
        ------
        ValueError, OSError
            If it is none.
        """
        assert self._folder is not None
        pure = PurePosixPath(location)
        if not location or ".." in pure.parts or pure.is_absolute():
            raise ValueError("a path that leaves it")
        path = (self._folder / pure).resolve()
        if not path.is_relative_to(self._folder):
            raise ValueError("a link that leaves it")
        if not path.is_file():
            raise ValueError("no such file")
        return path

    def read_sparse(self, sparse: onnx.SparseTensorProto) -> np.ndarray:
        """Return a sparse tensor's elements as a dense array; `dense_bytes` says how large that is.

        Raises
        ------
        OnnxError
            If its indices do not fit its shape.
        """
        name, shape = sparse.values.name, tuple(sparse.dims)
        dense_bytes(sparse)
        values, places = self.read(sparse.values).reshape(-1), self.read(sparse.indices)
        flat = places.ndim == 1
        sizes = (math.prod(shape),) if flat else shape
        index = places.reshape(len(values), len(sizes)) if places.size == len(values) * len(sizes) else None
        if index is None or index.dtype != np.int64 or (index < 0).any() or (index >= np.array(sizes)).any():
            raise OnnxError(
                f"[onnx] got indices of shape {places.shape} for the sparse tensor {name!r} of {len(values)} elements,"
                f" expected whole numbers within its shape {shape}"
            )
        dense = np.zeros(sizes, values.dtype)
        dense[tuple(index.T)] = values
        return dense.reshape(shape)

    def embed(self, proto: onnx.ModelProto) -> None:
        """Put external data of attributes, branches and functions into the model, which then needs no folder."""
        for tensor in _inner_tensors(proto):
            if tensor.data_location == EXTERNAL:
                tensor.CopyFrom(numpy_helper.from_array(self.read(tensor), tensor.name))


def dense_bytes(sparse: onnx.SparseTensorProto) -> int:
    """Return how many bytes a sparse tensor's elements need as a dense array."""
    fault = fault_of(tuple(sparse.dims))
    if fault:
        shape = _short(tuple(sparse.dims))
        raise OnnxError(f"[onnx] got the sparse tensor {sparse.values.name!r} of shape {shape}, expected {fault}")
    return math.prod(sparse.dims) * _dtype(sparse.values).itemsize


def _dtype(tensor: onnx.TensorProto) -> np.dtype:
    try:
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except (KeyError, ValueError, TypeError):
        raise OnnxError(
            f"[onnx] got tensor {tensor.name!r} of type {tensor.data_type}, expected a type of ONNX"
        ) from None
    if dtype.name not in DTYPES:
        raise UnsupportedError([f"tensor {tensor.name!r} of type {dtype.name}"])
    return dtype


def _short(shape: Sequence[int]) -> str:
    return str(tuple(shape)) if len(shape) <= 8 else f"{len(shape)} axes"


def graphs(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[Any]:
    """Yield a graph, or a function, and the graphs inside of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node or inner.initializer or inner.sparse_initializer:
                    yield from graphs(inner)


def _inner_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield all tensors but the initializers of the model's own graph."""
    for whole in (proto.graph, *proto.functions):
        if isinstance(whole, onnx.FunctionProto):
            yield from _attribute_tensors(whole.attribute_proto)
        for graph in graphs(whole):
            for node in graph.node:
                yield from _attribute_tensors(node.attribute)
            if isinstance(graph, onnx.GraphProto):
                for sparse in graph.sparse_initializer:
                    yield from (sparse.values, sparse.indices)
                if graph is not proto.graph:
                    yield from graph.initializer


def _attribute_tensors(attributes: Iterable[onnx.AttributeProto]) -> Iterator[onnx.TensorProto]:
    for attribute in attributes:
        yield from (attribute.t, *attribute.tensors)
        for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
            yield from (sparse.values, sparse.indices)


def _memory() -> int:
    """Return the bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, cut to a readable length."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
