"""What NumPy makes of the operators, forward only: the peer where no framework is installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from clgraft.core import BatchNormProblem, PoolProblem
from clgraft.core.problem.layout import FIRST, LAST, channels_first, channels_last
from clgraft.plugins.command_line.bench import core_operators
from clgraft.plugins.command_line.bench.cases import Case, Element
from clgraft.plugins.command_line.bench.peers import NotServed, Side, operands

_FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "softrelu": lambda x: np.logaddexp(x, np.float32(0)),
}

MODE = "NumPy on the same arrays"


def sides(case: Case) -> dict[str, Side]:
    """Return both sides of a case."""
    work = case.work
    names, arrays = operands(work)
    inputs = [arrays[name] for name in names]
    kept: dict[str, np.ndarray] = {}

    def forward() -> None:
        kept["y"] = _apply(work, inputs)

    forward()
    ours = core_operators.side(case, arrays)
    return {
        "native": Side(forward, None, lambda: [kept["y"]]),
        "clgraft": Side(ours.forward, None, lambda: ours.results()[:1]),
    }


def _apply(work: Any, inputs: list[np.ndarray]) -> np.ndarray:
    x = inputs[0]
    if isinstance(work, Element):
        return inputs[0] + inputs[1] if work.function == "sum" else _FUNCTIONS[work.function](x)
    if isinstance(work, BatchNormProblem):
        _, gamma, beta = inputs
        scale = gamma / np.sqrt(x.var((0, 2)) + np.float32(core_operators.EPS))
        return x * scale[:, None] + (beta - x.mean((0, 2)) * scale)[:, None]
    if work.ndim != 2 or (isinstance(work, PoolProblem) and work.operator not in ("max", "average")):
        raise NotServed(f"the NumPy peer has no {work}")
    if work.layout == LAST:
        return channels_last(_apply(replace(work, layout=FIRST), [channels_first(array) for array in inputs]))
    windows = _windows(work, x, -np.inf if isinstance(work, PoolProblem) and work.operator == "max" else 0.0)
    if isinstance(work, PoolProblem):
        return windows.max((4, 5)) if work.operator == "max" else windows.mean((4, 5))
    parts = [
        np.tensordot(part, w, ((1, 4, 5), (1, 2, 3)))
        for part, w in zip(np.split(windows, work.groups, 1), np.split(inputs[1], work.groups))
    ]
    return np.ascontiguousarray(np.concatenate(parts, 3).transpose(0, 3, 1, 2))


def _windows(work: Any, x: np.ndarray, fill: float) -> np.ndarray:
    dilate = getattr(work, "dilate", (1, 1))
    padded = np.pad(x, ((0, 0), (0, 0), *zip(work.pad_begin, work.pad_end)), constant_values=np.float32(fill))
    spans = tuple((k - 1) * d + 1 for k, d in zip(work.kernel, dilate))
    windows = np.lib.stride_tricks.sliding_window_view(padded, spans, (2, 3))  # type: ignore[call-overload]
    steps = tuple(slice(None, None, s) for s in (*work.stride, *dilate))
    return windows[(slice(None), slice(None), *steps)]
