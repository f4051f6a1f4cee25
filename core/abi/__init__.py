"""The C runtime as Python sees it: `ffi` and `lib` of the compiled extension, with the planner at its service."""

from clgraft.core.abi._runtime import ffi, lib

__all__ = ["ffi", "lib"]
