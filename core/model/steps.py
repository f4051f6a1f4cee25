"""Steps of training as graphs: forward and backward passes, and what becomes of the gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from clgraft.core.graph import BoundGraph, CompiledGraph, Graph, GraphBuilder, Value
from clgraft.core.model.errors import ModelError
from clgraft.core.model.ports import Port
from clgraft.core.model.store import Store
from clgraft.core.model.training import Function, LoweredTraining, TrainingNet
from clgraft.core.nn import optimizers
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.optimizers import Optimizer

LOSS, SCALE = "loss", "loss_scale"
PARAMETER, SUM = "parameter", "sum"  # kinds of states besides histories
# what becomes of gradients: parameters change by them, or by them and the sum so far; they are added to it; or none are
UPDATE, UPDATE_SUM, ADD, LOOK = "update", "update_sum", "add", "look"
APPLY = "apply"  # parameters change by the sum so far, and nothing else is computed
UPDATES = (UPDATE, UPDATE_SUM, APPLY)


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
    incoming : tuple of Value
        Inputs of the graph that hold the factor of the losses, where they are scaled.
    overflow : str
        The graph's output that is not zero where a gradient has infinities or NaN; empty if none looks for them.
    scaled : bool
        Whether the graph has the scalar `SCALE`.
    changed : tuple of str
        Parameters that have gradients.
    checks : tuple of (str, callable)
        As of `LoweredTraining`.
    bound : BoundGraph or None
        The graph with its states, which stay where they are.
    """

    compiled: CompiledGraph
    inputs: Mapping[str, str]
    states: Mapping[str, tuple[str, str]]
    keys: tuple[str, ...] = ()
    shown: Mapping[str, str] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)
    incoming: tuple[Value, ...] = ()
    overflow: str = ""
    scaled: bool = False
    changed: tuple[str, ...] = ()
    checks: tuple[Any, ...] = ()
    bound: BoundGraph | None = None


