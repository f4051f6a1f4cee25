"""Makes Caffe quiet for these tests, and chooses which of clgraft's layers they test: Python layers or those in C++."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("GLOG_minloglevel", "2")

PYTHON, TYPES, REPLACED = "python", "types", "replaced"
ONLY_PYTHON = "python_layers"  # mark of tests of what Python layers alone have


def pytest_configure(config) -> None:
    config.addinivalue_line("markers", f"{ONLY_PYTHON}: tests Python layers, also with --caffe-layers")
    if config.getoption("caffe_layers") == PYTHON:
        return
    from clgraft.caffe_layers import native
    from tests.caffe_layers import caffe_nets

    native.load()
    caffe_nets.mode = config.getoption("caffe_layers")


def pytest_collection_modifyitems(config, items) -> None:
    """Leave tests of Python layers out where those in C++ are tested."""
    if config.getoption("caffe_layers") != PYTHON:
        for item in items:
            if item.get_closest_marker(ONLY_PYTHON):
                item.add_marker(pytest.mark.skip(reason="tests Python layers"))
