"""Inference with frozen parameters: cached graphs and executors run a copy of their symbol that has them as constants.

The attribute ``frozen`` of a region names its parameters. The first inference reads them and makes the copy, in which
regions have the numbers of their constants instead of these inputs: MXNet neither orders parameters in front of a
region nor waits for them, and none is sent to a device again. What trains or records runs the symbol itself. What was
read is dropped when one of the arrays is known to be written (see `engine.changes`).
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import gluon

from clgraft.mxnet_ops.engine.changes import changed, watch
from clgraft.mxnet_ops.engine.graphs import moved, with_nodes
from clgraft.mxnet_ops.engine.operator import operator_of
from clgraft.mxnet_ops.guards import guard
from clgraft.mxnet_ops.regions.constants import Constants
from clgraft.mxnet_ops.regions.region import RegionOperator

PLACES = ("data_indices", "param_indices")  # flags of a cached graph that name inputs by their places


class Frozen:
    """A symbol with frozen regions.

    Attributes
    ----------
    names : tuple of str
        Its variables that are constants.
    """

    def __init__(self, graph: Mapping[str, Any]) -> None:
        self._graph = graph
        self._regions: dict[int, dict[str, str]] = {}  # node -> names in the region -> names of the symbol's variables
        nodes = graph["nodes"]
        for number, node in enumerate(nodes):
            if node["op"] != "Custom" or node["attrs"].get("op_type") != RegionOperator.op_type:
                continue
            region = _region(node)
            sources = [nodes[entry[0]] for entry in node["inputs"]]
            constant = {
                name: source["name"]
                for name, source in zip((*region.arguments, *region.auxiliary), sources)
                if name in region.frozen and source["op"] == "null"
            }
            if constant and not constant.keys() >= set(region.arguments):  # an operator needs an input
                self._regions[number] = constant
        self.names = tuple(dict.fromkeys(name for constant in self._regions.values() for name in constant.values()))

    @staticmethod
    def of(symbol: mx.sym.Symbol) -> Frozen | None:
        """Return a symbol's; None if it has no frozen region."""
        text = symbol.tojson() if type(symbol) is mx.sym.Symbol else ""  # a NumPy symbol stays as it is
        if '"frozen"' not in text:
            return None
        names, found = symbol.list_inputs(), Frozen(json.loads(text))
        return found if found.names and len(set(names)) == len(names) else None

    def read(self, arrays: Mapping[str, mx.nd.NDArray]) -> tuple[mx.sym.Symbol, list[Constants]]:
        """Return the copy of the symbol for the values of its variables, and what holds these."""
        values = {name: np.ascontiguousarray(arrays[name].asnumpy()) for name in self.names}
        made = {
            number: Constants({inner: values[name] for inner, name in constant.items()})
            for number, constant in self._regions.items()
        }
        return mx.sym.load_json(json.dumps(self._copy(made))), list(made.values())

    def _copy(self, made: Mapping[int, Constants]) -> dict[str, Any]:
        """Return the graph with constants, and without variables that nothing reads any more."""
        nodes: list[dict[str, Any]] = []
        for number, node in enumerate(self._graph["nodes"]):
            if number in made:
                region = _region(node)
                inputs = zip((*region.arguments, *region.auxiliary), node["inputs"])
                attributes = {key: value for key, value in node["attrs"].items() if key != "frozen"}
                node = {
                    **node,
                    "attrs": {**attributes, "constants": made[number].text},
                    "inputs": [entry for name, entry in inputs if name not in made[number].arrays],
                }
            nodes.append(node)
        heads = self._graph["heads"]
        read = {entry[0] for entries in (heads, *(node["inputs"] for node in nodes)) for entry in entries}
        stay = [number for number, node in enumerate(nodes) if number in read or node["op"] != "null"]
        place = {number: new for new, number in enumerate(stay)}
        kept = [{**nodes[number], "inputs": moved(nodes[number]["inputs"], place)} for number in stay]
        return with_nodes(self._graph, kept, moved(heads, place))


def _region(node: Mapping[str, Any]) -> RegionOperator:
    found = operator_of(node)
    assert isinstance(found, RegionOperator)
    return found


class Reading:
    """What was made of arrays, until one of them is written.

    Attributes
    ----------
    arrays : list of NDArray
    run : Any
        What infers; None once an array was written.
    """

    def __init__(self, arrays: Sequence[mx.nd.NDArray]) -> None:
        self.arrays = list(arrays)
        self.run: Any = None

    def drop(self) -> None:
        """Forget what was made."""
        self.arrays, self.run = [], None


class Readings:
    """What was made of the frozen variables of a symbol, for each context that has arrays of them.

    Parameters
    ----------
    frozen : Frozen
    make : callable
        Returns what infers for the copy of the symbol.
    """

    def __init__(self, frozen: Frozen, make: Callable[[mx.sym.Symbol], Any]) -> None:
        self.frozen, self._make = frozen, make
        self._found: dict[mx.Context, Reading] = {}
        self._lock = threading.Lock()

    def of(self, arrays: Mapping[str, mx.nd.NDArray]) -> Any:
        """Return what infers with these values of the variables, which are read if they are others than before."""
        own = [arrays[name] for name in self.frozen.names]
        run = self._known(own)
        if run is None:
            with self._lock:
                run = self._known(own) or self._read(arrays, own)
        return run

    def _known(self, own: Sequence[mx.nd.NDArray]) -> Any:
        reading = self._found.get(own[0].context)
        if reading is None:
            return None
        run = reading.run  # before its arrays: they are dropped together
        return run if len(reading.arrays) == len(own) and all(a is b for a, b in zip(reading.arrays, own)) else None

    def _read(self, arrays: Mapping[str, mx.nd.NDArray], own: Sequence[mx.nd.NDArray]) -> Any:
        context = own[0].context
        self._found.pop(context, None)
        reading = Reading(own)
        watch(reading, own)  # first: what is written while it is read, is read again
        symbol, constants = self.frozen.read(arrays)
        run = self._make(symbol)
        run.constants = constants
        if reading.arrays:
            reading.run = run
            self._found[context] = reading
        return run


