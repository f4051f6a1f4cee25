"""Builds `libclgraft.so`, the runtime for C and C++ callers.

The first call that plans starts a Python interpreter inside the caller's process (cffi's embedding); runs stay in C.
`python -m clgraft.core.abi.embed FOLDER` builds it for the running interpreter and prints its path.
"""

from __future__ import annotations

import shutil
import site
import sys
import sysconfig
import tempfile
from pathlib import Path

import cffi

START = """
import os, site, sys
library = os.path.realpath({library!r})
for folder in {folders!r} + [os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(library))))]:
    if os.path.isdir(folder):
        site.addsitedir(folder)
from clgraft.core.abi import planner
from _clgraft_embedded import ffi, lib
planner.serve(ffi, lib)
"""


def _build_module() -> object:
    """Import build.py, which stands beside this file, also when the package is not installed yet."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("clgraft_abi_build", Path(__file__).with_name("build.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package_folders() -> list[str]:
    """Give the site folders of this interpreter, in which the embedded one finds clgraft and what it needs."""
    return [folder for folder in [sysconfig.get_paths()["purelib"], *site.getsitepackages()] if Path(folder).is_dir()]


def build(folder: Path) -> Path:
    """Build `libclgraft.so` into a folder.

    Parameters
    ----------
    folder : Path
        Where the library goes; it must exist.

    Returns
    -------
    Path
        The library.
    """
    recipe = _build_module()
    library = Path(folder).resolve() / "libclgraft.so"
    builder = cffi.FFI()
    builder.cdef(recipe.declarations("clgraft.h") + recipe.declarations("planner.h"))  # type: ignore[attr-defined]
    builder.embedding_api(recipe.PYTHON_SIDE)  # type: ignore[attr-defined]
    settings = recipe.options()  # type: ignore[attr-defined]
    here = Path(__file__).resolve().parent
    settings["sources"] = [str(here / name) for name in recipe.SOURCES]  # type: ignore[attr-defined]
    settings["include_dirs"] = [str(here)]
    settings.pop("depends")
    settings["extra_link_args"] += [f"-Wl,-rpath,{sysconfig.get_config_var('LIBDIR')}", "-Wl,-soname,libclgraft.so"]
    builder.set_source("_clgraft_embedded", '#include "planner.h"\n', **settings)
    builder.embedding_init_code(START.format(library=str(library), folders=package_folders()))
    with tempfile.TemporaryDirectory() as scratch:
        made = builder.compile(tmpdir=scratch, target="libclgraft.so", verbose=False)
        fresh = library.with_suffix(".new")
        shutil.copy(made, fresh)
        fresh.replace(library)
    return library


if __name__ == "__main__":
    print(build(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)))
