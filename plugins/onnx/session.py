"""Sessions: models prepared for a device, which run on NumPy arrays."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from clgraft import core
from clgraft.core.errors import ClgraftError
from clgraft.core.graph import CompiledGraph, Graph, Report
from clgraft.core.model import Port, Store, Trainer, kept
from clgraft.core.model import Session as ModelSession
from clgraft.core.model.training import LOSSES, Loss
from clgraft.core.nn.optimizers import Optimizer
from clgraft.core.planning.precision import mixed_precision
from clgraft.plugins.onnx.errors import OnnxError
from clgraft.plugins.onnx.loading import Model, Source, load
from clgraft.plugins.onnx.lowering import PARAMETER, Asked, IndexCheck, ModelBuilder
from clgraft.plugins.onnx.training import OnnxNet, with_initializers, write_model
from clgraft.plugins.onnx.values import OnnxValue, known

DEPENDS = "[onnx] got a model whose shapes depend on its inputs' elements, expected one graph"


@dataclass
class ModelProgram:
    """A model lowered as far as it goes for some shapes and answers.

    Attributes
    ----------
    graph : Graph or None
        None if it computes nothing.
    inputs : dict of str to str
        The model's inputs that the graph reads, and the graph's names for them.
    outputs : tuple of OnnxValue
        Of the model; or the one value that has to be known to go on.
    asked : OnnxValue or None
        What has to be known to go on; None if the program is complete.
    checks : list of tuple of str and IndexCheck
        Inputs of the model that hold indices.
    parameters : dict of str to str
        Inputs of the graph that are initializers which a trainer changes, and their names in the model.
    next : dict
        The programs by the answers.
    """

    graph: Graph | None
    constants: dict[str, np.ndarray]
    inputs: dict[str, str]
    outputs: tuple[OnnxValue, ...]
    asked: OnnxValue | None
    checks: list[tuple[str, IndexCheck]]
    parameters: dict[str, str] = field(default_factory=dict)
    next: OrderedDict[bytes, ModelProgram] = field(default_factory=OrderedDict)
    compiled: CompiledGraph | None = None


class Session(ModelSession):
    """A model prepared for a device. Safe to run from any thread.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    device : str, optional
        As `clgraft.core.context` takes it; by default ``CLGRAFT_DEVICE`` or the best device.
    passes : str, optional
        Switches of passes of the graph, such as ``-fold``.
    precision : str, optional
        ``float16`` or ``bfloat16`` as the type of products where the model has float32, with what rounding would spoil
        in float32; inputs and outputs stay what they are. By default what ``CLGRAFT_PRECISION`` says.

    Attributes
    ----------
    inputs, outputs : tuple of Port
        Names, types and shapes.
    opset : int
        The version of the operators.

    Raises
    ------
    OnnxError
        If the model cannot be read, is invalid, or needs more than ``CLGRAFT_ONNX_LIMITS`` allows.
    UnsupportedError
        If it has nodes that clgraft does not run, with the list of them.

    Examples
    --------
    >>> Session("model.onnx").run({"x": array})["y"]
    """

    kind = "onnx"
    error: ClassVar[type[ClgraftError]] = OnnxError

    def __init__(
        self, model: Source, device: str | None = None, passes: str | None = None, precision: str | None = None
    ) -> None:
        super().__init__()
        mixed_precision(precision)
        self._model: Model = load(model)
        self._context, self._passes, self._precision = core.context(device), passes, precision
        self._programs: OrderedDict[Any, ModelProgram] = OrderedDict()
        self._store: Store | None = None  # what trainers change
        if all(port.sizes is not None for port in self.inputs):  # so that nodes are refused now
            self._program({port.name: port.sizes for port in self.inputs})

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What a run takes."""
        return self._model.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """What a run gives."""
        return self._model.outputs

    @property
    def parameters(self) -> Mapping[str, np.ndarray]:
        """The model's initializers by name."""
        found = {name: _read_only(array) for name, array in self._model.initializers.items()}
        return MappingProxyType(found if self._store is None else {**found, **self._store.all()})

    @property
    def opset(self) -> int:
        """The version of ONNX's operators that the model is written in."""
        return self._model.opset

    def trainer(
        self,
        optimizer: str | Optimizer = "sgd",
        *,
        loss: Loss | None = None,
        training_mode: bool | None = True,
        trained: Collection[str] = (),
        **options: Any,
    ) -> Trainer:
        """Return a trainer of the model's weights, with which this session computes from now on.

        Parameters
        ----------
        optimizer : str or Optimizer
        loss : str or callable, optional
            As of `Trainer`, or the name of an output of one element. By default the output of one element that the
            model has; if it has several, the one that is called ``loss``.
        training_mode : bool, optional
            Whether batch norms compute with statistics of the batch and change their moving averages, and dropout
            draws: both by default, whatever the model's nodes state; None: as each node states.
        trained : collection of str
            Initializers of float32 that are trained besides the weights.
        **options
            See `Trainer`: ``lr``, ``frozen`` and others, and the optimizer's own, such as ``momentum``.

        Raises
        ------
        ClgraftError
            If the model has nodes that do not train, or an option does not fit.
        """
        changed = () if self._store is None else tuple(self._store.names)
        net = OnnxNet(self._model, self._context.device.has_fp64, training_mode, trained, changed)
        if isinstance(loss, str) and loss not in LOSSES and loss in self._names():
            output = loss
            options["loss"] = lambda build, outputs, inputs: outputs[output]
        elif loss is not None:
            options["loss"] = loss
        options.setdefault("passes", self._passes)
        options.setdefault("precision", self._precision)
        with self._lock:
            if self._store is None:
                self._store = Store(net, self._context)
            else:
                self._store.add(net)
            self._programs.clear()  # they have the initializers as constants
        return Trainer(net, self._context, self._store, optimizer, **options)

    def export(self, path: str | os.PathLike[str] | None = None) -> bytes:
        """Return the model with its parameters as they are now, and write it to a file.

        Parameters
        ----------
        path : path, optional
            The file; by default none is written.
        """
        changed = {} if self._store is None else self._store.all()
        proto = with_initializers(self._model.proto, self._model.initializers, changed)
        if path is not None:
            write_model(path, proto)
        return proto.SerializeToString()

    def graph(self, shapes: Mapping[str, Sequence[int]] | None = None) -> Graph:
        """Return the core's graph for some shapes of the inputs.

        Parameters
        ----------
        shapes : mapping of str to sequence of int, optional
            Shapes of the inputs that the model does not fix.

        Raises
        ------
        OnnxError
            If a shape is missing, or the graph depends on the elements of the inputs.
        """
        program = self._whole(shapes)
        if program.graph is None:
            raise OnnxError(DEPENDS)
        return program.graph

    def report(self, shapes: Mapping[str, Sequence[int]] | None = None) -> Report:
        """Return what the compiled graph for some shapes needs, with its problems after the passes.

        Raises
        ------
        OnnxError
            If a shape is missing, or the graph depends on the elements of the inputs.
        """
        self.graph(shapes)
        return self._compiled(self._program(self.shapes(shapes))).report()

    def output_shapes(self, shapes: Mapping[str, Sequence[int]] | None = None) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the outputs for some shapes of the inputs; nothing runs.

        Raises
        ------
        OnnxError
            If a shape is missing, or shapes depend on the elements of the inputs.
        """
        return {name: value.shape for name, value in zip(self._names(), self._whole(shapes).outputs)}

    def _whole(self, shapes: Mapping[str, Sequence[int]] | None) -> ModelProgram:
        program = self._program(self.shapes(shapes))
        if program.asked is not None:
            raise OnnxError(DEPENDS)
        return program

    def _computed(self, given: Mapping[str, np.ndarray], names: tuple[str, ...]) -> list[np.ndarray]:
        program = self._program({name: array.shape for name, array in given.items()}, names)
        answers: dict[str, np.ndarray] = {}
        while program.asked is not None:
            (answer,) = self._outputs(program, given)
            answers[program.asked.key] = answer
            program = self._next(program, answers, given, names)
        return self._outputs(program, given)

    def _names(self) -> tuple[str, ...]:
        return tuple(port.name for port in self.outputs)

    def _program(self, shapes: Mapping[str, Any], names: tuple[str, ...] | None = None) -> ModelProgram:
        """Return a program for some shapes, and for values by their names; by default the outputs."""
        wanted = self._names() if names is None else names
        key = (tuple(sorted(shapes.items())), wanted)
        with self._lock:
            return kept(self._programs, key, lambda: self._lowered(shapes, {}, wanted))

    def _next(
        self,
        program: ModelProgram,
        answers: Mapping[str, np.ndarray],
        given: Mapping[str, np.ndarray],
        names: tuple[str, ...],
    ) -> ModelProgram:
        assert program.asked is not None
        answer = answers[program.asked.key]
        shapes = {name: array.shape for name, array in given.items()}
        key = repr((answer.shape, answer.dtype.str)).encode() + answer.tobytes()
        with self._lock:
            return kept(program.next, key, lambda: self._lowered(shapes, dict(answers), names))

    def _lowered(
        self, shapes: Mapping[str, Any], answers: Mapping[str, np.ndarray], wanted: tuple[str, ...]
    ) -> ModelProgram:
        model, store = self._model, self._store
        on = ModelBuilder(model.opset, self._context.device.has_fp64, answers, model.limits)
        asked = None
        try:
            for port in model.inputs:
                on.define(port.name, on.input(port.name, shapes[port.name], port.dtype))
            for name, array in model.initializers.items():
                on.define(name, known(array) if store is None or name not in store else on.parameter(name, array))
            on.run(model.graph.node)
            outputs = tuple(self._found(on, name) for name in wanted)
        except Asked as question:
            asked = question.value
            if store is not None and asked.key.startswith(PARAMETER):
                array = store.elements(asked.key[len(PARAMETER) :])
                return self._lowered(shapes, {**answers, asked.key: array}, wanted)
            outputs = (asked,)
        given = {*on.inputs.values(), *on.parameters}
        names = tuple(dict.fromkeys(v.name for v in outputs if v.array is None and v.name not in given))
        graph = on.builder.graph(*names) if names else None
        return ModelProgram(graph, on.constants, on.inputs, outputs, asked, on.checks, on.parameters)

    def _found(self, on: ModelBuilder, name: str) -> OnnxValue:
        try:
            return on.find(name)
        except OnnxError:
            if name in self._names():
                raise
            raise OnnxError(f"[onnx] got value {name!r}, expected one of the model's") from None

    def _compiled(self, program: ModelProgram) -> CompiledGraph:
        with self._lock:
            if program.compiled is None:
                program.compiled = self._context.compile(
                    program.graph, self._passes, program.constants, precision=self._precision, kept=True
                )
                program.constants = {}
            return program.compiled

    def _outputs(self, program: ModelProgram, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        for name, check in program.checks:
            check(given[name])
        computed: dict[str, np.ndarray] = {}
        graph_inputs = {inside: given[name] for name, inside in program.inputs.items()}
        if program.graph is not None:
            compiled = self._compiled(program)
            types = {value.name: value.dtype for value in program.graph.inputs}
            arrays = {
                name: np.ascontiguousarray(array, types[name]).reshape(array.shape)
                for name, array in graph_inputs.items()
            }
            if self._store is not None:
                arrays.update({inside: self._store[name] for inside, name in program.parameters.items()})
            computed = compiled.run(arrays)
        for value in program.outputs:
            if self._store is not None and value.name in program.parameters:
                graph_inputs[value.name] = self._store.elements(program.parameters[value.name])
        return [_finished(value, computed, graph_inputs) for value in program.outputs]


def _finished(value: OnnxValue, computed: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return a value's elements in ONNX's type and shape."""
    if value.array is not None:
        return np.array(value.array.reshape(value.shape))
    array = computed[value.name] if value.name in computed else np.array(given[value.name])
    array = array.reshape(value.shape)
    if array.dtype.name == value.dtype:
        return array
    if not np.isfinite(array).all():
        raise OnnxError(
            f"[onnx] got NaN or infinity among {value.dtype} of shape {value.shape}, expected whole numbers: an index"
            " is out of range, or a number is divided by 0"
        )
    return array != 0 if value.dtype == "bool" else array.astype(value.dtype)


def _read_only(array: np.ndarray) -> np.ndarray:
    found = array.view()
    found.flags.writeable = False
    return found
