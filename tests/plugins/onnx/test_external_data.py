"""Tensors wherever a model may hold them: one set of rules for external data, shapes and sparse elements."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from clgraft.plugins.onnx import OnnxError, Session  # noqa: E402
from tests.plugins.onnx.models import model, node  # noqa: E402

helper, numpy_helper = onnx.helper, onnx.numpy_helper
X, Y = {"x": (np.float32, [3])}, {"y": (np.float32, [3])}
ZEROS = np.zeros(3, np.float32)
WEIGHTS = np.array([1.5, -2.0, 3.25], np.float32)


def external(location: str, **more: object) -> onnx.TensorProto:
    """Return a tensor of three elements in another file."""
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[3])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def sparse(values: onnx.TensorProto, places: list[int], size: int = 3) -> onnx.SparseTensorProto:
    index = numpy_helper.from_array(np.array(places, np.int64), "places")
    return onnx.SparseTensorProto(values=values, indices=index, dims=[size])


def initializer(tensor: onnx.TensorProto) -> onnx.ModelProto:
    proto = model([node("Add", "x w", "y")], X, Y)
    proto.graph.initializer.append(tensor)
    return proto


def constant(tensor: onnx.TensorProto) -> onnx.ModelProto:
    return model([node("Constant", "", "w", value=tensor), node("Add", "x w", "y")], X, Y)


def branch(tensor: onnx.TensorProto) -> onnx.ModelProto:
    outputs = [helper.make_tensor_value_info("v", 1, [3])]
    graphs = [helper.make_graph([node("Identity", "w", "v")], name, [], outputs, [tensor]) for name in ("then", "else")]
    nodes = [node("If", "yes", "chosen", then_branch=graphs[0], else_branch=graphs[1]), node("Add", "x chosen", "y")]
    return model(nodes, X, Y, {"yes": np.array(True)})


def body(tensor: onnx.TensorProto) -> onnx.ModelProto:
    """Return a loop of one turn, whose body has an initializer."""
    infos = [helper.make_tensor_value_info(name, kind, None) for name, kind in (("n", 7), ("go", 9), ("s", 1))]
    outputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in (("goes", 9), ("t", 1))]
    nodes = [node("Add", "s w", "t"), node("Identity", "go", "goes")]
    graph = helper.make_graph(nodes, "body", infos, outputs, [tensor])
    return model([node("Loop", "one _ x", "y", body=graph)], X, Y, {"one": np.array(1, np.int64)})


def function(tensor: onnx.TensorProto) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    nodes = [node("Constant", "", "w", value=tensor), node("Add", "a w", "b")]
    proto = model([helper.make_node("shift", ["x"], ["y"], domain="own")], X, Y)
    proto.functions.append(helper.make_function("own", "shift", ["a"], ["b"], nodes, opsets))
    proto.opset_import.append(opsets[1])
    return proto


def sparse_initializer(tensor: onnx.TensorProto) -> onnx.ModelProto:
    proto = model([node("Add", "x w", "y")], X, Y)
    proto.graph.sparse_initializer.append(sparse(tensor, [0, 1, 2]))
    return proto


def sparse_constant(tensor: onnx.TensorProto) -> onnx.ModelProto:
    made = node("Constant", "", "w", sparse_value=sparse(tensor, [0, 1, 2]))
    return model([made, node("Add", "x w", "y")], X, Y)


PLACES = (initializer, constant, branch, body, function, sparse_initializer, sparse_constant)
places = pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
Place = Callable[[onnx.TensorProto], onnx.ModelProto]


def refused(source: object) -> str:
    with pytest.raises(OnnxError) as caught:
        Session(source)
    assert str(caught.value).startswith("[onnx] got ")
    return str(caught.value)


def saved(proto: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """Return a model's folder inside of the current one; both have a file ``data``, of which the outer is secret."""
    monkeypatch.chdir(tmp_path)
    inside = tmp_path / "models"
    inside.mkdir()
    (tmp_path / "data").write_bytes(np.full(5, 7, np.float32).tobytes())
    (tmp_path / "secret").write_bytes(np.full(5, 7, np.float32).tobytes())
    (inside / "data").write_bytes(np.concatenate([[9.0], WEIGHTS]).astype(np.float32).tobytes())
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "near").symlink_to(inside / "data")
    os.mkfifo(inside / "pipe")
    return inside


@places
@pytest.mark.parametrize("file", ["data", "near", "./data"])
def test_external_data_is_read_from_the_models_folder(place: Place, file: str, folder: Path) -> None:
    path = saved(place(external(file, offset=4, length=12)), folder / "net.onnx")
    np.testing.assert_array_equal(Session(path).run({"x": ZEROS})["y"], WEIGHTS)


@places
def test_external_data_of_a_model_without_a_folder_is_refused(place: Place, folder: Path) -> None:
    proto = place(external("data"))
    for source in (proto, proto.SerializeToString()):
        assert "external data" in refused(source)


