"""Files that are no models, and models that are wrong: each is a clear error and no crash."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from clgraft.core.errors import ClgraftError  # noqa: E402
from clgraft.plugins.onnx import OnnxError, Session  # noqa: E402
from tests.folders import python_path  # noqa: E402
from tests.plugins.onnx.models import model, node, small_net  # noqa: E402

helper = onnx.helper
X = {"x": (np.float32, [2, 3])}
Y = {"y": (np.float32, ["a", "b"])}


def refused(source: object) -> str:
    with pytest.raises(OnnxError) as caught:
        Session(source)
    assert str(caught.value).startswith("[onnx] got ")
    return str(caught.value)


def test_files_that_are_no_models(tmp_path) -> None:
    assert "nothing.onnx, which does not exist; expected an ONNX model" in refused(tmp_path / "nothing.onnx")
    assert "which is a folder; expected an ONNX model" in refused(tmp_path)
    for content in (b"", b"\x00" * 100, b"no model", small_net().SerializeToString()[:-1000]):
        (tmp_path / "bad.onnx").write_bytes(content)
        assert "no ONNX model" in refused(tmp_path / "bad.onnx")


def test_a_cycle() -> None:
    nodes = [node("Add", "x b", "a"), node("Relu", "a", "b"), node("Relu", "b", "y")]
    assert "invalid model" in refused(model(nodes, X, Y))


def test_a_value_that_nothing_gives() -> None:
    assert "invalid model" in refused(model([node("Add", "x z", "y")], X, Y))


def test_an_output_that_nothing_gives() -> None:
    assert "'y'" in refused(model([node("Relu", "x", "z")], X, Y))


def test_opsets_that_do_not_exist() -> None:
    for opset in (1, 6, 9999):
        assert "opset" in refused(model([node("Relu", "x", "y")], X, Y, opset=opset))
    proto = model([node("Relu", "x", "y")], X, Y)
    del proto.opset_import[:]
    refused(proto)


def test_unknown_operators_and_attributes() -> None:
    refused(model([node("Reluu", "x", "y")], X, Y))
    refused(model([node("Relu", "x", "y", slope=1.0)], X, Y))


def test_weights_of_other_sizes() -> None:
    proto = model([node("Add", "x w", "y")], X, Y, {"w": np.ones(3, np.float32)})
    tensor = proto.graph.initializer[0]
    tensor.dims[0] = 4
    assert "12 bytes for tensor 'w', expected 16" in refused(proto)
    tensor.dims[0] = -3
    assert "sizes of at least 0" in refused(proto)
    tensor.dims[:] = [2**40, 2**40]
    assert "expected" in refused(proto)
    tensor.data_type = 999
    refused(proto)


def test_gigantic_results_are_refused_before_they_are_made() -> None:
    huge = np.array([10**6, 10**6], np.int64)
    for made in ("ConstantOfShape", "Expand", "Tile"):
        reads = {"ConstantOfShape": "huge", "Expand": "one huge", "Tile": "flat huge"}[made]
        weights = {"huge": huge, "one": np.ones(1, np.float32), "flat": np.ones((1, 1), np.float32)}
        used = {name: weights[name] for name in reads.split()}
        proto = model([node(made, reads, "big"), node("Add", "x big", "y")], X, Y, used)
        assert "expected at most" in refused(proto)
    weights = {"s": np.array(0, np.int64), "e": np.array(10**15, np.int64), "d": np.array(1, np.int64)}
    proto = model([node("Range", "s e d", "r"), node("Cast", "r", "y", to=1)], X, Y, weights)
    assert "expected at most" in refused(proto)
    proto = model([node("Expand", "x huge", "y")], {"x": (np.float32, [1, 1])}, Y, {"huge": huge})
    assert "expected at most" in refused(proto)


def test_external_data_outside_of_the_folder(tmp_path) -> None:
    (tmp_path / "secret").write_bytes(b"\x00" * 64)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "short").write_bytes(b"\x00" * 8)
    places = {"../secret": {}, str(tmp_path / "secret"): {}, "link": {}, "nothing": {}, "short": {}, "": {}}
    for offset in ("-4", "x", "9999999999999999999999"):
        places[f"short {offset}"] = {"offset": offset}
    for place, more in places.items():
        proto = model([node("Add", "x w", "y")], X, Y, {"w": np.ones(3, np.float32)})
        tensor = proto.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in {"location": place.partition(" ")[0], **more}.items():
            tensor.external_data.add(key=key, value=value)
        (folder / "net.onnx").write_bytes(proto.SerializeToString())
        message = refused(folder / "net.onnx")
        assert "'w'" in message and "expected" in message


def test_shapes_that_do_not_fit() -> None:
    weights = {"w": np.ones((4, 3, 3, 3), np.float32), "s": np.array([7, 7], np.int64)}
    cases = [
        (node("Conv", "x w", "y"), {"x": (np.float32, [1, 5, 8, 8])}),
        (node("Conv", "x w", "y", strides=[0, 1]), {"x": (np.float32, [1, 3, 8, 8])}),
        (node("Conv", "x w", "y", group=0), {"x": (np.float32, [1, 3, 8, 8])}),
        (node("Conv", "x w", "y"), {"x": (np.float32, [1, 3, 2, 2])}),
        (node("MaxPool", "x", "y", kernel_shape=[2, 2, 2]), {"x": (np.float32, [1, 3, 8, 8])}),
        (node("Reshape", "x s", "y"), {"x": (np.float32, [2, 3])}),
        (node("Transpose", "x", "y", perm=[0, 0]), {"x": (np.float32, [2, 3])}),
        (node("Concat", "x w", "y", axis=9), {"x": (np.float32, [4, 3, 3, 3])}),
        (node("Softmax", "x", "y", axis=5), {"x": (np.float32, [2, 3])}),
    ]
    for made, inputs in cases:
        used = {name: array for name, array in weights.items() if name in made.input}
        message = refused(model([made], inputs, Y, used))
        assert made.op_type in message or "invalid" in message, message


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """Return a file with some bytes changed, cut out or repeated."""
    content = bytearray(data)
    for _ in range(int(rng.integers(1, 6))):
        at, kind = int(rng.integers(0, len(content))), int(rng.integers(0, 4))
        if kind == 0:
            content[at] = int(rng.integers(0, 256))
        elif kind == 1:
            content[at] ^= 1 << int(rng.integers(0, 8))
        elif kind == 2:
            del content[at : at + int(rng.integers(1, 9))]
        else:
            content[at:at] = content[at : at + int(rng.integers(1, 9))]
    return bytes(content)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files(seed: int) -> None:
    """A damaged model is read as another model or refused in words; nothing else is raised."""
    data = small_net(2).SerializeToString()
    head = data[: data.index(b"gamma")]  # the nodes, in front of the weights
    rng, refusals = np.random.default_rng(seed), 0
    for _ in range(150):
        broken = mutated(head, rng) + data[len(head) :] if rng.integers(0, 3) else mutated(data, rng)
        try:
            Session(broken)
        except ClgraftError as error:
            refusals += 1
            assert str(error).startswith("["), error
    assert 30 < refusals <= 150


@pytest.mark.parametrize("seed", [21, 22])
def test_models_whose_parts_are_wrong(seed: int) -> None:
    """Changed sizes, attributes, types, elements and places of tensors, in a process with limits on memory and time."""
    command = [sys.executable, "-m", "tests.plugins.onnx.mutations", str(seed), "150"]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{done.stdout}{done.stderr[-3000:]}"
