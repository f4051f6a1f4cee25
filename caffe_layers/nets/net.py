"""Nets of Caffe without Caffe: a prototxt with its parameters, whose layers are those that Caffe runs of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clgraft.caffe_layers import LAYERS
from clgraft.caffe_layers.hosted.classes import class_name
from clgraft.caffe_layers.nets.layers import NetLayer, is_loss
from clgraft.caffe_layers.nets.weights import LayerWeights
from clgraft.caffe_layers.prototxt import schema
from clgraft.caffe_layers.swap.rules import MODULE
from clgraft.caffe_layers.swap.upgrade import upgrade
from clgraft.core.errors import ClgraftError, ProblemError
from clgraft.core.model import LoweredNet, ModelError, Port, Source, UnsupportedOperators, carried, contents
from clgraft.core.nn.builder import Build, Tensor

TEST = 1
DTYPE = "float32"
INPUT, SPLIT, SILENCE = "Input", "Split", "Silence"
LARGEST_TEXT = 2**26  # bytes of a prototxt
MOST_LAYERS = 10_000
FAULTS = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, ZeroDivisionError, RecursionError)


def read_net(source: Source) -> Any:
    """Read a net in text form, of V0, V1 or today.

    Parameters
    ----------
    source : path or bytes

    Returns
    -------
    NetParameter
        In the form of today.

    Raises
    ------
    ClgraftError
        If it cannot be read or is no net; names line and column.
    """
    name, data = contents("caffe", source, "prototxt")
    if len(data) > LARGEST_TEXT:
        raise ModelError(f"[caffe] got {name} of {len(data)} bytes, expected at most {LARGEST_TEXT}")
    try:
        net = schema.parse("NetParameter", upgrade(data.decode()).text)
    except ClgraftError:
        raise
    except (*FAULTS, UnicodeDecodeError) as error:
        raise ModelError(f"[caffe] got {name}, which is no net in text form: {str(error)[:200]}") from None
    if len(net.layer) > MOST_LAYERS:
        raise ModelError(f"[caffe] got {name} with {len(net.layer)} layers, expected at most {MOST_LAYERS}")
    return net


class CaffeNet:
    """A net with its parameters, in the TEST phase.

    Parameters
    ----------
    net : NetParameter
    weights : sequence of LayerWeights
        By the names of the layers; those of layers that the net lacks are left out.

    Attributes
    ----------
    inputs, outputs : tuple of Port
        Blobs that no layer makes, and blobs that no layer reads, the latter by name, as in Caffe.
    parameters : mapping of str to numpy.ndarray
        ``conv1[0]`` is the first blob of the layer ``conv1``.

    Raises
    ------
    UnsupportedOperators
        If it has layers that clgraft does not run, with the list of them.
    ModelError
        If its blobs are not connected, or parameters are missing.
    """

    kind: str = "caffe"

    def __init__(self, net: Any, weights: Sequence[LayerWeights] = ()) -> None:
        layers = [layer for layer in net.layer if _is_in(layer, net.state)]
        inputs = _inputs(net, layers)
        self._layers = [layer for layer in layers if layer.type not in (INPUT, SILENCE)]
        self._silent = {name for layer in layers if layer.type == SILENCE for name in layer.bottom}
        self._classes = [_class_of(layer) for layer in self._layers]
        pairs = zip(self._layers, self._classes)
        refused = [f"{layer.type} {layer.name!r} ({reason})" for layer, (_, reason) in pairs if reason]
        if refused:
            raise UnsupportedOperators(self.kind, refused)
        self.inputs = tuple(Port(name, DTYPE, _open(shape), shape) for name, shape in inputs.items())
        self.outputs = tuple(Port(name, DTYPE, None) for name in sorted(self._unread(inputs)))
        self.parameters, self._names = self._matched(weights)
        self._arrays = {name: self.array(name) for name in self.parameters}

    def array(self, parameter: str) -> np.ndarray:
        """Return a parameter in the type in which graphs read it."""
        return carried(self.kind, f"parameter {parameter!r}", self.parameters[parameter], DTYPE)

    def lower(self, shapes: Mapping[str, tuple[int, ...]]) -> LoweredNet:
        """Return the net as a graph for the shapes of all inputs.

        Raises
        ------
        ModelError
            Naming the layer that does not fit its bottoms.
        """
        build = Build(training=False)
        inputs = {port.name: build.input(f"input{i}", shapes[port.name], DTYPE) for i, port in enumerate(self.inputs)}
        inside: dict[str, str] = {}
        learned: dict[str, Tensor] = {}
        for number, (name, array) in enumerate(self._arrays.items()):
            learned[name] = build.input(f"parameter{number}", array.shape, DTYPE)
            inside[learned[name].name] = name
        blobs = dict(inputs)
        for layer, (found, _), names in zip(self._layers, self._classes, self._names):
            bottoms = [blobs[name] for name in layer.bottom]
            if layer.type == SPLIT:
                tops = bottoms * len(layer.top)
            else:
                tops = self._built(build, layer, found, bottoms, {name: learned[name] for name in names})
            blobs.update(zip(layer.top, tops))
        return LoweredNet(build, inputs, inside, {**learned, **blobs})

    def _built(
        self, build: Build, layer: Any, found: str, bottoms: Sequence[Tensor], learned: Mapping[str, Tensor]
    ) -> list[Tensor]:
        where = f"{layer.type} {layer.name!r}"
        try:
            made = NetLayer(found, layer, {name: self._arrays[name] for name in learned})
            return made.build(build, bottoms, list(learned.values()))
        except MemoryError:
            raise ModelError(f"[caffe] got layer {where}, which needs more memory than there is") from None
        except ClgraftError as error:
            raise ModelError(f"[caffe] got layer {where}, which does not fit: {error}") from None
        except FAULTS as error:
            shown = [tensor.shape for tensor in bottoms]
            raise ModelError(
                f"[caffe] got layer {where} with bottoms of shapes {shown}, expected ones that fit it"
                f" ({type(error).__name__}: {error})"
            ) from None

    def _unread(self, inputs: Mapping[str, Any]) -> set[str]:
        """Return the blobs that are there at the end and that nothing has read, after every bottom is checked."""
        there, unread = set(inputs), set(inputs)
        for layer in self._layers:
            for name in layer.bottom:
                if name not in there:
                    raise ModelError(
                        f"[caffe] got layer {layer.name!r} with bottom {name!r}, expected an input, or a top of a layer"
                        " before it"
                    )
                unread.discard(name)
            there.update(layer.top)
            unread.update(layer.top)
        return unread - self._silent

    def _matched(self, weights: Sequence[LayerWeights]) -> tuple[dict[str, np.ndarray], list[tuple[str, ...]]]:
        """Return the parameters by name, and the names of those of each layer.

        Layers share a parameter by its name in ``param``; the file has it for each of them, and the last one counts.
        """
        files = {layer.name: layer.blobs for layer in weights if layer.blobs}
        found: dict[str, np.ndarray] = {}
        names: list[tuple[str, ...]] = []
        shared: dict[str, str] = {}
        for layer in self._layers:
            own = []
            blobs = files.get(layer.name, ())
            for place in range(max(len(blobs), sum(bool(spec.name) for spec in layer.param))):
                word = layer.param[place].name if place < len(layer.param) else ""
                name = shared.setdefault(word, f"{layer.name}[{place}]") if word else f"{layer.name}[{place}]"
                if place < len(blobs):
                    found[name] = _read_only(blobs[place])
                own.append(name)
            names.append(tuple(own))
        missing = [name for each in names for name in each if name not in found]
        if missing:
            raise ModelError(f"[caffe] got no array for the parameters {missing[:5]}, expected weights with them")
        return found, names


def _is_in(layer: Any, state: Any) -> bool:
    """Return whether a layer is part of a net in the TEST phase, by Caffe's rules."""
    if layer.HasField("phase") and layer.phase != TEST:
        return False
    if layer.include:
        return any(_meets(rule, state) for rule in layer.include)
    return not any(_meets(rule, state) for rule in layer.exclude)


