"""What is built, kept and told: kernels without their neighbours, bounds for many shapes, a line on a terminal."""

from __future__ import annotations

import gc
import io
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from clgraft import core
from clgraft.core.runtime import building, programs, sources
from clgraft.core.session import context as session
from clgraft.plugins.command_line import terminal

FILES = sorted(path.relative_to(sources.KERNELS).as_posix() for path in sources.KERNELS.rglob("*.cl"))


@pytest.mark.parametrize("file", FILES)
def test_every_kernel_of_a_file_can_be_had(file):
    # words in capitals are macros for `kernel` with attributes
    begun = re.findall(r"^(?:kernel|[A-Z]+)\b[^;{]*?\bvoid\s+(\w+)\(", sources.file_source(file), re.M)
    for name in {name for name in begun if not name.isupper()}:
        assert re.search(rf"\bvoid\s+{name}\s*\(", sources.kernel_source(file, name))


def test_a_kernel_comes_without_its_files_other_kernels():
    whole = sources.file_source("conv/winograd/winograd.cl")
    alone = sources.kernel_source("conv/winograd/winograd.cl", "winograd_weights")
    assert [found[1] for found in sources.DEFINITION.finditer(alone)] == ["winograd_weights"]
    assert alone.count("\n") == whole.count("\n")  # a compiler's messages name the file's own lines
    assert "void transform_weights(" in alone


def test_a_kernel_comes_without_the_functions_that_only_others_call():
    file = "conv/winograd/winograd.cl"
    alone = sources.kernel_source(file, "winograd_weights")
    assert "void transform_weights(" in alone and "realv load_row(" in alone
    for name in ("multiply", "multiply_tile", "transform_source", "load_pixels", "store_pixels", "transform_products"):
        assert name in sources.functions(file)
        assert f"void {name}(" not in alone
    named = sources.kernel_source(file, "winograd_weights", frozenset({"multiply"}))
    assert "void multiply(" in named and "void multiply_tile(" in named  # a macro in front of the source calls it
    assert "void store_pixels(" not in named


def test_functions_whose_names_macros_put_together_stay():
    text = (
        "int put_far(int a) {\n    return a;\n}\n"
        "int unused(int a) {\n    return unused_too(a);  // put_far, called\n}\n"
        "int unused_too(int a) {\n    return a;\n}\n"
        "int called(int a) {\n    return a;\n}\n"
        "#define PUT(where) put_##where\n"
        "kernel void f(global int *a) {\n    a[0] = called(PUT(far)(1));\n}\n"
    )
    left = sources._without_unused(text, frozenset())
    assert [found[1] for found in sources.FUNCTION.finditer(left)] == ["put_far", "called", "f"]
    assert left.count("\n") == text.count("\n")


@pytest.mark.parametrize(
    "text, alone",
    [
        ("kernel void f() {\n#if A\n#endif\n}\n", True),
        ("kernel void f() {\n#define G 1\n#undef G\n}\n", True),
        ("kernel void f() {\n#if A\n}\n", False),
        ("kernel void f() {\n#define G 1\n}\n", False),
        ("kernel void f() {\n    {\n}\n", False),
    ],
)
def test_what_others_need_is_not_left_out(text, alone):
    assert sources._stands_alone(text) is alone


def test_many_shapes_keep_a_bounded_number_of_plans_and_programs(monkeypatch, rng):
    """Random shapes of several operators; what is in use goes on, and what was forgotten is planned again."""
    monkeypatch.setattr(session, "MOST_PLANS", 12)
    monkeypatch.setattr(programs, "MOST_PROGRAMS", 3)
    context = core.Context.on(None)
    held = context.plan(core.parse("pointwise x0[37] : y0 = x0 + 1;"))
    for number in range(60):
        n, c, size = (int(value) for value in rng.integers(1, 40, 3))
        text = (
            f"pointwise x0[{n},{c},{size}] : y0 = x0 * 2;",
            f"pool max forward n{n} c{c} ih{size} iw{size} kh1 kw1",
            f"softmax forward n{n} c{c} s{size}",
        )[number % 3]
        context.plan(core.parse(text))
        assert len(context.problems()) <= 12
        assert len(context.programs) <= 3
    assert held.problem not in context.problems()
    y = np.full(37, np.nan, np.float32)
    held.run(x0=np.arange(37, dtype=np.float32), y0=y)
    assert np.array_equal(y, np.arange(37) + 1)
    again = context.plan(held.problem)
    assert again is not held
    again.run(x0=y, y0=y)
    assert np.array_equal(y, np.arange(37) + 2)


