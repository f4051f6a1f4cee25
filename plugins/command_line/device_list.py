"""The command `clgraft devices`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from typing import Any

from clgraft.core import settings
from clgraft.core.errors import DeviceError
from clgraft.core.runtime import devices
from clgraft.plugins.command_line import terminal
from clgraft.plugins.command_line.main import WRONG_USAGE

_HOST_ACCESS = {
    "raw_pointer": "host memory used in place",
    "use_host_ptr": "host memory wrapped without a copy",
    "staged": "memory of its own",
}


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "devices",
        help="show the OpenCL devices",
        description="Show the OpenCL devices that were found, best first, what each can do, and why a runtime "
        f"cannot be used. Exit status 1 if there is none, 2 if {settings.DEVICE.name} fits none of them.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the devices; the exit status says whether one can be used."""
    found, problems = gather()
    print(as_json(found, problems) if options.json else as_text(found, problems))
    if found and _default() is None:
        return WRONG_USAGE
    return 0 if found else 1


def gather() -> tuple[list[devices.DeviceInfo], list[str]]:
    """Return the devices, best first, and why each other runtime cannot be used."""
    found = devices.available()
    return found, devices.unusable()


def as_text(found: list[devices.DeviceInfo], problems: list[str]) -> str:
    """Return the list for people."""
    lines = []
    default = _default()
    for info in found:
        half, double = "" if info.has_fp16 else " (stored)", ", float64" if info.has_fp64 else ""
        mark = "  (used by default)" if info.selector == default else ""
        lines += [
            f"{info.selector}  {info.name}{mark}",
            f"     {info.platform}, {info.version}, driver {info.driver}",
            f"     {info.device_class}, {info.compute_units} compute units, {info.vector_width} floats wide, "
            f"{terminal.nbytes(info.global_memory)} of memory "
            f"({_HOST_ACCESS.get(info.host_access, info.host_access)}), "
            f"{terminal.nbytes(info.local_memory)} local, work-groups up to {info.max_work_group_size}",
            f"     dtypes: float32, float16{half}, bfloat16 (stored){double}",
        ]
    if not found:
        lines.append("no OpenCL device was found; `pip install clgraft[cpu]` brings one for x86 CPUs")
    lines += [f"not usable: {problem}" for problem in problems]
    variable = settings.DEVICE.name if settings.DEVICE.text() else devices.PYOPENCL_VARIABLE
    wanted = os.environ.get(variable)
    if wanted and default is None and found:
        lines.append(f"{variable} is {wanted!r}, which fits none of them")
    return "\n".join(lines)


def as_json(found: list[devices.DeviceInfo], problems: list[str]) -> str:
    """Return the list for programs."""
    rows: list[dict[str, Any]] = [dataclasses.asdict(info) for info in found]
    return json.dumps({"devices": rows, "default": _default(), "not_usable": problems}, indent=2)


def _default() -> str | None:
    try:
        return devices.describe(devices.select()).selector
    except DeviceError:
        return None
