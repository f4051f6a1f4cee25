"""Trainers: models whose parameters, gradients and histories stay on the device, with the update in their graphs."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from clgraft.core.errors import hint
from clgraft.core.graph import Graph, Report
from clgraft.core.model.errors import ModelError
from clgraft.core.model.groups import Group
from clgraft.core.model.memory import Memory
from clgraft.core.model.ports import Port, fits
from clgraft.core.model.precision import carried
from clgraft.core.model.scaling import LossScale
from clgraft.core.model.sending import Sender, Sent
from clgraft.core.model.steps import (
    ADD,
    APPLY,
    LOOK,
    PARAMETER,
    SCALE,
    SUM,
    UPDATE,
    UPDATE_SUM,
    UPDATES,
    Step,
    StepBuilder,
)
from clgraft.core.model.store import Store
from clgraft.core.model.training import LABEL, Loss, TrainingNet, named_loss
from clgraft.core.nn.optimizers import Optimizer
from clgraft.core.operators.dropout import KEY_WORDS
from clgraft.core.planning.precision import FLOAT32, mixed_precision

MOST_PROGRAMS = 8  # sets of shapes that are kept
WORD = 2**32


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
    precision : str, optional
        ``float16`` or ``bfloat16``: products are computed in 16 bits, and in float32 what rounding would spoil;
        parameters, their updates and histories are float32. By default what ``CLGRAFT_PRECISION`` says.
    loss_scale : float, optional
        What losses are multiplied by before gradients are taken, and gradients divided by. By default 1, and for
        ``float16`` a number that follows the gradients (see `LossScale`).
    group : Group, optional
        Processes that train the model together, each on its own batch: gradients are averaged over them.
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
    skipped : int
        How many steps changed nothing, since a gradient was infinite.
    loss_scale : float
        What losses are multiplied by.
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
        precision: str | None = None,
        loss_scale: float | None = None,
        group: Group | None = None,
        passes: str | None = None,
        **options: Any,
    ) -> None:
        self._net, self._context, self._passes = net, context, passes
        self._mixed = mixed_precision(precision)
        self._scale = LossScale.of(net.kind, self._mixed, loss_scale)
        self._group = None if group is None or group.size == 1 else group
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
        self._memory, self._store, self._sender = Memory(context), store, Sender(context)
        self._exchanged = np.empty(0, np.float32)  # gradients, for other processes
        self._adding = False  # whether there are sums of gradients
        self._histories: dict[tuple[str, str], Any] = {}
        self._programs: OrderedDict[Any, Step] = OrderedDict()
        self._now: tuple[Any, Any, int] = (None, None, 0)  # what steps depend on besides shapes, and its number
        self._numbers: dict[Any, int] = {}
        self._last: Step  # what ran last
        self.outputs: dict[str, np.ndarray] = {}
        if self._group is not None:
            self._share()

    def __repr__(self) -> str:
        return f"Trainer({self.optimizer.kind!r}, lr={self.lr}, {len(self.factors)} parameters, steps={self.steps})"

    # what a user calls

    def send(self, arrays: Mapping[str, Any]) -> Sent:
        """Begin to send a batch to the device, and return what `step` and `loss` take in its place.

        On a device with memory of its own the batch travels while the device computes: send the next batch, then step
        with the one that was sent before.

        Parameters
        ----------
        arrays : mapping of str to numpy.ndarray
            As of `step`. They must not change before a step has taken the batch.

        Raises
        ------
        ClgraftError
            Naming the input that does not fit.
        """
        return self._sender.send(self._given(arrays))

    def step(self, arrays: Mapping[str, Any] | Sent, *, lr: float | None = None, update: bool = True) -> float:
        """Compute losses and gradients, and change the parameters.

        Parameters
        ----------
        arrays : mapping of str to numpy.ndarray, or Sent
            All inputs by name, labels among them; or what `send` has returned for them, once.
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
        if self._group is not None:
            loss, program = self._run(arrays, ADD), self._last
            self._exchange(program)
            self._update(self._kept((APPLY, program.changed), lambda: self._builder.applied(program.changed)), {})
        else:
            loss = self._run(arrays, UPDATE_SUM if self._adding else UPDATE)
        self._adding = False
        return loss

    @property
    def skipped(self) -> int:
        """How many steps changed nothing, since a gradient was infinite or NaN."""
        return 0 if self._scale is None else self._scale.skipped

    @property
    def loss_scale(self) -> float:
        """What losses are multiplied by before gradients are taken."""
        return 1.0 if self._scale is None else self._scale.value

    @property
    def scale_state(self) -> np.ndarray | None:
        """The factor of losses, good steps since it changed, and skipped ones, to go on from; None without a factor."""
        return None if self._scale is None else self._scale.state

    @scale_state.setter
    def scale_state(self, found: np.ndarray | None) -> None:
        if found is not None and self._scale is not None:
            self._scale.state = found

    def loss(self, arrays: Mapping[str, Any] | Sent) -> float:
        """Return the sum of the losses as a step computes it, and change no parameter but moving averages."""
        return self._run(arrays, LOOK)

    def _run(self, arrays: Mapping[str, Any] | Sent, mode: str) -> float:
        sent = arrays if isinstance(arrays, Sent) else None
        if sent is not None and sent.is_taken:
            raise ModelError(f"[{self.kind}] got a batch that a step has taken, expected one that was sent since")
        given = sent.arrays if sent is not None else self._given(arrays)  # type: ignore[arg-type]
        program = self._program({name: array.shape for name, array in given.items()}, mode)
        for name, check in program.checks:
            check(given[name])
        held = given if sent is None else self._sender.take(sent)
        values: dict[str, Any] = {inside: held[name] for name, inside in program.inputs.items()}
        values.update({value.name: np.full(value.shape, self.loss_scale, value.dtype) for value in program.incoming})
        for number, name in enumerate(program.keys):
            values[name] = self._key(number)
        self._draws += 1
        self._last = program
        found = self._update(program, values, changes=mode in UPDATES)
        if sent is not None:
            self._sender.give_back(sent)
        self.outputs = {name: found[inside] for name, inside in program.shown.items() if inside in found}
        return sum(weight * float(self.outputs[name].sum()) for name, weight in program.losses.items())

    def _update(self, program: Step, values: dict[str, Any], changes: bool = True) -> dict[str, Any]:
        """Run a graph, and count its update if it has one and does not skip it."""
        if program.bound is None:
            states = {name: self._state(kind, parameter) for name, (kind, parameter) in program.states.items()}
            program.bound = program.compiled.bind(states)
        scalars = self.optimizer.scalars(self.steps + 1, self.lr) if changes else {}
        if changes and self._scale is not None:
            scalars = self._scale.unscaled(scalars)
        if program.scaled:
            scalars[SCALE] = self.loss_scale
        found = program.bound.run(values, scalars)
        if not found:
            self._context.finish()
        if changes:
            applied = not program.overflow or float(found[program.overflow].sum()) == 0
            if self._scale is not None:
                self._scale.follow(applied)
            self.steps += applied
        return found

    # several processes

    def _share(self) -> None:
        """Begin with the parameters of the first process."""
        assert self._group is not None
        for name, array in self._store.all().items():
            if array.dtype.kind == "f":
                self._group.broadcast(array)
                self._store.change(name, array)

    def _exchange(self, program: Step) -> None:
        """Make sums of gradients their means over all processes."""
        assert self._group is not None
        states = [self._state(SUM, name) for name in program.changed]
        size = sum(state.size for state in states)
        if self._exchanged.size != size:
            self._exchanged = np.empty(size, np.float32)  # kept: the first use of memory costs more than the exchange
        self._memory.gather(states, self._exchanged)
        self._group.sum(self._exchanged)
        self._exchanged /= self._group.size
        self._memory.scatter(self._exchanged, states)

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

    @property
    def sums(self) -> dict[str, np.ndarray]:
        """Copies of the gradients that were added up since the last update."""
        if not self._adding:
            return {}
        kept = [name for name in self.factors if (SUM, name) in self._histories]
        return {name: self._memory.elements(self._state(SUM, name)) / np.float32(self.loss_scale) for name in kept}

    def keys(self, count: int) -> list[np.ndarray]:
        """Return the keys of the random numbers of the next step."""
        return [self._key(number) for number in range(count)]

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
            counts = {"steps": np.int64(self.steps), "draws": np.int64(self._draws)}
            scale = {} if self.scale_state is None else {"scale": self.scale_state}
            np.savez(file, **counts, **scale, **arrays)  # type: ignore[arg-type]

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
        self.scale_state = arrays.pop("scale", None)
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

    def _given(self, arrays: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
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
        return self._kept((tuple(sorted(shapes.items())), mode), lambda: self._builder.step(shapes, mode))

    def _kept(self, key: Any, make: Callable[[], Step]) -> Step:
        """Return a step for the optimizer and the factors of now."""
        optimizer, factors, _ = self._now
        now = (self.optimizer.names, self.optimizer.kind)
        if now != optimizer or self.factors != factors:  # compared first: a hash of all factors takes long
            number = self._numbers.setdefault((now, tuple(self.factors.items())), len(self._numbers))
            self._now = now, dict(self.factors), number
        whole = key, self._now[-1]
        found = self._programs.get(whole)
        if found is None:
            found = self._programs[whole] = make()
            if len(self._programs) > MOST_PROGRAMS:
                self._programs.popitem(last=False)
        self._programs.move_to_end(whole)
        return found

    @property
    def _builder(self) -> StepBuilder:
        return StepBuilder(
            self._net,
            self.inputs,
            self._loss,
            self.optimizer,
            self.factors,
            self._context,
            self._store,
            self._passes,
            self._mixed or FLOAT32,
            self._scale is not None,
        )
