"""Builds `libclgraft.so`, the runtime for C and C++ callers.

The first call that plans starts a Python interpreter inside the caller's process (cffi's embedding); runs stay in C.
`python -m clgraft.core.abi.embed FOLDER` builds it for the running interpreter and prints its path.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import cffi

HERE = Path(__file__).resolve().parent
START = """
from clgraft.core.session import c_callers
from _clgraft_embedded import ffi, lib
c_callers.serve(ffi, lib)
"""


def _recipe() -> Any:
    """Import build.py, which stands beside this file, also when the package is not installed yet."""
    spec = importlib.util.spec_from_file_location("clgraft_abi_build", HERE / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(folder: Path) -> Path:
    """Build `libclgraft.so` into a folder.

    Parameters
    ----------
    folder : Path
        Where the library goes; it must exist.

    Returns
    -------
    Path
        The library. It uses the packages of the interpreter that built it, or of the one that ``CLGRAFT_PYTHON`` names.
    """
    recipe = _recipe()
    library = Path(folder).resolve() / "libclgraft.so"
    builder = cffi.FFI()
    builder.cdef(recipe.declarations("clgraft.h") + recipe.declarations("planner.h"))
    builder.embedding_api(recipe.PYTHON_SIDE)
    settings = recipe.options()
    settings["sources"] = [str(HERE / name) for name in (*recipe.SOURCES, "interpreter.c")]
    settings["include_dirs"] = [str(HERE)]
    settings["define_macros"] += [("CLG_PYTHON", json.dumps(sys.executable))]
    settings["extra_link_args"] += [f"-Wl,-rpath,{sysconfig.get_config_var('LIBDIR')}", "-Wl,-soname,libclgraft.so"]
    del settings["depends"]
    builder.set_source("_clgraft_embedded", '#include "planner.h"\n', **settings)
    builder.embedding_init_code(START)
    with tempfile.TemporaryDirectory() as scratch:
        made = builder.compile(tmpdir=scratch, target="libclgraft.so", verbose=False)
        fresh = library.with_suffix(".new")
        shutil.copy(made, fresh)
        fresh.replace(library)
    return library


if __name__ == "__main__":
    print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE))