@dataclass(frozen=True)
class StepBuilder:
    """Makes the steps of a trainer.

    Attributes
    ----------
    net : TrainingNet
    inputs : tuple of Port
        Of a step.
    loss : callable or None
        A loss that is not the net's own.
    optimizer : Optimizer
    factors : mapping of str to (float, float)
        Of the parameters that change: of learning rate and weight decay.
    context : Context
    store : Store
    passes : str or None
    precision : str
        The type of products, as `Context.compile` takes it.
    scaled : bool
        Whether losses are multiplied by a factor, and steps with infinite gradients change nothing.
    """

    net: TrainingNet
    inputs: tuple[Port, ...]
    loss: Function | None
    optimizer: Optimizer
    factors: Mapping[str, tuple[float, float]]
    context: Any
    store: Store
    passes: str | None
    precision: str
    scaled: bool

    def step(self, shapes: Mapping[str, tuple[int, ...]], mode: str) -> Step:
        """Return the step for some shapes: forward, backward, and what becomes of the gradients: a mode."""
        own = {port.name for port in self.net.inputs}
        lowered = self.net.lower({name: shape for name, shape in shapes.items() if name in own})
        build, inputs, scaled = lowered.build, dict(lowered.inputs), self.scaled and mode != LOOK
        for port in self.inputs:
            if port.name not in own:
                inputs[port.name] = build.input(f"label{len(inputs)}", shapes[port.name], port.dtype)
        if scaled:
            build.loss_scale = build.graph.scalar(SCALE)
        heads, shown = self._heads(lowered, inputs)
        inside = {name: value for value, name in lowered.parameters.items()}
        learned = [name for name in self.factors if name in inside and mode != LOOK]
        for tensor in shown.values():
            if tensor.name not in {head.name for head in heads}:
                build.without_gradient(tensor)
        outputs = list({tensor.name: tensor for tensor in (*heads, *shown.values())}.values())
        passes = build.passes(outputs, [inside[name] for name in learned], switches=self.passes)
        whole = build.graph.graph(*dict.fromkeys(tensor.name for tensor in shown.values()))
        states = {value.name for value in whole.states}
        incoming = tuple(passes.incoming.values())
        values = {value.name: value for value in whole.inputs}
        kept = {inside[name] for name in self.factors if name in inside}  # they change from step to step
        moved = kept if mode != LOOK else set()
        graph = replace(
            whole,
            nodes=(*passes.forward, *passes.backward),
            inputs=(*(value for value in whole.inputs if value.name not in moved), *incoming),
            states=(*whole.states, *(values[name] for name in sorted(moved, key=list(values).index))),
        )
        of_states = {name: (PARAMETER, lowered.parameters[name]) for name in (*states, *moved)}
        overflow = ""
        changed: tuple[str, ...] = ()
        if mode != LOOK:
            names = [name for name in learned if passes.found.get(inside[name])]
            if not names:
                raise ModelError(f"[{self.net.kind}] got losses that depend on no parameter, expected one that does")
            places = {value.name: value for value in graph.states}
            weights = {name: _tensor(places[inside[name]]) for name in names}
            gradients = {name: Tensor(passes.found[inside[name]], weights[name].shape) for name in names}
            graph, more, overflow = self._updated(graph, weights, gradients, mode)
            of_states.update(more)
            changed = tuple(names)
        constants = dict(build.constants)
        if not scaled:
            constants.update({value.name: np.ones(value.shape, value.dtype) for value in incoming})
        changing = {} if moved else {value: lowered.parameters[value] for value in sorted(kept)}
        for value, name in lowered.parameters.items():
            if value not in of_states and value not in changing:
                constants[value] = self.store.elements(name)
        return Step(
            self._compiled(graph, constants),
            {name: tensor.name for name, tensor in inputs.items()},
            {**of_states, **{value: (PARAMETER, name) for value, name in changing.items()}},
            tuple(tensor.name for tensor in lowered.keys),
            {name: tensor.name for name, tensor in shown.items()},
            lowered.losses if self.loss is None else {LOSS: 1.0},
            incoming if scaled else (),
            overflow,
            scaled,
            changed,
            lowered.checks,
        )

    def applied(self, names: Sequence[str]) -> Step:
        """Return the step in which parameters change by the sums of their gradients."""
        builder = GraphBuilder(prefix="u")
        build = Build(builder, training=True)
        weights = {name: build.state(f"w{i}", self.store.shape(name)) for i, name in enumerate(names)}
        graph, states, overflow = self._updated(builder.graph(), weights, {}, APPLY)
        of_weights = {tensor.name: (PARAMETER, name) for name, tensor in weights.items()}
        compiled = self._compiled(graph, {})
        return Step(compiled, {}, {**of_weights, **states}, overflow=overflow, changed=tuple(names))

    def _compiled(self, graph: Graph, constants: Mapping[str, np.ndarray]) -> CompiledGraph:
        known = {value.name for value in graph.inputs}
        given = {name: array for name, array in constants.items() if name in known}
        return self.context.compile(  # type: ignore[no-any-return]
            graph, self.passes, given, precision=self.precision, kept=True
        )

    def _heads(
        self, lowered: LoweredTraining, inputs: Mapping[str, Tensor]
    ) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Return what is differentiated, and what a step returns."""
        if self.loss is not None:
            outputs = {port.name: lowered.values[port.name] for port in self.net.outputs}
            loss = self.loss(lowered.build, outputs, inputs)
            if loss.size != 1:
                raise ModelError(f"[{self.net.kind}] got a loss of shape {loss.shape}, expected one element")
            return (loss,), {LOSS: loss}
        if not lowered.heads:
            raise ModelError(f"[{self.net.kind}] got a net without a loss, expected one, or the argument loss")
        return lowered.heads, dict(lowered.shown)

    def _updated(
        self, graph: Graph, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], mode: str
    ) -> tuple[Graph, dict[str, tuple[str, str]], str]:
        """Return a graph with what becomes of the gradients, what its new states are, and its output for overflows."""
        builder = GraphBuilder(graph, "u")
        build = Build(builder, training=True)
        found, states = dict(gradients), {}
        for name, tensor in weights.items():
            if tensor.dtype != "float32":
                got = f"parameter {name!r} of {tensor.dtype}"
                raise ModelError(f"[{self.net.kind}] got {got}, expected float32 to train")

        def state(kind: str, name: str) -> Tensor:
            tensor = build.state(f"{kind}.{weights[name].name}", weights[name].shape)
            states[tensor.name] = (kind, name)
            return tensor

        if mode in (ADD, UPDATE_SUM, APPLY):
            sums = {name: state(SUM, name) for name in weights}
            if mode == ADD:
                for name, total in sums.items():
                    build.update("y0 = x1 + x0;", [found[name]], [total])
                return builder.graph(*graph.outputs), states, ""
            for name, total in sums.items():
                if mode == APPLY:  # a copy, since the sum becomes zero
                    found[name] = build.pointwise("y0 = x0;", [total])[0]
                else:
                    found[name] = build.pointwise("y0 = x1 + x0;", [found[name], total])[0]
                build.update("y0 = 0;", [], [total])
        for scalar in self.optimizer.names:
            builder.scalar(scalar)
        outputs, skip = list(graph.outputs), None
        if self.scaled:
            skip = optimizers.overflows(build, list(found.values()))
            outputs.append(skip.name)
        factor = None
        if self.optimizer.options["clip_norm"] is not None:
            factor = optimizers.norm_factor(build, list(found.values()), "most")
        for name, weight in weights.items():
            histories = {kind: state(kind, name) for kind in self.optimizer.histories}
            lr_mult, decay_mult = self.factors[name]
            self.optimizer.apply(
                build,
                weight,
                found[name],
                histories,
                lr_mult=lr_mult,
                decay_mult=decay_mult,
                factor=factor,
                skip=skip,
            )
        return builder.graph(*outputs), states, "" if skip is None else skip.name


def _tensor(value: Value) -> Tensor:
    return Tensor(value.name, value.shape, value.dtype)
