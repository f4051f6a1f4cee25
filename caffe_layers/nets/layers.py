"""The layers of clgraft in a net without Caffe: each adds what it computes to the net's graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from clgraft import caffe_layers
from clgraft.caffe_layers.hosted.classes import Parameterized
from clgraft.caffe_layers.layers.layer import TEST
from clgraft.caffe_layers.layers.loss import Loss
from clgraft.caffe_layers.nets import fillers
from clgraft.caffe_layers.prototxt.marks import without_marks
from clgraft.caffe_layers.regions.memory import Memory
from clgraft.core.model import Chosen
from clgraft.core.nn import norms
from clgraft.core.nn.builder import Build, Tensor

Keys = Callable[[Build], Tensor]


class Blob:
    """Stands for a blob of Caffe's: a shape, and an address for layers that name memory."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.reshape(*shape)

    def reshape(self, *shape: int) -> None:
        """Take a new shape."""
        self.shape = tuple(shape)
        self.data, self.diff = Memory(self.shape), Memory(self.shape)


class Learned:
    """Stands for a learned blob: its array."""

    def __init__(self, array: np.ndarray) -> None:
        self.data = self.diff = array


class LearnedBlobs(list):
    """Stands for a layer's learned blobs."""

    def add_blob(self, *shape: int) -> None:
        """Add a blob of zeros."""
        self.append(Learned(np.zeros(shape, np.float32)))


class InNet(Parameterized):
    """What a layer's class gets in addition."""

    def open(
        self: Any, parameters: Any, weights: Sequence[np.ndarray], phase: int, rng: np.random.Generator | None
    ) -> None:
        """Take what a net gives a layer."""
        self.take_given(parameters, phase)
        self.rng = rng
        self.param_str = without_marks(self.param_str)  # of regions: the net is one graph anyway
        self.blobs = LearnedBlobs(Learned(array) for array in weights)

    def drawn(self: Any, shape: tuple, filler: Any) -> np.ndarray:
        return fillers.drawn(self.rng, shape, filler)

    def make_blobs(self: Any, *wanted: tuple) -> None:
        if not self.blobs and self.rng is not None:
            super().make_blobs(*wanted)  # type: ignore[misc]
            return
        there = [blob.data.shape for blob in self.blobs]
        self.expect(len(there) == len(wanted), f"{len(there)} blobs in the weights", f"{len(wanted)}")
        for blob, (shape, _) in zip(self.blobs, wanted):
            if blob.data.shape != tuple(shape) and _core(blob.data.shape) == _core(shape):
                blob.data = blob.data.reshape(shape)  # files before 2015 have four axes
        super().make_blobs(*wanted)  # type: ignore[misc]

    def runner(self) -> None:
        """Plan nothing: the net's graph takes what the layer builds."""

    def learns(self, index: int) -> bool:
        return False

    def _built(self: Any, wanted: tuple) -> Any:
        """Return what a layer's own passes would tell of shapes: the net has the passes."""
        results, tops = self.recorded(Build(training=self.phase != TEST))
        return SimpleNamespace(outputs=(*results, *tops))

    def shares_memory(self, bottom: Any, top: Any) -> bool:
        return False


