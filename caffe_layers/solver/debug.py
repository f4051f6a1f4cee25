"""What Caffe logs with ``debug_info: true``: mean absolute values of blobs, parameters and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from clgraft.caffe_layers.nets.net import TRAIN, CaffeNet, SeenLayer
from clgraft.core.graph import CompiledGraph, GraphBuilder
from clgraft.core.model import LoweredTraining, Store
from clgraft.core.nn import reductions
from clgraft.core.nn.builder import Build, Tensor

INFO, ERROR = "I", "E"  # severities of glog
TOP, PARAMETER, BOTTOM_DIFF = "net.cpp:591", "net.cpp:603", "net.cpp:619"
PARAMETER_DIFF, ALL = "net.cpp:630", "net.cpp:719"
Line = tuple[str, str, str]  # severity, place, text


@dataclass
class _Look:
    """A compiled look at a net for some shapes.

    Attributes
    ----------
    forward, backward : list of (str, str, str)
        Place and text of each line, and the output with its sum; empty for zero.
    sizes : mapping of str to int
        Elements that the outputs are sums of.
    totals : list of (str, str, str, str)
        For each parameter the outputs with sums of absolute values and of squares, of it and of its gradient.
    """

    compiled: CompiledGraph
    lowered: LoweredTraining
    forward: list[tuple[str, str, str]]
    backward: list[tuple[str, str, str]]
    sizes: Mapping[str, int]
    totals: list[tuple[str, str, str, str]]
    sums: Mapping[str, str]


class DebugInfo:
    """Computes the lines for a net.

    Parameters
    ----------
    net : CaffeNet
    store : Store
        Its parameters.
    context : Context
    precision : str, optional
        Of the net's products.
    """

    def __init__(self, net: CaffeNet, store: Store, context: Any, precision: str | None = None) -> None:
        self._net, self._store, self._context, self._precision = net, store, context, precision
        self._looks: dict[Any, _Look] = {}

    def lines(
        self,
        arrays: Mapping[str, np.ndarray],
        keys: Callable[[int], Sequence[np.ndarray]] | None = None,
        sums: Mapping[str, np.ndarray] | None = None,
    ) -> list[Line]:
        """Return the lines of a forward pass and, in training, a backward pass, which change nothing.

        Parameters
        ----------
        arrays : mapping of str to numpy.ndarray
            All inputs by name.
        keys : callable, optional
            Returns so many keys of the random numbers of a step.
        sums : mapping of str to numpy.ndarray, optional
            Gradients of the parameters so far, where an iteration has several parts.
        """
        shapes = {name: tuple(np.shape(array)) for name, array in arrays.items()}
        key = tuple(shapes.items())
        if key not in self._looks:
            self._looks[key] = self._made(shapes)
        look = self._looks[key]
        lowered = look.lowered
        values: dict[str, Any] = {
            tensor.name: np.asarray(arrays[name], np.float32) for name, tensor in lowered.inputs.items()
        }
        values.update({inside: self._store.elements(name) for inside, name in lowered.parameters.items()})
        if keys is not None:
            values.update(zip((key.name for key in lowered.keys), keys(len(lowered.keys))))
        for inside, name in look.sums.items():
            given = (sums or {}).get(name)
            values[inside] = np.zeros(self._store.shape(name), np.float32) if given is None else given
        found = look.compiled.run(values)

        def mean(output: str) -> str:
            return f"{float(found[output].reshape(-1)[0]) / look.sizes[output] if output else 0.0:.6g}"

        lines = [(INFO, place, f"    [Forward] {text}: {mean(output)}") for place, text, output in look.forward]
        if self._net.phase != TRAIN:
            return lines
        lines += [(INFO, place, f"    [Backward] {text}: {mean(output)}") for place, text, output in look.backward]
        data, diff, data2, diff2 = (
            sum(float(found[one].reshape(-1)[0]) for one in column if one) for column in zip(*look.totals)
        )
        text = "    [Backward] All net params (data, diff): L1 norm = "
        text += f"({data:.6g}, {diff:.6g}); L2 norm = ({math.sqrt(data2):.6g}, {math.sqrt(diff2):.6g})"
        return [*lines, (ERROR, ALL, text)]

    def _made(self, shapes: Mapping[str, tuple[int, ...]]) -> _Look:
        lowered, layers = self._net.seen(shapes)
        build, sizes = lowered.build, dict[str, int]()
        squares: dict[str, str] = {}

        def summed(build: Build, tensor: Tensor) -> str:
            """Return the output with the sum of absolute values, next to which is the one of squares."""
            first, second = reductions.magnitudes(build, tensor)
            sizes[first.name], squares[first.name] = tensor.size, second.name
            return first.name

        needed = _needed(layers) if self._net.phase == TRAIN else [(set(), set())] * len(layers)
        forward: list[tuple[str, str, str]] = []
        data: dict[str, str] = {}
        for layer in layers:
            for name, tensor in layer.tops:
                forward.append((TOP, f"Layer {layer.name}, top blob {name} data", summed(build, tensor)))
            for shown, name, tensor in layer.parameters:
                data[name] = summed(build, tensor)
                forward.append((PARAMETER, f"Layer {layer.name}, param blob {shown} data", data[name]))
        outputs = [build.without_gradient(Tensor(name, (1,))) for name in (*sizes, *squares.values())]
        wrt: dict[str, None] = {}
        for layer, (bottoms, places) in zip(layers, needed):
            wrt.update({tensor.name: None for i, (_, tensor) in enumerate(layer.bottoms) if i in bottoms})
            wrt.update(
                {tensor.name: None for i, (_, _, tensor) in enumerate(layer.parameters) if i in places - layer.states}
            )
        heads = lowered.heads if wrt else ()
        every = {tensor.name: tensor for tensor in (*heads, *outputs)}
        passes = build.passes(list(every.values()), list(wrt))
        whole = build.graph.graph(*(tensor.name for tensor in outputs))
        graph = replace(
            whole,
            nodes=(*passes.forward, *passes.backward),
            inputs=(*whole.inputs, *passes.incoming.values()),
        )
        builder = GraphBuilder(graph, "u")
        after = Build(builder, training=True)
        backward: list[tuple[str, str, str]] = []
        sums: dict[str, str] = {}
        added: dict[str, Tensor] = {}  # gradients of parameters so far
        diffs: dict[str, str] = {}
        for layer, (bottoms, places) in reversed(list(zip(layers, needed))):
            for i, (name, tensor) in enumerate(layer.bottoms):
                if i in bottoms:
                    found = passes.found.get(tensor.name, "")
                    output = summed(after, replace(tensor, name=found)) if found else ""
                    backward.append((BOTTOM_DIFF, f"Layer {layer.name}, bottom blob {name} diff", output))
            for i, (_, name, tensor) in enumerate(layer.parameters):
                if i not in places:
                    continue
                if i in layer.states:
                    backward.append((PARAMETER_DIFF, f"Layer {layer.name}, param blob {i} diff", ""))
                    continue
                if name not in added:
                    added[name] = after.input(f"sum{len(sums)}", tensor.shape)
                    sums[added[name].name] = name
                found = passes.found.get(tensor.name, "")
                if found:
                    added[name] = reductions.added(after, replace(tensor, name=found), added[name])
                diffs[name] = summed(after, added[name])
                backward.append((PARAMETER_DIFF, f"Layer {layer.name}, param blob {i} diff", diffs[name]))
        totals = [
            (one, diffs.get(name, ""), squares[one], squares[diffs[name]] if name in diffs else "")
            for name, one in data.items()
        ]
        final = builder.graph(*sizes, *squares.values())
        constants = {
            **build.constants,
            **{value.name: np.ones(value.shape, value.dtype) for value in passes.incoming.values()},
        }
        known = {value.name for value in final.inputs}
        given = {name: array for name, array in constants.items() if name in known}
        compiled = self._context.compile(final, None, given, precision=self._precision)
        return _Look(compiled, lowered, forward, backward, sizes, totals, sums)


def _needed(layers: Sequence[SeenLayer]) -> list[tuple[set[int], set[int]]]:
    """Return the bottoms and the parameters of each layer that Caffe takes gradients of."""
    flowing: set[str] = set()  # values that depend on what is learned
    found: list[tuple[set[int], set[int]]] = []
    for layer in layers:
        if layer.stopped is None:
            bottoms = {i for i, (_, tensor) in enumerate(layer.bottoms) if tensor.name in flowing}
        else:
            bottoms = set(range(len(layer.bottoms))) - layer.stopped
        places = {i for i, rate in enumerate(layer.rates) if rate}
        if bottoms or places:
            flowing |= {tensor.name for _, tensor in layer.tops}
        found.append((bottoms, places))
    under = set[str]()  # values that the losses depend on
    for number in reversed(range(len(layers))):
        layer = layers[number]
        if any(layer.losses) or under & {tensor.name for _, tensor in layer.tops}:
            under |= {tensor.name for _, tensor in layer.bottoms}
        else:
            found[number] = (set(), set())
    return found
