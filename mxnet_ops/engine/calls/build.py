"""Builds `clgraft.mxnet_ops.engine.calls._calls` with cffi: MXNet's calls of grafted operators, answered in C.

Nothing is linked: MXNet's functions and the runtime's are handed over as addresses when the package is imported.
"""

from __future__ import annotations

import re
from pathlib import Path

import cffi

HERE = Path(__file__).resolve().parent
ABI = HERE.parents[2] / "core" / "abi"
SOURCES = ("table.c", "properties.c", "execution.c")
PYTHON_SIDE = """
int clg_mx_py_describe(clg_mx_call *call, const char *op_type, int count, const char **attributes);
int clg_mx_py_shapes(clg_mx_call *call, const char *op_type, int count, const char **attributes, const int32_t *key,
                     uint32_t key_count);
int clg_mx_py_refuse_types(const char *op_type, int count, const char **attributes, const int *types);
int clg_mx_py_work(clg_mx_call *call, const char *op_type, int count, const char **attributes, const char *where,
                   const char *device, const int32_t *key, uint32_t key_count);
int clg_mx_py_start_numbers(clg_mx_execution *execution, const char *op_type, int count, const char **attributes,
                            const int32_t *key, uint32_t key_count);
int clg_mx_py_draw(clg_mx_execution *execution, int train);
int clg_mx_py_end_numbers(clg_mx_execution *execution);
int clg_mx_py_start_region(clg_mx_execution *execution, const char *op_type, int count, const char **attributes,
                           const int32_t *key, uint32_t key_count);
int clg_mx_py_run_region(clg_mx_execution *execution, int backward, int train, int count, void **addresses,
                         const int *requests);
int clg_mx_py_end_region(clg_mx_execution *execution);
"""


def _declarations() -> str:
    found = re.search(r"/\*cdef-begin\*/(.*?)/\*cdef-end\*/", (HERE / "calls.h").read_text(), re.S)
    if not found:
        raise ValueError("[calls] got calls.h without cdef marks")
    return re.sub(r"/\*.*?\*/", "", found[1], flags=re.S)


def _near(path: Path) -> str:
    """Give a path as setuptools wants it: relative where that can be."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def extension() -> cffi.FFI:
    """Give the builder."""
    builder = cffi.FFI()
    builder.cdef(_declarations() + 'extern "Python+C" {' + PYTHON_SIDE + "}")
    builder.set_source(
        "clgraft.mxnet_ops.engine.calls._calls",
        '#include "internal.h"\n',
        sources=[_near(HERE / name) for name in SOURCES],
        include_dirs=[_near(HERE), _near(ABI)],
        depends=[_near(HERE / "calls.h"), _near(HERE / "internal.h"), _near(ABI / "clgraft.h")],
        extra_link_args=["-Wl,-Bsymbolic"],
        extra_compile_args=["-O2", "-fvisibility=hidden", "-std=gnu11", "-Wall", "-Wextra", "-Wno-cast-function-type"],
        libraries=["pthread"],
    )
    return builder


ffibuilder = extension()