def _core(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape without the ones in front."""
    sizes = list(shape)
    while sizes and sizes[0] == 1:
        del sizes[0]
    return tuple(sizes)


@functools.cache
def class_in_net(name: str) -> Any:
    """Return a layer's class for nets."""
    return type(name, (InNet, caffe_layers.layer_class(name)), {})


def is_loss(name: str) -> bool:
    """Return whether a class is a loss, whose value the host computes from labels."""
    return issubclass(caffe_layers.layer_class(name), Loss)


def has_open_tops(kind: Any) -> bool:
    """Return whether the size of what a class makes depends on elements."""
    return hasattr(kind, "chosen")


class NetLayer:
    """A layer of a net, set up for the shapes of its bottoms.

    Parameters
    ----------
    class_name : str
    parameters : LayerParameter
    weights : sequence of numpy.ndarray
        Its blobs, in order. Without any, and with `rng`, it fills blobs of its own.
    shapes : sequence of tuple of int
        Of the bottoms.
    phase : int
    rng : numpy.random.Generator, optional
        For blobs that are filled.
    live : bool
        Whether blobs may change after the layer is built.

    Attributes
    ----------
    blobs : list of numpy.ndarray
    states : set of int
        The blobs that a forward pass changes.
    """

    def __init__(
        self,
        class_name: str,
        parameters: Any,
        weights: Sequence[np.ndarray],
        shapes: Sequence[tuple[int, ...]],
        *,
        phase: int = TEST,
        rng: np.random.Generator | None = None,
        live: bool = False,
    ) -> None:
        self._parameters, self._live = parameters, live
        layer = self._layer = class_in_net(class_name)()
        layer.open(parameters, list(weights), phase, rng)
        self._below = [Blob(shape) for shape in shapes]
        self._above = [Blob(()) for _ in parameters.top]
        layer.setup(self._below, self._above)
        layer.reshape(self._below, self._above)
        if phase == TEST or self._is_global():
            layer.begin()
        self.blobs = [blob.data for blob in layer.blobs]
        counted = [index for index, *_ in layer.counted()]
        self.states = {*getattr(layer, "changed", ()), *counted} if phase != TEST and not self._is_global() else set()

    def _is_global(self) -> bool:
        return bool(getattr(self._layer, "is_global", False))

    @property
    def is_loss(self) -> bool:
        """Whether the first top is a loss, which states its gradient."""
        return isinstance(self._layer, Loss)

    def build(
        self, build: Build, bottoms: Sequence[Tensor], parameters: Sequence[Tensor], keys: Keys | None = None
    ) -> list[Tensor]:
        """Add the layer to a graph and return its tops.

        Parameters
        ----------
        build : Build
        bottoms, parameters : sequence of Tensor
        keys : Keys, optional
            Gives keys of random numbers.
        """
        layer, above = self._layer, self._above
        learned = [build.reshape(tensor, blob.data.shape) for tensor, blob in zip(parameters, layer.blobs)]
        if isinstance(layer, Loss):
            tops = list(layer.in_net(build, list(bottoms), self.loss_weights()[0]))
        else:
            given = {name: self._given(build, name, learned, keys) for name in layer.given}
            tops = list(layer.parts(build, list(bottoms), learned, given)[1])
        for index, factor, term in layer.counted() if self.states else ():
            norms.update_count(build, learned[index], keep=factor, add=term)
        return [build.reshape(top, blob.shape) for top, blob in zip(tops, above)]

    def chosen(self, build: Build, top: Tensor) -> Chosen | None:
        """Return which parts the first top has, if its size depends on elements."""
        return Chosen(*self._layer.chosen(build, top)) if has_open_tops(type(self._layer)) else None

    def loss_weights(self) -> list[float]:
        """Return the weight in the loss of each top, by default 1 for the first one of a loss."""
        given = list(self._parameters.loss_weight)
        usual = [float(isinstance(self._layer, Loss)), *(0.0 for _ in self._parameters.top)]
        return [float(weight) for weight in (*given, *usual[len(given) :])][: max(1, len(self._parameters.top))]

    def _given(self, build: Build, name: str, learned: Sequence[Tensor], keys: Keys | None) -> Tensor:
        """Return what the host gives a layer: a key, a quotient of blobs, or an array that does not change."""
        array = getattr(self._layer, name)
        if array.dtype.kind != "f" and keys is not None:
            return keys(build)
        for quotient, index, divisor in self._layer.quotients() if self._live else ():
            if quotient is array:
                return norms.counted_average(build, learned[index], learned[divisor])
        inside = f"given{len(build.constants)}_{name}"
        carried = np.ascontiguousarray(array, np.float32 if array.dtype.kind == "f" else np.int32)
        build.constants[inside] = carried
        return build.input(inside, array.shape, carried.dtype.name)
