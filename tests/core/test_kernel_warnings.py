"""No kernel makes a compiler warn: NVIDIA's, which is made of clang, counts warnings on the terminal."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from clgraft import core
from clgraft.core.errors import ClgraftError, Declined
from clgraft.core.planning.implementation import implementations
from clgraft.core.problem import SMALL
from clgraft.core.runtime.toolchains.nvidia import NVIDIA
from tests.core.conv_checks import an_h200
from tests.core.every_run import SETS, in_directions
from tests.problem_sets import problem_lines

OPTIONS = ("-x", "cl", "-cl-std=CL1.2", "-Xclang", "-finclude-default-header", "-fsyntax-only", "-Dasm=__asm__")
OPTIONS += ("-Dintel_vec_len_hint(lanes)=vec_type_hint(float)",)  # an attribute that only Intel's compiler knows
# what macros declare, of which a kernel needs some, and local memory, which the first work-item has written
QUIET = ("-Wno-unused-variable", "-Wno-unused-function", "-Wno-sometimes-uninitialized")
NVPTX = ("-target", "nvptx64-nvidia-nvcl", "-Xclang", "-cl-ext=+cl_khr_fp64,+cl_khr_fp16")
WARNED = re.compile(r"^(?!clang: ).*\b(?:warning|error): ", re.M)
CRASHED = "PLEASE submit a bug report"  # clang itself, of some versions
BFLOAT16_INSTRUCTIONS = "vdpbf16ps"  # these need an option for the processor


def a_gpus_context() -> core.Context:
    """Return a context that plans for an H200, and makes the sources that NVIDIA's compiler gets."""
    context = core.Context.on(None)
    context.toolchain = NVIDIA(context.cl_device)
    context.toolchain._compute_capability = lambda: 90
    units = tuple(f"{units}-{dtype}" for units in ("wgmma", "mma") for dtype in SMALL)
    context.device = replace(an_h200(), is_cpu=False, is_gpu=True, halves=units)
    return context


def planned_sources(context: core.Context, lines: int | None) -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    """Yield what implementations plan: a kernel's file, its name, its macros' names, and its source."""
    found: list[tuple[str, str, tuple[str, ...], str]] = []
    kernel: Callable[..., Any] = context.kernel

    def seen(file: str, name: str, defines: Any = None, dtype: str = "float32", options: Any = ()) -> Any:
        planned = kernel(file, name, defines, dtype, options)
        found.append((file, name, (dtype, *sorted(defines or ())), planned.source))
        return planned

    context.kernel = seen
    for problem in (
        problem
        for name in SETS
        for line in islice(problem_lines(name).values(), lines)
        for problem in in_directions(line)
    ):
        for implementation in implementations(problem) if all(a.size for a in problem.arguments()) else ():
            try:
                implementation.plan(problem, context.planner)
            except (ClgraftError, Declined):
                continue
    for name, defines in {"fma_chains": {"WIDTH": 16}, "copy_lines": {"WIDTH": 4}, "nothing": {}}.items():
        seen("benchmarks/peaks.cl", name, defines)
    yield from found


@pytest.mark.parametrize(
    ("of_gpu", "lines"),
    [
        pytest.param(True, 1, id="NVIDIA-some"),
        pytest.param(True, None, id="NVIDIA-all", marks=pytest.mark.exhaustive),
        pytest.param(False, None, id="this one-all", marks=pytest.mark.exhaustive),
    ],
)
def test_no_kernel_has_warnings(of_gpu: bool, lines: int | None, tmp_path: Path) -> None:
    """Of all problems of the sets, or of the first of each set one kernel of each file."""
    clang = shutil.which("clang") or shutil.which("clang-14")
    if clang is None:
        pytest.skip("needs clang")
    context = a_gpus_context() if of_gpu else core.Context.on(None)
    sources = {
        (file, *((name, named) if lines is None else ())): source
        for file, name, named, source in planned_sources(context, lines)
    }
    target = NVPTX if of_gpu else ()

    def printed(source: str) -> str:
        path = tmp_path / f"{abs(hash(source))}.cl"
        path.write_text(source)
        return subprocess.run([clang, *OPTIONS, *target, "-Wall", *QUIET, path], capture_output=True, text=True).stderr

    assert len(sources) > 20
    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(printed, (text for text in sources.values() if BFLOAT16_INSTRUCTIONS not in text)))
    assert not [text for text in texts if WARNED.search(text) and CRASHED not in text]
    assert sum(CRASHED in text for text in texts) < len(texts) / 100
