"""What a first use costs: the programs of the kernels that are launched; and a second process compiles nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.operators.conv.winograd import winograd
from clgraft.core.planning.epilogue import Epilogue
from clgraft.core.runtime import program_cache
from clgraft.core.runtime.programs import Programs
from clgraft.core.session.planner import DevicePlanner
from clgraft.core.tuning import problem_sets

KERNEL = re.compile(r"^(?:\} )?(?:kernel|SINGLE)\b[^;{]*?\bvoid\s+(\w+)\s*\(", re.M)
DIRECTIONS = ("forward", "backward_data", "backward_filter")
START = """
import json, time
start = time.process_time()
from clgraft import core
from clgraft.core.runtime import program_cache
from clgraft.core.tuning import problem_sets
compiled = []
real = program_cache._compile
program_cache._compile = lambda *arguments: compiled.append(1) or real(*arguments)
context = core.context()
kept = context.toolchain.keeps_programs()
for text in problem_sets.lines("resnet50").values():
    for direction in ("forward", "backward_data", "backward_filter"):
        context.plan(core.parse(text).with_direction(direction))
print(json.dumps([0 if kept else len(compiled), time.process_time() - start]))
"""


@pytest.mark.parametrize("policy", ["cached", "off"])
@pytest.mark.parametrize("name", ["resnet50", "alexnet", "depthwise", "poolings"])
def test_a_plan_builds_the_kernels_that_it_launches_and_no_others(name, policy, monkeypatch):
    """Looks at what a compiler would get; nothing is compiled."""
    monkeypatch.setenv("CLGRAFT_TUNE", policy)
    built = []
    monkeypatch.setattr(program_cache, "load", lambda *arguments: None)
    monkeypatch.setattr(program_cache, "build", lambda *arguments: built.append(arguments[2]) or object())
    context = core.Context.on(None)
    for text in problem_sets.lines(name).values():
        problem = core.parse(text)
        for direction in DIRECTIONS if problem.kind == "conv" else ("forward", "backward"):
            del built[:]
            context.programs = Programs(context.cl_context, context.cl_device)
            launches = context.choose(problem.with_direction(direction)).launches
            context.build(launches, launches)
            wanted = {launch.kernel.function_name for launch in launches.launches}
            assert len(built) == len(wanted), problem.with_direction(direction)
            for source in built:
                found = set(KERNEL.findall(source))
                assert len(found & wanted) == 1, problem.with_direction(direction)


SETS = ["resnet50", "alexnet", "vgg16", "mobilenet", "classic", "depthwise"]


@pytest.mark.parametrize("device_class", ["nvidia", "amd", "gpu"])
@pytest.mark.parametrize("batch", [1, 8, 64])
def test_a_gpu_builds_each_kernel_of_a_convolution_once(batch, device_class, monkeypatch):
    """Plans for GPUs of any size, on whatever device there is; nothing is built."""
    monkeypatch.setenv("CLGRAFT_TUNE", "off")
    context = core.Context.on(None)
    programs = set()
    monkeypatch.setattr(
        context,
        "kernel",
        lambda file, name, defines=None, dtype="float32", options=(): programs.add(
            (name, file, tuple((defines or {}).items()), dtype, options)
        ),
    )
    for units in (8, 132):
        context.device = replace(
            context.device,
            **{"is_cpu": False, "is_gpu": True, "device_class": device_class, "compute_units": units},
            **{"local_memory": 48 * 1024, "max_work_group_size": 1024},
        )
        for text in (text for name in SETS for text in problem_sets.lines(name).values()):
            for direction in DIRECTIONS:
                programs.clear()
                problem = replace(core.parse(text), batch=batch)
                algorithm = context.choose(problem.with_direction(direction)).algorithm
                names = [name for name, *_ in programs]
                most = 4 if algorithm in ("gpu_fft", "gpu_winograd") else 3  # three transforms and the product
                assert len(names) == len(set(names)) <= most, (problem.with_direction(direction), algorithm, units)


def test_winograds_programs_serve_all_widths_and_epilogues(context):
    """Neither an image's width nor what follows makes another program of a kernel that stores no results."""
    found: dict[str, set[bytes]] = {}
    planner = DevicePlanner(context, lambda problem: None)
    for width in (8, 20, 56, 120, 300):
        problem = core.parse(f"conv forward n2 ic64 ih24 iw{width} oc64 kh3 kw3 ph1 pw1")
        for epilogue in (None, Epilogue("y0 = -x0;")):
            try:
                launches = winograd.plan(problem, planner, {"tile": 4, "spread": 1}, epilogue)
            except Declined as reason:
                pytest.skip(str(reason))
            for launch in launches.launches:
                found.setdefault(launch.kernel.function_name, set()).add(launch.kernel.key)
    one = dict.fromkeys(("winograd_weights", "winograd_source", "winograd_product"), 1)
    assert {name: len(keys) for name, keys in found.items()} == {**one, "winograd_result": 2}


def test_parts_of_filters_are_added_by_one_program(context):
    """For all tiles of registers; nothing is built."""
    text = "conv backward_filter n1 ic16 ih28 iw28 oc{} kh2 kw2"
    plans = [context.choose(core.parse(text.format(count))) for count in (16, 32, 48, 64)]
    kernels = [launch.kernel for plan in plans for launch in plan.launches.launches]
    keys = {
        name: {kernel.key for kernel in kernels if kernel.function_name == name}
        for name in ("conv_filter", "sum_partials")
    }
    assert context.device.is_cpu is False or len(keys["conv_filter"]) > len(keys["sum_partials"]) == 1, keys


def test_a_second_process_compiles_nothing():
    """The convolutions of a ResNet-50, gradients too: half a second of a processor, more of a busy one."""
    for _ in range(2):
        child = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True)
        compiled, seconds = json.loads(child.stdout)
    assert compiled == 0
    assert seconds < 5
