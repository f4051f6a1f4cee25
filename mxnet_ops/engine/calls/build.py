"""Builds `clgraft.mxnet_ops.engine.calls._calls` with cffi: MXNet's calls of clgraft operators, answered in C.

Nothing is linked: MXNet's functions and the runtime's are handed over as addresses when the package is imported.
"""

from __future__ import annotations

import re
from pathlib import Path

import cffi

HERE = Path(__file__).resolve().parent
ABI = HERE.parents[2] / "core" / "abi"
SOURCES = (
    "averages.c",
    "execution.c",
    "failures.c",
    "forks.c",
    "mxnet.c",
    "operator.c",
    "pass.c",
    "properties.c",
    "table.c",
    "threads.c",
    "update.c",
)


def _declarations(header: str) -> str:
    """Return what stands between the cdef marks of a header."""
    found = re.search(r"/\*cdef-begin\*/(.*?)/\*cdef-end\*/", (HERE / header).read_text(), re.S)
    if not found:
        raise ValueError(f"[calls] got {header} without cdef marks")
    return re.sub(r"/\*.*?\*/", "", found[1], flags=re.S)


def _near(path: Path) -> str:
    """Return a path as setuptools wants it: relative where that can be."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def extension() -> cffi.FFI:
    """Return the builder."""
    builder = cffi.FFI()
    builder.cdef(_declarations("calls.h") + 'extern "Python+C" {' + _declarations("questions.h") + "}")
    builder.set_source(
        "clgraft.mxnet_ops.engine.calls._calls",
        '#include "questions.h"\n',
        sources=[_near(HERE / name) for name in SOURCES],
        include_dirs=[_near(HERE), _near(ABI)],
        depends=[*map(_near, sorted(HERE.glob("*.h"))), _near(ABI / "clgraft.h")],
        extra_link_args=["-Wl,-Bsymbolic"],
        # the last four are for the loops of rules.h: vectors, and MXNet's bits
        extra_compile_args=[
            *("-fvisibility=hidden", "-std=gnu11", "-Wall", "-Wextra", "-Wno-cast-function-type"),
            *("-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"),
        ],
        libraries=["pthread", "m"],
    )
    return builder


ffibuilder = extension()
