"""What an operator does for given shapes, written down for C: plans, and which array fills which argument."""

from __future__ import annotations

import itertools
import math
import threading
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from clgraft import core
from clgraft.core.runtime.plan import DTYPE_CODES
from clgraft.mxnet_ops.engine.calls import ffi
from clgraft.mxnet_ops.engine.operator import IN_GRAD, OUT, Operator, OperatorCalls, Shape
from clgraft.mxnet_ops.engine.operator_calls import NO_CALLS, OperatorCall, data_dtype, parameter_dtype

# a region's work by its number: operator, inputs' shapes and their dtype; C may keep the number for good
REGIONS: dict[int, tuple[Operator, tuple[Shape, ...], str]] = {}
_numbers = itertools.count(1)
_contexts: list[core.Context] = []  # that plan steps, by their numbers in C
_lock = threading.Lock()


class OperatorWork(NamedTuple):
    """The C struct of a work, and the objects that own what it points to."""

    struct: Any
    owners: tuple[Any, ...]


def _number(context: core.Context) -> int:
    with _lock:
        if context not in _contexts:
            _contexts.append(context)
        return _contexts.index(context)


def plan_step(problem: str, number: int) -> int:
    """Return the address of a step's plan; C asks for it when the step is first run."""
    return _contexts[number].plan(core.parse(problem)).address


def _step(context: core.Context, call: OperatorCall, written: int, owners: list[Any]) -> dict[str, Any]:
    context.expect_possible(call.problem)
    arguments, always = [], False
    for argument, array in zip(call.problem.arguments(), call.arrays):
        group, place = array or (-1, 0)
        requested = argument.role == "out" and group == written
        always = always or (argument.role != "in" and group != -1 and not requested)
        arguments.append((group, place, requested, DTYPE_CODES[argument.dtype], argument.nbytes))
    text = ffi.new("char[]", str(call.problem).encode())
    block = ffi.new("clg_mx_argument[]", arguments)
    scalars = ffi.new("double[]", [float(value) for value in call.scalars])
    owners += [text, block, scalars]
    return {
        "problem": text,
        "arguments": block,
        "scalars": scalars,
        "argument_count": len(arguments),
        "scalar_count": len(call.scalars),
        "always": always,
        "context": _number(context),
    }


def _out_bytes(operator: Operator, calls: OperatorCalls, shapes: tuple[Shape, ...], dtype: str) -> list[int]:
    """Return the bytes of every output, by its place."""
    if operator.is_region:
        inferred = operator.infer(shapes)
        assert inferred is not None
        singles = operator.single[len(operator.arguments) :]
        dtypes = (parameter_dtype(dtype) if single else data_dtype(dtype) for single in singles)
        return [math.prod(shape) * np.dtype(kind).itemsize for shape, kind in zip(inferred[1], dtypes)]
    found = {}
    for call in calls.forward[False]:
        for argument, array in zip(call.problem.arguments(), call.arrays):
            if array is not None and array[0] == OUT:
                found[array[1]] = argument.nbytes
    return [found.get(place, 0) for place in range(max(found, default=-1) + 1)]


@lru_cache(maxsize=4096)
def prepare(context: core.Context, operator: Operator, shapes: tuple[Shape, ...], dtype: str) -> OperatorWork:
    """Write down everything that an operator does for its inputs' shapes; it is planned when it is first run.

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
    calls = NO_CALLS if operator.is_region else operator.calls(shapes, dtype)
    owners: list[Any] = []
    orders = ((calls.forward, OUT), (calls.backward, IN_GRAD))
    parts = [
        [_step(context, call, written, owners) for call in by_mode[train]]
        for by_mode, written in orders
        for train in (False, True)
    ]
    contents = [np.full(shape, fill, kind) for shape, kind, fill in calls.state]
    blocks = {
        "steps": ffi.new("clg_mx_step[]", [step for part in parts for step in part]),
        "state": ffi.new(
            "clg_mx_state[]", [(ffi.cast("void *", array.ctypes.data), array.nbytes) for array in contents]
        ),
        "zeros": ffi.new("clg_mx_zero[]", [(place, 0, nbytes) for place, nbytes in calls.zeros]),
        "out_bytes": ffi.new("uint64_t[]", _out_bytes(operator, calls, shapes, dtype)),
    }
    number = next(_numbers)
    if operator.is_region:
        REGIONS[number] = operator, shapes, dtype
    struct = ffi.new(
        "clg_mx_work *",
        {
            **blocks,
            "step_counts": [len(part) for part in parts],
            "state_count": len(contents),
            "zero_count": len(calls.zeros),
            "out_count": len(blocks["out_bytes"]),
            "in_place": operator.in_place,
            "draws": bool(operator.draws),
            "absent": sum(1 << tag for tag in operator.absent_in_backward),
            "is_region": operator.is_region,
            "unread_gradients": operator.unread_gradients,
            "number": number,
        },
    )
    return OperatorWork(struct, (*owners, *blocks.values(), *contents))
