"""`clgraft.load` and `clgraft run`: files of every kind, without any framework."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import clgraft
from clgraft.core.files import FileError
from clgraft.core.model import ModelError
from clgraft.plugins.command_line.main import main
from tests.plugins.models.test_mxnet_nets import near

FILES = Path(__file__).parent / "files"
WITHOUT = """
import sys
import numpy as np
import clgraft
assert "clgraft.core" not in sys.modules  # importing clgraft alone is cheap
session = clgraft.load(sys.argv[1])
with np.load(sys.argv[2]) as arrays:
    (found,) = session.run({"data": arrays["data"]}).values()
    assert np.abs(found - arrays["output"]).max() < 1e-5
loaded = {"mxnet", "caffe", "torch", "onnx", "google.protobuf"} & set(sys.modules)
assert not loaded, loaded
assert "clgraft.mxnet_ops" not in sys.modules
"""
THEN = """
import sys
import clgraft
session = clgraft.load(sys.argv[1])
import clgraft.mxnet_ops as ops
import mxnet as mx
x = mx.nd.array([[-1.0, 2.0]])
assert mx.nd.Custom(x, op_type="ocl_activation", act_type="relu").asnumpy().tolist() == [[0.0, 2.0]]
assert ops.engine.registry is sys.modules["clgraft.mxnet_ops.engine.registry"]
import clgraft.mxnet_ops.swap.table
assert clgraft.mxnet_ops.swap.table.BINARY
"""


@pytest.fixture
def net(tmp_path) -> Path:
    for name in ("small-symbol.json", "small-0000.params"):
        shutil.copy(FILES / name, tmp_path / name)
    return tmp_path / "small-symbol.json"


def run(script: str, *words: object) -> None:
    done = subprocess.run([sys.executable, "-c", script, *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_framework_is_imported(net) -> None:
    run(WITHOUT, net, FILES / "small.npz")


def test_mxnet_may_be_imported_afterwards(net) -> None:
    pytest.importorskip("mxnet", reason="needs MXNet")
    run(THEN, net)


def test_parameters_are_found_next_to_a_symbol(net, tmp_path) -> None:
    expected = FILES / "small.npz"
    with np.load(expected) as arrays:
        given = {"data": arrays["data"]}
        for session in (clgraft.load(net), clgraft.load(str(net), str(tmp_path / "small-0000.params"))):
            (found,) = session.run(given).values()
            near(found, arrays["output"])
    shutil.copy(tmp_path / "small-0000.params", tmp_path / "small-0007.params")
    with pytest.raises(ModelError, match=r"small-0000.params', 'small-0007.params'\], expected one of them"):
        clgraft.load(net)
    for name in ("small-0000.params", "small-0007.params"):
        (tmp_path / name).unlink()
    with pytest.raises(ModelError, match="no array for 9 parameters"):
        clgraft.load(net)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("net.h5",), "expected a model: an ONNX model's .onnx"),
        (("none-symbol.json",), "No such file"),
        (("x.onnx", "x.params"), "expected none: the model has them"),
        (("x.onnx", None, None, "float64"), "expected one that is mixed with float32"),
        (("x.json", None, None, "int8"), "got precision 'int8', expected one of"),
    ],
)
def test_wrong_arguments_are_named(arguments, words, tmp_path) -> None:
    with pytest.raises((ModelError, FileError)) as caught:
        clgraft.load(tmp_path / arguments[0], *arguments[1:])
    assert words in str(caught.value)


def test_an_onnx_model_is_a_session_of_the_same_kind(tmp_path) -> None:
    onnx = pytest.importorskip("onnx", reason="needs onnx")
    from clgraft.plugins.onnx import OnnxError, Session
    from tests.plugins.onnx.models import small_net

    onnx.save(small_net(), tmp_path / "net.onnx")
    session = clgraft.load(tmp_path / "net.onnx")
    assert isinstance(session, Session)
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)
    expected = session.run({"x": x})["y"]
    assert np.array_equal(session.values("y"), expected) and np.array_equal(session.values("x"), x)
    inner = small_net().graph.node[0].output[0]
    assert session.values(inner, {"x": x[:1]}).shape[0] == 1
    weights = session.parameters
    assert weights and not any(array.flags.writeable for array in weights.values())
    with pytest.raises(OnnxError, match="got value 'none', expected one of the model's"):
        session.values("none")


def test_the_command_runs_a_symbol(net, tmp_path, capsys) -> None:
    with np.load(FILES / "small.npz") as arrays:
        np.save(tmp_path / "x.npy", arrays["data"])
        expected = arrays["output"]
    words = ["run", str(net), "--input", f"data={tmp_path / 'x.npy'}", "--output", str(tmp_path / "y.npz"), "--profile"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "float32 [2, 5]" in printed and "the median of 5 runs" in printed and "conv forward" in printed
    with np.load(tmp_path / "y.npz") as results:
        (name,) = results.files
        near(results[name], expected)
    assert main(["run", str(net), "--shape", "data=1,3,8,8", "--weights", str(tmp_path / "small-0000.params")]) == 0
    assert "[1, 5]" in capsys.readouterr().out
    assert main(["run", str(net)]) == 1
    assert "got no shape for input 'data'" in capsys.readouterr().err
