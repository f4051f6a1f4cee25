"""ONNX models for trainers: which initializers are trained, the graph of a step, and the file after training."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from clgraft.core.errors import hint
from clgraft.core.files import write_whole
from clgraft.core.model import LoweredTraining
from clgraft.core.nn.builder import Tensor
from clgraft.plugins.onnx.errors import OnnxError
from clgraft.plugins.onnx.loading import Model
from clgraft.plugins.onnx.lowering import PARAMETER, Asked, ModelBuilder
from clgraft.plugins.onnx.nodes import operator_name
from clgraft.plugins.onnx.values import REAL, OnnxValue, carrier_of, known

ANY = range(64)
# operator -> the inputs at which initializers are weights
WEIGHTS = {
    **dict.fromkeys(("Add", "Einsum", "Gemm", "MatMul", "Mul"), ANY),
    **dict.fromkeys(("Conv", "ConvTranspose", "BatchNormalization", "InstanceNormalization"), (1, 2)),
    **dict.fromkeys(("GroupNormalization", "LayerNormalization"), (1, 2)),
    **dict.fromkeys(("PRelu", "RMSNormalization"), (1,)),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), (1, 2, 3)),
    "DeformConv": (1, 3),
    "Gather": (0,),
}
# what moves elements: their results are weights if one of their inputs is
MOVES = {
    **dict.fromkeys(("Cast", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split"), (0,)),
    **dict.fromkeys(("Squeeze", "Transpose", "Unsqueeze"), (0,)),
    "Concat": ANY,
}
AVERAGES = (3, 4)  # inputs of a batch norm
LOSS = "loss"
MOST_BYTES = 2**31 - 2**24  # of a file without external data; protobuf's limit is 2^31


def weights_of(graph: onnx.GraphProto, names: Collection[str]) -> dict[str, None]:
    """Return which of some initializers are weights: they have axes, and an operator reads them where weights are."""
    sources: dict[str, set[str]] = {name: {name} for name in names}
    found: set[str] = set()
    for node in graph.node:
        operator = operator_name(node)
        for place, name in enumerate(node.input):
            if place in WEIGHTS.get(operator, ()):
                found |= sources.get(name, set())
        moved = set().union(
            *(sources.get(node.input[i], set()) for i in MOVES.get(operator, ()) if i < len(node.input))
        )
        if moved:
            sources.update(dict.fromkeys(node.output, moved))
    return {name: None for name in names if name in found}


def averages_of(graph: onnx.GraphProto, names: Collection[str]) -> set[str]:
    """Return which of some initializers are moving averages of batch norms."""
    norms = (node for node in graph.node if operator_name(node) == "BatchNormalization")
    return {node.input[place] for node in norms for place in AVERAGES if node.input[place] in names}


class OnnxNet:
    """An ONNX model that is trained.

    Parameters
    ----------
    model : Model
    has_fp64 : bool
        Whether the device has float64.
    training_mode : bool, optional
        Whether batch norms and dropout compute as in training; None: as each node states.
    trained : collection of str
        Initializers that are trained besides the weights.
    changed : collection of str
        Initializers that other trainers change.

    Attributes
    ----------
    inputs, outputs : tuple of Port
        In the types that carry them on the device.
    parameters : mapping of str to numpy.ndarray
        The initializers that change: what is trained, and moving averages.
    """

    kind: str = "onnx"
    convention: str = "pytorch"

    def __init__(
        self,
        model: Model,
        has_fp64: bool,
        training_mode: bool | None = True,
        trained: Collection[str] = (),
        changed: Collection[str] = (),
    ) -> None:
        self._model, self._has_fp64, self._training_mode = model, has_fp64, training_mode
        inside = {tensor.name for tensor in model.graph.initializer}
        real = [
            name for name, a in model.initializers.items() if a.dtype.name == "float32" and name in inside and a.size
        ]
        for name in trained:
            if name not in real:
                expected = f"some of the initializers of float32{hint(str(name), real)}"
                raise OnnxError(f"[onnx] got trained of {name!r}, expected {expected}")
        self._averages = averages_of(model.graph, real)
        axes = [name for name in real if model.initializers[name].ndim and name not in self._averages]
        self._weights = {**weights_of(model.graph, axes), **dict.fromkeys(trained)}
        if not self._weights:
            _expect_float32(model, inside)
        changing = {*self._weights, *self._averages, *changed}
        self.parameters = {name: _read_only(model.initializers[name]) for name in real if name in changing}
        self.inputs = tuple(replace(port, dtype=carrier_of(port.dtype, has_fp64)) for port in model.inputs)
        self.outputs = tuple(replace(port, dtype=carrier_of(port.dtype, has_fp64)) for port in model.outputs)
        self._answers: dict[str, np.ndarray] = {}

    @property
    def learned(self) -> dict[str, tuple[float, float]]:
        """The initializers that an optimizer changes, with factors of learning rate and weight decay."""
        return dict.fromkeys(self._weights, (1.0, 1.0))

    def array(self, parameter: str) -> np.ndarray:
        """Return an initializer."""
        return np.array(self.parameters[parameter], order="C")

    def lower(self, shapes: Mapping[str, tuple[int, ...]]) -> LoweredTraining:
        """Return the model as a graph for the shapes of all inputs.

        A weight on whose elements shapes depend is a constant.

        Raises
        ------
        OnnxError
            Naming the node that does not fit its inputs.
        """
        while True:
            try:
                return self._lowered(shapes)
            except Asked as question:
                key = question.value.key
                if not key.startswith(PARAMETER):
                    raise OnnxError(
                        "[onnx] got a model whose shapes depend on its inputs' elements, expected one graph to train"
                    ) from None
                self._answers[key] = self.parameters[key[len(PARAMETER) :]]

    def _lowered(self, shapes: Mapping[str, tuple[int, ...]]) -> LoweredTraining:
        model, mode = self._model, self._training_mode
        on = ModelBuilder(model.opset, self._has_fp64, self._answers, model.limits, True, mode)
        for port in model.inputs:
            on.define(port.name, on.input(port.name, shapes[port.name], port.dtype))
            if port.name not in on.inputs:
                raise OnnxError(f"[onnx] got input {port.name!r} of shape {shapes[port.name]}, expected elements")
        for name, array in model.initializers.items():
            changes = name in self.parameters
            on.define(name, on.parameter(name, array, name in self._averages) if changes else known(array))
        on.run(model.graph.node)
        found = {port.name: on.find(port.name) for port in model.outputs}
        values = {name: on.given(value) for name, value in found.items()}
        head = self._own_loss(found)
        return LoweredTraining(
            on.build,
            {port.name: Tensor(on.inputs[port.name], shapes[port.name], port.dtype) for port in self.inputs},
            on.parameters,
            values,
            heads=(values[head],) if head else (),
            shown={head: values[head]} if head else {},
            losses={head: 1.0} if head else {},
            keys=tuple(on.keys),
            checks=tuple(on.checks),
        )

    def _own_loss(self, outputs: Mapping[str, OnnxValue]) -> str:
        """Return the output that is a loss, of one real number: the only one, or the one of that name; else nothing."""
        single = [name for name, value in outputs.items() if value.size == 1 and value.is_real and value.array is None]
        return LOSS if LOSS in single else single[0] if len(single) == 1 else ""

    def write(self, path: str | os.PathLike[str], parameters: Mapping[str, np.ndarray]) -> None:
        """Write the model with other elements of initializers as an ``.onnx``."""
        write_model(path, with_initializers(self._model.proto, self._model.initializers, parameters))


def with_initializers(
    proto: onnx.ModelProto, known: Mapping[str, np.ndarray], parameters: Mapping[str, np.ndarray]
) -> onnx.ModelProto:
    """Return a model with the elements of all initializers in it.

    Parameters
    ----------
    proto : onnx.ModelProto
    known : mapping of str to numpy.ndarray
        The elements of its initializers, which may be in other files.
    parameters : mapping of str to numpy.ndarray
        Those that are different.
    """
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for tensor in made.graph.initializer:
        if tensor.name not in parameters and tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        old = known[tensor.name]
        array = np.asarray(parameters.get(tensor.name, old), old.dtype).reshape(old.shape)
        text = tensor.doc_string
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        if text:
            tensor.doc_string = text
    return made


def write_model(path: str | os.PathLike[str], proto: onnx.ModelProto) -> None:
    """Write a model; one that is too large for a file gets a second one for its initializers, ``NAME.data``."""
    if sum(len(tensor.raw_data) for tensor in proto.graph.initializer) < MOST_BYTES:
        write_whole(Path(path), proto.SerializeToString(), 0o644)
        return
    data = Path(f"{os.fspath(path)}.data")
    data.unlink(missing_ok=True)  # onnx would append to it
    onnx.save_model(proto, os.fspath(path), save_as_external_data=True, location=data.name)


def _expect_float32(model: Model, names: Collection[str]) -> None:
    """Raise an error if a model has weights of other real numbers."""
    others = [name for name, a in model.initializers.items() if name in names and a.ndim and a.dtype.name in REAL]
    for name in weights_of(model.graph, others):
        found = f"weight {name!r} of {model.initializers[name].dtype.name}"
        raise OnnxError(f"[onnx] got {found}, expected weights of float32 to train")


def _read_only(array: np.ndarray) -> np.ndarray:
    found = array.view()
    found.flags.writeable = False
    return found