@places
def test_external_data_stays_in_the_models_folder(place: Place, folder: Path) -> None:
    out = str(folder.parent / "secret")
    wrong = ["secret", "../secret", "../models/data", out, str(folder / "data"), "link", "pipe", ".", "", "\0"]
    for location in (*wrong, "data\0", "a" * 5000, "a/" * 3000):
        message = refused(saved(place(external(location)), folder / "net.onnx"))
        assert "external data" in message and "'w'" in message and len(message) < 1000


@places
def test_external_data_fits_its_file(place: Place, folder: Path) -> None:
    for more in ({"offset": 8}, {"offset": -4}, {"length": 8}, {"length": -1}, {"offset": 2**63}, {"offset": "x"}):
        refused(saved(place(external("data", **more)), folder / "net.onnx"))


@places
def test_external_data_is_no_larger_than_memory(place: Place, folder: Path) -> None:
    """A file of 4 TB that takes no room on the disk."""
    size = 2**42
    try:
        with open(folder / "huge", "wb") as file:
            file.truncate(size)
    except OSError as error:
        pytest.skip(f"the file system has no such file: {error}")
    tensor = external("huge")
    tensor.dims[:] = [size // 4]
    assert "memory" in refused(saved(place(tensor), folder / "net.onnx"))


@places
@pytest.mark.parametrize("shape", [(0, 2**62), (0, -1), (-3,), (2**40, 2**40), (1,) * 65], ids=lambda s: str(s[:2]))
def test_shapes_that_no_array_has(place: Place, shape: tuple[int, ...]) -> None:
    tensor = numpy_helper.from_array(np.zeros(1 if 1 in shape else 0, np.float32), "w")
    tensor.dims[:] = shape
    refused(place(tensor))


@pytest.mark.parametrize("shape", [(0, 2**62), (0, -1), (-3, 2), (1,) * 65], ids=lambda shape: str(shape[:2]))
def test_inputs_of_shapes_that_no_array_has(shape: tuple[int, ...]) -> None:
    assert "'x'" in refused(model([node("Relu", "x", "y")], {"x": (np.float32, shape)}, {"y": (np.float32, None)}))


@pytest.mark.parametrize("wanted", [[-2, -3], [-1, -6], [-1, -1, 6], [2, 2**62], [0] * 65])
def test_reshapes_to_shapes_that_no_array_has(wanted: list[int]) -> None:
    proto = model([node("Reshape", "x s", "y")], {"x": (np.float32, [6])}, {"y": (np.float32, None)})
    proto.graph.initializer.append(numpy_helper.from_array(np.array(wanted, np.int64), "s"))
    assert "Reshape" in refused(proto)


def test_sparse_tensors() -> None:
    for flat in (True, False):
        index = np.array([1, 5], np.int64) if flat else np.array([[0, 1], [1, 2]], np.int64)
        tensor = onnx.SparseTensorProto(dims=[2, 3])
        tensor.values.CopyFrom(numpy_helper.from_array(np.array([8.0, 4.0], np.float32), "w"))
        tensor.indices.CopyFrom(numpy_helper.from_array(index, "places"))
        kinds = {"x": (np.float32, [2, 3])}, {"y": (np.float32, [2, 3])}
        inner = model([node("Add", "x w", "y")], *kinds)
        inner.graph.sparse_initializer.append(tensor)
        attribute = model([node("Constant", "", "w", sparse_value=tensor), node("Add", "x w", "y")], *kinds)
        for proto in (inner, attribute):
            y = Session(proto).run({"x": np.zeros((2, 3), np.float32)})["y"]
            np.testing.assert_array_equal(y, [[0, 8, 0], [0, 0, 4]])


@pytest.mark.parametrize("index", [[0, 1, 3], [-1, 0, 1], [0, 1], [0, 1, 2**62]])
@pytest.mark.parametrize("place", ["initializer", "attribute"])
def test_sparse_tensors_whose_indices_do_not_fit(place: str, index: list[int]) -> None:
    tensor = sparse(numpy_helper.from_array(WEIGHTS, "w"), index)
    nodes = [node("Add", "x w", "y")]
    if place == "attribute":
        nodes.insert(0, node("Constant", "", "w", sparse_value=tensor))
    proto = model(nodes, X, Y)
    if place == "initializer":
        proto.graph.sparse_initializer.append(tensor)
    refused(proto)


@pytest.mark.parametrize("place", ["initializer", "attribute"])
def test_sparse_tensors_that_are_dense_in_memory(place: str) -> None:
    tensor = sparse(numpy_helper.from_array(WEIGHTS, "w"), [0, 1, 2], 2**40)
    nodes = [node("ReduceMax", "w", "most"), node("Add", "x most", "y")]
    if place == "attribute":
        nodes.insert(0, node("Constant", "", "w", sparse_value=tensor))
    proto = model(nodes, X, Y)
    if place == "initializer":
        proto.graph.sparse_initializer.append(tensor)
    assert "CLGRAFT_ONNX_LIMITS=bytes=" in refused(proto)
