"""Nets of one layer, native and ours, run in the same process on the same data and compared."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import caffe
import numpy as np

TRAIN, TEST = 0, 1
OURS = "# clgraft\n"  # in a net's text: Caffe's own types are clgraft's in it
mode = "python"  # or types, replaced: which of clgraft's layers `layer` writes


def load(text: str, phase: int = TRAIN, weights: str | None = None) -> Any:
    """Make a caffe.Net from text."""
    with written(text) as path, cpp_layers(text):
        return caffe.Net(path, phase, weights=weights) if weights else caffe.Net(path, phase)


@contextlib.contextmanager
def cpp_layers(text: str) -> Iterator[None]:
    """Let layers in C++ serve a net that is made inside, if it asks for that; they must serve all of theirs."""
    if mode == "python":
        yield
        return
    from clgraft.caffe_layers import native

    before = native.served()
    if OURS in text:
        native.replace()
    try:
        yield
    finally:
        native.restore()
    made = native.served()
    assert made.handed_over == before.handed_over, "Caffe's own layer runs in place of clgraft's"
    assert OURS not in text or made.ours > before.ours


class written:
    """A file that exists inside a with statement."""

    def __init__(self, text: str, suffix: str = ".prototxt") -> None:
        self.text, self.suffix = text, suffix

    def __enter__(self) -> str:
        handle, self.path = tempfile.mkstemp(suffix=self.suffix)
        with os.fdopen(handle, "w") as file:
            file.write(self.text)
        return self.path

    def __exit__(self, *_: object) -> None:
        os.unlink(self.path)


def inputs(shapes: Mapping[str, Sequence[int]]) -> str:
    """Return Input layers."""
    return "".join(
        f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ '
        + " ".join(f"dim: {size}" for size in shape)
        + " } } }\n"
        for name, shape in shapes.items()
    )


def layer(
    kind: str,
    parameters: str = "",
    *,
    ours: bool,
    name: str = "op",
    bottoms: Sequence[str] = ("x",),
    tops: Sequence[str] = ("y",),
    frame: str = "",
    cls: str | None = None,
) -> str:
    """Return one layer, native or ours.

    Parameters
    ----------
    kind, parameters : str
        Native type and its parameters as text.
    frame : str
        What stays outside of `param_str`: param, loss_weight, include.
    cls : str, optional
        Our class, if it is not Ocl and the native type.
    """
    blobs = " ".join([*(f'bottom: "{b}"' for b in bottoms), *(f'top: "{t}"' for t in tops)])
    head = f'layer {{ name: "{name}" {blobs} {frame} '
    if not ours:
        return head + f'type: "{kind}" {parameters} }}\n'
    own = cls or "Ocl" + kind
    apart = kind in ("Permute", "Normalize")  # whose parameters Caffe cannot read
    if mode == "replaced" and not apart:
        return head + f'type: "{kind}" {parameters} }}\n' + OURS
    if mode == "types" and not apart and kind != "ConvolutionDepthwise":
        return head + f'type: "{own}" {parameters} }}\n'
    assert "'" not in parameters
    text = f'name: "{name}" type: "{kind}" {parameters}'.replace("\n", " ")
    return (
        head + f'type: "{"Python" if mode == "python" else own}" python_param {{ module: "clgraft.caffe_layers" '
        f"layer: \"{own}\" param_str: '{text}' }} }}\n"
    )


def native_learns() -> bool:
    """Return whether the native BatchNorm computes batch statistics; that of the pip wheel leaves its blobs at 0."""
    net = load(inputs({"x": (4, 3)}) + layer("BatchNorm", ours=False))
    net.blobs["x"].data[...] = np.random.default_rng(1).standard_normal((4, 3))
    net.forward()
    return bool(net.params["op"][2].data[0])


def close(got: np.ndarray, expected: np.ndarray, name: str, tolerance: float = 2e-5) -> None:
    """Compare by the largest value; shapes too."""
    assert got.shape == expected.shape, f"{name}: {got.shape} for {expected.shape}"
    if not expected.size:
        return
    assert np.isfinite(expected).all(), f"{name}: the reference is not finite"
    error = np.abs(got.astype(np.float64) - expected).max()
    size = np.abs(expected).max()
    assert error <= tolerance * max(1e-3, size), f"{name}: off by {error}, of {size}"


def gradients(
    net: Any,
    data: Mapping[str, np.ndarray],
    dy: Mapping[str, np.ndarray],
    dw: Sequence[np.ndarray] = (),
    poison: bool = True,
) -> dict[str, np.ndarray]:
    """Run forward and backward once; return tops, bottoms' gradients and the layer's blobs with their gradients."""
    for name, values in data.items():
        net.blobs[name].data[...] = values
    for name in dy:
        if poison and name not in data:
            net.blobs[name].data[...] = np.nan
    net.forward()
    result = {f"{name} data": net.blobs[name].data.copy() for name in dy}
    for name, values in dy.items():
        net.blobs[name].diff[...] = values
    for name in data:
        if poison and name not in dy:
            net.blobs[name].diff[...] = np.nan
    blobs = net.params.get("op", [])
    for blob, values in zip(blobs, dw):
        blob.diff[...] = values
    net.backward()
    result.update({f"{name} diff": net.blobs[name].diff.copy() for name in data})
    for i, blob in enumerate(blobs):
        result[f"blob {i}"] = blob.data.copy()
        if i < len(dw):
            result[f"blob {i} diff"] = blob.diff.copy()
    return result


def compare(
    kind: str,
    parameters: str,
    shapes: Mapping[str, Sequence[int]],
    *,
    tops: Sequence[str] = ("y",),
    phase: int = TRAIN,
    frame: str = "",
    data: Mapping[str, np.ndarray] | None = None,
    blobs: Sequence[np.ndarray] | None = None,
    adds: bool = True,
    runs: int = 2,
    tolerance: float = 2e-5,
    seed: int = 3,
    cls: str | None = None,
) -> dict[str, np.ndarray]:
    """Compare everything that a layer writes, over some runs; parameter gradients start from random values and add up
    (from 0, unless `adds`).

    Bottoms are named by `shapes`; `tops` may hold one of their names: in place.
    """
    random = np.random.default_rng(seed)
    nets = [
        load(
            inputs(shapes)
            + layer(kind, parameters, ours=ours, bottoms=list(shapes), tops=tops, frame=frame, cls=cls)
            + "force_backward: true",
            phase,
        )
        for ours in (False, True)
    ]
    native, ours = nets
    there = native.params.get("op", [])
    starts = blobs or [random.uniform(-1, 1, blob.data.shape).astype(np.float32) for blob in there]
    dw = [adds * random.standard_normal(blob.data.shape).astype(np.float32) for blob in there]
    for net in nets:
        assert len(net.params.get("op", [])) == len(starts)
        for i, values in enumerate(starts):
            assert net.params["op"][i].data.shape == values.shape
            net.params["op"][i].data[...] = values
    expected: dict[str, np.ndarray] = {}
    for _ in range(runs):
        x = data or {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        dy = {top: random.standard_normal(native.blobs[top].data.shape).astype(np.float32) for top in tops}
        expected = gradients(native, x, dy, dw, poison=False)  # with BLAS, 0 * NaN in an old output is NaN
        got = gradients(ours, x, dy, dw)
        assert got.keys() == expected.keys()
        for name, values in expected.items():
            close(got[name], values, name, tolerance)
    return expected


def expect_frozen_weights_without_gradient(kind: str, parameters: str, shape: Sequence[int]) -> None:
    """Check that a layer of ours leaves the gradient of weights with lr_mult 0 alone, and has that of its bias."""
    rates = "param { lr_mult: 0 } param { lr_mult: 2 } "
    net = load(inputs({"x": shape}) + layer(kind, rates + parameters, ours=True) + "force_backward: true")
    w, b = net.params["op"]
    net.forward()
    w.diff[...] = np.nan
    net.blobs["y"].diff[...] = 1
    net.backward()
    assert np.isnan(w.diff).all()
    assert (b.diff == net.blobs["y"].diff.size / b.diff.size).all()


def compare_shapes(kind: str, parameters: str, shape: Sequence[int], shapes: Sequence[Sequence[int]]) -> Any:
    """Compare a layer with Caffe's own, both reshaped from call to call; return the net with ours.

    Parameters
    ----------
    kind, parameters : str
        The layer's type and its attributes.
    shape : sequence of int
        With which the nets are made.
    shapes : sequence of sequence of int
        Of the input, call by call.
    """
    text = inputs({"x": shape})
    nets = [load(text + layer(kind, parameters, ours=ours) + "force_backward: true") for ours in (False, True)]
    random = np.random.default_rng(1)
    for blob, same in zip(nets[0].params["op"], nets[1].params["op"]):
        blob.data[...] = same.data[...] = random.standard_normal(blob.data.shape)
    for each in shapes:
        x = random.standard_normal(each).astype(np.float32)
        results = []
        for net in nets:
            net.blobs["x"].reshape(*each)
            net.reshape()
            dy = np.ones(net.blobs["y"].data.shape, np.float32)
            start = [np.ones(blob.data.shape, np.float32) for blob in net.params["op"]]
            results.append(gradients(net, {"x": x}, {"y": dy}, start))
        for name, values in results[0].items():
            close(results[1][name], values, f"{name} of {each}")
    return nets[1]
