"""Writes planned launches as the structs that the C runtime assembles plans from."""

from __future__ import annotations

from typing import Any

import numpy as np

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
from clgraft.core.problem import Problem
from clgraft.core.runtime.plan import DTYPE_CODES

COUNTS = {
    "arguments": "argument_count",
    "bindings": "binding_count",
    "launches": "launch_count",
    "writes": "write_count",
}
ROLES = {"in": "CLG_IN", "out": "CLG_OUT", "inout": "CLG_INOUT"}


def plan_spec(ffi: Any, lib: Any, problem: Problem, name: str, device: str, planned: Launches, keep: list[Any]) -> Any:
    """Return launches as the C runtime's `clg_plan_spec`.

    Parameters
    ----------
    ffi, lib : cffi module objects
    problem : Problem
    name, device : str
        The implementation and the device, for the runtime's messages.
    planned : Launches
    keep : list
        Receives the memory that the struct points to.
    """
    arguments = problem.arguments()
    places = {argument.name: i for i, argument in enumerate(arguments)}
    scalars = {name: i for i, name in enumerate(problem.scalars())}
    renamed = getattr(problem, "shown_names", None)
    shown = renamed() if renamed else tuple(places)
    bindings: list[dict[str, int]] = []
    constants = bytearray()
    launches: list[dict[str, Any]] = []
    writes: list[int] = []
    for launch in planned.launches:
        if 0 in launch.global_size:
            continue
        first = len(bindings)
        bindings += [_binding(lib, item, places, scalars, constants) for item in launch.arguments]
        launches.append(_launch(ffi, launch, first, len(writes)))
        writes += [places[name] for name in launch.writes]
    spec = ffi.new("clg_plan_spec *")
    for field, kind, items in (
        ("arguments", "clg_argument[]", [_argument(ffi, lib, *pair) for pair in zip(shown, arguments)]),
        ("bindings", "clg_binding[]", bindings),
        ("launches", "clg_launch[]", launches),
        ("writes", "uint32_t[]", writes),
    ):
        block = ffi.new(kind, items)
        keep.append(block)
        setattr(spec, field, block)
        setattr(spec, COUNTS[field], len(items))
    details = getattr(problem, "details", "")
    description = f"{problem} | {name} on {device}" + (f"\n{details}" if details else "")
    lines = {"description": description, "label": label(problem, name)}
    for field, text in lines.items():
        block = ffi.new("char[]", text.encode())
        keep.append(block)
        setattr(spec, field, block)
    texts = [ffi.new("char[]", name.encode()) for name in shown]
    names = ffi.new("char *[]", texts)
    spec.names = names
    keep += [texts, names]
    modes = getattr(problem, "modes", None)
    if modes is not None:
        allowed = ffi.new("uint8_t[]", [1 << getattr(lib, f"CLG_{mode}") for mode in modes()])
        spec.modes = allowed
        keep.append(allowed)
    spec.scalar_count = len(scalars)
    spec.apart = getattr(problem, "apart", False)
    block = ffi.new("uint8_t[]", bytes(constants))
    keep.append(block)
    spec.constants, spec.constant_bytes = block, len(constants)
    spec.workspace_bytes = planned.workspace_bytes
    return spec


def label(problem: Problem | str, name: str) -> str:
    """Return what a line of ``CLGRAFT_VERBOSE`` says of a plan: its implementation and its problem."""
    return f"{name},{problem}"


def _argument(ffi: Any, lib: Any, name: str, argument: Any) -> dict[str, Any]:
    return {
        "size": ffi.sizeof("clg_argument"),
        "role": getattr(lib, ROLES[argument.role]),
        "dtype": DTYPE_CODES[argument.dtype],
        "ndim": len(argument.shape[:8]),
        "shape": list(argument.shape[:8]),
        "bytes": argument.nbytes,
        "name": name.encode()[:31],
    }


def _launch(ffi: Any, launch: Launch, first_binding: int, first_write: int) -> dict[str, Any]:
    return {
        "kernel": ffi.cast("void *", launch.kernel.int_ptr),
        "dims": len(launch.global_size),
        "has_local": launch.local_size is not None,
        "first_binding": first_binding,
        "binding_count": len(launch.arguments),
        "global_size": [int(v) for v in launch.global_size],
        "local_size": [int(v) for v in launch.local_size or ()],
        "first_write": first_write,
        "write_count": len(launch.writes),
        "lane": launch.lane,
        "after": launch.after,
    }


def _binding(
    lib: Any, item: Any, places: dict[str, int], scalars: dict[str, int], constants: bytearray
) -> dict[str, int]:
    if isinstance(item, Buffer):
        return {"kind": lib.CLG_BIND_BUFFER, "index": places[item.name], "value": item.offset_bytes}
    if isinstance(item, Workspace):
        return {"kind": lib.CLG_BIND_WORKSPACE, "index": item.itemsize, "value": item.offset_bytes}
    if isinstance(item, Constant):
        raw = np.asarray(item.value).tobytes()
        return {"kind": lib.CLG_BIND_CONSTANT, "bytes": len(raw), "value": int.from_bytes(raw, "little")}
    if isinstance(item, StructConstant):
        constants += bytes(-len(constants) % 8)
        start = len(constants)
        constants += item.value
        return {"kind": lib.CLG_BIND_STRUCT, "bytes": len(item.value), "value": start}
    if isinstance(item, Scalar):
        return {"kind": lib.CLG_BIND_SCALAR, "index": scalars[item.name], "bytes": np.dtype(item.dtype).itemsize}
    if isinstance(item, Accumulate):
        return {"kind": lib.CLG_BIND_ACCUMULATE, "index": places[item.name]}
    if isinstance(item, Local):
        return {"kind": lib.CLG_BIND_LOCAL, "value": item.nbytes}
    if isinstance(item, Tickets):
        return {"kind": lib.CLG_BIND_TICKETS}
    raise TypeError(f"[plan] got {item!r} as a kernel argument, expected a binding of clgraft.core.planning.launches")
