"""Builds programs for Hopper's matrix units, which NVIDIA's compiler for OpenCL C does not know.

It targets sm_90, and the instructions need sm_90a. So a kernel has them as comments of a form of its own inside inline
assembly. The compiler keeps them in the program's binary, which is PTX, a text; here they become instructions, the
target gets its `a`, and the driver builds the program once more from this text. NVIDIA documents none of this, so
`hopper.py` finds out first whether it works on a device.
"""

from __future__ import annotations

from typing import Any

from clgraft.core.errors import BuildError

MARK = "//sm_90a: "  # in front of an instruction in kernels
TARGET = b".target sm_90"


def patched(ptx: bytes) -> bytes:
    """Return a program's PTX with the marked instructions, for the target that has them.

    Raises
    ------
    BuildError
        If the text is not PTX for sm_90.
    """
    before, target, after = ptx.partition(TARGET)
    if not target or after[:1].isalnum():
        raise BuildError(f"[kernel] got a binary that starts with {ptx[:60]!r}, expected PTX for sm_90")
    return before + target + b"a" + after.replace(MARK.encode(), b"")


def needed(cl_device: Any, source: str) -> bool:
    """Return whether a program may hold marked instructions for a device."""
    return MARK in source and "NVIDIA" in cl_device.platform.name


def rebuilt(cl_context: Any, program: Any, build: Any) -> Any:
    """Return a program with its marked instructions; the same one if it has none.

    Parameters
    ----------
    cl_context : pyopencl.Context
    program : pyopencl.Program
        That was built.
    build : callable
        Builds a program.

    Raises
    ------
    BuildError
        If the driver's binaries are of another form.
    """
    import pyopencl as cl

    ptx = program.get_info(cl.program_info.BINARIES)[0]
    if MARK.encode() not in ptx:
        return program
    return build(cl.Program(cl_context, program.devices, [patched(ptx)]))
