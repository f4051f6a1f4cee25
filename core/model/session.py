"""Sessions: models prepared for a device, which run on NumPy arrays."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, overload

import numpy as np

from clgraft.core.errors import ClgraftError, hint
from clgraft.core.graph import CompiledGraph, Graph, Report
from clgraft.core.model.errors import ModelError
from clgraft.core.model.lowered import LoweredNet, Net
from clgraft.core.model.ports import Port, fits
from clgraft.core.model.precision import carried
from clgraft.core.model.store import Store
from clgraft.core.model.trainer import Trainer
from clgraft.core.model.training import TrainingNet
from clgraft.core.nn.builder import Tensor
from clgraft.core.nn.optimizers import Optimizer
from clgraft.core.session.contexts import context

MOST_PROGRAMS = 8  # sets of shapes, or of answers to one question, that are kept
IMAGE = 224  # pixels of a side, where an error proposes a shape
Kept = TypeVar("Kept")


def kept(programs: OrderedDict[Any, Kept], key: Any, make: Callable[[], Kept]) -> Kept:
    """Return a program, made on its first use; the one that was not used for longest is dropped."""
    if key not in programs:
        programs[key] = make()
        if len(programs) > MOST_PROGRAMS:
            programs.popitem(last=False)
    programs.move_to_end(key)
    return programs[key]


class Session(ABC):
    """A model prepared for a device. Safe to run from any thread.

    `clgraft.load` makes sessions.

    Attributes
    ----------
    inputs, outputs : tuple of Port
        Names, types and shapes.
    parameters : mapping of str to numpy.ndarray
        The parameters by name, read-only, as they are in the file.
    """

    kind: str = "model"
    error: ClassVar[type[ClgraftError]] = ModelError

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: Mapping[str, np.ndarray] | None = None

    @property
    @abstractmethod
    def inputs(self) -> tuple[Port, ...]:
        """What a run takes."""

    @property
    @abstractmethod
    def outputs(self) -> tuple[Port, ...]:
        """What a run returns."""

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, np.ndarray]:
        """The parameters by name, read-only."""

    def __repr__(self) -> str:
        names = [f"{port.name}{list(port.shape or ())}" for port in self.inputs]
        return f"{type(self).__name__}({', '.join(names)} -> {', '.join(port.name for port in self.outputs)})"

    @overload
    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]: ...

    @overload
    def run(self, arrays: Sequence[str] | None, input_feed: Mapping[str, np.ndarray]) -> list[np.ndarray]: ...

    def run(self, arrays: Any, input_feed: Any = None) -> Any:
        """Run the model; ``run(arrays)``, or as in ONNX Runtime ``run(output_names, arrays)``.

        Parameters
        ----------
        arrays : mapping of str to numpy.ndarray
            All inputs by name. Other shapes than those of the runs before are planned on their first use. In ONNX
            Runtime's form the names of the wanted outputs, or None for all.
        input_feed : mapping of str to numpy.ndarray, optional
            In ONNX Runtime's form all inputs by name.

        Returns
        -------
        dict of str to numpy.ndarray, or list of numpy.ndarray
            The outputs by name; in ONNX Runtime's form a list of those wanted, in that order.

        Raises
        ------
        ClgraftError
            Naming the input that does not fit, or the operator that does not fit its inputs.
        """
        if input_feed is None:
            return self._run(arrays)
        names = [port.name for port in self.outputs]
        wanted = names if arrays is None else arrays
        if isinstance(wanted, (str, bytes)) or not isinstance(wanted, Sequence):
            got = f"[{self.kind}] got {type(wanted).__name__} for the names of outputs"
            raise self.error(f"{got}, expected a list or None")
        for name in wanted:
            if name not in names:
                expected = f"some of {names}{hint(str(name), names)}"
                raise self.error(f"[{self.kind}] got output {name!r}, expected {expected}")
        results = self._run(input_feed)
        return [results[name] for name in wanted]

    def _run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        given = self._given(arrays)
        names = tuple(port.name for port in self.outputs)
        results = self._computed(given, names)
        self._last = given
        return dict(zip(names, results))

    def values(self, name: str, arrays: Mapping[str, np.ndarray] | None = None) -> np.ndarray:
        """Return a value inside of the model.

        Parameters
        ----------
        name : str
            What the model calls it.
        arrays : mapping of str to numpy.ndarray, optional
            All inputs by name; by default those of the last run, as they are now.

        Notes
        -----
        Each name has a graph of its own, which is planned on its first use.

        Raises
        ------
        ClgraftError
            If there is no such value, or nothing has run yet.
        """
        given = self._last if arrays is None else self._given(arrays)
        if given is None:
            raise self.error(f"[{self.kind}] got no inputs for the value {name!r}, expected them, or a run before")
        return self._computed(given, (name,))[0]

    @abstractmethod
    def graph(self, shapes: Mapping[str, Sequence[int]] | None = None) -> Graph:
        """Return the core's graph for some shapes of the inputs.

        Parameters
        ----------
        shapes : mapping of str to sequence of int, optional
            Shapes of the inputs that the model does not fix.
        """

    @abstractmethod
    def report(self, shapes: Mapping[str, Sequence[int]] | None = None) -> Report:
        """Return what the compiled graph for some shapes needs, with its problems after the passes."""

    @abstractmethod
    def output_shapes(self, shapes: Mapping[str, Sequence[int]] | None = None) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the outputs for some shapes of the inputs; nothing runs."""

    def shapes(self, given: Mapping[str, Sequence[int]] | None = None) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all inputs, from the model and from the given ones."""
        own = dict(given or {})
        names = [port.name for port in self.inputs]
        unknown = sorted(name for name in own if name not in names)
        if unknown:
            near = hint(unknown[0], names)
            raise self.error(f"[{self.kind}] got shapes for {unknown}, expected some of the inputs {names}{near}")
        open_ones = [port for port in self.inputs if not _is_fixed(own.get(port.name, port.sizes))]
        if open_ones:
            missing, ready = open_ones[0], " ".join(f"--shape {port.name}={_likely_shape(port)}" for port in open_ones)
            got = f"[{self.kind}] got no shape for input {missing.name!r} of shape {missing.shape}"
            raise self.error(f"{got}, expected one, for example {ready}")
        found: dict[str, tuple[int, ...]] = {}
        for port in self.inputs:
            shape = own.get(port.name, port.sizes)
            assert shape is not None
            if not fits(port, shape):
                raise self.error(
                    f"[{self.kind}] got shape {tuple(shape)} for input {port.name!r}, expected {port.shape}"
                )
            found[port.name] = tuple(int(size) for size in shape)
        return found

    def _given(self, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the arrays of a run after they are checked."""
        names = [port.name for port in self.inputs]
        if not isinstance(arrays, Mapping):
            expected = f"a mapping of the inputs {names} to arrays"
            raise self.error(f"[{self.kind}] got {type(arrays).__name__}, expected {expected}")
        if set(arrays) != set(names):
            wrong = sorted(map(str, set(arrays) - set(names)))
            near = hint(wrong[0], names) if wrong else ""
            raise self.error(f"[{self.kind}] got inputs {sorted(map(str, arrays))}, expected {names}{near}")
        found = {}
        for port in self.inputs:
            array = self._accepted(port, np.asarray(arrays[port.name]))
            if array.dtype.name != port.dtype or not fits(port, array.shape):
                raise self.error(
                    f"[{self.kind}] got {array.dtype.name} of shape {array.shape} for input {port.name!r},"
                    f" expected {port.dtype} of shape {port.shape}"
                )
            found[port.name] = array
        return found

    def _accepted(self, port: Port, array: np.ndarray) -> np.ndarray:
        """Return an input in the form in which it is checked."""
        return array

    @abstractmethod
    def _computed(self, given: Mapping[str, np.ndarray], names: tuple[str, ...]) -> list[np.ndarray]:
        """Return values of the model by their names."""


