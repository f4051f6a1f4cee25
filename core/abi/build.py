"""Builds the C runtime with cffi: the extension `clgraft.core.abi._runtime` and, embedding Python, `libclgraft.so`.

The declarations come from the headers themselves, between their cdef marks.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import cffi

HERE = Path(__file__).resolve().parent
# in an installed package two folders up, in a checkout next to core
PACKAGE = next(
    path for path in (HERE.parents[1] / name for name in ("__init__.py", "clgraft/__init__.py")) if path.exists()
)
SOURCES = (
    "affinity.c",
    "arrays.c",
    "ask.c",
    "context.c",
    "copy.c",
    "device.c",
    "errors.c",
    "events.c",
    "handles.c",
    "job.c",
    "overlap.c",
    "plan.c",
    "run.c",
    "session.c",
    "transfer.c",
    "turns.c",
    "verbose.c",
    "wait.c",
)
PYTHON_SIDE = """
int32_t clg_py_context_create(const char *selector, void *cl_context, void *cl_device, void *cl_queue,
                              clg_context *context);
int32_t clg_py_plan_create(clg_context context, const char *problem, clg_plan *plan);
int32_t clg_py_graph_create(clg_context context, const char *text, const clg_graph_options *options, clg_plan *plan);
int32_t clg_py_ask(const char *module, const void *question, uint64_t bytes, clg_receive receive, void *with);
"""


def declarations(header: str) -> str:
    """Return what stands between the cdef marks of a header."""
    text = (HERE / header).read_text()
    found = re.search(r"/\*cdef-begin\*/(.*?)/\*cdef-end\*/", text, re.S)
    if not found:
        raise ValueError(f"[abi] got {header} without cdef marks")
    return re.sub(r"/\*.*?\*/", "", found[1], flags=re.S)


def version() -> str:
    """Return the package's version, from the text of its `__init__.py`: a build does not import what it builds."""
    found = re.search(r'^__version__ = "(\d+\.\d+\.\d+)', PACKAGE.read_text(), re.M)
    if not found:
        raise ValueError(f"[abi] got no version in {PACKAGE}, expected a line __version__ = ...")
    return found[1]


def version_number() -> int:
    """Return the version as `clg_version()` does: major * 10000 + minor * 100 + patch."""
    major, minor, patch = map(int, version().split("."))
    return major * 10000 + minor * 100 + patch


def options() -> dict[str, Any]:
    """Return the compiler's options and sources, the same for both libraries."""
    try:
        folder = str(HERE.relative_to(Path.cwd()))  # setuptools wants relative paths
    except ValueError:
        folder = str(HERE)
    return {
        "sources": [f"{folder}/{name}" for name in SOURCES],
        "include_dirs": [folder],
        "depends": [
            os.path.relpath(PACKAGE),
            *(f"{folder}/{path.name}" for path in sorted(HERE.glob("*.h"))),
        ],
        "define_macros": [("CLG_VERSION", str(version_number()))],
        # Hidden and bound to themselves: the extension and libclgraft.so may share a process, each with handles.
        "extra_link_args": ["-Wl,-Bsymbolic"],
        "extra_compile_args": ["-O2", "-fvisibility=hidden", "-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-parameter"],
        "libraries": ["pthread", "dl"],
    }


def extension() -> cffi.FFI:
    """Return the builder of `clgraft.core.abi._runtime`."""
    builder = cffi.FFI()
    builder.cdef(declarations("clgraft.h") + declarations("planner.h"))
    builder.cdef('extern "Python+C" {' + PYTHON_SIDE + "}")
    builder.set_source("clgraft.core.abi._runtime", '#include "planner.h"\n', **options())
    return builder


ffibuilder = extension()
