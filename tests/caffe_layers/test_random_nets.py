"""Random small nets from a grammar, swapped and run by the real Caffe next to the nets that they were."""

from __future__ import annotations

import math

import numpy as np
import pytest

caffe = pytest.importorskip("caffe")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clgraft.caffe_layers.regions.visible import HiddenBlob
from clgraft.caffe_layers.swap import swap_back, swap_net
from tests.caffe_layers.caffe_nets import TEST, close, inputs, load, written

ELEMENTWISE = {
    "ReLU": ("", "relu_param { negative_slope: 0.2 }"),
    "PReLU": ('prelu_param { filler { type: "uniform" min: 0.1 max: 0.9 } }',),
    "ELU": ("", "elu_param { alpha: 0.7 }"),
    "Sigmoid": ("",),
    "TanH": ("",),
    "AbsVal": ("",),
    "BNLL": ("",),
    "Power": ("power_param { scale: 0.5 shift: 1 }", "power_param { power: 2 }"),
    "Dropout": ("", "dropout_param { dropout_ratio: 0.3 }"),
    "BatchNorm": ("",),
    "Scale": ("", "scale_param { bias_term: true }"),
}
WINDOWS = ("Convolution", "Deconvolution", "Pooling")
JOINS = ("Eltwise", "Concat")
OTHERS = ("LRN", "Softmax", "InnerProduct", "Flatten", "Slice")


