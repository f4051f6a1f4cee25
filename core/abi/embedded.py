"""Start the planner inside `libclgraft.so`: embed.py compiles this text into the library, nothing imports it.

If the planner cannot start, the calls that need it return CLG_PLANNER_ERROR, and `clg_last_error()` says why.
"""

import os
import subprocess
import sys

from _clgraft_embedded import ffi, lib

VERSION = "{}.{}".format(*sys.version_info)
QUESTION = "import sys; print('{}.{}'.format(*sys.version_info), sys.prefix)"


def check_interpreter(name: str) -> None:
    """Raise ImportError unless this library can take packages from the interpreter that CLGRAFT_PYTHON names."""
    expected = f"expected an interpreter of Python {VERSION}, for which libclgraft.so was made"
    try:
        answer = subprocess.run([name, "-c", QUESTION], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ImportError(f"got CLGRAFT_PYTHON={name} ({error}), {expected}") from None
    version, _, prefix = answer.strip().partition(" ")
    if version != VERSION:
        raise ImportError(f"got CLGRAFT_PYTHON={name} of Python {version}, {expected}")
    if not os.path.samefile(prefix, sys.prefix):
        raise ImportError(f"got packages of {sys.prefix}, expected those of CLGRAFT_PYTHON={name} in {prefix}")


def refuse(reason: str) -> None:
    """Answer every call that needs the planner with an error."""

    def answer(*_: object) -> int:
        lib.clg_set_error(f"[python] {reason}".encode())
        return int(lib.CLG_PLANNER_ERROR)

    for name in ("clg_py_context_create", "clg_py_plan_create", "clg_py_graph_create", "clg_py_ask"):
        ffi.def_extern(name)(answer)


try:
    named = os.fsdecode(ffi.string(lib.clg_interpreter_named()))
    if named:
        check_interpreter(named)
    try:
        from clgraft.core.session import c_callers
    except Exception as error:
        raise ImportError(
            f"got {type(error).__name__}: {error} with the packages of {sys.prefix},"
            f" expected clgraft there; CLGRAFT_PYTHON names another environment of Python {VERSION}"
        ) from None
except ImportError as error:
    refuse(str(error))
else:
    c_callers.serve(ffi, lib)
