"""Parameters that only the branch has: served where they mean what stock Caffe does, and else left to the branch."""

from __future__ import annotations

import numpy as np
import pytest

from tests.caffe_layers.opencl import nets

POOL = "pooling_param {{ pool: MAX stride: 2 {} }}"
SERVED = {
    "dilation of one": ("Pooling", POOL.format("kernel_size: 3 dilation: 1")),
    "kernel of two sizes": ("Pooling", POOL.format("kernel_size: 3 kernel_size: 2 pad: 1 pad: 0")),
}
LEFT = {
    "dilation": ("Pooling", POOL.format("kernel_size: 2 dilation: 2"), "got a dilation"),
    "fused activation": ("BatchNorm", "batch_norm_param { fused_relu: true use_global_stats: true }", "got fused_relu"),
    "unscaled training": ("Dropout", "dropout_param { scale_train: false }", "got scale_train"),
}


def net(kind: str, parameters: str) -> str:
    """Return a net of one layer on sizes for which the two ways to round differ."""
    given = nets.inputs({"x": (2, 3, 8, 8)})
    return "force_backward: true\n" + given + nets.layer("op", kind, parameters, ["x"], ["y"])


@pytest.mark.parametrize("name", SERVED)
def test_served(branch, name):
    text = net(*SERVED[name])
    own, ours = branch.net(text, "cpu"), branch.net(text, "gpu", ours="all")
    assert "stays Caffe's own" not in ours.printed
    for blob in ("y", "d.x"):
        np.testing.assert_array_equal(own.blobs[blob], ours.blobs[blob])


@pytest.mark.parametrize("name", LEFT)
def test_left_to_the_branch(branch, name):
    kind, parameters, reason = LEFT[name]
    printed = branch.net(net(kind, parameters), "gpu", ours="all").printed
    assert "stays Caffe's own" in printed and reason in printed
