"""Recipes in the program cache: a process that compiles a graph which another one has compiled plans nothing.

The key holds the graph and everything that decides how it is planned: constants' names, what runs write and add to,
passes and types, the device with all that planners know of it, settings, measured choices, and our own sources. What is
damaged or belongs to another key is planned anew, as programs are compiled anew.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from clgraft.core import settings
from clgraft.core.graph.prepared import Preparation
from clgraft.core.graph.recipe import Recipe, Signature
from clgraft.core.graph.report import Report
from clgraft.core.planning.floor import Work
from clgraft.core.planning.launches import (
    Accumulate,
    Buffer,
    Constant,
    Launch,
    Launches,
    Local,
    Scalar,
    Tickets,
    Workspace,
)
from clgraft.core.planning.structs import StructConstant
from clgraft.core.problem import Argument
from clgraft.core.runtime import program_cache, stamps
from clgraft.core.runtime.programs import PlannedKernel

FORM = 1  # of the files' content
LEAST = 16  # problems of a graph that is worth a file: fewer are planned as fast as they are read
BUFFER, WORKSPACE, CONSTANT, STRUCT, SCALAR, ACCUMULATED, LOCAL, TICKETS = range(8)


def key_of(context: Any, text: str, **decisions: Any) -> str | None:
    """Return the key of a graph's recipe; None if its plan must not be kept.

    Parameters
    ----------
    context : Context
    text : str
        The graph.
    **decisions
        What else decides how it is planned, for JSON.
    """
    if program_cache.folder() is None:
        return None
    state, code = context.planning_state(), stamps.code()
    if state is None or code is None:
        return None
    more = {
        "form": FORM,
        "code": code,
        "knowledge": repr(context.device),
        "advice": state,
        "settings": settings.deciding(),
        **decisions,
    }
    return program_cache.key_of(context.cl_device, text, (), recipe=json.dumps(more, sort_keys=True))


def load(context: Any, key: str) -> Recipe | None:
    """Return the recipe of a key for a context; None if it is not there, or damaged."""
    content = program_cache.kept(key)
    if not content:
        return None
    try:
        return _read(context, content)
    except (ValueError, TypeError, LookupError, AttributeError, zlib.error):
        return None


def keep(key: str, recipe: Recipe) -> None:
    """Put a recipe into the program cache, if there is room."""
    program_cache.keep(key, _written(recipe))


def _written(recipe: Recipe) -> bytes:
    """Return a recipe as bytes: JSON, and the sources of its kernels, compressed."""
    programs: dict[bytes, int] = {}
    kernels: list[PlannedKernel] = []

    def number(kernel: PlannedKernel) -> int:
        if kernel.key not in programs:
            programs[kernel.key] = len(kernels)
            kernels.append(kernel)
        return programs[kernel.key]

    def launch(one: Launch) -> list[Any]:
        local = None if one.local_size is None else [int(size) for size in one.local_size]
        bound = [_item(item) for item in one.arguments]
        return [number(one.kernel), [int(size) for size in one.global_size], local, bound, one.lane, one.after]

    def form(one: Recipe) -> dict[str, Any]:
        signature, preparation, planned = one.signature, one.preparation, one.launches
        return {
            "taken": [_argument(argument) for argument in signature.taken],
            "numbers": signature.numbers,
            "added": sorted(signature.added),
            "shown": signature.shown,
            "text": signature.text,
            "details": signature.details,
            "launches": [launch(each) for each in planned.launches],
            "workspace": planned.workspace_bytes,
            "prepares": [launch(each) for each in preparation.launches],
            "sizes": dict(preparation.sizes),
            "inputs": [_argument(argument) for argument in preparation.inputs],
            "report": {field.name: getattr(one.report, field.name) for field in fields(Report)},
            "constants": one.constants,
            "early": None if one.early is None else form(one.early),
        }

    whole = form(recipe)
    listed = [[kernel.function_name, kernel.options] for kernel in kernels]
    head = json.dumps({"recipe": whole, "programs": listed}, separators=(",", ":"))
    return zlib.compress("\0".join([head, *(kernel.source for kernel in kernels)]).encode(), 1)


def _read(context: Any, content: bytes) -> Recipe:
    """Return the recipe of some bytes."""
    head, *sources = zlib.decompress(content).decode().split("\0")
    found = json.loads(head)
    programs = [
        PlannedKernel(context.programs, source, tuple(options), name)
        for source, (name, options) in zip(sources, found["programs"])
    ]
    items: dict[tuple[Any, ...], Any] = {}

    def item(words: list[Any]) -> Any:
        key = tuple(words)
        if key not in items:
            items[key] = _bound(*words)
        return items[key]

    def launch(
        number: int, sizes: list[int], local: list[int] | None, bound: list[list[Any]], lane: int, after: int
    ) -> Launch:
        kernel, arguments = programs[number].again(), tuple(map(item, bound))
        local_size = None if local is None else tuple(local)
        return Launch(kernel, tuple(sizes), local_size, arguments, lane=lane, after=after)

    def launches(listed: list[Any]) -> tuple[Launch, ...]:
        return tuple(launch(*each) for each in listed)

    def form(one: Mapping[str, Any]) -> Recipe:
        signature = Signature(
            _arguments(one["taken"]),
            tuple(one["numbers"]),
            frozenset(one["added"]),
            tuple(one["shown"]),
            one["text"],
            one["details"],
        )
        report = {
            **one["report"],
            "algorithms": tuple(map(tuple, one["report"]["algorithms"])),
            "work": tuple(Work(*each) for each in one["report"]["work"]),
            "passes": tuple(map(tuple, one["report"]["passes"])),
        }
        return Recipe(
            signature,
            Launches(launches(one["launches"]), one["workspace"]),
            Preparation(launches(one["prepares"]), one["sizes"], _arguments(one["inputs"])),
            Report(**report),
            tuple(one["constants"]),
            None if one["early"] is None else form(one["early"]),
        )

    return form(found["recipe"])


def _argument(argument: Argument) -> list[Any]:
    return [argument.name, argument.role, argument.shape, argument.dtype]


def _arguments(listed: list[Any]) -> tuple[Argument, ...]:
    return tuple(Argument(name, role, tuple(shape), dtype) for name, role, shape, dtype in listed)


def _item(item: Any) -> list[Any]:
    """Return a kernel's argument for JSON."""
    if isinstance(item, Buffer):
        return [BUFFER, item.name, item.offset_bytes]
    if isinstance(item, Workspace):
        return [WORKSPACE, item.offset_bytes, item.itemsize]
    if isinstance(item, Constant):
        value = np.asarray(item.value)
        return [CONSTANT, value.dtype.str, value.tobytes().hex()]
    if isinstance(item, StructConstant):
        return [STRUCT, item.value.hex()]
    if isinstance(item, Scalar):
        return [SCALAR, item.name, item.dtype]
    if isinstance(item, Accumulate):
        return [ACCUMULATED, item.name]
    if isinstance(item, Local):
        return [LOCAL, int(item.nbytes)]
    if isinstance(item, Tickets):
        return [TICKETS]
    raise TypeError(f"[graph] got {item!r} as a kernel argument, expected a binding of clgraft.core.planning.launches")


def _bound(kind: int, *words: Any) -> Any:
    """Return a kernel's argument of what `_item` has written."""
    if kind == CONSTANT:
        dtype, elements = words
        return Constant(np.frombuffer(bytes.fromhex(elements), dtype)[0])
    if kind == STRUCT:
        return StructConstant(bytes.fromhex(*words))
    plain = {BUFFER: Buffer, WORKSPACE: Workspace, SCALAR: Scalar, ACCUMULATED: Accumulate, LOCAL: Local}
    return Tickets() if kind == TICKETS else plain[kind](*words)
