"""What an operator does for given shapes, written down for C: its own memory, and a pass for each set of requests."""

from __future__ import annotations

import itertools
import threading
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from clgraft import core
from clgraft.core.graph import Value
from clgraft.core.operators.dropout import KEY_WORDS
from clgraft.core.runtime.plan import SKIP
from clgraft.mxnet_ops.engine.arrays import STATE, data_dtype, parameter_dtype
from clgraft.mxnet_ops.engine.calls import ffi
from clgraft.mxnet_ops.engine.lowering import LoweredPass, Lowering
from clgraft.mxnet_ops.engine.operator import Operator, Shape
from clgraft.mxnet_ops.engine.passes import Pass

MOST_PASSES = 1024  # of single operators whose plans are kept

# a region's work by its number: operator, inputs' shapes and their dtype; C may keep the number for good
REGIONS: dict[int, tuple[Operator, tuple[Shape, ...], str]] = {}
_numbers = itertools.count(1)
_contexts: list[core.Context] = []  # that plan single operators, by their numbers in C
_lock = threading.Lock()


class OperatorWork(NamedTuple):
    """The C struct of a work, and the objects that own what it points to."""

    struct: Any
    owners: tuple[Any, ...]


class SingleOperator(Lowering):
    """An operator by itself for given shapes.

    Attributes
    ----------
    state : list of (int, numpy.ndarray or None)
        Bytes of its own memory, and what that holds to begin with: keys of random numbers, what lives from forward to
        backward, constants.
    """

    def __init__(self, operator: Operator, shapes: tuple[Shape, ...], dtype: str) -> None:
        inferred = operator.infer(shapes)
        assert inferred is not None
        inputs, states = operator.arrays(shapes, inferred[2], dtype)
        super().__init__(operator.build, inputs, states, len(operator.draws), len(operator.outputs))
        key = np.zeros(KEY_WORDS, np.int32)
        self.state: list[tuple[int, np.ndarray | None]] = [(key.nbytes, key) for _ in operator.draws]
        values = self.forward(True).graph.values
        own = {name: place for place, name in enumerate(self.kept, len(self.state))}
        own.update({f"key{place}": place for place in range(len(operator.draws))})
        self.state += [(values[name].nbytes, None) for name in self.kept]
        self._own = {False: dict(own), True: dict(own)}
        for train in (False, True):
            for name, array in self._record(train).constants.items():
                self._own[train][name] = len(self.state)
                self.state.append((array.nbytes, array))

    def places(self, train: bool) -> dict[str, int]:
        """Return where its own memory holds values of the passes that train, or do not."""
        return self._own[train]

    def problems(self) -> list[core.Problem]:
        """Return all problems that it may run."""
        passes = (self._record(train).passes for train in (False, True))
        return [node.problem for one in passes for node in (*one.forward, *one.backward)]

    def out_bytes(self) -> list[int]:
        """Return the bytes of every output."""
        outputs = self._record(False).passes.outputs
        return [Value("", tensor.shape, tensor.dtype).nbytes for tensor in outputs]

    def single_pass(self, which: int, modes: tuple[int, ...], context: core.Context) -> Pass:
        """Return a pass (see `Pass.bind`)."""
        train = bool(which % 2)
        wanted = [place for place, mode in enumerate(modes[: self.taken]) if mode != SKIP]
        lowered = self.forward(train) if which < 2 else self.backward(train, wanted)
        # a constant is memory like others: there is one of it for each operator at work
        bound = {**lowered.bound, **{name: (STATE, 0) for name in lowered.constants}}
        return Pass(LoweredPass(lowered.graph, bound, {}, lowered.zeros), self, context)


@lru_cache(maxsize=4096)
def single(operator: Operator, shapes: tuple[Shape, ...], dtype: str) -> SingleOperator:
    """Return an operator for given shapes."""
    return SingleOperator(operator, shapes, dtype)


@lru_cache(maxsize=MOST_PASSES)
def _bound(
    context: core.Context,
    operator: Operator,
    shapes: tuple[Shape, ...],
    dtype: str,
    which: int,
    modes: tuple[int, ...],
) -> tuple[Any, tuple[Any, ...]]:
    found = single(operator, shapes, dtype)
    return found.single_pass(which, modes, context).bind(which, modes, found.places(bool(which % 2)), {})


def single_pass(
    number: int, operator: Operator, shapes: tuple[Shape, ...], dtype: str, which: int, modes: tuple[int, ...]
) -> tuple[Any, tuple[Any, ...]]:
    """Return the ``clg_mx_pass`` of a single operator for a set of write requests, and what owns its memory.

    Parameters
    ----------
    number : int
        Of the context that plans.
    operator, shapes, dtype : Operator, tuple of tuple of int, str
        As of `prepare`.
    which, modes : int, tuple of int
        As of `Pass.bind`.
    """
    return _bound(_contexts[number], operator, shapes, dtype, which, modes)


def _number(context: core.Context) -> int:
    with _lock:
        if context not in _contexts:
            _contexts.append(context)
        return _contexts.index(context)


def _region_bytes(operator: Operator, shapes: tuple[Shape, ...], dtype: str) -> list[int]:
    """Return the bytes of every output of a region."""
    inferred = operator.infer(shapes)
    assert inferred is not None
    singles = operator.single[len(operator.arguments) :]
    dtypes = (parameter_dtype(dtype) if single else data_dtype(dtype) for single in singles)
    return [Value("", shape, kind).nbytes for shape, kind in zip(inferred[1], dtypes)]


@lru_cache(maxsize=4096)
def prepare(context: core.Context, operator: Operator, shapes: tuple[Shape, ...], dtype: str) -> OperatorWork:
    """Write down what an operator is for its inputs' shapes; its passes are planned when they are first run.

    Parameters
    ----------
    context : core.Context
    operator : Operator
    shapes : tuple of tuple of int
        Of the inputs.
    dtype : str

    Raises
    ------
    core.ClgraftError
        If the device cannot serve a problem; running then only fails with the device.
    """
    state: list[tuple[int, np.ndarray | None]] = []
    if operator.is_region:
        number, out_bytes = next(_numbers), _region_bytes(operator, shapes, dtype)
        REGIONS[number] = operator, shapes, dtype
    else:
        found = single(operator, shapes, dtype)
        for problem in found.problems():
            context.expect_possible(problem)
        number, out_bytes, state = _number(context), found.out_bytes(), found.state
    held = [(ffi.NULL if array is None else ffi.cast("void *", array.ctypes.data), size) for size, array in state]
    blocks = {"state": ffi.new("clg_mx_state[]", held), "out_bytes": ffi.new("uint64_t[]", out_bytes)}
    struct = ffi.new(
        "clg_mx_work *",
        {
            **blocks,
            "state_count": len(state),
            "out_count": len(out_bytes),
            "in_place": operator.in_place,
            "draws": bool(operator.draws),
            "absent": sum(1 << tag for tag in operator.absent_in_backward),
            "is_region": operator.is_region,
            "unread_gradients": operator.unread_gradients,
            "number": number,
        },
    )
    return OperatorWork(struct, (*blocks.values(), state))
