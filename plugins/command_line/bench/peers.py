"""The peers that our operators are measured against. A framework is imported only when it is asked for."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clgraft.core.errors import hint
from clgraft.plugins import registry
from clgraft.plugins.command_line.bench.cases import Case, Element
from clgraft.plugins.plugin import Peer, PluginError

Call = Callable[[], object]

LINE_BYTES = 64  # of a cache
BLAS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
NUMPY = Peer(
    "numpy", "numpy", "clgraft.plugins.command_line.bench.numpy_operators", fallback=True, thread_variables=BLAS
)


@dataclass(frozen=True)
class Side:
    """One side's calls for a case.

    Attributes
    ----------
    forward, backward : callable or None
        Return when the work is done. Backward computes the gradients of everything.
    results : callable
        Returns the last results as arrays: the output first, then gradients, in an order that both sides share.
    """

    forward: Call
    backward: Call | None
    results: Callable[[], list[np.ndarray]]


class NotServed(Exception):
    """Raised where a peer does not have the operator."""


def known() -> dict[str, Peer]:
    """Return all peers by name: those of the plugins, and NumPy."""
    return {peer.name: peer for plugin in registry.plugins() for peer in plugin.peers()} | {NUMPY.name: NUMPY}


def available(names: Sequence[str] | None = None) -> list[str]:
    """Return the names of the peers that are installed; without `names` a fallback only where there is no other.

    Raises
    ------
    PluginError
        If a name is no peer, or one that was asked for is not installed.
    """
    os.environ.update(registry.environment())  # frameworks read it when they are imported
    every = known()
    here = [name for name, peer in every.items() if importlib.util.find_spec(peer.package)]
    if names is None:
        return [name for name in here if not every[name].fallback] or here
    for name in names:
        if name not in every:
            raise PluginError(f"[bench] got peer {name!r}, expected one of {list(every)}{hint(name, every)}")
        if name not in here:
            raise PluginError(f"[bench] got peer {name!r}, which is not installed here; installed are {here}")
    return list(names)


def sides(peer: str, case: Case) -> dict[str, Side]:
    """Return a case's calls: ``clgraft`` and the peer's, ``native`` or one for each of its layouts, on the same data.

    Raises
    ------
    NotServed
        If the peer does not have the operator.
    """
    found: dict[str, Side] = importlib.import_module(known()[peer].operators).sides(case)
    return found


def mode(peer: str, operators: bool = True, nets: bool = False) -> str:
    """Return how a peer's operators, or nets, are called, in words."""
    found = known()[peer]
    own = getattr(importlib.import_module(found.nets_module), "MODE", "") if nets else ""
    called = getattr(importlib.import_module(found.operators), "MODE", "") if operators or not own else ""
    return "; ".join(filter(None, (str(called), str(own))))


def lacks(peer: Peer) -> str:
    """Return the package that a peer's nets need and that is not installed; empty where there is none."""
    package = peer.nets_package
    return package if package and not importlib.util.find_spec(package) else ""


def net_batches(names: Sequence[str], batches: Sequence[int], nets: Collection[str]) -> Iterator[tuple[str, int]]:
    """Yield each net that is measured with each batch size.

    Raises
    ------
    PluginError
        If a name is none of the peer's nets.
    """
    for name in names:
        if name not in nets:
            raise PluginError(f"[bench] got net {name!r}, expected one of {sorted(nets)}{hint(name, nets)}")
    for name in names:
        for batch in batches:
            yield name, batch


def random(shape: Sequence[int], seed: int) -> np.ndarray:
    """Return normal random numbers in float32."""
    return aligned(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def aligned(array: np.ndarray) -> np.ndarray:
    """Return a copy that begins with a line of a cache, as arrays of frameworks do; those of NumPy need not."""
    room = np.empty(array.nbytes + LINE_BYTES, np.uint8)
    start = -room.ctypes.data % LINE_BYTES
    copy: np.ndarray = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def operands(work: Any) -> tuple[list[str], dict[str, np.ndarray]]:
    """Return the names of what a case's operator reads, and random arrays for these and for the gradient ``dy``."""
    if isinstance(work, Element):
        shapes = {f"x{i}": work.shape for i in range(2)} if work.function == "sum" else {"x": work.shape}
        shape: tuple[int, ...] = work.shape
    else:
        shapes = {a.name: a.shape for a in work.arguments() if a.role == "in"}
        shape = next(a.shape for a in work.arguments() if a.name == "y")
    arrays = {name: random(s, i) for i, (name, s) in enumerate(shapes.items())}
    return list(shapes), {**arrays, "dy": random(shape, 99)}


def disagreement(native: Side, ours: Side) -> float:
    """Return the largest relative difference between the two sides' results, by the norm."""
    worst = 0.0
    for there, here in zip(native.results(), ours.results()):
        size = float(np.linalg.norm(there.ravel().astype(np.float64))) or 1.0
        error = float(np.linalg.norm((here.astype(np.float64) - there).ravel())) / size
        worst = max(worst, error if error == error else float("inf"))
    return worst


def describe(peer: str) -> str:
    """Return a peer's name and version."""
    module: Any = importlib.import_module(known()[peer].package)
    return f"{peer} {getattr(module, '__version__', '')}".strip()
