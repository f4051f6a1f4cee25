"""What the core puts in front of a kernel's source for a device's compiler."""

from __future__ import annotations

import re

import pytest

from clgraft import core
from clgraft.core.runtime import program_cache, toolchains
from tests.folders import ROOT

NO_PREFETCH = "#define __builtin_prefetch(...) ((void)0)\n"


class Seen(Exception):
    """Carries the source that a compiler would have got."""


@pytest.mark.parametrize(
    ("platform", "left_out"),
    [
        ("Portable Computing Language", False),
        ("Intel(R) OpenCL", False),
        ("NVIDIA CUDA", False),
        ("AMD Accelerated Parallel Processing", False),
        ("rusticl", True),
        ("Clover", True),
        ("Oclgrind", True),
        ("another platform", True),
    ],
)
def test_prefetch_is_for_compilers_that_are_known_to_take_it(platform, left_out, monkeypatch):
    def seen(cl_context, cl_device, source, options):
        raise Seen(source)

    context = core.Context.on(None)  # builds what finds out what the device can do
    monkeypatch.setattr(program_cache, "build", seen)
    context.toolchain = toolchains.serving(platform, "OpenCL 3.0")(context.cl_device)
    with pytest.raises(Seen) as found:
        _ = context.kernel("pooling/planes.cl", "pool", {"TEST": 1}).built
    assert (NO_PREFETCH in str(found.value)) is left_out


def test_no_macro_takes_any_number_of_arguments():
    """OpenCL C has no such macros, and NVIDIA's compiler refuses them."""
    pattern = re.compile(r"^\s*#\s*define\s+\w+\([^)]*\.\.\.\)", re.M)
    assert not [path for path in (ROOT / "kernels").rglob("*.cl") if pattern.search(path.read_text())]


def test_no_kernel_asks_lane_after_lane():
    """As any() and all() of PoCL do."""
    pattern = re.compile(r"\b(?:any|all)\((?!\))")
    texts = {path: re.sub(r"//.*", "", path.read_text()) for path in (ROOT / "kernels").rglob("*.cl")}
    assert not [path for path, text in texts.items() if pattern.search(text)]


def test_no_kernel_defines_again_what_nvidias_compiler_gets_in_front_of_it():
    """It takes no second definition, and no other compiler sees the first."""
    definition = re.compile(r"^(?:\w+ )+(\w+)\([^;{}]*\)\s*\{", re.M)
    front = ROOT / "kernels" / "common" / "ptx.cl"
    names = set(definition.findall(front.read_text()))
    assert {"widen", "narrow_pair"} <= names
    others = {path: definition.findall(path.read_text()) for path in (ROOT / "kernels").rglob("*.cl") if path != front}
    assert not {path.name: again for path, found in others.items() if (again := names.intersection(found))}