class Growing:
    """A net that grows by one drawn layer at a time and knows the shape of its last blob."""

    def __init__(self, draw) -> None:
        self.draw, self.count = draw, 0
        self.shape = [draw(st.integers(*ends)) for ends in ((1, 3), (1, 6), (4, 11), (4, 11))]
        self.text, self.blob = inputs({"data": self.shape}), "data"

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def add(self, kind: str, parameters: str = "", bottoms: tuple = (), tops: tuple = ()) -> str:
        self.count += 1
        name = f"{kind.lower()}{self.count}"
        links = [f'bottom: "{bottom}"' for bottom in bottoms or (self.blob,)]
        links += [f'top: "{top}"' for top in tops or (name,)]
        self.text += f'layer {{ name: "{name}" type: "{kind}" {" ".join(links)} {parameters} }}\n'
        return tops[0] if tops else name

    def grow(self) -> None:
        spatial = len(self.shape) == 4
        kinds = (*ELEMENTWISE, *JOINS, *OTHERS, *(WINDOWS * 3 if spatial else ()))
        kind = self.draw(st.sampled_from([k for k in kinds if spatial or k != "LRN"]))
        if kind in WINDOWS:
            self.blob = getattr(self, kind.lower())()
        elif kind in JOINS:
            other = self.add("TanH")
            self.blob = self.add(kind, self.join(kind), (self.blob, other))
        elif kind in OTHERS:
            self.blob = getattr(self, kind.lower())()
        else:
            in_place = self.blob != "data" and kind != "AbsVal" and self.draw(st.booleans())
            parameters = self.draw(st.sampled_from(ELEMENTWISE[kind]))
            self.blob = self.add(kind, parameters, tops=(self.blob,) if in_place else ())

    def convolution(self) -> str:
        out, stride, pad = self.number(1, 6), self.number(1, 2), self.number(0, 1)
        group = self.draw(st.sampled_from([g for g in range(1, 7) if math.gcd(out, self.shape[1]) % g == 0]))
        kernel = self.number(1, min(3, *(size + 2 * pad for size in self.shape[2:])))
        room = min(size + 2 * pad for size in self.shape[2:])
        dilation = self.number(1, 2) if 2 * (kernel - 1) < room else 1
        reach = dilation * (kernel - 1) + 1
        self.shape[1:] = [out, *((size + 2 * pad - reach) // stride + 1 for size in self.shape[2:])]
        sizes = f"num_output: {out} kernel_size: {kernel} stride: {stride} pad: {pad} group: {group}"
        bias = str(self.draw(st.booleans())).lower()
        return self.add("Convolution", f"convolution_param {{ {sizes} dilation: {dilation} bias_term: {bias} }}")

    def deconvolution(self) -> str:
        out, kernel, stride = self.number(1, 4), self.number(1, 4), self.number(1, 2)
        self.shape[1:] = [out, *((size - 1) * stride + kernel for size in self.shape[2:])]
        return self.add(
            "Deconvolution", f"convolution_param {{ num_output: {out} kernel_size: {kernel} stride: {stride} }}"
        )

    def pooling(self) -> str:
        how = self.draw(st.sampled_from(["MAX", "AVE"]))
        if self.draw(st.booleans()) and self.draw(st.booleans()):
            self.shape[2:] = [1, 1]
            return self.add("Pooling", f"pooling_param {{ pool: {how} global_pooling: true }}")
        kernel = self.number(1, min(3, *self.shape[2:]))
        stride = self.number(1, kernel)  # with larger ones Caffe's last window may hold nothing: an average of 0 / 0
        pad = self.number(0, kernel - 1)
        sizes = []
        for size in self.shape[2:]:
            windows = -(-(size + 2 * pad - kernel) // stride) + 1
            sizes.append(windows - (pad > 0 and (windows - 1) * stride >= size + pad))
        self.shape[2:] = sizes
        return self.add("Pooling", f"pooling_param {{ pool: {how} kernel_size: {kernel} stride: {stride} pad: {pad} }}")

    def join(self, kind: str) -> str:
        if kind == "Eltwise":
            how = self.draw(st.sampled_from(["PROD", "MAX", "SUM coeff: 0.5 coeff: -2"]))
            return f"eltwise_param {{ operation: {how} }}"
        axis = self.number(0, len(self.shape) - 1)
        self.shape[axis] *= 2
        return f"concat_param {{ axis: {axis} }}"

    def lrn(self) -> str:
        size = self.draw(st.sampled_from([1, 3, 5]))
        return self.add("LRN", f"lrn_param {{ local_size: {size} alpha: 0.3 beta: 0.75 }}")

    def softmax(self) -> str:
        return self.add("Softmax", f"softmax_param {{ axis: {self.number(1, len(self.shape) - 1)} }}")

    def innerproduct(self) -> str:
        self.shape = [self.shape[0], self.number(1, 9)]
        return self.add("InnerProduct", f"inner_product_param {{ num_output: {self.shape[1]} }}")

    def flatten(self) -> str:
        self.shape = [self.shape[0], math.prod(self.shape[1:])]
        return self.add("Flatten")

    def slice(self) -> str:
        if self.shape[1] < 2:
            return self.add("TanH")
        point = self.number(1, self.shape[1] - 1)
        tops = tuple(f"part{self.count}{side}" for side in "ab")
        self.shape[1] = point
        return self.add("Slice", f"slice_param {{ axis: 1 slice_point: {point} }}", tops=tops)


@st.composite
def nets(draw) -> tuple:
    """Return a net's text, its last blob and that blob's shape."""
    net = Growing(draw)
    for _ in range(draw(st.integers(1, 7))):
        net.grow()
    return net.text, net.blob, tuple(net.shape)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(nets(), st.integers(0, 2**31), st.booleans())
def test_random_nets_compute_the_same(net, seed, regions):
    text, last, shape = net
    swapped, report = swap_net(text, regions=regions)
    assert report.swapped or all(row.kind in ("Input", "Flatten") for row in report.rows)
    assert swap_back(swapped)[0] == text
    native, ours = load(text, TEST), load(swapped, TEST)
    random = np.random.default_rng(seed)
    for name, blobs in native.params.items():
        for index, blob in enumerate(blobs):
            low = 0.5 if name.startswith("batchnorm") and index else -1
            blob.data[...] = random.uniform(low, 1, blob.data.shape)
    with written("", ".caffemodel") as weights:
        native.save(weights)
        ours.copy_from(weights)
    native.blobs["data"].data[...] = random.standard_normal(native.blobs["data"].data.shape)
    ours.blobs["data"].data[...] = native.blobs["data"].data
    native.forward(), ours.forward()
    assert native.blobs[last].data.shape == shape
    for name in native.blobs:
        if not isinstance(ours.blobs[name], HiddenBlob):
            close(ours.blobs[name].data, native.blobs[name].data, name)
