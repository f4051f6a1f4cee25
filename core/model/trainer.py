"""Trainers: models whose parameters, gradients and histories stay on the device, with the update in their graphs."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from clgraft.core.errors import hint
from clgraft.core.graph import CompiledGraph, Graph, GraphBuilder, Report, Value
from clgraft.core.model.errors import ModelError
from clgraft.core.model.memory import Memory
from clgraft.core.model.ports import Port, fits
from clgraft.core.model.precision import carried
from clgraft.core.model.store import Store
from clgraft.core.model.training import LABEL, Loss, LoweredTraining, TrainingNet, named_loss
from clgraft.core.nn import optimizers
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.optimizers import Optimizer
from clgraft.core.operators.dropout import KEY_WORDS

LOSS = "loss"
MOST_PROGRAMS = 8  # sets of shapes that are kept
WORD = 2**32


@dataclass
class Step:
    """A step for some shapes of the inputs, compiled.

    Attributes
    ----------
    compiled : CompiledGraph
    inputs : mapping of str to str
        The trainer's inputs that the graph reads, by their names in it.
    states : mapping of str to tuple of str
        What each state of the graph is: a kind (`PARAMETER`, or a history's name) and a parameter's name.
    keys : tuple of str
    shown : mapping of str to str
        What a step returns, by its names, with the graph's.
    losses : mapping of str to float
        As of `LoweredTraining`.
    """

    compiled: CompiledGraph
    inputs: Mapping[str, str]
    states: Mapping[str, tuple[str, str]]
    keys: tuple[str, ...]
    shown: Mapping[str, str]
    losses: Mapping[str, float]


PARAMETER, SUM = "parameter", "sum"
# what becomes of gradients: parameters change by them, or by them and the sum so far; they are added to it; or none are
UPDATE, UPDATE_SUM, ADD, LOOK = "update", "update_sum", "add", "look"


class Trainer:
    """Trains a model. `session.trainer` makes one.

    Parameters, gradients and the optimizer's histories are in arrays of the device, and the update is a part of the
    graph that a step runs: it sends the inputs down and brings a loss up. The session that made the trainer computes
    with the same parameters.

    Parameters
    ----------
    net : TrainingNet
    context : Context
    optimizer : str or Optimizer
        ``sgd``, ``nag``, ``adagrad``, ``rmsprop``, ``adadelta``, ``adam`` or ``adamw``.
    lr : float
        The learning rate; `lr` may be set at any time.
    loss : str or callable, optional
        One of `clgraft.core.model.training.LOSSES`, of the first output and an input ``label``; or a function that
        gets a `Build`, the outputs and all inputs by name, and returns a value of one element. By default the net's
        own losses.
    convention : str, optional
        Whose conventions the optimizer has: ``pytorch``, ``mxnet`` or ``caffe``; by default those of the model's
        framework.
    frozen : collection of str, optional
        Parameters that do not change.
    multipliers : mapping of str to (float, float), optional
        For parameters their factors of the learning rate and of weight decay; by default those of the model.
    seed : int
        Of dropout.
    passes : str, optional
        Switches of passes of the graph.
    **options
        The optimizer's: ``momentum``, ``weight_decay``, ``clip_gradient``, ``clip_norm``, ``rescale_grad``, ...

    Attributes
    ----------
    inputs : tuple of Port
        What a step takes.
    lr : float
    steps : int
        How many updates there were.
    outputs : dict of str to numpy.ndarray
        What the last step has computed besides the new parameters: ``loss``, or the values that the net names.
    """

    def __init__(
        self,
        net: TrainingNet,
        context: Any,
        store: Store,
        optimizer: str | Optimizer = "sgd",
        *,
        lr: float = 0.01,
        loss: Loss | None = None,
        convention: str | None = None,
        frozen: Any = (),
        multipliers: Mapping[str, tuple[float, float]] | None = None,
        seed: int = 0,
        passes: str | None = None,
        **options: Any,
    ) -> None:
        self._net, self._context, self._passes = net, context, passes
        self.kind = net.kind
        self.lr, self.seed, self.steps, self._draws = lr, seed, 0, 0
        if isinstance(optimizer, Optimizer):
            self.optimizer = replace(optimizer, options={**optimizer.options, **options})
        else:
            self.optimizer = Optimizer(optimizer, convention or net.convention, options)
        self._loss = named_loss(net.kind, loss, net.outputs) if isinstance(loss, str) else loss
        self.inputs = net.inputs
        if isinstance(loss, str) and LABEL not in {port.name for port in self.inputs}:
            self.inputs = (*self.inputs, Port(LABEL, "float32", None))
        self.factors = dict(net.learned)
        self._expect_known("frozen", frozen)
        for name, given in (multipliers or {}).items():
            self._expect_known("multipliers", [name])
            self.factors[name] = (float(given[0]), float(given[1]))
        for name in frozen:
            self.factors.pop(name, None)
        self.factors = {name: pair for name, pair in self.factors.items() if pair[0]}
        self._memory, self._store = Memory(context), store
        self._adding = False  # whether there are sums of gradients
        self._histories: dict[tuple[str, str], Any] = {}
        self._programs: OrderedDict[Any, Step] = OrderedDict()
        self.outputs: dict[str, np.ndarray] = {}

    def __repr__(self) -> str:
        return f"Trainer({self.optimizer.kind!r}, lr={self.lr}, {len(self.factors)} parameters, steps={self.steps})"

    # what a user calls

    def step(self, arrays: Mapping[str, Any], *, lr: float | None = None, update: bool = True) -> float:
        """Compute losses and gradients, and change the parameters.

        Parameters
        ----------
        arrays : mapping of str to numpy.ndarray
            All inputs by name, labels among them.
        lr : float, optional
            The learning rate from now on.
        update : bool
            Whether parameters change. Without it gradients are added up, and the next step that updates takes them
            too: their sum.

        Returns
        -------
        float
            The sum of the losses before the update.

        Raises
        ------
        ClgraftError
            Naming the input that does not fit, or the operator that does not fit its inputs.
        """
        if lr is not None:
            self.lr = lr
        if not update:
            self._adding = True
            return self._run(arrays, ADD)
        mode = UPDATE_SUM if self._adding else UPDATE
        self._adding = False
        self.steps += 1
        return self._run(arrays, mode)

    def loss(self, arrays: Mapping[str, Any]) -> float:
        """Return the sum of the losses as a step computes it, and change no parameter but moving averages."""
        return self._run(arrays, LOOK)

    def _run(self, arrays: Mapping[str, Any], mode: str) -> float:
        given = self._given(arrays)
        program = self._program({name: array.shape for name, array in given.items()}, mode)
        values: dict[str, Any] = {inside: given[name] for name, inside in program.inputs.items()}
        for name, (kind, parameter) in program.states.items():
            values[name] = self._state(kind, parameter)
        for number, name in enumerate(program.keys):
            values[name] = self._key(number)
        self._draws += 1
        scalars = self.optimizer.scalars(self.steps, self.lr) if mode in (UPDATE, UPDATE_SUM) else {}
        found = program.compiled.run(values, scalars)
        if not found:
            self._context.finish()
        self.outputs = {name: found[inside] for name, inside in program.shown.items() if inside in found}
        return sum(weight * float(np.sum(self.outputs[name])) for name, weight in program.losses.items())

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """Copies of all parameters by name, as they are now."""
        return self._store.all()

    def set_parameter(self, name: str, array: Any) -> None:
        """Overwrite a parameter."""
        self._store.change(name, array)

    @property
    def histories(self) -> dict[str, dict[str, np.ndarray]]:
        """Copies of what the optimizer keeps: by the history's name, and by the parameter's."""
        return {
            kind: {name: self._memory.elements(self._state(kind, name)) for name in self.factors}
            for kind in self.optimizer.histories
        }

    def set_history(self, kind: str, name: str, array: Any) -> None:
        """Overwrite what the optimizer keeps for a parameter."""
        if kind not in self.optimizer.histories:
            raise ModelError(f"[{self.kind}] got history {kind!r}, expected one of {list(self.optimizer.histories)}")
        self._expect_known("histories", [name])
        found = np.asarray(array, np.float32)
        shape = self._store.shape(name)
        if found.shape != shape:
            raise ModelError(f"[{self.kind}] got a history of shape {found.shape} for {name!r}, expected {shape}")
        self._memory.change(self._state(kind, name), found)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the parameters as a file of the model's framework: ``.params``, ``.caffemodel`` or ``.onnx``."""
        self._net.write(path, self.parameters)

    def save_states(self, path: str | os.PathLike[str]) -> None:
        """Write the histories and the number of steps, as `numpy.savez` does."""
        arrays = {f"{kind}/{name}": a for kind, each in self.histories.items() for name, a in each.items()}
        with open(path, "wb") as file:
            np.savez(file, steps=np.int64(self.steps), draws=np.int64(self._draws), **arrays)  # type: ignore[arg-type]

    def load_states(self, path: str | os.PathLike[str]) -> None:
        """Read what `save_states` has written."""
        try:
            with np.load(Path(path), allow_pickle=False) as file:
                arrays = dict(file)
        except (OSError, ValueError, EOFError) as error:
            raise ModelError(f"[{self.kind}] got {path}, expected a file of save_states: {error}") from None
        if "steps" not in arrays or "draws" not in arrays:
            raise ModelError(f"[{self.kind}] got {path}, expected a file of save_states")
        self.steps, self._draws = int(arrays.pop("steps")), int(arrays.pop("draws"))
        for key, array in arrays.items():
            kind, _, name = key.partition("/")
            self.set_history(kind, name, array)

    def graph(self, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
        """Return the graph of a step for some shapes of the inputs."""
        return self._program(shapes, UPDATE).compiled.graph

    def report(self, shapes: Mapping[str, tuple[int, ...]]) -> Report:
        """Return what a step for some shapes of the inputs needs, with its problems after the passes."""
        return self._program(shapes, UPDATE).compiled.report()

    # what it is made of

    def _expect_known(self, what: str, names: Any) -> None:
        known = list(self._net.learned)
        for name in names:
            if name not in known:
                near = hint(str(name), known)
                raise ModelError(f"[{self.kind}] got {what} of {name!r}, expected some of the parameters {near}")

    def _given(self, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
        names = [port.name for port in self.inputs]
        if not isinstance(arrays, Mapping) or set(arrays) != set(names):
            got = sorted(map(str, arrays)) if isinstance(arrays, Mapping) else type(arrays).__name__
            raise ModelError(f"[{self.kind}] got inputs {got} of a step, expected {names}")
        found = {}
        for port in self.inputs:
            array = carried(self.kind, f"input {port.name!r}", np.asarray(arrays[port.name]), port.dtype)
            if not fits(port, array.shape):
                raise ModelError(
                    f"[{self.kind}] got shape {array.shape} for input {port.name!r}, expected {port.shape}"
                )
            found[port.name] = array
        return found

    def _state(self, kind: str, name: str) -> Any:
        if kind == PARAMETER:
            return self._store[name]
        if (kind, name) not in self._histories:
            self._histories[kind, name] = self._memory.zeros(self._store.shape(name))
        return self._histories[kind, name]

    def _key(self, number: int) -> np.ndarray:
        words = (self.seed % WORD, self.seed // WORD % WORD, number, self._draws % WORD)
        return np.array(words[:KEY_WORDS], np.uint32).view(np.int32)

    def _program(self, shapes: Mapping[str, tuple[int, ...]], mode: str) -> Step:
        names = self.optimizer.names, self.optimizer.kind, tuple(self.factors.items())
        key = (tuple(sorted(shapes.items())), mode, names)
        if key not in self._programs:
            self._programs[key] = self._built(shapes, mode)
            if len(self._programs) > MOST_PROGRAMS:
                self._programs.popitem(last=False)
        self._programs.move_to_end(key)
        return self._programs[key]

    def _built(self, shapes: Mapping[str, tuple[int, ...]], mode: str) -> Step:
        """Return the step for some shapes: forward, backward, and what becomes of the gradients: a mode."""
        own = {port.name for port in self._net.inputs}
        lowered = self._net.lower({name: shape for name, shape in shapes.items() if name in own})
        build, inputs = lowered.build, dict(lowered.inputs)
        for port in self.inputs:
            if port.name not in own:
                inputs[port.name] = build.input(f"label{len(inputs)}", shapes[port.name], port.dtype)
        heads, shown = self._heads(lowered, inputs)
        inside = {name: value for value, name in lowered.parameters.items()}
        learned = [name for name in self.factors if name in inside and mode != LOOK]
        for tensor in shown.values():
            if tensor.name not in {head.name for head in heads}:
                build.without_gradient(tensor)
        outputs = list({tensor.name: tensor for tensor in (*heads, *shown.values())}.values())
        passes = build.passes(outputs, [inside[name] for name in learned])
        whole = build.graph.graph(*dict.fromkeys(tensor.name for tensor in shown.values()))
        states = {value.name for value in whole.states}
        incoming = {value.name: np.ones(value.shape, value.dtype) for value in passes.incoming.values()}
        values = {value.name: value for value in whole.inputs}
        kept = {inside[name] for name in self.factors if name in inside}  # they change from step to step
        moved = kept if mode != LOOK else set()
        graph = replace(
            whole,
            nodes=(*passes.forward, *passes.backward),
            inputs=(
                *(value for value in whole.inputs if value.name not in moved),
                *passes.incoming.values(),
            ),
            states=(*whole.states, *(values[name] for name in sorted(moved, key=list(values).index))),
        )
        of_states = {name: (PARAMETER, lowered.parameters[name]) for name in (*states, *moved)}
        if mode != LOOK:
            graph, more = self._updated(graph, learned, inside, passes.found, mode)
            of_states.update(more)
        constants = {**build.constants, **incoming}
        changing = {} if moved else {value: lowered.parameters[value] for value in sorted(kept)}
        for value, name in lowered.parameters.items():
            if value not in of_states and value not in changing:
                constants[value] = self._store.elements(name)
        known = {value.name for value in graph.inputs}
        compiled = self._context.compile(
            graph, self._passes, {name: array for name, array in constants.items() if name in known}
        )
        return Step(
            compiled,
            {name: tensor.name for name, tensor in inputs.items()},
            {**of_states, **{value: (PARAMETER, name) for value, name in changing.items()}},
            tuple(tensor.name for tensor in lowered.keys),
            {name: tensor.name for name, tensor in shown.items()},
            lowered.losses if self._loss is None else {LOSS: 1.0},
        )

    def _heads(
        self, lowered: LoweredTraining, inputs: Mapping[str, Tensor]
    ) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Return what is differentiated, and what a step returns."""
        if self._loss is not None:
            outputs = {port.name: lowered.values[port.name] for port in self._net.outputs}
            loss = self._loss(lowered.build, outputs, inputs)
            return (loss,), {LOSS: loss}
        if not lowered.heads:
            raise ModelError(f"[{self.kind}] got a net without a loss, expected one, or the argument loss")
        return lowered.heads, dict(lowered.shown)

    def _updated(
        self,
        graph: Graph,
        learned: list[str],
        inside: Mapping[str, str],
        found: Mapping[str, str],
        mode: str,
    ) -> tuple[Graph, dict[str, tuple[str, str]]]:
        """Return a graph with what becomes of the gradients, and what its new states are."""
        builder = GraphBuilder(graph, "u")
        build = Build(builder, training=True)
        shapes = {value.name: value for value in graph.states}
        names = [name for name in learned if found.get(inside[name])]
        if not names:
            raise ModelError(f"[{self.kind}] got losses that depend on no parameter, expected one that does")
        weights = {name: _tensor(shapes[inside[name]]) for name in names}
        for name, tensor in weights.items():
            if tensor.dtype != "float32":
                raise ModelError(f"[{self.kind}] got parameter {name!r} of {tensor.dtype}, expected float32 to train")
        gradients = {name: Tensor(found[inside[name]], weights[name].shape) for name in names}
        states: dict[str, tuple[str, str]] = {}

        def state(kind: str, name: str) -> Tensor:
            tensor = build.state(f"{kind}.{inside[name]}", weights[name].shape)
            states[tensor.name] = (kind, name)
            return tensor

        if mode in (ADD, UPDATE_SUM):
            sums = {name: state(SUM, name) for name in names}
            if mode == ADD:
                for name in names:
                    build.update("y0 = x1 + x0;", [gradients[name]], [sums[name]])
                return builder.graph(*graph.outputs), states
            for name in names:
                gradients[name] = build.pointwise("y0 = x1 + x0;", [gradients[name], sums[name]])[0]
                build.update("y0 = 0;", [], [sums[name]])
        for scalar in self.optimizer.names:
            builder.scalar(scalar)
        factor = None
        if self.optimizer.options["clip_norm"] is not None:
            factor = optimizers.norm_factor(build, list(gradients.values()), "most")
        for name in names:
            histories = {kind: state(kind, name) for kind in self.optimizer.histories}
            lr_mult, decay_mult = self.factors[name]
            self.optimizer.apply(
                build,
                weights[name],
                gradients[name],
                histories,
                lr_mult=lr_mult,
                decay_mult=decay_mult,
                factor=factor,
            )
        return builder.graph(*graph.outputs), states


def _tensor(value: Value) -> Tensor:
    return Tensor(value.name, value.shape, value.dtype)
