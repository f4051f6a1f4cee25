"""Nets exported from MXNet: ONNX Runtime and MXNet itself compute the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx", reason="needs onnx")
from clgraft.plugins.onnx import Session
from tests.plugins.onnx import mxnet_exports

LIMIT = 2e-5  # of the largest output: rounding errors of both sides, of up to 120 layers


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", mxnet_exports.models())
def test_nets_of_mxnet(name: str, request: pytest.FixtureRequest) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    folder = request.config.getoption("--mxnet-models")
    if folder is None:
        pytest.skip("needs --mxnet-models, a folder that tests.plugins.onnx.mxnet_exports has filled")
    path = Path(folder, f"{name}.onnx")
    with np.load(path.with_name(f"{name.rpartition('-')[0]}.npz")) as arrays:
        x, from_mxnet = arrays["x"], arrays["y"]
    session = Session(path)
    (y,) = session.run({"data": x}).values()
    (expected,) = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"data": x})
    scale = np.abs(expected).max()
    assert scale > 1e-3 and np.abs(y - expected).max() <= LIMIT * scale
    assert np.abs(y - from_mxnet).max() <= 2 * LIMIT * scale
