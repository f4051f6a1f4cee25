"""Updates of residents: MXNet's optimizers as those of the core, and a graph that updates all parameters at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import mxnet as mx

from clgraft.core.graph import GraphBuilder
from clgraft.core.nn.builder import Build
from clgraft.core.nn.optimizers import Optimizer, overflows
from clgraft.mxnet_ops.engine.residents import DTYPE, GRADIENT, HALF, MASTER, WEIGHT, Resident
from clgraft.mxnet_ops.optimizers.rules import OclAdam, OclAdamW, OclNAG, OclSGD

CONVENTION = "mxnet"
ANY_DECAY = 1.0  # stands for all others than 0: what they are is a scalar


class Rule(NamedTuple):
    """What an optimizer of MXNet is in the core.

    Attributes
    ----------
    kind : str
    options : callable
        Returns the core's options of an optimizer.
    negative : tuple of bool
        For each state in MXNet's order, whether the core has it with the other sign.
    """

    kind: str
    options: Callable[[Any], dict[str, Any]]
    negative: tuple[bool, ...] = (False, False, False)


def _adams(optimizer: Any) -> dict[str, Any]:
    return {"beta1": optimizer.beta1, "beta2": optimizer.beta2, "eps": optimizer.epsilon}


def _rmsprops(optimizer: Any) -> dict[str, Any]:
    found = {"rho": optimizer.gamma1, "eps": optimizer.epsilon, "centered": optimizer.centered}
    return {**found, "momentum": optimizer.gamma2 if optimizer.centered else 0.0}


_SGD = Rule("sgd", lambda optimizer: {"momentum": optimizer.momentum}, (True,))
_NAG = Rule("nag", lambda optimizer: {"momentum": optimizer.momentum}, (True,))
_ADAM = Rule("adam", _adams)
RULES: dict[type, Rule] = {
    mx.optimizer.SGD: _SGD,
    OclSGD: _SGD,
    mx.optimizer.NAG: _NAG,
    OclNAG: _NAG,
    mx.optimizer.Adam: _ADAM,
    OclAdam: _ADAM,
    OclAdamW: Rule("adamw", _adams),
    mx.optimizer.RMSProp: Rule("rmsprop", _rmsprops, (False, False, True)),
    mx.optimizer.AdaGrad: Rule("adagrad", lambda optimizer: {"eps": optimizer.float_stable_eps}),
    mx.optimizer.AdaDelta: Rule("adadelta", lambda o: {"rho": o.rho, "eps": o.epsilon}),
}


def unserved(optimizer: Any) -> str:
    """Return why an optimizer's updates are MXNet's alone; empty if they are not."""
    name = type(optimizer).__name__
    if type(optimizer) not in RULES:
        return f"the optimizer {name} is not served on devices"
    if getattr(optimizer, "clip_weights", None):
        return f"clip_weights of {name} is not served on devices"
    if getattr(optimizer, "momentum", 0) < 0:
        return f"a negative momentum of {name} is not served on devices"
    return ""


def unserved_type(optimizer: Any, dtype: str) -> str:
    """Return why updates of parameters of a type are MXNet's alone; empty if they are not."""
    if dtype == HALF and not optimizer.multi_precision:
        return "it is float16, and the optimizer has no multi_precision"
    return "" if dtype in (DTYPE, HALF) else f"it is {dtype}"


def states_of(optimizer: Any, state: Any, mixed: bool) -> tuple[Any, list[Any]]:
    """Return the arrays of what an optimizer keeps for a parameter: the copy in float32 of one in float16, the rest."""
    master = None
    if mixed:
        state, master = state if isinstance(optimizer, (mx.optimizer.SGD, mx.optimizer.NAG)) else state[::-1]
    return master, [] if state is None else list(state) if isinstance(state, (tuple, list)) else [state]


def state_kind(number: int) -> str:
    """Return the name of a kind of arrays of a block: the state of a number."""
    return f"state{number}"


class Item(NamedTuple):
    """A parameter that is updated, and what stays the same of its numbers from step to step.

    Attributes
    ----------
    weight : Resident
    states : tuple of Resident
    master : Resident or None
        The parameter in float32, if it is float16.
    """

    weight: Resident
    states: tuple[Resident, ...]
    master: Resident | None

    @property
    def kinds(self) -> dict[str, Resident]:
        """All of it, by the names of the kinds of arrays that a block has."""
        found = {WEIGHT: self.weight, **{state_kind(number): one for number, one in enumerate(self.states)}}
        if self.weight.gradient is not None:
            found[GRADIENT] = self.weight.gradient
        return found if self.master is None else {**found, MASTER: self.master}

    @property
    def dtypes(self) -> tuple[tuple[str, str], ...]:
        """The type of each kind."""
        return tuple((kind, one.dtype) for kind, one in self.kinds.items())

    @property
    def lies_whole(self) -> bool:
        """Whether all of it is in one block."""
        place = self.weight.lies
        return place is not None and all(one.lies == place.of(kind) for kind, one in self.kinds.items())

    @property
    def changing(self) -> tuple[Resident, ...]:
        """What an update changes."""
        return (self.weight, *self.states, *(() if self.master is None else (self.master,)))


class Numbers(NamedTuple):
    """What an update of a parameter depends on: its learning rate and weight decay, and its number of updates."""

    lr: float
    wd: float
    updates: int


