"""Nets without Caffe against Caffe: layers in the configurations of its own tests, and nets; outputs and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

caffe = pytest.importorskip("caffe")

from tests.caffe_layers import test_attributes_audit as layers
from tests.caffe_layers import test_attributes_audit_windows as windows
from tests.caffe_layers.caffe_nets import TEST, TRAIN, close, gradients, inputs, layer, load
from tests.caffe_layers.net_comparison import compare_nets
from tests.caffe_layers.net_styles import STYLES, small
from tests.caffe_layers.session_nets import SessionNet


def cases() -> dict[str, tuple[str, str, dict, dict[str, Any]]]:
    """Return the cases of the files that compare layers with Caffe's: type, parameters, shapes, and more."""
    found: dict[str, tuple[str, str, dict, dict[str, Any]]] = {}
    for name, (kind, text) in layers.ELEMENTS.items():
        found[name] = kind, text, {"x": layers.MATRIX}, {}
    for name, (kind, text) in layers.OF_POSITIVE.items():
        found[f"positive {name}"] = kind, text, {"x": layers.MATRIX}, {"data": {"x": layers.POSITIVE}}
    for name, (fields, shapes) in layers.AFFINE.items():
        for kind, more in (("Scale", "bias_term: true"), ("Bias", "")):
            for top in "yx":
                text = f"{kind.lower()}_param {{ {fields} {more} }}"
                found[f"{kind} {name} {top}"] = kind, text, shapes, {"tops": [top]}
    for name, fields in layers.ELTWISE.items():
        shapes = dict.fromkeys("abc", (2, 3, 2, 2, 3))
        found[f"eltwise {name}"] = "Eltwise", f"eltwise_param {{ {fields} }}", shapes, {}
    for name, (kind, text, shape) in layers.NORMS.items():
        found[name] = kind, text, {"x": shape}, {}
    for name, (kind, text, shapes, tops) in layers.PARTS.items():
        found[name] = kind, text, shapes, {"tops": list(tops)}
    for name, (fields, shapes) in windows.CONVOLUTIONS.items():
        tops = [f"y{i}" for i in range(len(shapes))]
        for kind in ("Convolution", "Deconvolution"):
            own = fields.replace("pad: 3 ", "pad: 1 ") if kind == "Deconvolution" else fields
            found[f"{kind} {name}"] = kind, windows.convolution(own), shapes, {"tops": tops}
    for name, (fields, shape) in windows.POOLING.items():
        for pool in ("MAX", "AVE"):
            found[f"{pool} {name}"] = "Pooling", f"pooling_param {{ pool: {pool} {fields} }}", {"x": shape}, {}
        x = np.random.default_rng(4).integers(-4, 5, shape).astype(np.float32)
        for phase in (TRAIN, TEST):
            more = {"tops": ["y", "mask"], "phase": phase, "data": {"x": x}}
            found[f"mask {name} {phase}"] = "Pooling", f"pooling_param {{ {fields} }}", {"x": shape}, more
    return found


CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_a_layer(name):
    kind, parameters, shapes, more = CASES[name]
    tops, phase, data = more.get("tops", ["y"]), more.get("phase", TRAIN), more.get("data")
    text = (
        inputs(shapes) + layer(kind, parameters, ours=False, bottoms=list(shapes), tops=tops) + "force_backward: true"
    )
    native, ours = load(text, phase), SessionNet(text, phase)
    random = np.random.default_rng(3)
    starts = [random.uniform(-1, 1, blob.data.shape).astype(np.float32) for blob in native.params.get("op", [])]
    dw = [random.standard_normal(blob.shape).astype(np.float32) for blob in starts]
    for net in (native, ours):
        assert len(net.params.get("op", [])) == len(starts)
        for blob, values in zip(net.params.get("op", []), starts):
            assert blob.data.shape == values.shape
            blob.data[...] = values
    x = data or {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    dy = {top: random.standard_normal(native.blobs[top].data.shape).astype(np.float32) for top in tops}
    expected, got = gradients(native, x, dy, dw, poison=False), gradients(ours, x, dy, dw)
    assert got.keys() == expected.keys()
    for each, values in expected.items():
        close(got[each], values, each)


@pytest.mark.parametrize("style", STYLES)
def test_a_net(style, tmp_path):
    assert not compare_nets(small(style), str(tmp_path / "native.caffemodel"), session=True).failures
