"""`examples/onnx_model.py` runs its own net and a file, and agrees with onnx's reference."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="needs onnx")
from tests.folders import ROOT, python_path  # noqa: E402


@pytest.mark.parametrize("own", [True, False], ids=["its own net", "a file"])
def test_the_example_agrees(own, tmp_path):
    half = onnx.numpy_helper.from_array(np.float32(0.5), "half")
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3]) for name in ("a", "b")]
    nodes = [onnx.helper.make_node("Mul", ["a", "half"], ["b"])]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], [half])
    path = tmp_path / "halves.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    command = [sys.executable, str(ROOT / "examples" / "onnx_model.py"), *([] if own else [str(path)])]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": python_path()})
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "a run takes" in done.stdout and done.stdout.endswith("they agree\n")
    assert ("y: float32 [4, 10]" if own else "b: float32 [2, 3]") in done.stdout
