"""Child processes that fill PoCL's cache or ours: they build what will run; what goes wrong in them costs only time."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.planning.launches import Buffer, Launch, Launches, ints
from clgraft.core.problem import Argument
from clgraft.core.runtime import build_processes, children, crews, program_cache
from clgraft.core.runtime.crews import Task
from clgraft.core.runtime.programs import PlannedKernel
from clgraft.core.runtime.toolchains import pocl_cache
from clgraft.core.runtime.toolchains.nvidia import NVIDIA
from clgraft.core.runtime.toolchains.pocl import PoCL
from tests.core.graphs import sample, small_net
from tests.folders import ROOT
from tests.logs import logged

SOURCE = (
    "kernel void {name}(global int *out, const ulong at, const int n) {{ out[at + get_global_id(0)] = {number} * n; }}"
)
BEGAN = time.time() - 10.0
ARGUMENTS = (Argument("y", "out", (4,), "float32"),)


@pytest.fixture
def device(context, tmp_path, monkeypatch):
    """A PoCL device with a program cache of the test's own; children pay for two kernels already."""
    if not context.toolchain.keeps_programs():
        pytest.skip("of PoCL with its cache")
    monkeypatch.setenv("CLGRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(build_processes.VARIABLE, "2")
    monkeypatch.setattr(PoCL, "CHILDREN", replace(PoCL.CHILDREN, seconds_of_a_child=0.0))
    return context.cl_device


def launches(context, *sources: str) -> Launches:
    """Return launches of kernels that nobody has built before; their names begin with `fresh_`."""
    found = []
    for number, source in enumerate(sources or (SOURCE,) * 3, start=1):
        name = f"fresh_{time.time_ns()}_{number}"
        kernel = PlannedKernel(context.programs, source.format(name=name, number=number), ("-cl-std=CL1.2",), name)
        found.append(Launch(kernel, (4,), (2,), (Buffer("y"), *ints(7))))
    return Launches(tuple(found))


def built(planned: Launches) -> list[int]:
    """Return of each launch how many versions of its kernel PoCL's cache has."""
    cache = pocl_cache.folder()
    programs = cache / "kcache" if (cache / "kcache").is_dir() else cache
    # it may hold many thousands of programs: a folder changes when a program is added to it
    changed = [folder for folder in programs.iterdir() if folder.is_dir() and folder.stat().st_mtime > BEGAN]
    names = [launch.kernel.function_name for launch in planned.launches]
    return [sum(len(list(folder.glob(f"*/{name}/*/*.so"))) for folder in changed) for name in names]


def run(context, launch: Launch) -> list[int]:
    import pyopencl as cl

    out = cl.Buffer(context.cl_context, cl.mem_flags.READ_WRITE, 16)
    kernel = launch.kernel.built
    kernel.set_args(out, np.uint64(0), np.int32(7))
    cl.enqueue_nd_range_kernel(context.queue, kernel, launch.global_size, launch.local_size)
    got = np.zeros(4, np.int32)
    cl.enqueue_copy(context.queue, got, out)
    return got.tolist()


def test_children_build_what_runs_and_nothing_is_built_again(context, device, monkeypatch):
    planned = launches(context)
    assert built(planned) == [0, 0, 0]
    kept = build_processes.build_ahead(device, ARGUMENTS, planned)
    assert kept == {launch.kernel.key for launch in planned.launches}
    assert built(planned) == [1, 1, 1]
    assert [run(context, launch) for launch in planned.launches] == [[7] * 4, [14] * 4, [21] * 4]
    assert built(planned) == [1, 1, 1]
    monkeypatch.setattr(build_processes, "_share", lambda *_: pytest.fail("nothing is missing"))
    assert build_processes.build_ahead(device, ARGUMENTS, planned) == kept


def test_a_kernel_that_does_not_compile_leaves_the_others(context, device):
    planned = launches(context, SOURCE, "kernel void {name}(global int *out) {{ no words }}", SOURCE)
    build_processes.build_ahead(device, ARGUMENTS, planned)
    assert built(planned) == [1, 0, 1]
    with pytest.raises(core.BuildError):
        _ = planned.launches[1].kernel.built


@pytest.mark.parametrize(
    "start",
    ["raise SystemExit(1)", "import time; time.sleep(600)", "print('ready', flush=True); import time; time.sleep(600)"],
)
def test_children_that_fail_or_hang_leave_the_work_to_this_process(context, device, start, monkeypatch):
    monkeypatch.setattr(build_processes, "START", start)
    monkeypatch.setattr(children, "PATIENCE", 2.0)
    planned = launches(context)
    build_processes.build_ahead(device, ARGUMENTS, planned)
    assert built(planned) == [0, 0, 0]
    assert run(context, planned.launches[2]) == [21] * 4


def test_an_interpreter_that_cannot_start_is_no_error(context, device, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    planned = launches(context)
    assert build_processes.build_ahead(device, ARGUMENTS, planned) == frozenset()
    assert run(context, planned.launches[0]) == [7] * 4


def test_a_child_starts_no_children_and_pins_no_threads(context, device, tmp_path, monkeypatch):
    seen = tmp_path / "seen.json"
    child = tmp_path / "child.py"
    child.write_text(f"import json, os\nopen({str(seen)!r}, 'w').write(json.dumps(dict(os.environ)))\n")
    monkeypatch.setattr(build_processes, "CHILD", child)
    build_processes.build_ahead(device, ARGUMENTS, launches(context))
    found = json.loads(seen.read_text())
    assert (found[build_processes.VARIABLE], found["POCL_AFFINITY"]) == ("0", "0")


def test_large_launches_are_left_to_this_process(context, device, monkeypatch):
    monkeypatch.setattr(build_processes, "_share", lambda *_: pytest.fail("nothing is small"))
    (first, *_), grid = launches(context).launches, PoCL.CHILDREN.largest_grid + 1
    many = Launches((Launch(first.kernel, (grid,), (1,), first.arguments),) * 3)
    assert not build_processes.build_ahead(device, ARGUMENTS, many)
    huge = (Argument("y", "out", (build_processes.LARGEST_GROUP,), "float32"),)
    assert not build_processes.build_ahead(device, huge, Launches((Launch(first.kernel, (2,), (2,), first.arguments),)))


@pytest.mark.parametrize(("text", "expected"), [("0", 0), ("1", 0), ("3", 3), ("12", 12)])
def test_the_variable_sets_the_number_of_processes(text, expected, monkeypatch):
    monkeypatch.setenv(build_processes.VARIABLE, text)
    with logged():
        assert build_processes.processes(100, PoCL.CHILDREN) == expected


def test_by_default_there_is_a_process_for_each_core(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    monkeypatch.delenv(build_processes.VARIABLE, raising=False)
    assert build_processes.processes(100, PoCL.CHILDREN) == 6
    monkeypatch.setenv(build_processes.VARIABLE, "many")
    with pytest.raises(core.ArgumentError, match="got CLGRAFT_BUILD_PROCESSES='many', expected a number of processes"):
        build_processes.processes(100, PoCL.CHILDREN)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    monkeypatch.delenv(build_processes.VARIABLE)
    assert build_processes.processes(100, PoCL.CHILDREN) == 0


def test_few_kernels_and_forked_processes_and_applications_start_none(monkeypatch):
    monkeypatch.setenv(build_processes.VARIABLE, "2")
    assert [build_processes.processes(kernels, PoCL.CHILDREN) for kernels in (0, 1, 2, 16)] == [0, 0, 0, 2]
    assert [build_processes.processes(kernels, PoCL.CHILDREN, waiting=1) for kernels in (0, 1, 2, 16)] == [0, 1, 0, 2]
    assert build_processes.processes(2, PoCL.CHILDREN, waiting=2) == 2
    assert build_processes.processes(2, PoCL.CHILDREN, most=1, waiting=1) == 1
    for executable in ("", None, "/usr/bin/caffe", "/opt/python-app"):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", executable)
            assert build_processes.processes(16, PoCL.CHILDREN) == 0
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, str(build_processes.processes(16, PoCL.CHILDREN)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 10) == b"0"
    os.close(reader)
    os.close(writer)


@pytest.fixture
def slow_driver(context, tmp_path, monkeypatch):
    """A device whose driver leaves binaries to us, with a program cache of the test's own; children pay for two."""
    if context.toolchain.keeps_programs():
        pytest.skip("of drivers that keep no programs themselves")
    monkeypatch.setenv("CLGRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(build_processes.VARIABLE, "2")
    own = replace(
        NVIDIA.CHILDREN, seconds_of_a_child=0.0, memory=0 if context.device.is_cpu else NVIDIA.CHILDREN.memory
    )
    monkeypatch.setattr(type(context.toolchain), "CHILDREN", own)
    return context.cl_device


def cached(context, device, kernels) -> list[bool]:
    """Return which programs the cache has."""
    found = [program_cache.load(context.cl_context, device, kernel.source, kernel.options) for kernel in kernels]
    return [program is not None for program in found]


def test_children_put_programs_into_the_cache(context, slow_driver, monkeypatch):
    planned = launches(context)
    kernels = [launch.kernel for launch in planned.launches]
    with monkeypatch.context() as patch:
        patch.setattr(crews, "Child", lambda *_: pytest.fail("one program is no work for children"))
        assert not build_processes.build_programs(slow_driver, kernels[:1])
    assert build_processes.build_programs(slow_driver, kernels[1:])
    assert cached(context, slow_driver, kernels) == [False, True, True]
    monkeypatch.setattr(program_cache, "_compile", lambda *_: pytest.fail("it is in the cache"))
    assert [run(context, launch) for launch in planned.launches[1:]] == [[14] * 4, [21] * 4]


def test_programs_that_are_in_no_cache_come_from_children(context, slow_driver, monkeypatch):
    planned = launches(context)
    kernels = [launch.kernel for launch in planned.launches]
    _ = kernels[0].built
    share, tasks = build_processes._share, []
    monkeypatch.setattr(build_processes, "_share", lambda *given: tasks.append(given[1]) or share(*given))
    monkeypatch.setattr(program_cache, "_compile", lambda *_: pytest.fail("children build it"))
    context.programs.build(kernels)
    assert [[task.what["name"] for task in each] for each in tasks] == [
        [kernel.function_name for kernel in kernels[1:]]
    ]
    assert [run(context, launch) for launch in planned.launches] == [[7] * 4, [14] * 4, [21] * 4]
    context.programs.build(kernels)
    assert len(tasks) == 1


def test_compilers_for_cpus_that_serve_one_thread_have_children(context):
    if context.device.is_cpu:
        assert context.toolchain.children


def test_children_compile_on_any_processor(context, slow_driver):
    """Drivers may pin a thread that calls them, in all children to the same processor."""
    child = children.Child(*build_processes._started(slow_driver, context.toolchain.children))
    kernels = [launch.kernel for launch in launches(context).launches]
    try:
        assert child.answers()
        for kernel in kernels:
            child.give({"source": kernel.source, "options": kernel.options, "name": kernel.function_name})
            assert child.answers()
            assert os.sched_getaffinity(child.process.pid) == os.sched_getaffinity(0)
    finally:
        child.end()
    assert cached(context, slow_driver, kernels) == [True, True, True]


def test_a_program_that_children_cannot_build_is_an_error_here(context, slow_driver):
    planned = launches(context, SOURCE, "kernel void {name}(global int *out) {{ no words }}", SOURCE)
    kernels = [launch.kernel for launch in planned.launches]
    build_processes.build_programs(slow_driver, kernels)
    assert cached(context, slow_driver, kernels) == [True, False, True]
    with pytest.raises(core.BuildError):
        _ = kernels[1].built


def test_a_small_device_bears_few_children(context, slow_driver, monkeypatch):
    asked, half = [], slow_driver.global_mem_size // 2
    monkeypatch.setattr(type(context.toolchain), "CHILDREN", replace(NVIDIA.CHILDREN, memory=half))
    monkeypatch.setattr(build_processes, "processes", lambda *numbers: asked.append(numbers) or 0)
    build_processes.build_programs(slow_driver, [launch.kernel for launch in launches(context).launches])
    ((programs, _, most, _),) = asked
    assert (programs, most) == (3, 2)


def processes_of(monkeypatch) -> list[int]:
    """Return a list to which the numbers of the processes are added that do tasks from now on."""
    found, give = [], children.Child.give
    monkeypatch.setattr(
        children.Child, "give", lambda child, task: (found.append(child.process.pid), give(child, task))
    )
    return found


def do(context, device) -> list[list[int]]:
    """Let children build three kernels that are new; return what the kernels compute."""
    planned = launches(context)
    if context.toolchain.keeps_programs():
        build_processes.build_ahead(device, ARGUMENTS, planned)
        assert built(planned) == [1, 1, 1]
    else:
        build_processes.build_programs(device, [launch.kernel for launch in planned.launches])
        assert cached(context, device, [launch.kernel for launch in planned.launches]) == [True, True, True]
    return [run(context, launch) for launch in planned.launches]


def tasks_of(context, launch: Launch) -> list[Task]:
    """Return the task to build a launch's kernel."""
    if not context.toolchain.keeps_programs():
        return [build_processes._program(launch.kernel)]
    found = build_processes._launches(context.toolchain.children, ARGUMENTS, Launches((launch,)))
    return list(build_processes._missing(context.cl_device, program_cache.folder(), found).values())


@pytest.fixture
def either(context, request):
    """The device of one of the two fixtures above, whichever is for its driver."""
    return request.getfixturevalue("device" if context.toolchain.keeps_programs() else "slow_driver")


def test_children_wait_for_more_tasks(context, either, monkeypatch):
    given = processes_of(monkeypatch)
    for _ in range(2):
        assert do(context, either) == [[7] * 4, [14] * 4, [21] * 4]
    first, second = set(given[:3]), set(given[3:])
    assert second <= first
    assert 1 <= len(first) <= 2
    if not context.toolchain.children.memory:
        (launch, *_) = launches(context).launches  # one kernel is work for children that wait
        assert build_processes._share(either, tasks_of(context, launch))
        assert len(given) == 7 and given[6] in first


def test_other_variables_need_other_children(context, either, monkeypatch):
    given = processes_of(monkeypatch)
    do(context, either)
    monkeypatch.setenv("CLGRAFT_TEST_OF_CHILDREN", "1")
    do(context, either)
    assert not set(given[:3]) & set(given[3:])


def test_children_do_not_wait_for_ever_and_one_that_has_ended_is_not_asked(context, either, monkeypatch):
    monkeypatch.setattr(children, "WAITING", 0.5)
    given = processes_of(monkeypatch)
    do(context, either)
    waiting = [child for child in children._waiting if child.process.pid in given]
    assert waiting
    waiting[0].process.kill()
    waiting[0].process.wait()
    assert do(context, either) == [[7] * 4, [14] * 4, [21] * 4]
    assert waiting[0].process.pid not in given[3:]
    deadline = time.monotonic() + 30.0
    while any(child.process.returncode is None for child in waiting) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert all(child.process.returncode is not None and child not in children._waiting for child in waiting)


def test_children_that_take_memory_of_a_device_do_not_wait(context, either, monkeypatch):
    own = replace(context.toolchain.children, memory=either.global_mem_size // 2)
    monkeypatch.setattr(type(context.toolchain), "CHILDREN", own)
    before = list(children._waiting)
    do(context, either)
    assert all(child in before for child in children._waiting)


def test_what_is_begun_early_is_built_once_and_a_plan_waits_for_it(context, either, monkeypatch):
    given, names = processes_of(monkeypatch), list[str]()
    give = children.Child.give
    monkeypatch.setattr(children.Child, "give", lambda child, task: (names.append(task["name"]), give(child, task)))
    planned = launches(context)
    rest = Launches(planned.launches[1:])
    build_processes.begin(either, "a test", [(ARGUMENTS, planned)])
    if context.toolchain.keeps_programs():
        build_processes.build_ahead(either, ARGUMENTS, rest)
        assert built(rest) == [1, 1]
    else:
        context.programs.build(launch.kernel for launch in rest.launches)
    assert [run(context, launch) for launch in rest.launches] == [[14] * 4, [21] * 4]
    crew = build_processes._crew(either, context.toolchain.children)
    crew.wait(list(crew._known.values()))
    assert sorted(names) == sorted(launch.kernel.function_name for launch in planned.launches)
    assert 1 <= len(set(given)) <= 2
    assert run(context, planned.launches[0]) == [7] * 4
    again = launches(context)
    build_processes.begin(either, "a test", (pytest.fail("it was begun before") for _ in again.launches))


def test_nothing_is_begun_where_no_child_may_build(context, either, monkeypatch):
    monkeypatch.setenv(build_processes.VARIABLE, "0")
    build_processes.begin(either, "another test", (pytest.fail("nothing is planned") for _ in range(3)))
    monkeypatch.setenv(build_processes.VARIABLE, "2")
    monkeypatch.setattr(crews.Crew, "do", lambda *_, **__: pytest.fail("there is nothing to do"))
    build_processes.begin(either, "another test", [])


def test_early_builds_that_cannot_start_are_no_error(context, either, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    planned = launches(context)
    build_processes.begin(either, "a third test", [(ARGUMENTS, planned)])
    assert run(context, planned.launches[0]) == [7] * 4


GRAPH = """
import hashlib
import numpy as np
from clgraft import core
from clgraft.core.runtime import building
from clgraft.core.runtime.toolchains import pocl_cache
from clgraft.core.runtime.toolchains.pocl import PoCL
from dataclasses import replace
from tests.core.graphs import sample, small_net

files = lambda: sorted(path for path in pocl_cache.folder().rglob("*.so") if path.stem != "check_pairs")  # a probe
PoCL.CHILDREN = replace(PoCL.CHILDREN, seconds_of_a_child=0.0)
graph = small_net()
compiled = core.context().compile(graph)
compiled.plan()
before = files()
arrays = sample(graph, np.random.default_rng(3))
outputs = compiled.run(arrays)
digest = hashlib.sha256(b"".join(outputs[name].tobytes() for name in graph.outputs)).hexdigest()
print(len(before), len(set(files()) - set(before)), building.built[0], digest)
"""


def test_a_graph_is_built_by_children_and_later_processes_find_it(context, device, tmp_path):
    """Kernels with structs, scalars and local memory; the numbers are those of this process, which has no children."""
    environment = {**os.environ, "POCL_CACHE_DIR": str(tmp_path / "pocl"), "PYTHONPATH": os.pathsep.join(sys.path)}
    found = []
    for _ in range(2):
        command = [sys.executable, "-c", GRAPH]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        *numbers, digest = done.stdout.split()
        found.append([int(number) for number in numbers])
    files = found[0][0]
    assert files >= 4
    assert found == [[files, 0, files], [files, 0, 0]]
    graph = small_net()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(build_processes.VARIABLE, "0")
        outputs = context.compile(graph).run(sample(graph, np.random.default_rng(3)))
    assert digest == hashlib.sha256(b"".join(outputs[name].tobytes() for name in graph.outputs)).hexdigest()
