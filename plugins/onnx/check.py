"""Whole models against ONNX Runtime, or onnx's reference implementation where that is not installed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clgraft.core.model import samples
from clgraft.plugins.command_line.check.runner import CheckRow, relative_error
from clgraft.plugins.onnx.session import Session

LIMIT = {
    "float16": 2e-2,
    "bfloat16": 1.6e-1,
    "float32": 1e-3,
    "float64": 1e-9,
}  # relative to the largest value of an output


def rows(path: str, shapes: Mapping[str, Sequence[int]], repeats: int) -> Iterator[CheckRow]:
    """Yield a row for each output of a model."""
    session = Session(path)
    given = samples.inputs(session, shapes)
    name, reference = _reference(path)
    expected = reference(given)
    got = session.run(given)
    seconds = _seconds(lambda: session.run(given), repeats)
    native = _seconds(lambda: reference(given), repeats)
    for i, (port, other) in enumerate(zip(session.outputs, expected)):
        ours = got[port.name]
        times = {"seconds": seconds, "native_seconds": native} if i == 0 else {}
        what = f"{port.name}, against {name}"
        if ours.shape != other.shape:
            yield CheckRow(Path(path).name, what, float("inf"), 0.0, **times)
        elif ours.dtype.name in LIMIT:
            yield CheckRow(Path(path).name, what, relative_error(ours, other), LIMIT[ours.dtype.name], **times)
        else:
            wrong = float(np.mean(ours != other)) if ours.size else 0.0
            yield CheckRow(Path(path).name, what, wrong, 0.0, **times)


def _reference(path: str) -> tuple[str, Callable[[Mapping[str, np.ndarray]], list[Any]]]:
    try:
        import onnxruntime
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(path)
        return "onnx.reference", lambda given: evaluator.run(None, dict(given))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return "ONNX Runtime", lambda given: session.run(None, dict(given))


def _seconds(call: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)