def test_a_plan_that_nobody_holds_is_destroyed_when_it_is_forgotten(monkeypatch):
    monkeypatch.setattr(session, "MOST_PLANS", 1)
    context = core.Context.on(None)
    plan = context.plan(core.parse("pointwise x0[5] : y0 = x0 + 1;"))
    handle = plan._handle
    counts = context.ffi.new("uint32_t *"), context.ffi.new("uint32_t *")
    assert context.lib.clg_plan_counts(handle, *counts) == context.lib.CLG_OK
    context.plan(core.parse("pointwise x0[6] : y0 = x0 + 1;"))
    assert context.lib.clg_plan_counts(handle, *counts) == context.lib.CLG_OK  # it is held
    del plan
    gc.collect()
    assert context.lib.clg_plan_counts(handle, *counts) == context.lib.CLG_INVALID_HANDLE


class Terminal(io.StringIO):
    """What a terminal would show."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def episode(monkeypatch):
    """Builds that nobody has waited for yet."""
    monkeypatch.setattr(building, "_episode", building._Episode())


def tell(count: int, wait: float = 0.0) -> None:
    import time

    with building.told("Some Device", count) as step:
        for number in range(count):
            step(f"kernel_{number}")
            time.sleep(wait)


def test_a_terminal_shows_what_is_built(episode, monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(building, "PATIENCE", 0.0)
    tell(3, 0.2)
    shown = screen.getvalue()
    assert "building kernels for Some Device, once: 3 of 3" in shown
    tell(2, 0.2)  # what follows at once is counted on
    assert "building kernels for Some Device, once: 5 of 5" in screen.getvalue()
    last = screen.getvalue().rsplit("once:", 1)[1]
    assert "\x1b[2K" in last  # the line goes when all is built


def test_quick_builds_pipes_and_other_bars_stay_quiet(episode, monkeypatch):
    screen, pipe = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    tell(3)
    monkeypatch.setattr(building, "PATIENCE", 0.0)
    with terminal.Progress(Terminal()):
        tell(1, 0.1)
    assert screen.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", pipe)
    tell(1, 0.1)
    assert pipe.getvalue() == ""


def test_builds_are_logged(episode, caplog):
    with caplog.at_level(logging.INFO, "clgraft"):
        tell(2)
    assert "built 2 programs for Some Device in" in caplog.text


def test_warm_leaves_nothing_to_build(tmp_path, context):
    """Problems are enough here; models take the same way through the plugins' `problems`."""
    texts = ["conv forward n1 ic3 ih9 iw9 oc4 kh3 kw3 ph1 pw1", "pool max forward n1 c4 ih9 iw9 kh2 kw2"]
    environment = {**os.environ, "CLGRAFT_CACHE": f"{tmp_path}/clgraft", "POCL_CACHE_DIR": f"{tmp_path}/pocl"}
    outputs, files = [], []
    for _ in range(2):
        command = [sys.executable, "-m", "clgraft.plugins.command_line", "warm", *texts]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        outputs.append(done.stdout)
        found = [path for path in Path(tmp_path).rglob("*") if path.suffix == ".so" or path.parent.name == "programs"]
        files.append(sorted(str(path) for path in found))
    assert re.match(r"2 problems on .*: [1-9]\d* programs? built in \d+\.\d s\n", outputs[0])
    assert files[0] and files[0] == files[1]
    if "portable" not in context.device.platform.lower():  # PoCL itself keeps what it compiles
        assert ": 0 programs built" in outputs[1]


def test_warm_names_what_it_cannot_read():
    command = [sys.executable, "-m", "clgraft.plugins.command_line", "warm", "no such problem"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "[warm] got 'no such problem', expected a problem of" in done.stderr
