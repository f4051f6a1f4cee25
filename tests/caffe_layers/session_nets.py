"""Nets without Caffe in the form of pycaffe's, so that tests may run either."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from clgraft import core
from clgraft.caffe_layers.nets.net import CaffeNet, read_net
from clgraft.caffe_layers.nets.weights import read_caffemodel

TRAIN, TEST = 0, 1


class Blob:
    """An array and its gradient."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = np.array(data, np.float32)
        self.diff = np.zeros_like(self.data)


class SessionNet:
    """A net that clgraft runs as one graph, with what tests use of `caffe.Net`.

    Attributes
    ----------
    blobs : dict of str to Blob
        The inputs, and blobs that no layer reads, or that are asked for.
    params : dict of str to list of Blob
    bottom_names : dict of str to list of str
    """

    def __init__(self, text: str, phase: int = TRAIN, inner: tuple[str, ...] = ()) -> None:
        self._net = CaffeNet(read_net(text.encode()), phase=phase, whole=True, rng=np.random.default_rng(0))
        shapes = {port.name: port.sizes for port in self._net.inputs}
        self._net.fill(shapes)
        self._lowered = lowered = self._net.lower(shapes)
        self.bottom_names = {layer.name: list(layer.bottom) for layer in self._net.net.layer}
        self._given = {name: Blob(np.zeros(shape)) for name, shape in shapes.items()}
        self._tops = [*dict.fromkeys((*(port.name for port in self._net.outputs), *inner))]
        self._tops = [name for name in self._tops if lowered.values[name] not in lowered.inputs.values()]
        self.blobs = {**{name: Blob(np.zeros(lowered.values[name].shape)) for name in self._tops}, **self._given}
        self.params: dict[str, list[Blob]] = {}
        for name in self._net.order:
            layer = name.rpartition("[")[0]
            self.params.setdefault(layer, []).append(Blob(self._net.parameters[name]))
        self._named = dict(zip(self._net.order, (blob for blobs in self.params.values() for blob in blobs)))
        self._compiled: dict[str, Any] = {}

    def copy_from(self, path: str) -> None:
        """Take the parameters of a file."""
        for layer in read_caffemodel(path):
            for blob, array in zip(self.params.get(layer.name, ()), layer.blobs):
                blob.data[...] = array.reshape(blob.data.shape)

    def forward(self) -> None:
        """Compute the tops."""
        graph = self._lowered.build.graph.graph(*dict.fromkeys(self._lowered.values[name].name for name in self._tops))
        self._before = {name: blob.data.copy() for name, blob in self._named.items()}
        self._inputs = {name: blob.data.copy() for name, blob in self._given.items()}
        found = self._run("forward", graph, {name: blob.data for name, blob in self._named.items()})
        for name in self._tops:
            tensor = self._lowered.values[name]
            self.blobs[name].data[...] = found[tensor.name].reshape(tensor.shape)

    def backward(self) -> None:
        """Compute gradients: those of parameters are added to."""
        lowered, build = self._lowered, self._lowered.build
        heads = {head.name for head in lowered.heads}
        losses = {lowered.values[name].name for name in lowered.losses}
        tops = {lowered.values[name].name: self.blobs[name] for name in self._tops}
        outputs = {
            tensor.name: tensor
            for tensor in (*lowered.heads, *(lowered.values[name] for name in self._tops))
            if tensor.name in heads or tensor.name not in losses
        }
        inside = {name: value for value, name in lowered.parameters.items()}
        whole = build.graph.graph(*dict.fromkeys(lowered.values[name].name for name in self._tops))
        states = {value.name for value in whole.states}
        learned = {name: inside[name] for name in self._net.learned if inside[name] not in states}
        wanted = {**{name: tensor.name for name, tensor in lowered.inputs.items()}, **learned}
        passes = build.passes(tuple(outputs.values()), list(wanted.values()), zeros=True)
        results = tuple(dict.fromkeys(passes.found[name] for name in wanted.values() if passes.found.get(name)))
        graph = replace(
            whole,
            nodes=(*passes.forward, *passes.backward),
            inputs=(*whole.inputs, *passes.incoming.values()),
            outputs=results,
        )
        incoming = {
            value.name: (np.ones(value.shape) if name in heads else tops[name].diff.reshape(value.shape)).astype("f4")
            for name, value in passes.incoming.items()
        }
        found = self._run("backward", graph, self._before, incoming)
        for name, value in wanted.items():
            blob = self._given[name] if name in self._given else self._named[name]
            gradient = found.get(passes.found.get(value, ""))
            gradient = np.zeros(blob.data.shape) if gradient is None else gradient.reshape(blob.data.shape)
            if name in self._given:
                blob.diff[...] = gradient
            else:
                blob.diff += gradient

    def _run(
        self,
        what: str,
        graph: Any,
        parameters: Mapping[str, np.ndarray],
        more: Mapping[str, np.ndarray] | None = None,
    ) -> dict[str, np.ndarray]:
        if what not in self._compiled:
            known = {value.name for value in graph.inputs}
            constants = {name: array for name, array in self._lowered.build.constants.items() if name in known}
            self._compiled[what] = core.context().compile(graph, constants=constants)
        known = {value.name for value in (*graph.inputs, *graph.states)}
        arrays = {tensor.name: self._inputs[name] for name, tensor in self._lowered.inputs.items()}
        arrays.update({value: parameters[name] for value, name in self._lowered.parameters.items()})
        arrays.update(more or {})
        arrays.update({key.name: np.zeros(key.shape, np.int32) for key in self._lowered.keys})
        return self._compiled[what].run({name: array for name, array in arrays.items() if name in known})  # type: ignore
