"""Makes Caffe quiet for these tests, and chooses which of clgraft's layers they test: Python layers or those in C++."""

from __future__ import annotations

import os

os.environ.setdefault("GLOG_minloglevel", "2")

PYTHON = "python"
ONLY_PYTHON = "python_layers"  # mark of tests of errors, which end a process of Caffe's own layers
# files whose tests compare layers with Caffe's own or with formulas, for any kind of ours
SHARED = (
    *("attributes_audit", "attributes_audit_windows", "batch_norm", "convolution", "deconvolution", "dropout"),
    *("elementwise", "fillers", "fork_layers", "inner_product", "losses", "normalization", "pooling"),
    *("random_gradients", "shaping"),
)


def pytest_configure(config) -> None:
    if config.getoption("caffe_layers") == PYTHON:
        return
    from clgraft.caffe_layers import native
    from tests.caffe_layers import caffe_nets

    native.load()
    caffe_nets.mode = config.getoption("caffe_layers")


def pytest_collection_modifyitems(config, items) -> None:
    """Leave out what does not test C++ layers where those are tested."""
    if config.getoption("caffe_layers") == PYTHON:
        return
    names = {f"test_{name}.py" for name in SHARED}
    chosen = [item for item in items if item.path.name in names and not item.get_closest_marker(ONLY_PYTHON)]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen
