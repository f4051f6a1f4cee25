"""Whole nets: those with weights in the onnx package against their stored outputs, and torchvision's."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="needs onnx")
from clgraft.plugins.onnx import Session  # noqa: E402

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
STORED = sorted(path.stem for path in LIGHT.glob("*.onnx"))
# for every opset: together they have all operators whose meaning depends on it
IN_ALL = (
    "resnet18",
    "squeezenet1_0",
    "mobilenet_v2",
    "efficientnet_b0",
    "unet",
    "shufflenet_v2_x1_0",
    "vit_b_16",
    "convnext_tiny",
)
# for one opset, in turns
IN_ONE = (
    *("alexnet", "vgg16", "resnext50_32x4d", "regnet_y_400mf", "densenet121", "mnasnet1_0", "wide_resnet50_2"),
    *("efficientnet_b4", "googlenet", "inception_v3", "mobilenet_v3_small"),
)
OPSETS = (18, 13, 11)
ATTENTION = (18, 16, 14)  # the exporter has no attention for older opsets
LIMIT = 2e-5  # of the largest output: rounding errors of both sides, of up to 160 layers


@pytest.mark.parametrize(
    "name",
    [
        *("light_squeezenet", "light_resnet50"),
        *(
            pytest.param(n, marks=pytest.mark.exhaustive)
            for n in STORED
            if n not in ("light_squeezenet", "light_resnet50")
        ),
    ],
)
def test_nets_of_the_package(name: str) -> None:
    session = Session(LIGHT / f"{name}.onnx")
    (port,) = session.inputs
    size = int(np.prod(port.shape))
    x = (np.arange(size).reshape(port.shape) / size).astype(np.float32)
    (y,) = session.run({port.name: x}).values()
    stored = onnx.TensorProto()
    stored.ParseFromString((LIGHT / f"{name}_output_0.pb").read_bytes())
    np.testing.assert_allclose(y, onnx.numpy_helper.to_array(stored), rtol=1e-3, atol=1e-7)


def test_random_weights_in_a_net_of_the_package() -> None:
    """The stored nets have the same number everywhere; with other weights channels and pixels cannot be mixed up."""
    runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    from clgraft.plugins.onnx import bench_nets

    model = bench_nets.net("squeezenet", 2)
    session = Session(model)
    (port,) = session.inputs
    given = {port.name: np.random.default_rng(0).standard_normal(port.shape).astype(np.float32)}
    (y,) = session.run(given).values()
    (expected,) = runtime.InferenceSession(model.SerializeToString()).run(None, given)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=LIMIT * np.abs(expected).max())


@pytest.mark.exhaustive
@pytest.mark.skipif(not importlib.util.find_spec("torchvision"), reason="needs torch and torchvision")
@pytest.mark.parametrize("name", (*IN_ALL, *IN_ONE))
def test_nets_of_torchvision(name: str, tmp_path: Path) -> None:
    """All exports compute what ONNX Runtime computes from the one for the newest opset."""
    runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    from tests.plugins.onnx import torch_nets

    net, expected = torch_nets.build(name), None
    every = ATTENTION if name == "vit_b_16" else OPSETS
    for opset in every if name in IN_ALL else (every[IN_ONE.index(name) % len(every)],):
        path = tmp_path / f"{opset}.onnx"
        x = torch_nets.export(name, path, opset, net=net).numpy()
        if expected is None:
            (expected,) = runtime.InferenceSession(str(path)).run(None, {"x": x})
        session = Session(path)
        assert session.opset == opset
        (y,) = session.run({"x": x}).values()
        assert np.abs(y - expected).max() <= LIMIT * np.abs(expected).max(), opset
