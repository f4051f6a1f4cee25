"""Declarations in place of PoCL's header: which functions, vectors at any address, same numbers, other functions."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from clgraft import core
from clgraft.core.runtime import program_cache, sources
from clgraft.core.runtime.toolchains.pocl3 import PoCL3, declarations
from tests.core.switched import expect_the_same_bits

HEADER = Path("/usr/share/pocl/include/opencl-c.h")
CALL = re.compile(r"(?<![.\w])(\w+)\s*\(")
TYPES = {"float": "f4", "double": "f8", "int": "i4", "uint": "u4", "long": "i8", "ushort": "u2", "uchar": "u1"}
WITHOUT = ("-cl-std=CL1.2", declarations.WITHOUT_HEADER)


@pytest.fixture
def pocl(context):
    """A context whose compiler can go without its header."""
    if not isinstance(context.toolchain, PoCL3):
        pytest.skip("for PoCL 3")
    return context


def run(context, source: str, *arrays: np.ndarray, options: tuple[str, ...] = WITHOUT) -> None:
    """Build a kernel f and run it once on arrays, which it may change."""
    import pyopencl as cl

    program = program_cache.build(context.cl_context, context.cl_device, source, options)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    buffers = [cl.Buffer(context.cl_context, flags, hostbuf=array) for array in arrays]
    kernel = cl.Kernel(program, "f")
    kernel.set_args(*buffers)
    cl.enqueue_nd_range_kernel(context.queue, kernel, (1,), (1,))
    for array, buffer in zip(arrays, buffers):
        cl.enqueue_copy(context.queue, array, buffer)


@pytest.mark.skipif(not HEADER.is_file(), reason="for PoCL's header, as Debian installs it")
def test_every_function_that_kernels_call_is_declared():
    known = set(re.findall(r"\b__ovld\b[\w ]* (\w+)\(", HEADER.read_text())) - {"__attribute__"}
    declared = {name for _, name in declarations.DECLARATION.findall(declarations.FILE.read_text())}
    declared |= set(re.findall(r"\b(v\w+_half\w*)\(", declarations.FILE.read_text()))
    declared |= {f"{move}{lanes}" for move in ("vload", "vstore") for lanes in (2, 4, 8, 16)}
    assert len(known) > 1000 and {"vload16", "exp", "get_global_id"} <= known
    for path in sources.KERNELS.rglob("*.cl"):
        called = set(CALL.findall(sources.COMMENT.sub("", path.read_text())))
        assert not called & known - declared, path


def test_a_kernel_gets_the_declarations_of_what_it_uses():
    source = "#define CAT(a, b) a##b\n// cos(x)\nkernel void f() { CAT(convert_, T)(exp(x)); uint8 y; }"
    kept = declarations.declarations(source, "#define FUNCTION tanh\n", 64)
    names = {name for _, name in declarations.DECLARATION.findall(kept)}
    assert {"exp", "tanh", "convert_int", "convert_float", "uint"} <= names
    assert not {"cos", "log", "ulong"} & names
    assert kept.startswith("#if _OPENCL_H_ + 0\n#define STORAGE 64\n")


@pytest.mark.parametrize("kept", ["global uchar *y", "TENSOR_OF(uchar, y)", "TENSOR_OF(const uchar, y)", "uchar8 y"])
def test_a_type_that_is_only_pointed_to_has_its_vectors(kept):
    found = declarations.declarations(
        f"#define CAT(a, b) a##b\nkernel void f({kept}) {{ CAT(vload, VL)(0, y); }}", "", 32
    )
    assert "uchar" in {name for _, name in declarations.DECLARATION.findall(found)}


@pytest.mark.parametrize(("name", "dtype"), TYPES.items())
def test_vectors_lie_at_any_address(name, dtype, pocl):
    if name == "double" and not pocl.device.has_fp64:
        pytest.skip("has no float64")
    moves = "".join(
        f"""vstore{n}(vload{n}(1, x + 1), 0, own + 1); vstore{n}(vload{n}(0, own + 1), 0, near + 1);
        vstore{n}(vload{n}(0, near + 1), 1, y + 3); y += 3 * {n};"""
        for n in (2, 4, 8, 16)
    )
    own = f"local {name} near[17]; {name} own[17];"
    source = f"typedef {name}4 used; kernel void f(global const {name} *x, global {name} *y) {{ {own} {moves} }}"
    x, y = np.arange(100, 200).astype(dtype), np.zeros(100, dtype)
    expected, at = y.copy(), 0
    for n in (2, 4, 8, 16):
        expected[at + 3 + n : at + 3 + 2 * n] = x[1 + n : 1 + 2 * n]
        at += 3 * n
    run(pocl, declarations.declarations(source, "", 64) + source, x, y)
    assert np.array_equal(y, expected)


@pytest.mark.parametrize(
    "text",
    [
        "dense forward f16 n3 i37 o19 b1",
        "pointwise x0[1003] : y0 = exp(x0) > 1 ? tanh(x0) : pow(fabs(x0), 1.5);",
        "transpose x[37,41] axes[1,0]",
    ],
)
def test_the_numbers_are_the_same_to_the_bit(text, context, rng):
    expect_the_same_bits(text, rng, "declares", isinstance(context.toolchain, PoCL3))


@pytest.mark.parametrize(
    "source",
    [
        "kernel void f(global int *y) { y[get_global_id(0)] = popcount(y[0]); }",
        "kernel void f(global short *y) { vstore2(vload2(0, y) - (short2)(4, 0), 0, y); }",  # no such vectors
    ],
)
def test_a_kernel_with_another_function_is_built_with_the_header(source, pocl, monkeypatch):
    built = []
    real = program_cache._built

    def seen(program, options):
        built.append(options)
        return real(program, options)

    monkeypatch.setattr(program_cache, "_built", seen)
    y = np.array([7], np.int32)
    run(pocl, declarations.declarations(source, "", 32) + source, y)
    assert y[0] == 3 and built == [WITHOUT, WITHOUT[:1]]


def test_a_wrong_kernel_is_still_refused(pocl):
    source = "kernel void f(global int *y) { y[0] = no_such_function(1); }"
    with pytest.raises(core.BuildError, match="no_such_function"):
        run(pocl, declarations.declarations(source, "", 32) + source, np.zeros(1, np.int32))
