"""Running a graft: plans made once per operator and shapes, then addresses in, one C call per problem."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from clgraft import core
from clgraft.mxnet_ops.operator import IN, IN_GRAD, OUT, STATE, Call, Graft, Operator, Shape
from clgraft.mxnet_ops.random_numbers import Stream

NULL, WRITE, INPLACE, ADD = range(4)
MODES = (core.SKIP, core.OVERWRITE, core.OVERWRITE, core.ACCUMULATE)


class _Argument(NamedTuple):
    group: int
    place: int
    nbytes: int
    dtype: str
    requested: bool  # MXNet's write request rules it


class _Bound(NamedTuple):
    plan: core.Plan
    arguments: tuple[_Argument, ...]
    scalars: tuple[float, ...]
    always: bool  # it writes something that no request rules


class _Prepared(NamedTuple):
    graft: Graft
    forward: dict[bool, tuple[_Bound, ...]]
    backward: dict[bool, tuple[_Bound, ...]]
    out_bytes: tuple[int, ...]


def _bind(context: core.Context, call: Call, written: int) -> _Bound:
    plan = context.plan(call.problem)
    arguments = []
    always = False
    for argument, array in zip(plan.arguments, call.arrays):
        group, place = array or (-1, 0)
        requested = argument.role == "out" and group == written
        always = always or (argument.role != "in" and group != -1 and not requested)
        arguments.append(_Argument(group, place, argument.nbytes, argument.dtype, requested))
    return _Bound(plan, tuple(arguments), call.scalars, always)


@lru_cache(maxsize=4096)
def _prepare(context: core.Context, operator: Operator, shapes: tuple[Shape, ...], dtype: str) -> _Prepared:
    graft = operator.graft(shapes, dtype)
    forward = {train: tuple(_bind(context, c, OUT) for c in calls) for train, calls in graft.forward.items()}
    backward = {train: tuple(_bind(context, c, IN_GRAD) for c in calls) for train, calls in graft.backward.items()}
    written = {a.place: a.nbytes for b in forward[False] for a in b.arguments if a.requested}
    return _Prepared(graft, forward, backward, tuple(written[place] for place in sorted(written)))


class Execution:
    """One operator at work: what `create_operator` makes, with the arrays that live from forward to backward.

    Raises
    ------
    core.ClgraftError
        When made, if the device cannot serve the problem; running then only fails with the device.
    """

    def __init__(self, operator: Operator, shapes: tuple[Shape, ...], dtype: str) -> None:
        self.operator = operator
        self._prepared = _prepare(core.context(), operator, shapes, dtype)
        self._state = [np.full(shape, fill, kind) for shape, kind, fill in self._prepared.graft.state]
        self._state_addresses = [array.ctypes.data for array in self._state]
        self._train = False
        draw = self._prepared.graft.draw
        self._stream = Stream(draw) if draw else None

    def forward(self, train: bool, requests: Sequence[int], groups: list[list[int]]) -> None:
        """Run forward.

        Parameters
        ----------
        train : bool
        requests : sequence of int
            MXNet's write request of every output.
        groups : list of lists of addresses
            By MXNet's tags.
        """
        self._train = train
        if self._stream is not None:
            self._stream.advance(train, self._state)
        calls = self._prepared.forward[train]
        if self.operator.in_place or not set(groups[OUT]) & set(groups[IN]):
            self._run(calls, groups, requests)
            return
        copies = [np.empty(nbytes, np.uint8) for nbytes in self._prepared.out_bytes]
        outputs = groups[OUT]
        groups[OUT] = [copy.ctypes.data for copy in copies]
        self._run(calls, groups, [NULL if r == NULL else WRITE for r in requests])
        for address, copy, request in zip(outputs, copies, requests):
            if request != NULL:
                ctypes.memmove(address, copy.ctypes.data, copy.nbytes)

    def backward(self, requests: Sequence[int], groups: list[list[int]]) -> None:
        """Run backward of the last forward.

        Parameters
        ----------
        requests : sequence of int
            MXNet's write request of every input gradient.
        groups : list of lists of addresses
            By MXNet's tags.
        """
        self._run(self._prepared.backward[self._train], groups, requests)
        for place, nbytes in self._prepared.graft.zeros:
            if requests[place] in (WRITE, INPLACE):
                ctypes.memset(groups[IN_GRAD][place], 0, nbytes)

    def _run(self, calls: Sequence[_Bound], groups: list[list[int]], requests: Sequence[int]) -> None:
        groups[STATE] = self._state_addresses
        for plan, arguments, scalars, always in calls:
            wanted = always
            buffers = []
            for group, place, nbytes, dtype, requested in arguments:
                mode = MODES[requests[place]] if requested else core.SKIP if group < 0 else core.OVERWRITE
                if requested and mode != core.SKIP:
                    wanted = True
                address = 0 if mode == core.SKIP else groups[group][place]
                buffers.append(core.Buffer(address, nbytes if address else 0, dtype, mode))
            if wanted:
                plan.execute(buffers, scalars)