@dataclass
class Update:
    """A compiled update of some parameters.

    Attributes
    ----------
    plan : Plan
    bound : Any
        The plan's arguments.
    owners : Any
        What they belong to.
    read : tuple of Resident
        All of it: gradients, and what changes.
    changing : tuple of Resident
    """

    plan: Any
    bound: Any
    owners: Any
    read: tuple[Resident, ...]
    changing: tuple[Resident, ...]

    def scalars(self, optimizer: Optimizer, rescale: float, numbers: Sequence[Numbers]) -> list[float]:
        """Return the numbers of an update, in the plan's order.

        Parameters
        ----------
        optimizer : Optimizer
            With the numbers of this step.
        rescale : float
            What gradients are multiplied by.
        numbers : sequence of Numbers
            Of each group.
        """
        found: dict[str, float] = {}
        for group, (lr, wd, updates) in enumerate(numbers):
            scalars = {**optimizer.scalars(updates, lr), "rescale": rescale, "decay": wd}
            found.update({f"{name}{_suffix(group)}": value for name, value in scalars.items()})
        return [found[name] for name in self.plan.scalars]

    def run(self, scalars: Sequence[float]) -> None:
        """Update the parameters with the numbers of a step."""
        self.plan.run_bound(self.bound, scalars)


def _suffix(group: int) -> str:
    return f"_{group}"


def optimizer_of(optimizer: Any, decays: bool) -> Optimizer:
    """Return an optimizer of MXNet as one of the core; its learning rate and weight decay are numbers of each step."""
    rule = RULES[type(optimizer)]
    clip = optimizer.clip_gradient
    always = type(optimizer) in (mx.optimizer.AdaGrad, mx.optimizer.AdaDelta)
    options = {"clip_gradient": clip if clip or (always and clip is not None) else None}
    decay = ANY_DECAY if decays else 0.0
    return Optimizer(rule.kind, CONVENTION, {**rule.options(optimizer), **options, "weight_decay": decay})


def groups_of(numbers: Iterable[tuple[float, float, int]]) -> tuple[tuple[int, ...], list[Numbers]]:
    """Return for each parameter the place of its numbers among those that differ, and these."""
    places: dict[tuple[float, float, int], int] = {}
    groups = tuple([places.setdefault(each, len(places)) for each in numbers])
    return groups, [Numbers(float(lr), float(wd), updates) for lr, wd, updates in places]


def _runs(
    items: Sequence[Item], groups: Sequence[int], decays: Sequence[bool]
) -> Iterator[tuple[dict[str, Any], int, bool]]:
    """Yield what is updated at once, an array of each kind, with the place of its numbers and whether it decays."""
    lying: dict[Any, list[int]] = {}
    for item, group, decay in zip(items, groups, decays):
        lies = item.weight.lies
        if lies is not None and item.lies_whole:
            lying.setdefault((lies.block, item.dtypes, group, decay), []).append(lies.number)
        else:
            yield {kind: one.device.reshape(-1) for kind, one in item.kinds.items()}, group, decay
    for (block, dtypes, group, decay), numbers in lying.items():
        for first, last in _adjacent(sorted(numbers)):
            yield {kind: block.whole(kind, first, last, dtype) for kind, dtype in dtypes}, group, decay


def _adjacent(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of numbers in a row; they are sorted."""
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield first, last
            first = number
        last = number
    yield first, last


def compile_update(
    context: Any, items: Sequence[Item], groups: Sequence[int], optimizers: Mapping[bool, Optimizer], decays: Any
) -> Update:
    """Compile the update of parameters.

    Parameters
    ----------
    context : core.Context
    items : sequence of Item
    groups : sequence of int
        See `groups_of`.
    optimizers : mapping of bool to Optimizer
        With weight decay and without.
    decays : sequence of bool
        Whether each parameter decays.
    """
    builder = GraphBuilder(prefix="u")
    build = Build(builder, training=True)
    for group, decay in sorted(set(zip(groups, decays))):
        for name in optimizers[decay].names:
            builder.scalar(f"{name}{_suffix(group)}")
    arrays: dict[str, Any] = {}
    rounded: list[str] = []  # parameters in float16
    for number, (run, group, decay) in enumerate(_runs(items, groups, decays)):
        optimizer, changing, gradient = optimizers[decay], run.get(MASTER, run[WEIGHT]), run[GRADIENT]
        weight = build.state(f"weight{number}", changing.shape)
        given = build.input(f"gradient{number}", gradient.shape, gradient.dtype.name)
        histories = {name: build.state(f"{name}{number}", changing.shape) for name in optimizer.histories}
        optimizer.apply(build, weight, build.cast(given, DTYPE), histories, suffix=_suffix(group))
        arrays.update({weight.name: changing, given.name: gradient})
        arrays.update({one.name: run[state_kind(place)] for place, one in enumerate(histories.values())})
        if MASTER in run:
            rounded.append(build.cast(weight, run[WEIGHT].dtype.name).name)
            arrays[rounded[-1]] = run[WEIGHT]
    compiled = context.compile(builder.graph(*rounded))
    plan, constants = compiled.prepared(rounded)
    bound = plan.bind_arrays({**arrays, **constants})
    changing = tuple(one for item in items for one in item.changing)
    read = (*changing, *(item.weight.gradient for item in items if item.weight.gradient is not None))
    return Update(plan, bound, (compiled, tuple(items), arrays, constants), read, changing)


def compile_overflow(context: Any, gradients: Sequence[Resident]) -> Callable[[], float]:
    """Return a function of a number that is 0 as long as all elements of gradients are finite."""
    builder = GraphBuilder(prefix="u")
    build = Build(builder)
    given = [build.input(f"gradient{place}", one.shape, one.dtype) for place, one in enumerate(gradients)]
    total = overflows(build, [build.cast(one, DTYPE) for one in given])
    arrays = {tensor.name: one.device for tensor, one in zip(given, gradients)}
    compiled = context.compile(builder.graph(total.name))
    return lambda: float(compiled.run(arrays)[total.name].ravel()[0])
