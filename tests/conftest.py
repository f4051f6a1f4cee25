"""Shared by all tests: the device's context, random numbers, the header of a run, and what `make test` selects."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests import everyday

gc.disable()  # while tests are collected: 18 000 of them stay, and to look through them takes a second each time

if sys.version_info >= (3, 12) and importlib.util.find_spec("mxnet"):
    import clgraft.mxnet_ops  # noqa: F401  MXNet can be imported only after it

# the same examples in every run, on machines that may be slow for a moment
settings.register_profile(
    "tests", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")


def pytest_addoption(parser) -> None:
    parser.addoption(
        "--regions",
        choices=("on", "off"),
        help="whether MXNet's swaps form regions where a test does not say; by default what users get",
    )
    parser.addoption(
        "--caffe-layers",
        choices=("python", "types", "replaced"),
        default="python",
        help="which of clgraft's layers Caffe's tests compare with Caffe's own: Python layers (default), the types of "
        "C++ layers, or Caffe's types with C++ layers in their place",
    )
    parser.addoption(
        "--mxnet-models",
        metavar="FOLDER",
        help="where tests.plugins.onnx.mxnet_exports has written nets of MXNet as ONNX files",
    )

    parser.addoption(
        "--random",
        type=int,
        default=1,
        metavar="N",
        help="of tests of random problems, symbols and nets run every N-th, and those of `make test`; by default all",
    )
    parser.addoption(
        "--share",
        type=int,
        default=1,
        metavar="N",
        help="of the longest lists of problems, nets, attributes and planted faults run every N-th; by default all",
    )
    parser.addoption(
        "--rest",
        type=int,
        default=1,
        metavar="N",
        help="of the other tests that `make test` leaves out run every N-th of each function; by default all",
    )
    parser.addoption(
        "--whole",
        type=int,
        default=1,
        metavar="N",
        help="of the tests that are unlike each other, and left out by `make test`, run every N-th; by default all",
    )
    parser.addoption(
        "--daily",
        type=int,
        default=1,
        metavar="N",
        help="of the tests of `make test` run every N-th, where another suite runs all of them; by default all",
    )
    parser.addoption(
        "--turn",
        type=int,
        default=0,
        metavar="I",
        help="which of every N tests run: from 0 to N - 1 all of them, and on from there",
    )
    parser.addoption(
        "--exhaustive-of",
        type=Path,
        metavar="FOLDER",
        help="of the tests in a folder run only those that `make test` leaves out",
    )
    parser.addoption(
        "--ran",
        type=Path,
        metavar="FOLDER",
        help="leave out tests that no device and no version changes, if they passed in a suite recorded in FOLDER",
    )


def pytest_report_header(config) -> list[str]:
    from clgraft import core

    device = core.context().device
    frameworks = [name for name in ("mxnet", "caffe") if importlib.util.find_spec(name)]
    chosen = config.getoption("markexpr") == f"not {everyday.MARK}"
    return [
        *([f"covers {everyday.COVERS[0]}", f"takes {everyday.TARGET}; {everyday.COVERS[1]}"] if chosen else []),
        f"OpenCL: {device.platform}, {device.name} (CLGRAFT_DEVICE={os.environ.get('CLGRAFT_DEVICE', '')!r})",
        f"frameworks: {', '.join(frameworks) or 'none'}; numpy {np.__version__}",
        *([f"MXNet's regions: {config.getoption('regions')}"] if config.getoption("regions") else []),
        *([f"Caffe's layers: {config.getoption('caffe_layers')}"] if "caffe" in frameworks else []),
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items) -> None:
    """Mark what `make test` leaves to `make test-all`; leave out tests beyond the wanted shares, and what has run."""
    for item in everyday.exhaustive(items):
        item.add_marker(everyday.MARK)
    config.stash[everyday.COLLECTED] = {item.nodeid: item.get_closest_marker(everyday.MARK) is None for item in items}
    shares = everyday.Shares(*map(config.getoption, ("random", "share", "rest", "whole", "daily", "turn")))
    left = set(everyday.beyond_shares(items, shares))
    config.stash[everyday.IN_TURN] = [item.nodeid for item in left]
    folder = config.getoption("exhaustive_of")
    if folder:
        here = (item for item in items if folder.resolve() in item.path.parents)
        left.update(item for item in here if not item.get_closest_marker(everyday.MARK))
    if config.getoption("ran"):
        left.update(everyday.run_before(items, config.getoption("ran")))
    if left:
        config.hook.pytest_deselected(items=list(left))
    items[:] = everyday.long_first(item for item in items if item not in left)


def pytest_collection_finish() -> None:
    """Have the garbage collector pass over what was collected."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def context():
    """The context of the device under test."""
    from clgraft import core

    return core.context()


@pytest.fixture
def rng():
    """Random numbers, the same in every run."""
    return np.random.default_rng(20)
