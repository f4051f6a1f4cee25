"""The layers of clgraft in a net without Caffe: each adds what it computes to the net's graph."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from clgraft import caffe_layers
from clgraft.caffe_layers.layers.layer import TEST
from clgraft.caffe_layers.layers.loss import Loss
from clgraft.caffe_layers.prototxt.marks import REGION
from clgraft.caffe_layers.regions.memory import Memory
from clgraft.core.nn.builder import Build, Tensor


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


class InNet:
    """What a layer's class gets in addition."""

    tells: ClassVar[bool] = False

    def open(self: Any, parameters: Any, weights: Sequence[np.ndarray]) -> None:
        """Take what a net gives a layer."""
        self.given_parameters, self.phase = parameters, TEST
        lines = parameters.python_param.param_str.splitlines()  # without marks of regions: the net is one graph anyway
        self.param_str = "\n".join(line for line in lines if not line.startswith(REGION))
        self.blobs = [Learned(array) for array in weights]

    def read(self: Any, text: str) -> None:
        if self.given_parameters.python_param.module:  # as the swap writes it
            super().read(text)  # type: ignore[misc]
        else:
            self.take(self.given_parameters)

    def kinds(self: Any) -> tuple:
        own = super().kinds()  # type: ignore[misc]
        return (*own, *(f"Ocl{kind}" for kind in own), type(self).__name__)

    def make_blobs(self: Any, *wanted: tuple) -> None:
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


class NetLayer:
    """A layer of a net.

    Parameters
    ----------
    class_name : str
    parameters : LayerParameter
    weights : mapping of str to numpy.ndarray
        Its blobs by the names of the parameters, in order.
    """

    def __init__(self, class_name: str, parameters: Any, weights: Mapping[str, np.ndarray]) -> None:
        self._class, self._parameters, self._weights = class_name, parameters, weights

    def build(self, build: Build, bottoms: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
        """Add the layer to a graph and return its tops.

        Parameters
        ----------
        build : Build
        bottoms, parameters : sequence of Tensor
        """
        layer = class_in_net(self._class)()
        layer.open(self._parameters, list(self._weights.values()))
        below = [Blob(tensor.shape) for tensor in bottoms]
        above = [Blob(()) for _ in self._parameters.top]
        layer.setup(below, above)
        layer.reshape(below, above)
        layer.begin()
        learned = [build.reshape(tensor, blob.data.shape) for tensor, blob in zip(parameters, layer.blobs)]
        given = {name: self._constant(build, name, getattr(layer, name)) for name in layer.given}
        made = layer.build(build, list(bottoms), learned, **given)
        tops = list(made if isinstance(made, tuple) else (made,))[len(layer.results) :]
        return [build.reshape(top, blob.shape) for top, blob in zip(tops, above)]

    def _constant(self, build: Build, name: str, array: np.ndarray) -> Tensor:
        """Return an array that the host has computed before a run."""
        inside = f"given{len(build.constants)}_{name}"
        carried = np.ascontiguousarray(array, np.float32 if array.dtype.kind == "f" else np.int32)
        build.constants[inside] = carried
        return build.input(inside, array.shape, carried.dtype.name)
