"""Caffe's layers, native and swapped, each as the one layer of a net."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import caffe
import numpy as np

from clgraft.caffe_layers.swap import swap_net
from clgraft.core import BatchNormProblem, PoolProblem
from clgraft.core.problem.layout import LAST
from clgraft.plugins.command_line.bench.cases import Case, Element
from clgraft.plugins.command_line.bench.peers import NotServed, Side, random

_TYPES = {"relu": "ReLU", "sigmoid": "Sigmoid", "tanh": "TanH", "softrelu": "BNLL", "sum": "Eltwise"}

MODE = "each layer in a net"


def sides(case: Case) -> dict[str, Side]:
    """Return both sides of a case."""
    native, shape, inputs = layer(case.work)
    bottoms = [f"x{i}" for i in range(inputs)]
    dims = " ".join(f"dim: {size}" for size in shape)
    text = "".join(
        f'layer {{ name: "{x}" type: "Input" top: "{x}" input_param {{ shape {{ {dims} }} }} }}\n' for x in bottoms
    )
    words = " ".join(f'bottom: "{x}"' for x in bottoms)
    text += f'layer {{ name: "op" {words} top: "y" {native} }}\nforce_backward: true\n'
    swapped, report = swap_net(text)
    if not report.swapped:
        raise NotServed(f"nothing was swapped: {report}")
    return {"native": _side(text, bottoms), "clgraft": _side(swapped, bottoms)}


def load(text: str, phase: int = caffe.TRAIN) -> Any:
    """Make a net from text."""
    handle, path = tempfile.mkstemp(suffix=".prototxt")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        return caffe.Net(path, phase)
    finally:
        os.unlink(path)


def _side(text: str, bottoms: list[str]) -> Side:
    net = load(text)
    parameters = list(net.params.get("op", []))
    for seed, blob in enumerate([net.blobs[x] for x in bottoms] + parameters):
        blob.data[...] = random(blob.data.shape, seed)
    last = len(net.layers) - 1
    net._forward(last, last)
    net.blobs["y"].diff[...] = random(net.blobs["y"].diff.shape, 99)

    def results() -> list[np.ndarray]:
        # parameter gradients add up over the calls: how many there were differs
        return [net.blobs["y"].data, *(net.blobs[x].diff for x in bottoms)]

    return Side(lambda: net._forward(last, last), lambda: net._backward(last, last), results)


def layer(work: Any) -> tuple[str, tuple[int, ...], int]:
    """Return a problem in Caffe's words: type and parameters, shape and number of bottoms."""
    if isinstance(work, Element):
        return f'type: "{_TYPES[work.function]}"', (*work.shape, 1), work.inputs
    if isinstance(work, BatchNormProblem):
        return 'type: "BatchNorm"', (*work.shape, 1), 1
    if work.layout == LAST:
        raise NotServed("Caffe has no channels last")
    if isinstance(work, PoolProblem):
        if work.ndim != 2 or work.operator not in ("max", "average"):
            raise NotServed(f"Caffe has no pooling of {work}")
        kind = {"max": "MAX", "average": "AVE"}[work.operator]
        shape = (work.batch, work.channels, *work.in_size)
        sizes = _sizes(kernel=work.kernel, stride=work.stride, pad=work.pad_begin)
        return f'type: "Pooling" pooling_param {{ pool: {kind} {sizes} }}', shape, 1
    shape = (work.batch, work.in_channels, *work.in_size)
    more = f"num_output: {work.out_channels} group: {work.groups} bias_term: false dilation: {work.dilate[0]}"
    sizes = _sizes(kernel=work.kernel, stride=work.stride, pad=work.pad_begin)
    return f'type: "Convolution" convolution_param {{ {more} {sizes} }}', shape, 1


def _sizes(**sizes: tuple[int, ...]) -> str:
    return " ".join(f"{name}_h: {size[0]} {name}_w: {size[1]}" for name, size in sizes.items())
