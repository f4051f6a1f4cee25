"""The peers: whose operators ours are measured against. A framework is imported only when it is asked for."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clgraft.plugins.command_line.bench.cases import Case
from clgraft.plugins.registry import PluginError

Call = Callable[[], object]

# peer: what is imported, and the module here that calls it
PEERS = {
    "mxnet": ("mxnet", "clgraft.plugins.mxnet.bench_operators"),
    "caffe": ("caffe", "clgraft.plugins.caffe.bench_layers"),
    "torch": ("torch", "clgraft.plugins.command_line.bench.torch_operators"),
    "numpy": ("numpy", "clgraft.plugins.command_line.bench.numpy_operators"),
}


@dataclass(frozen=True)
class Side:
    """One contender's calls for a case.

    Attributes
    ----------
    forward, backward : callable or None
        Return when the work is done. Backward computes the gradients of everything.
    results : callable
        Gives the last results as arrays: the output first, then gradients, in an order that both sides share.
    """

    forward: Call
    backward: Call | None
    results: Callable[[], list[np.ndarray]]


class NotServed(Exception):
    """A peer has no such operator."""


def available(names: Sequence[str] | None = None) -> list[str]:
    """Give the peers that are installed; without names NumPy only where there is no other.

    Raises
    ------
    PluginError
        If a name is no peer, or one that was asked for is not installed.
    """
    # what Caffe's wheel wants before anything is imported
    os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")
    os.environ.setdefault("GLOG_minloglevel", "2")
    here = [name for name, (package, _) in PEERS.items() if importlib.util.find_spec(package)]
    if names is None:
        return [name for name in here if name != "numpy"] or here
    for name in names:
        if name not in PEERS:
            raise PluginError(f"[bench] got peer {name!r}, expected one of {list(PEERS)}")
        if name not in here:
            raise PluginError(f"[bench] got peer {name!r}, which is not installed here; installed are {here}")
    return list(names)


def sides(peer: str, case: Case) -> dict[str, Side]:
    """Give a case's calls: ``native`` and ``clgraft``, on the same random data.

    Raises
    ------
    NotServed
        If the peer has no such operator.
    """
    found: dict[str, Side] = importlib.import_module(PEERS[peer][1]).sides(case)
    return found


def random(shape: Sequence[int], seed: int) -> np.ndarray:
    """Give normal random numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def disagreement(native: Side, ours: Side) -> float:
    """Give the largest relative difference between the two sides' results, by the norm."""
    worst = 0.0
    for there, here in zip(native.results(), ours.results()):
        size = float(np.linalg.norm(there.ravel().astype(np.float64))) or 1.0
        error = float(np.linalg.norm((here.astype(np.float64) - there).ravel())) / size
        worst = max(worst, error if error == error else float("inf"))
    return worst


def describe(peer: str) -> str:
    """Name a peer and its version."""
    module: Any = importlib.import_module(PEERS[peer][0])
    return f"{peer} {getattr(module, '__version__', '')}".strip()
