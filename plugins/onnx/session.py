"""Sessions: models prepared for a device, which run on NumPy arrays."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clgraft import core
from clgraft.core.graph import CompiledGraph, Graph, Report
from clgraft.plugins.onnx.errors import OnnxError
from clgraft.plugins.onnx.loading import Model, Port, Source, fits, load
from clgraft.plugins.onnx.lowering import Asked, IndexCheck, ModelBuilder
from clgraft.plugins.onnx.values import OnnxValue, known

MOST_PROGRAMS = 8  # sets of shapes, or of answers to one question, that are kept


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
    next : dict
        The programs by the answers.
    """

    graph: Graph | None
    constants: dict[str, np.ndarray]
    inputs: dict[str, str]
    outputs: tuple[OnnxValue, ...]
    asked: OnnxValue | None
    checks: list[tuple[str, IndexCheck]]
    next: OrderedDict[bytes, ModelProgram] = field(default_factory=OrderedDict)
    compiled: CompiledGraph | None = None


class Session:
    """A model prepared for a device. Safe to run from any thread.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    device : str, optional
        As `clgraft.core.context` takes it; by default ``CLGRAFT_DEVICE`` or the best device.
    passes : str, optional
        Switches of passes of the graph, such as ``-fold``.

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

    def __init__(self, model: Source, device: str | None = None, passes: str | None = None) -> None:
        self._model: Model = load(model)
        self._context, self._passes = core.context(device), passes
        self._programs: OrderedDict[Any, ModelProgram] = OrderedDict()
        self._lock = threading.Lock()
        if all(_is_fixed(port) for port in self.inputs):  # so that nodes are refused now
            self._program({port.name: port.shape for port in self.inputs})

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What a run takes."""
        return self._model.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """What a run gives."""
        return self._model.outputs

    @property
    def opset(self) -> int:
        """The version of ONNX's operators that the model is written in."""
        return self._model.opset

    def __repr__(self) -> str:
        names = [f"{port.name}{list(port.shape or ())}" for port in self.inputs]
        return f"Session({', '.join(names)} -> {', '.join(port.name for port in self.outputs)})"

    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the model.

        Parameters
        ----------
        arrays : mapping of str to numpy.ndarray
            All inputs by name, of the model's types.

        Returns
        -------
        dict of str to numpy.ndarray
            The outputs by name.

        Raises
        ------
        OnnxError
            Naming the input that does not fit, or the node that does not fit its inputs.
        """
        given = self._given(arrays)
        program = self._program({name: array.shape for name, array in given.items()})
        answers: dict[str, np.ndarray] = {}
        while program.asked is not None:
            (answer,) = self._outputs(program, given)
            answers[program.asked.key] = answer
            program = self._next(program, answers, given)
        results = self._outputs(program, given)
        return {port.name: result for port, result in zip(self.outputs, results)}

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
        program = self._program(self.shapes(shapes))
        if program.asked is not None or program.graph is None:
            raise OnnxError("[onnx] got a model whose shapes depend on its inputs' elements, expected one graph")
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

    def shapes(self, given: Mapping[str, Sequence[int]] | None = None) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all inputs, from the model and from the given ones."""
        own = dict(given or {})
        found: dict[str, tuple[int, ...]] = {}
        for port in self.inputs:
            shape = own.pop(port.name, port.shape)
            if shape is None or not all(isinstance(size, int) for size in shape):
                raise OnnxError(f"[onnx] got no shape for input {port.name!r} of shape {port.shape}, expected one")
            if not fits(port, shape):
                raise OnnxError(f"[onnx] got shape {tuple(shape)} for input {port.name!r}, expected {port.shape}")
            found[port.name] = tuple(int(size) for size in shape)
        if own:
            raise OnnxError(f"[onnx] got shapes for {sorted(own)}, expected some of {[p.name for p in self.inputs]}")
        return found

    def _given(self, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
        names = [port.name for port in self.inputs]
        if set(arrays) != set(names):
            raise OnnxError(f"[onnx] got inputs {sorted(arrays)}, expected {names}")
        found = {}
        for port in self.inputs:
            array = np.asarray(arrays[port.name])
            if array.dtype.name != port.dtype or not fits(port, array.shape):
                raise OnnxError(
                    f"[onnx] got {array.dtype.name} of shape {array.shape} for input {port.name!r},"
                    f" expected {port.dtype} of shape {port.shape}"
                )
            found[port.name] = array
        return found

    def _program(self, shapes: Mapping[str, Any]) -> ModelProgram:
        key = tuple(sorted(shapes.items()))
        with self._lock:
            return _kept(self._programs, key, lambda: self._lowered(shapes, {}))

    def _next(
        self, program: ModelProgram, answers: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray]
    ) -> ModelProgram:
        assert program.asked is not None
        answer = answers[program.asked.key]
        shapes = {name: array.shape for name, array in given.items()}
        key = repr((answer.shape, answer.dtype.str)).encode() + answer.tobytes()
        with self._lock:
            return _kept(program.next, key, lambda: self._lowered(shapes, dict(answers)))

    def _lowered(self, shapes: Mapping[str, Any], answers: Mapping[str, np.ndarray]) -> ModelProgram:
        model = self._model
        on = ModelBuilder(model.opset, self._context.device.has_fp64, answers, model.limits)
        asked = None
        try:
            for port in model.inputs:
                on.define(port.name, on.input(port.name, shapes[port.name], port.dtype))
            for name, array in model.initializers.items():
                on.define(name, known(array))
            on.run(model.graph.node)
            outputs = tuple(on.find(port.name) for port in model.outputs)
        except Asked as question:
            asked = question.value
            outputs = (asked,)
        given = set(on.inputs.values())
        names = tuple(dict.fromkeys(v.name for v in outputs if v.array is None and v.name not in given))
        graph = on.builder.graph(*names) if names else None
        return ModelProgram(graph, on.constants, on.inputs, outputs, asked, on.checks)

    def _compiled(self, program: ModelProgram) -> CompiledGraph:
        with self._lock:
            if program.compiled is None:
                program.compiled = self._context.compile(program.graph, self._passes, program.constants)
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
            computed = compiled.run(arrays)
        return [_finished(value, computed, graph_inputs) for value in program.outputs]


def _kept(programs: OrderedDict[Any, ModelProgram], key: Any, make: Any) -> ModelProgram:
    """Return a program, made on its first use; the one that was not used for longest is dropped."""
    if key not in programs:
        programs[key] = make()
        if len(programs) > MOST_PROGRAMS:
            programs.popitem(last=False)
    programs.move_to_end(key)
    return programs[key]


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


def _is_fixed(port: Port) -> bool:
    return port.shape is not None and all(isinstance(size, int) for size in port.shape)
