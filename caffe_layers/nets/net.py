"""Nets of Caffe without Caffe: a prototxt with its parameters, whose layers are those that Caffe runs of ours."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from clgraft import caffe_layers
from clgraft.caffe_layers import LAYERS
from clgraft.caffe_layers.hosted.classes import class_name
from clgraft.caffe_layers.nets.accuracy import accuracy
from clgraft.caffe_layers.nets.filters import filtered
from clgraft.caffe_layers.nets.layers import NetLayer, has_open_tops, is_loss
from clgraft.caffe_layers.nets.splits import SPLIT, with_splits
from clgraft.caffe_layers.nets.weights import LayerWeights, write_caffemodel
from clgraft.caffe_layers.prototxt import schema
from clgraft.caffe_layers.swap.rules import MODULE
from clgraft.caffe_layers.swap.upgrade import upgrade
from clgraft.core.errors import ClgraftError, ProblemError
from clgraft.core.model import (
    Chosen,
    LoweredTraining,
    ModelError,
    Port,
    Source,
    UnsupportedOperators,
    carried,
    contents,
)
from clgraft.core.nn import dropout, losses
from clgraft.core.nn.builder import Build, Tensor

TRAIN, TEST = 0, 1
DTYPE = "float32"
INPUT, SILENCE, ACCURACY, FILTER, SAVE = "Input", "Silence", "Accuracy", "Filter", "HDF5Output"
DATA = ("Data", "DummyData", "HDF5Data", "ImageData", "Input", "MemoryData", "WindowData")
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
        upgraded = upgrade(data.decode())
        net = schema.parse("NetParameter", upgraded.document or upgraded.text)
    except ClgraftError:
        raise
    except (*FAULTS, UnicodeDecodeError) as error:
        raise ModelError(f"[caffe] got {name}, which is no net in text form: {str(error)[:200]}") from None
    if len(net.layer) > MOST_LAYERS:
        raise ModelError(f"[caffe] got {name} with {len(net.layer)} layers, expected at most {MOST_LAYERS}")
    return net


@dataclass
class SeenLayer:
    """A layer of a lowered net, for those who look inside.

    Attributes
    ----------
    name : str
    tops, bottoms : list of (str, Tensor)
        Blobs.
    parameters : list of (str, str, Tensor)
        What Caffe calls a parameter, what the net calls it, and the value that this layer reads.
    rates : list of float
        Factors of the parameters' learning rates.
    losses : list of bool
        Which tops are losses.
    states : set of int
        Parameters that the layer itself changes, and that have no gradient.
    stopped : set of int, or None
        Bottoms to which the prototxt lets no gradient flow; None if it says nothing.
    """

    name: str
    tops: list[tuple[str, Tensor]]
    bottoms: list[tuple[str, Tensor]]
    parameters: list[tuple[str, str, Tensor]]
    rates: list[float]
    losses: list[bool]
    states: set[int]
    stopped: set[int] | None


class CaffeNet:
    """A net with its parameters.

    Parameters
    ----------
    net : NetParameter
    weights : sequence of LayerWeights
        By the names of the layers; those of layers that the net lacks are left out.
    phase : int
        `TRAIN` or `TEST`.
    whole : bool
        Whether losses, accuracies and layers that read data are part of it. The tops of the latter are inputs.
    rng : numpy.random.Generator, optional
        What fills parameters that are not among the weights (see `fill`); without it all have to be.

    Attributes
    ----------
    inputs, outputs : tuple of Port
        Blobs that no layer makes, and blobs that no layer reads, the latter by name, as in Caffe.
    data_layers : list of LayerParameter
        The layers that read data.
    live : bool
        Whether parameters may change while a graph is used.
    loss_weights : dict of str to float
        Once it was lowered: tops that are part of the loss, and their weights.
    parameters : mapping of str to numpy.ndarray
        ``conv1[0]`` is the first blob of the layer ``conv1``.
    saved : dict of str to (str, (str, str))
        HDF5Output layers by their names: the file that each names, and the blobs that are its ``data`` and ``label``.
        They are outputs too; nothing here writes the file.

    Raises
    ------
    UnsupportedOperators
        If it has layers that clgraft does not run, with the list of them.
    ModelError
        If its blobs are not connected, or parameters are missing.
    """

    kind: str = "caffe"
    convention: str = "caffe"

    def __init__(
        self,
        net: Any,
        weights: Sequence[LayerWeights] = (),
        *,
        phase: int = TEST,
        whole: bool = False,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.net, self.phase, self.whole, self._rng = net, phase, whole, rng
        self.live = whole
        self.loss_weights: dict[str, float] = {}
        layers = [layer for layer in net.layer if _is_in(layer, net.state, phase)]
        data = DATA if whole else (INPUT,)
        self.data_layers = [layer for layer in layers if layer.type in data]
        inputs = _inputs(net, layers, self.data_layers)
        self.saved = {layer.name: _saved(layer) for layer in layers if layer.type == SAVE}
        self._layers = [layer for layer in layers if layer.type not in (*data, SILENCE)]
        self._silent = {name for layer in layers if layer.type == SILENCE for name in layer.bottom}
        self._classes = [_class_of(layer, whole) for layer in self._layers]
        self._refuse_readers()
        pairs = zip(self._layers, self._classes)
        refused = [f"{layer.type} {layer.name!r} ({reason})" for layer, (_, reason) in pairs if reason]
        if refused:
            raise UnsupportedOperators(self.kind, refused)
        self.inputs = tuple(
            Port(name, DTYPE, None if shape is None else _open(shape), shape) for name, shape in inputs.items()
        )
        self.outputs = tuple(Port(name, DTYPE, None) for name in sorted(self._unread(inputs)))
        self.parameters, self._names = self._matched(weights)
        for name in self.parameters:
            self.array(name)

    def array(self, parameter: str) -> np.ndarray:
        """Return a parameter in the type in which graphs read it."""
        return carried(self.kind, f"parameter {parameter!r}", self.parameters[parameter], DTYPE)

    def lower(self, shapes: Mapping[str, tuple[int, ...]]) -> LoweredTraining:
        """Return the net as a graph for the shapes of all inputs.

        Raises
        ------
        ModelError
            Naming the layer that does not fit its bottoms.
        """
        return _Lowering(self, shapes).run()

    def seen(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[LoweredTraining, list[SeenLayer]]:
        """Return the net as a graph with Caffe's Split layers, and its layers; each value has one reader."""
        layers = [layer for layer in self.net.layer if _is_in(layer, self.net.state, self.phase)]
        split = with_splits(self.net, layers, self.net.input)
        net = CaffeNet(split, self.weights(), phase=self.phase, whole=self.whole)
        lowering = _Lowering(net, shapes, [])
        lowered = lowering.run()
        places = {layer.name: place for place, layer in enumerate(split.layer)}
        return lowered, sorted(lowering.layers or (), key=lambda seen: places.get(seen.name, -1))

    def fill(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Fill the parameters that the weights lack, for nets with the shapes of all inputs."""
        if self._rng is not None:
            _Lowering(self, shapes).run()
            self._rng = None

    def for_training(self) -> CaffeNet:
        """Return the net in the TRAIN phase, with its losses."""
        self.live = True
        found = CaffeNet(self.net, phase=TRAIN, whole=True, weights=self.weights())
        return found

    @property
    def learned(self) -> dict[str, tuple[float, float]]:
        """The parameters that a solver changes, with their factors of learning rate and weight decay."""
        found: dict[str, tuple[float, float]] = {}
        for layer, (kind, _), names in zip(self._layers, self._classes, self._names):
            if not kind or not caffe_layers.layer_class(kind).learned:
                continue
            for place, name in enumerate(names):
                spec = layer.param[place] if place < len(layer.param) else None
                found.setdefault(name, (1.0, 1.0) if spec is None else (spec.lr_mult, spec.decay_mult))
        return found

    @property
    def order(self) -> tuple[str, ...]:
        """All parameters in the order of the layers, as Caffe has them."""
        return tuple(dict.fromkeys(name for names in self._names for name in names))

    def weights(self, parameters: Mapping[str, np.ndarray] | None = None) -> list[LayerWeights]:
        """Return the parameters by layers, as files have them: the net's own, or others by the same names."""
        known = self.parameters if parameters is None else parameters
        return [
            LayerWeights(layer.name, layer.type, tuple(known[name] for name in names))
            for layer, names in zip(self._layers, self._names)
        ]

    def write(self, path: str | os.PathLike[str], parameters: Mapping[str, np.ndarray]) -> None:
        """Write parameters as a ``.caffemodel``."""
        write_caffemodel(path, self.weights(parameters), self.net.name)

    def _unread(self, inputs: Mapping[str, Any]) -> set[str]:
        """Return the blobs that are there at the end and that nothing has read, after every bottom is checked."""
        there, unread = set(inputs), set(inputs)
        saved: set[str] = set()
        for layer in self._layers:
            changed = saved.intersection(layer.top)
            if changed:
                got = f"layer {layer.name!r}, which changes {sorted(changed)} after {SAVE} has read it"
                raise ModelError(f"[caffe] got {got}, expected another top")
            saved.update(layer.bottom if layer.type == SAVE else ())
            for name in layer.bottom:
                if name not in there:
                    raise ModelError(
                        f"[caffe] got layer {layer.name!r} with bottom {name!r}, expected an input, or a top of a layer"
                        " before it"
                    )
                unread.discard(name)
            there.update(layer.top)
            unread.update(layer.top)
        return (unread - self._silent).union(*(blobs for _, blobs in self.saved.values()))

    def _refuse_readers(self) -> None:
        """Refuse layers that read a blob whose size depends on elements: graphs have shapes that are known before."""
        makers: dict[str, str] = {}
        for place, (layer, (kind, reason)) in enumerate(zip(self._layers, self._classes)):
            read = next((name for name in layer.bottom if name in makers), "")
            if read and not reason and layer.type != SAVE:
                words = f"reads {read!r} of {makers[read]}, whose size depends on elements"
                self._classes[place] = kind, words
            is_open = layer.type == FILTER or (kind and has_open_tops(caffe_layers.layer_class(kind)))
            for name in layer.top:
                makers.pop(name, None)
                if is_open:
                    makers[name] = f"{layer.type} {layer.name!r}"

    def _matched(self, weights: Sequence[LayerWeights]) -> tuple[dict[str, np.ndarray], list[tuple[str, ...]]]:
        """Return the parameters by name, and the names of those of each layer.

        Layers share a parameter by its name in ``param``; the file has it for each of them, and the last one counts.
        """
        files = {layer.name: layer.blobs for layer in weights if layer.blobs}
        self._shared: dict[str, str] = {}
        found: dict[str, np.ndarray] = {}
        names: list[tuple[str, ...]] = []
        for layer in self._layers:
            own = []
            blobs = files.get(layer.name, ())
            for place in range(max(len(blobs), sum(bool(spec.name) for spec in layer.param))):
                name = self._name(layer, place)
                if place < len(blobs):
                    found[name] = _read_only(blobs[place])
                own.append(name)
            names.append(tuple(own))
        missing = [name for each in names for name in each if name not in found]
        if missing and self._rng is None:
            raise ModelError(f"[caffe] got no array for the parameters {missing[:5]}, expected weights with them")
        return found, names

    def _name(self, layer: Any, place: int) -> str:
        """Return the name of a layer's parameter: that of the first layer that shares it."""
        word, own = layer.param[place].name if place < len(layer.param) else "", f"{layer.name}[{place}]"
        return self._shared.setdefault(word, own) if word else own


class _Lowering:
    """A net for some shapes, while its graph is made."""

    def __init__(
        self, net: CaffeNet, shapes: Mapping[str, tuple[int, ...]], layers: list[SeenLayer] | None = None
    ) -> None:
        self._net, self._shapes, self.layers = net, shapes, layers
        self._build = Build(training=net.phase == TRAIN)
        self._learned: dict[str, Tensor] = {}
        self._inside: dict[str, str] = {}
        self._keys: list[Tensor] = []
        self._weights: dict[str, float] = {}  # tops that are losses, with their weights
        self._heads: list[Tensor] = []
        self._chosen: dict[str, Chosen] = {}

    def run(self) -> LoweredTraining:
        """Return the graph; parameters that have no array yet get one."""
        net, build = self._net, self._build
        inputs = {p.name: build.input(f"input{i}", self._shapes[p.name], DTYPE) for i, p in enumerate(net.inputs)}
        blobs = dict(inputs)
        if self.layers is not None:
            if net.net.input:
                self._see("input", [(name, inputs[name]) for name in net.net.input])
            for layer in net.data_layers:
                self._see(layer.name, [(name, inputs[name]) for name in layer.top])
        for number, (layer, (found, _)) in enumerate(zip(net._layers, net._classes)):
            bottoms = [blobs[name] for name in layer.bottom]
            if layer.type == SPLIT:
                tops = bottoms * len(layer.top)
                if self.layers is not None:
                    tops = [dropout.same(build, each) for each in tops]
                    self._see(layer.name, list(zip(layer.top, tops)), list(zip(layer.bottom, bottoms)))
            elif layer.type == SAVE:
                tops = []
            elif layer.type == FILTER:
                tops, chosen = self._guarded(layer, bottoms, lambda layer, bottoms: filtered(layer.top, bottoms))
                self._chosen.update(chosen)
            elif layer.type == ACCURACY:
                tops = self._guarded(layer, bottoms, lambda layer, bottoms: accuracy(build, layer, *bottoms))
                if self.layers is not None:
                    self._see(layer.name, list(zip(layer.top, tops)), list(zip(layer.bottom, bottoms)))
            else:
                stopped = [i for i, flows in enumerate(layer.propagate_down) if not flows] if net.whole else []
                for place in stopped:
                    bottoms[place] = build.without_gradient(dropout.same(build, bottoms[place]))
                tops = self._guarded(layer, bottoms, partial(self._built, number, found))
            blobs.update(zip(layer.top, tops))
        shown = {port.name: blobs[port.name] for port in net.outputs if net.whole}
        shown.update({name: blobs[name] for name in self._weights})
        return LoweredTraining(
            build,
            inputs,
            self._inside,
            {**self._learned, **blobs},
            chosen=self._chosen,
            heads=tuple(self._heads),
            shown=shown,
            losses=self._weights,
            keys=tuple(self._keys),
        )

    def _see(
        self, name: str, tops: list[tuple[str, Tensor]], bottoms: Sequence[tuple[str, Tensor]] = (), layer: Any = None
    ) -> SeenLayer:
        """Add a layer to those that were seen."""
        stopped = None
        if layer is not None and len(layer.propagate_down):
            stopped = {i for i, flows in enumerate(layer.propagate_down) if not flows}
        seen = SeenLayer(name, tops, list(bottoms), [], [], [False] * len(tops), set(), stopped)
        assert self.layers is not None
        self.layers.append(seen)
        return seen

    def _guarded(self, layer: Any, bottoms: list[Tensor], make: Callable[[Any, list[Tensor]], Any]) -> Any:
        where = f"{layer.type} {layer.name!r}"
        try:
            return make(layer, bottoms)
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

    def _built(self, number: int, found: str, layer: Any, bottoms: list[Tensor]) -> list[Tensor]:
        net, build = self._net, self._build
        arrays = [net.array(name) for name in net._names[number] if name in net.parameters]
        made = NetLayer(
            found,
            layer,
            arrays,
            [tensor.shape for tensor in bottoms],
            phase=net.phase,
            rng=net._rng,
            live=net.live,
        )
        if len(made.blobs) > len(net._names[number]):
            net._names[number] = tuple(net._name(layer, place) for place in range(len(made.blobs)))
        for name, array in zip(net._names[number], made.blobs):
            net.parameters.setdefault(name, _read_only(array))
        states = made.states
        learned = [self._parameter(name, place in states) for place, name in enumerate(net._names[number])]
        if self.layers is not None:  # shared parameters have a gradient for each layer
            learned = [one if place in states else dropout.same(build, one) for place, one in enumerate(learned)]
        tops = made.build(build, bottoms, learned, self._key if net.phase == TRAIN else None)
        if self.layers is not None:
            self._see_built(number, layer, bottoms, tops, learned, made)
        chosen = made.chosen(build, tops[0]) if tops else None
        if chosen is not None:
            self._chosen[layer.top[0]] = chosen
        for top, name, weight in zip(tops, layer.top, made.loss_weights()):
            if weight and net.whole:
                self._weights[name] = net.loss_weights[name] = weight
                self._heads.append(top if made.is_loss else losses.weighted_sum(build, top, weight))
        return tops

    def _see_built(
        self, number: int, layer: Any, bottoms: list[Tensor], tops: list[Tensor], learned: list[Tensor], made: NetLayer
    ) -> None:
        """Add a layer with its parameters to those that were seen."""
        seen = self._see(layer.name, list(zip(layer.top, tops)), list(zip(layer.bottom, bottoms)), layer)
        seen.losses = [bool(weight) for weight in made.loss_weights()]
        seen.states = set(made.states)
        for place, (name, tensor) in enumerate(zip(self._net._names[number], learned)):
            spec = layer.param[place] if place < len(layer.param) else None
            shown = spec.name if spec is not None and spec.name else str(place)
            seen.parameters.append((shown, name, tensor))
            seen.rates.append(1.0 if spec is None else spec.lr_mult)

    def _parameter(self, name: str, is_state: bool) -> Tensor:
        """Return a parameter as an input or a state of the graph."""
        if name not in self._learned:
            add = self._build.state if is_state else self._build.input
            tensor = add(f"parameter{len(self._learned)}", self._net.parameters[name].shape, DTYPE)
            self._learned[name], self._inside[tensor.name] = tensor, name
        return self._learned[name]

    def _key(self, build: Build) -> Tensor:
        self._keys.append(dropout.key(build, len(self._keys)))
        return self._keys[-1]


def _is_in(layer: Any, state: Any, phase: int) -> bool:
    """Return whether a layer is part of a net in a phase, by Caffe's rules."""
    if layer.HasField("phase") and layer.phase != phase:
        return False
    if layer.include:
        return any(_meets(rule, state, phase) for rule in layer.include)
    return not any(_meets(rule, state, phase) for rule in layer.exclude)


def _meets(rule: Any, state: Any, phase: int) -> bool:
    if rule.HasField("phase") and rule.phase != phase:
        return False
    if rule.HasField("min_level") and state.level < rule.min_level:
        return False
    if rule.HasField("max_level") and state.level > rule.max_level:
        return False
    stages = set(state.stage)
    return set(rule.stage) <= stages and not set(rule.not_stage) & stages


def _inputs(net: Any, layers: Sequence[Any], data: Sequence[Any]) -> dict[str, tuple[int, ...] | None]:
    """Return the inputs with their usual shapes: those of the net itself, of Input layers, and what reads data."""
    found: dict[str, tuple[int, ...] | None] = {}
    dims = list(net.input_dim)
    for place, name in enumerate(net.input):
        sizes = net.input_shape[place].dim if place < len(net.input_shape) else dims[4 * place : 4 * place + 4]
        found[name] = tuple(sizes)
    for layer in data:
        if layer.type != INPUT:
            found.update(dict.fromkeys(layer.top))
            continue
        shapes = layer.input_param.shape
        for place, name in enumerate(layer.top):
            if not shapes:
                raise ModelError(f"[caffe] got input {name!r} without a shape, expected one")
            found[name] = tuple(shapes[place if len(shapes) > 1 else 0].dim)
    for name, shape in found.items():
        if shape is not None and (not shape or any(size < 0 for size in shape)):
            raise ModelError(f"[caffe] got input {name!r} of shape {shape}, expected sizes")
    return found


def _open(shape: tuple[int, ...]) -> tuple[int | str, ...]:
    """Return a shape whose sizes may be others: Caffe's nets take new ones."""
    return ("batch", *(f"size{axis}" for axis in range(1, len(shape))))


def _class_of(layer: Any, whole: bool) -> tuple[str, str]:
    """Return the class that serves a layer, or why none does."""
    if layer.type in (SPLIT, SAVE) or (whole and layer.type == ACCURACY):
        return "", ""
    if layer.type == FILTER:
        return "", "its tops have sizes that depend on elements: a net for predictions may have it" if whole else ""
    kind = layer.type
    if kind == "Python":
        if layer.python_param.module != MODULE or layer.python_param.layer not in LAYERS:
            return "", f"a Python layer, {layer.python_param.module}.{layer.python_param.layer}"
        return layer.python_param.layer, ""
    try:
        found = class_name(kind)
    except ProblemError:
        return "", "clgraft has no layer of this type"
    return (found, "") if whole or not is_loss(found) else ("", "a loss: a net for predictions has none")


def _saved(layer: Any) -> tuple[str, tuple[str, str]]:
    """Return the file and the blobs of an HDF5Output layer."""
    if len(layer.bottom) != 2 or not layer.hdf5_output_param.file_name:
        got = f"layer {layer.name!r} with {len(layer.bottom)} bottoms and file_name"
        raise ModelError(f"[caffe] got {got} {layer.hdf5_output_param.file_name!r}, expected two and a file")
    data, label = layer.bottom
    return layer.hdf5_output_param.file_name, (data, label)


def _read_only(array: np.ndarray) -> np.ndarray:
    found = array.view()
    found.flags.writeable = False
    return found