def _meets(rule: Any, state: Any) -> bool:
    if rule.HasField("phase") and rule.phase != TEST:
        return False
    if rule.HasField("min_level") and state.level < rule.min_level:
        return False
    if rule.HasField("max_level") and state.level > rule.max_level:
        return False
    stages = set(state.stage)
    return set(rule.stage) <= stages and not set(rule.not_stage) & stages


def _inputs(net: Any, layers: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """Return the inputs with their usual shapes: those of the net itself, and of Input layers."""
    found: dict[str, tuple[int, ...]] = {}
    dims = list(net.input_dim)
    for place, name in enumerate(net.input):
        sizes = net.input_shape[place].dim if place < len(net.input_shape) else dims[4 * place : 4 * place + 4]
        found[name] = tuple(sizes)
    for layer in layers:
        if layer.type != INPUT:
            continue
        shapes = layer.input_param.shape
        for place, name in enumerate(layer.top):
            if not shapes:
                raise ModelError(f"[caffe] got input {name!r} without a shape, expected one")
            found[name] = tuple(shapes[place if len(shapes) > 1 else 0].dim)
    for name, shape in found.items():
        if not shape or any(size < 0 for size in shape):
            raise ModelError(f"[caffe] got input {name!r} of shape {shape}, expected sizes")
    return found


def _open(shape: tuple[int, ...]) -> tuple[int | str, ...]:
    """Return a shape whose sizes may be others: Caffe's nets take new ones."""
    return ("batch", *(f"size{axis}" for axis in range(1, len(shape))))


def _class_of(layer: Any) -> tuple[str, str]:
    """Return the class that serves a layer, or why none does."""
    if layer.type == SPLIT:
        return "", ""
    kind = layer.type
    if kind == "Python":
        if layer.python_param.module != MODULE or layer.python_param.layer not in LAYERS:
            return "", f"a Python layer, {layer.python_param.module}.{layer.python_param.layer}"
        return layer.python_param.layer, ""
    try:
        found = class_name(kind)
    except ProblemError:
        return "", "clgraft has no layer of this type"
    return (found, "") if not is_loss(found) else ("", "a loss: a net for predictions has none")


def _read_only(array: np.ndarray) -> np.ndarray:
    found = array.view()
    found.flags.writeable = False
    return found
