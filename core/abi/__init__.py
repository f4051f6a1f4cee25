"""The C runtime as Python sees it: `ffi` and `lib` of the compiled extension, with the planner at its service."""

from pathlib import Path

try:
    from clgraft.core.abi._runtime import ffi, lib
except ModuleNotFoundError as error:
    if error.name != "clgraft.core.abi._runtime":
        raise
    raise ImportError(
        f"[abi] got no compiled clgraft.core.abi._runtime in {Path(__file__).parent}, expected a built package:"
        " in a checkout run make install; an installed clgraft is found from any other folder"
    ) from error

__all__ = ["ffi", "lib"]
