"""What layers do with memory: nothing is copied where the device shares the host's, and moved blobs are followed."""

from __future__ import annotations

import numpy as np
import pytest

caffe = pytest.importorskip("caffe")

from clgraft import core
from tests.caffe_layers.caffe_nets import close, inputs, layer, load

CHAIN = [
    ("Convolution", "convolution_param { num_output: 6 kernel_size: 3 pad: 1 }", "x", "a"),
    ("BatchNorm", "", "a", "a"),
    ("Scale", "scale_param { bias_term: true }", "a", "a"),
    ("ReLU", "", "a", "a"),
    ("PReLU", "", "a", "b"),
    ("TanH", "", "b", "c"),
    ("Eltwise", "", "b c", "d"),
]


def chain(ours: bool = True) -> str:
    return inputs({"x": (2, 3, 8, 9)}) + "".join(
        layer(kind, parameters, ours=ours, name=kind, bottoms=bottoms.split(), tops=[top])
        for kind, parameters, bottoms, top in CHAIN
    )


def test_nothing_is_copied_on_a_device_that_shares_the_memory():
    context = core.context()
    net = load(chain() + "force_backward: true")
    net.forward()
    net.backward()
    before = context.counters()
    for _ in range(3):
        net.forward()
        net.backward()
    after = context.counters()
    assert after["launches"] > before["launches"]
    copied = sum(after[name] - before[name] for name in ("bytes_to_device", "bytes_to_host"))
    assert (copied == 0) == (context.device.host_access != "staged")


def test_blobs_that_moved_are_followed():
    """MemoryData points its top at another array for each batch; weights may be shared with another net at any time."""
    parameters = "convolution_param { num_output: 2 kernel_size: 1 weight_filler { value: 1 } }"
    size = "memory_data_param { batch_size: 2 channels: 3 height: 4 width: 5 }"
    memory = layer("MemoryData", size, ours=False, name="x", bottoms=[], tops=["x", "t"])
    net = load(memory + layer("Convolution", parameters, ours=True))
    labels = np.zeros(2, np.float32)
    for value in (1, 2):
        net.set_input_arrays(np.full((2, 3, 4, 5), value, np.float32), labels)
        assert (net.forward()["y"] == 3 * value).all()
    other = load(memory + layer("Convolution", parameters, ours=True))
    other.params["op"][0].data[...] = 5
    net.share_with(other)
    assert (net.forward()["y"] == 3 * 5 * 2).all()


def test_grown_blobs_are_followed():
    nets = [load(chain(ours) + "force_backward: true", 1) for ours in (False, True)]
    for name, blobs in nets[1].params.items():
        for blob, same in zip(nets[0].params[name], blobs):
            blob.data[...] = same.data
    random = np.random.default_rng(1)
    for shape in ((2, 3, 8, 9), (5, 3, 30, 31), (1, 3, 2, 2)):
        x = random.standard_normal(shape).astype(np.float32)
        results = []
        for net in nets:
            net.blobs["x"].reshape(*shape)
            net.blobs["x"].data[...] = x
            net.forward()
            net.blobs["d"].diff[...] = 1
            net.backward()
            results.append((net.blobs["d"].data.copy(), net.blobs["x"].diff.copy()))
        for name, native, ours in zip(("y", "dx"), *results):
            close(ours, native, name, 1e-4)
