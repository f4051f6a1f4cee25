"""Kernels whose body is a function of its own: which ones, what stays as it is, and the same numbers to the bit."""

from __future__ import annotations

import re

import pytest

from clgraft.core.runtime import sources
from clgraft.core.runtime.toolchains.pocl3 import PoCL3, outline
from tests.core.switched import expect_the_same_bits

FILES = sorted(path.relative_to(sources.KERNELS).as_posix() for path in sources.KERNELS.rglob("*.cl"))
# what a first convolution, depthwise convolution and dense layer are made of
EXPECTED = {
    "conv/gemm_cpu/gemm.cl": ("conv_gather", "pack_weights"),
    "conv/gemm_cpu/gemm_in_place.cl": ("conv_plain",),
    "conv/depthwise/cpu_rows.cl": ("depthwise_rows",),
    "conv/winograd/winograd.cl": ("winograd", "winograd_weights"),
    "dense/cpu.cl": ("dense_rows", "dense_columns"),
}


@pytest.mark.parametrize("file", FILES)
def test_lines_keep_their_numbers_and_bodies_need_their_parameters_only(file):
    for found in sources.DEFINITION.finditer(sources.file_source(file)):
        name = found[1]
        whole, split = sources.kernel_source(file, name), outline.outlined_source(file, name)
        assert whole.count("\n") == split.count("\n"), name
        assert (split != whole) >= (name in EXPECTED.get(file, ())), name
        if split != whole:
            # a file may have several kernels of a name, of which the preprocessor leaves one
            pattern = rf"void {name}_body\(.*?\{{(.*?)^\}} (?:kernel|SINGLE) void {name}\("
            bodies = re.findall(pattern, split, re.M | re.S)
            assert bodies and not any(re.search(r"\bget_\w+\(", body) for body in bodies), name


@pytest.mark.parametrize(
    "body",
    [
        "barrier(CLK_LOCAL_MEM_FENCE);",
        "y[get_local_id(0)] = 0;",
        "local float kept[4];",
        "int d = 0; y[get_global_id(d)] = 0;",
    ],
)
def test_a_kernel_that_needs_its_work_group_stays_whole(body):
    assert outline._split("kernel", "f", "TENSOR(y)", f"    {body}\n") is None


def test_parameters_are_handed_on():
    parameters = "TENSOR_OF(const real, w), const Taps met,\n    local int *runs EPILOGUE_PARAMETERS"
    text = outline._split("SINGLE", "f", parameters, "    use(get_global_id(2));\n")
    assert text.count("\n") == 4
    assert (
        "const Taps met, const ulong runs_address," in text and "local int *runs = (local int *)runs_address;" in text
    )
    assert "use(get_global_id_2);" in text
    assert "SINGLE void f(" in text and "f_body(w_base, w_offset, met, (ulong)runs, get_global_id(0)," in text
    assert text.rstrip().endswith("get_global_size(2) PASS_EPILOGUE_PARAMETERS); }")


@pytest.mark.parametrize(
    "text",
    [
        "conv forward n2 ic5 ih9 iw11 oc7 kh3 kw3 ph1 pw1",
        "conv forward n2 ic5 ih9 iw11 oc7 kh1 kw1 b1",
        "conv forward n2 g6 ic6 ih9 iw11 oc6 kh3 kw3 ph1 pw1",
        "dense forward n3 i37 o19 b1",
    ],
)
def test_the_numbers_are_the_same_to_the_bit(text, context, rng):
    expect_the_same_bits(text, rng, "outlines", isinstance(context.toolchain, PoCL3))
