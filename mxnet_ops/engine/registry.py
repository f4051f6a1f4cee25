"""The families of operators by their `op_type`: known here without MXNet, which is told of them where it is there."""

from __future__ import annotations

from typing import Callable

from clgraft.mxnet_ops.engine.operator import FAMILIES, Operator

Listener = Callable[["type[Operator]"], None]
_listeners: list[Listener] = []


def register(family: type[Operator]) -> type[Operator]:
    """Make a family known as ``op_type=family.op_type``; use as a decorator."""
    FAMILIES[family.op_type] = family
    for listener in _listeners:
        listener(family)
    return family


def announce(listener: Listener) -> None:
    """Have a function called for every family, those that are known and those that follow."""
    _listeners.append(listener)
    for family in list(FAMILIES.values()):
        listener(family)