class CachedOp(guard.CachedOp):
    """MXNet's cached graph, which infers with its frozen parameters as constants."""

    def __init__(self, sym: mx.sym.Symbol, flags: Sequence[tuple[str, Any]] = ()) -> None:
        super().__init__(sym, flags)
        frozen = Frozen.of(sym)
        self._names = sym.list_inputs()
        make = functools.partial(_cached_op, self._names, tuple(flags))
        self._readings = None if frozen is None else Readings(frozen, make)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._readings is not None:
            arrays = dict(zip(self._names, args))
            if mx.autograd.is_training():
                changed(arrays[name] for name in self._readings.frozen.names)
            elif not mx.autograd.is_recording():
                run = self._readings.of(arrays)
                return run(*(arrays[name] for name in run.names), **kwargs)
        return super().__call__(*args, **kwargs)

    def _register_op_hook(self, *args: Any, **kwargs: Any) -> None:
        self._readings = None  # somebody wants to see every operator
        super()._register_op_hook(*args, **kwargs)


def _cached_op(before: Sequence[str], flags: Sequence[tuple[str, Any]], symbol: mx.sym.Symbol) -> Any:
    """Return the cached graph of a copy of a symbol with these inputs."""
    names = symbol.list_inputs()
    place = {before.index(name): new for new, name in enumerate(names)}
    moved = [
        (key, [place[int(old)] for old in value if int(old) in place] if key in PLACES else value)
        for key, value in flags
    ]
    made = guard.CachedOp(symbol, moved)
    made.names = names
    return made


def _bound(context: mx.Context, groups: Any, arrays: Mapping[str, mx.nd.NDArray], symbol: mx.sym.Symbol) -> Any:
    """Return an executor of a copy of a symbol, which reads the same arrays."""
    arguments = {name: arrays[name] for name in symbol.list_arguments()}
    states = {name: arrays[name] for name in symbol.list_auxiliary_states()}
    return symbol.bind(context, arguments, grad_req="null", aux_states=states, group2ctx=groups)


class FrozenExecutor:
    """Infers in the place of an executor: an executor of the copy, with the same arrays."""

    def __init__(self, executor: mx.executor.Executor) -> None:
        frozen = Frozen.of(executor._symbol)
        self._arrays = {} if frozen is None else {**executor.arg_dict, **executor.aux_dict}
        make = functools.partial(_bound, executor._ctx, executor._group2ctx, self._arrays)
        self._readings = None if frozen is None else Readings(frozen, make)

    def reads(self, names: Iterable[str]) -> bool:
        """Return whether it infers with all of these parameters as constants."""
        return self._readings is not None and set(names) <= set(self._readings.frozen.names)

    def forward(self, executor: mx.executor.Executor, train: bool, given: Mapping[str, Any]) -> bool:
        """Compute the outputs of an executor; return False if it has to do it itself."""
        if self._readings is None:
            return False
        if train or executor._monitor_callback is not None:
            if train:
                changed(self._arrays[name] for name in self._readings.frozen.names)
            return False
        if not all(name in executor.arg_dict and _fits(array, self._arrays[name]) for name, array in given.items()):
            return False  # its own error says so
        for name, array in given.items():
            self._arrays[name][:] = array
        run = self._readings.of(self._arrays)
        with mx.autograd.pause():
            for mine, found in zip(executor.outputs, run.forward()):
                mx.nd._internal._copyto(found, out=mine)
        return True


def _fits(array: Any, place: mx.nd.NDArray) -> bool:
    return isinstance(array, (mx.nd.NDArray, np.ndarray)) and array.shape == place.shape


def _executor_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(self: mx.executor.Executor, is_train: bool = False, **kwargs: Any) -> Any:
        if "_clgraft_frozen" not in self.__dict__:
            self._clgraft_frozen = FrozenExecutor(self)
        return (
            self.outputs if self._clgraft_frozen.forward(self, is_train, kwargs) else original(self, is_train, **kwargs)
        )

    return forward


def refresh(net: gluon.Block | None = None) -> None:
    """Have frozen parameters read again by the next inference.

    Parameters
    ----------
    net : gluon.Block, optional
        Whose parameters were written in a way that is not noticed; by default those of all nets and executors.
    """
    if net is None:
        changed()
    else:
        found = [parameter for parameter in net.collect_params().values() if parameter._data is not None]
        changed(array for parameter in found for array in parameter.list_data())


def install() -> None:
    """Have cached graphs and executors infer with frozen parameters; once per process."""
    mx.nd.CachedOp = CachedOp
    if getattr(mx.executor.Executor.forward, "__wrapped__", None) is None:
        mx.executor.Executor.forward = _executor_forward(mx.executor.Executor.forward)
