"""A solver's prototxt, and the nets that it names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clgraft.caffe_layers.nets.net import TEST, TRAIN, read_net
from clgraft.caffe_layers.prototxt import PrototxtError, schema
from clgraft.core.errors import hint
from clgraft.core.model import ModelError, contents

# Caffe's types -> ours, and our options -> the solver's fields
TYPES = {
    "SGD": ("sgd", {"momentum": "momentum"}),
    "Nesterov": ("nag", {"momentum": "momentum"}),
    "AdaGrad": ("adagrad", {"eps": "delta"}),
    "RMSProp": ("rmsprop", {"rho": "rms_decay", "eps": "delta"}),
    "AdaDelta": ("adadelta", {"rho": "momentum", "eps": "delta"}),
    "Adam": ("adam", {"beta1": "momentum", "beta2": "momentum2", "eps": "delta"}),
}
OLDER = ("SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam")  # values of `solver_type`
WITHOUT_MOMENTUM = ("AdaGrad", "RMSProp")


@dataclass
class SolverFile:
    """A solver's parameters and its nets.

    Attributes
    ----------
    parameters : SolverParameter
    train : NetParameter
    tests : list of NetParameter
        One for each `test_iter`.
    """

    parameters: Any
    train: Any
    tests: list[Any]


def read_solver(path: str | Path) -> SolverFile:
    """Read a solver's prototxt and its nets, whose paths are relative to the working directory, as Caffe's are.

    Raises
    ------
    ModelError
        If a file cannot be read or a field does not fit.
    """
    name, data = contents("solver", str(path), "solver")
    try:
        solver = schema.parse("SolverParameter", data.decode())
    except (PrototxtError, UnicodeDecodeError) as error:
        raise ModelError(f"[solver] got {name}, which is no solver: {error}") from None
    if solver.HasField("solver_type") and not solver.HasField("type"):
        solver.type = OLDER[solver.solver_type]
    _check(solver)
    if not solver.snapshot_prefix:
        solver.snapshot_prefix = str(Path(path).with_suffix(""))
    return SolverFile(solver, _train_net(solver), _test_nets(solver))


def _check(solver: Any) -> None:
    if solver.type not in TYPES:
        near = hint(solver.type, list(TYPES))
        raise ModelError(f"[solver] got type {solver.type!r}, expected one of {list(TYPES)}{near}")
    if solver.type in WITHOUT_MOMENTUM and solver.momentum:
        raise ModelError(f"[solver] got momentum {solver.momentum:g} for {solver.type}, expected none")
    if solver.regularization_type not in ("L1", "L2"):
        raise ModelError(f"[solver] got regularization_type {solver.regularization_type!r}, expected L1 or L2")
    if solver.iter_size < 1:
        raise ModelError(f"[solver] got iter_size {solver.iter_size}, expected at least 1")
    if len(solver.test_iter) and solver.test_interval <= 0:
        raise ModelError(f"[solver] got test_interval {solver.test_interval}, expected a positive number")


def _read(path: str, state: Any, phase: int) -> Any:
    net = read_net(path)
    return _with_state(net, state, phase)


def _with_state(net: Any, state: Any, phase: int) -> Any:
    found = schema.message_class("NetParameter")()
    found.CopyFrom(net)
    if state is not None:
        found.state.MergeFrom(state)
    found.state.phase = phase
    return found


def _train_net(solver: Any) -> Any:
    given = [name for name in ("net", "net_param", "train_net", "train_net_param") if solver.HasField(name)]
    if len(given) != 1:
        raise ModelError(f"[solver] got {given} for the train net, expected one of net, train_net and their _param")
    state = solver.train_state if solver.HasField("train_state") else None
    value = getattr(solver, given[0])
    return _read(value, state, TRAIN) if isinstance(value, str) else _with_state(value, state, TRAIN)


def _test_nets(solver: Any) -> list[Any]:
    count = len(solver.test_iter)
    found = [*solver.test_net_param, *solver.test_net]
    whole = solver.net_param if solver.HasField("net_param") else solver.net
    if whole or solver.HasField("net_param"):
        found += [whole] * (count - len(found))
    if len(found) != count:
        raise ModelError(f"[solver] got {count} test_iter for {len(found)} test nets, expected as many")
    if len(solver.test_state) not in (0, count):
        raise ModelError(f"[solver] got {len(solver.test_state)} test_state for {count} test nets, expected as many")
    nets = []
    for number, value in enumerate(found):
        state = solver.test_state[number] if len(solver.test_state) else None
        nets.append(_read(value, state, TEST) if isinstance(value, str) else _with_state(value, state, TEST))
    return nets