def _likely_shape(port: Port) -> str:
    """Return a shape that an input could have, as `--shape` takes it: one image of 224 x 224 pixels, for example."""
    sizes = port.shape
    if sizes is None:
        return "N,N,..."
    open_size = [IMAGE if len(sizes) == 4 and axis >= 2 else 1 for axis in range(len(sizes))]
    return ",".join(str(size if isinstance(size, int) else other) for size, other in zip(sizes, open_size))


def _is_fixed(shape: Sequence[int | str] | None) -> bool:
    return shape is not None and all(isinstance(size, int) for size in shape)


@dataclass
class _NetProgram:
    """A net for some shapes, compiled for each set of values that was asked for."""

    lowered: LoweredNet
    compiled: OrderedDict[tuple[str, ...], CompiledGraph] = field(default_factory=OrderedDict)


class NetSession(Session):
    """The session of a net.

    Parameters
    ----------
    net : Net
    device : str, optional
        As `clgraft.core.context` takes it; by default ``CLGRAFT_DEVICE`` or the best device.
    passes : str, optional
        Switches of passes of the graph, such as ``-fold``.
    precision : str, optional
        The type of products where numbers are float32 (see `Context.compile`).
    store : Store, optional
        Parameters that change, in place of the net's own.

    Notes
    -----
    Arrays of any type of numbers are taken as inputs, if the input's type holds them. A run may have other shapes than
    the one before; graphs for the `MOST_PROGRAMS` sets of shapes that were used last are kept.
    """

    def __init__(
        self,
        net: Net,
        device: str | None = None,
        passes: str | None = None,
        precision: str | None = None,
        store: Store | None = None,
    ) -> None:
        super().__init__()
        self.kind, self._precision = net.kind, precision
        self._net, self._context, self._passes = net, context(device), passes
        self._programs: OrderedDict[Any, _NetProgram] = OrderedDict()
        self._arrays: dict[str, np.ndarray] = {}  # parameters as graphs read them; all programs share them
        self._store = store  # the parameters since there is a trainer
        if all(port.sizes is not None for port in self.inputs):  # so that what does not fit is refused now
            self._program(self.shapes())

    @property
    def inputs(self) -> tuple[Port, ...]:
        return self._net.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        return self._net.outputs

    @property
    def parameters(self) -> Mapping[str, np.ndarray]:
        return MappingProxyType(dict(self._net.parameters) if self._store is None else self._store.all())

    def trainer(self, optimizer: str | Optimizer = "sgd", **options: Any) -> Trainer:
        """Return a trainer of the model's parameters, with which this session computes from now on.

        Parameters
        ----------
        optimizer : str or Optimizer
        **options
            See `Trainer`: ``lr``, ``loss``, ``frozen`` and others, and the optimizer's own, such as ``momentum``.

        Raises
        ------
        ClgraftError
            If the model has layers that do not train, or an option does not fit.
        """
        make = getattr(self._net, "for_training", None)
        if make is None:
            raise ModelError(f"[{self.kind}] got a net for predictions alone, expected one that trains")
        net: TrainingNet = make()
        with self._lock:
            if self._store is None:
                self._store = Store(self._net, self._context)
                self._programs.clear()  # they have the parameters as constants
        options.setdefault("passes", self._passes)
        options.setdefault("precision", self._precision)
        return Trainer(net, self._context, self._store, optimizer, **options)

    def graph(self, shapes: Mapping[str, Sequence[int]] | None = None) -> Graph:
        program = self._program(self.shapes(shapes))
        names = self._names(program, tuple(port.name for port in self.outputs))
        if not names:
            raise ModelError(f"[{self.kind}] got a net that computes nothing, expected an output that is no input")
        return self._graph(program, names)

    def report(self, shapes: Mapping[str, Sequence[int]] | None = None) -> Report:
        self.graph(shapes)
        program = self._program(self.shapes(shapes))
        return self._compiled(program, self._names(program, tuple(port.name for port in self.outputs))).report()

    def output_shapes(self, shapes: Mapping[str, Sequence[int]] | None = None) -> dict[str, tuple[int, ...]]:
        lowered = self._program(self.shapes(shapes)).lowered
        return {port.name: tuple(self._value(lowered, port.name).shape) for port in self.outputs}

    def _accepted(self, port: Port, array: np.ndarray) -> np.ndarray:
        return carried(self.kind, f"input {port.name!r}", array, port.dtype)

    def _program(self, shapes: Mapping[str, tuple[int, ...]]) -> _NetProgram:
        key = tuple(sorted(shapes.items()))
        with self._lock:
            return kept(self._programs, key, lambda: _NetProgram(self._net.lower(shapes)))

    def _names(self, program: _NetProgram, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the graph's names of values that have to be computed."""
        lowered = program.lowered
        fixed = {tensor.name for tensor in lowered.inputs.values()}
        fixed |= {*lowered.parameters, *lowered.build.constants}
        found = [self._value(lowered, name).name for name in names]
        found += [lowered.chosen[name].flags.name for name in names if name in lowered.chosen]
        return tuple(dict.fromkeys(name for name in found if name not in fixed))

    def _value(self, lowered: LoweredNet, name: str) -> Any:
        if name not in lowered.values:
            expected = f"one of the model's {len(lowered.values)}{hint(name, list(lowered.values))}"
            raise ModelError(f"[{self.kind}] got value {name!r}, expected {expected}")
        return lowered.values[name]

    def _graph(self, program: _NetProgram, names: tuple[str, ...]) -> Graph:
        return program.lowered.build.graph.graph(*names)  # type: ignore[no-any-return]

    def _compiled(self, program: _NetProgram, names: tuple[str, ...]) -> CompiledGraph:
        with self._lock:
            return kept(program.compiled, names, lambda: self._compile(program, names))

    def _compile(self, program: _NetProgram, names: tuple[str, ...]) -> CompiledGraph:
        lowered = program.lowered
        constants = dict(lowered.build.constants)
        for inside, name in lowered.parameters.items():
            if self._store is None:
                constants[inside] = self._array(name)
        return self._context.compile(  # type: ignore[no-any-return]
            self._graph(program, names), self._passes, constants, precision=self._precision, kept=True
        )

    def _changing(self, lowered: LoweredNet, compiled: CompiledGraph) -> dict[str, Any]:
        """Return the parameters that a graph reads and a trainer changes."""
        if self._store is None:
            return {}
        read = (value.name for value in compiled.graph.inputs)
        return {name: self._store[lowered.parameters[name]] for name in read if name in lowered.parameters}

    def _parameter(self, name: str) -> np.ndarray:
        return self._array(name) if self._store is None else self._store.elements(name)

    def _array(self, parameter: str) -> np.ndarray:
        if parameter not in self._arrays:
            self._arrays[parameter] = self._net.array(parameter)
        return self._arrays[parameter]

    def _computed(self, given: Mapping[str, np.ndarray], names: tuple[str, ...]) -> list[np.ndarray]:
        program = self._program({name: array.shape for name, array in given.items()})
        lowered = program.lowered
        arrays = {tensor.name: given[name] for name, tensor in lowered.inputs.items()}
        wanted = self._names(program, names)
        if wanted:
            compiled = self._compiled(program, wanted)
            changing = self._changing(lowered, compiled)
            found = compiled.run({**arrays, **changing})
            arrays = {**arrays, **{name: found[name] for name in wanted}}
        results = []
        for name in names:
            tensor = self._value(lowered, name)
            array = self._elements(lowered, tensor, arrays)
            if name in lowered.chosen:
                chosen = lowered.chosen[name]
                array = chosen.of(array, self._elements(lowered, chosen.flags, arrays))
            results.append(array if tensor.name in wanted else np.array(array))
        return results

    def _elements(self, lowered: LoweredNet, tensor: Tensor, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the elements of a value: of a constant, of a parameter, or of what a run was given or has computed."""
        if tensor.name in lowered.build.constants:
            array = lowered.build.constants[tensor.name]
        elif tensor.name in lowered.parameters:
            array = self._parameter(lowered.parameters[tensor.name])
        else:
            array = arrays[tensor.name]
        return array.reshape(tensor.shape)
