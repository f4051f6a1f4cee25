"""Check a swapped symbol in MXNet: the whole net, forward and backward, against the original one in float64.

Errors of whole nets grow from operator to operator, so the error of the original net in float32 tells what is usual.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clgraft.core.selection import already
from clgraft.plugins.command_line.check.runner import CheckRow, distance
from clgraft.plugins.mxnet import symbols
from clgraft.plugins.plugin import PluginError

# the factor of the original net's error in float32 that passes, and the error that always passes
FACTOR, FLOOR = 5.0, 1e-4


def rows(path: str, shapes: Mapping[str, Sequence[int]], repeats: int = 3, regions: bool = False) -> Iterator[CheckRow]:
    """Yield a row for every output and for the gradient of every argument.

    Parameters
    ----------
    path : str
        A symbol's JSON.
    shapes : mapping
        Shapes of the inputs.
    repeats : int
        How often a step of both nets is timed.
    regions : bool
        Whether to swap with regions.
    """
    mxnet, swap_symbol = symbols.framework("check a symbol")
    graph = symbols.read_graph(Path(path))
    for node in graph["nodes"]:
        if node.get("op") == "Dropout":  # its random numbers would differ
            node.setdefault("attrs", {})["p"] = "0"
    symbol = symbols.load(mxnet, Path(path), graph)
    swapped, report = swap_symbol(symbol, regions=regions)
    if not report.replaced:
        what = "in which no operator has an OpenCL counterpart"
        if report.before:
            what = f"{already(report.before)}, expected the original"
        raise PluginError(f"[mxnet] got {path}, {what}")
    symbols.expect_shapes(mxnet, symbol, shapes)
    arguments, _, auxiliary = symbol.infer_shape(**{name: tuple(shape) for name, shape in shapes.items()})
    rng = np.random.default_rng(13)
    values = {name: _value(name, shape, rng) for name, shape in zip(symbol.list_arguments(), arguments)}
    states = {name: _value(name, shape, rng) for name, shape in zip(symbol.list_auxiliary_states(), auxiliary)}
    learned = [name for name in values if not name.endswith("_label")]
    # MXNet's own LRN knows single precision only
    has_lrn = any(node.get("op") == "LRN" for node in graph["nodes"])
    exact = swap_symbol(symbol, select="LRN")[0] if has_lrn else symbol
    truth = _Net(mxnet, exact, values, states, learned, "float64")
    native = _Net(mxnet, symbol, values, states, learned, "float32")
    ours = _Net(mxnet, swapped, values, states, learned, "float32")
    expected = truth.step()
    usual, got = native.step(), ours.step()
    times = [(native.time(), ours.time()) for _ in range(repeats)]
    medians: list[float | None] = [statistics.median(column) for column in zip(*times)] or [None, None]
    for tensor, reference in expected.items():
        native_error = distance(usual[tensor], reference)
        limit = max(FLOOR, FACTOR * native_error)
        own_error = distance(got[tensor], reference)
        yield CheckRow(Path(path).name, tensor, own_error, limit, native_error, medians[1], medians[0])
        medians = [None, None]


class _Net:
    """A symbol bound with given values; the gradients that enter at its outputs are always the same."""

    def __init__(
        self,
        mxnet: Any,
        symbol: Any,
        values: Mapping[str, Any],
        states: Mapping[str, Any],
        learned: Sequence[str],
        dtype: str,
    ) -> None:
        self.mxnet, self.learned = mxnet, learned

        def array(value: Any) -> Any:
            return mxnet.nd.array(value, dtype=dtype)

        self.gradients = {name: array(np.zeros_like(values[name])) for name in learned}
        self.executor = symbol.bind(
            mxnet.cpu(),
            {name: array(value) for name, value in values.items()},
            args_grad=self.gradients,
            grad_req={name: "write" if name in learned else "null" for name in values},
            aux_states={name: array(value) for name, value in states.items()},
        )
        self.outputs = symbol.list_outputs()
        self.states = list(states)
        self.dtype = dtype

    def run(self) -> list[Any]:
        outputs = self.executor.forward(is_train=True)
        rng = np.random.default_rng(17)
        entering = [self.mxnet.nd.array(rng.normal(size=output.shape), dtype=self.dtype) for output in outputs]
        self.executor.backward(entering)
        return list(outputs)

    def step(self) -> dict[str, Any]:
        results = {f"output {name}": output.asnumpy() for name, output in zip(self.outputs, self.run())}
        results.update({f"gradient of {name}": self.gradients[name].asnumpy() for name in self.learned})
        for name in self.states:
            results[f"state {name}"] = self.executor.aux_dict[name].asnumpy()
        return results

    def time(self) -> float:
        start = time.perf_counter()
        self.run()
        self.mxnet.nd.waitall()
        return time.perf_counter() - start


def _value(name: str, shape: Sequence[int], rng: np.random.Generator) -> Any:
    if name.endswith("_label"):
        return np.zeros(shape)
    if name.endswith(("gamma", "var")):
        return rng.uniform(0.5, 1.5, shape)
    if name.endswith("weight"):
        return rng.normal(size=shape) * np.sqrt(2 / max(1, int(np.prod(shape[1:]))))
    return rng.normal(size=shape)
