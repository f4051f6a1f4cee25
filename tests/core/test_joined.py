"""Launches that are joined: the same bits, one launch, counters left at zero, and no one waits forever."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import ClgraftError
from clgraft.core.graph import Graph, joined, parse_graph
from clgraft.core.graph.joined import join_launches
from clgraft.core.planning.implementation import implementations
from clgraft.core.planning.launches import Constant, Launch, Launches, Scalar
from clgraft.core.runtime import joining
from tests.core.every_run import in_directions
from tests.core.graphs import sample, small_net
from tests.problem_sets import FOLDER, problem_lines

ROOT = Path(__file__).resolve().parents[2]
LARGEST = 200_000  # elements of a problem's arguments
# a product in place and one that packs, Winograd's method, depthwise, pooling, a reduction, in halves and in doubles
PROBLEMS = (
    "conv forward n2 ic32 ih9 iw11 oc32 kh1 kw1 b1",
    "conv forward f16 n2 ic5 ih9 iw11 oc7 kh5 kw3 sh2 sw2 ph2",
    "conv backward_data n2 ic32 ih9 iw11 oc32 kh3 kw3 ph1 pw1",
    "conv backward_filter n2 ic5 ih9 iw11 oc7 kh3 kw3",
    "conv forward g19 n2 ic19 ih9 iw40 oc19 kh3 kw3 ph1 pw1",
    "pointwise x0[3,5,37] x1[37] y0=sum[2] : y0 = x0 * x1;",
    "dense forward f64 n3 i77 o35 b1",
)


@pytest.fixture(autouse=True)
def always(context, monkeypatch):
    """Join launches whatever they gain."""
    if not joined.possible(context.device):
        pytest.skip("launches are joined on PoCL, on x86-64")
    monkeypatch.setattr(joined, "LEAST_GAIN", 0.0)
    monkeypatch.setattr(joined, "LEAST_SHARE", 0.0)


def outputs(context, graph: Graph, arrays: dict, passes: str, runs: int = 1, added: bool = False) -> tuple[dict, int]:
    """Return what the last of some runs writes into memory of NaN, or adds to ones, with states, and its launches."""
    compiled = context.compile(graph, passes)
    for _ in range(runs):
        given = {name: array.copy() for name, array in arrays.items()}
        results = {name: np.full(graph.values[name].shape, np.nan, graph.values[name].dtype) for name in graph.outputs}
        if added:
            results = {name: np.ones_like(array) for name, array in results.items()}
        marked = {name: core.accumulate(array) for name, array in results.items()} if added else results
        before = context.counters()["launches"]
        compiled.run({**given, **marked})
        launches = context.counters()["launches"] - before
    return {**results, **{state.name: given[state.name] for state in graph.states}}, launches


def expect_equal(one: dict, other: dict) -> None:
    """Check that results have the same bits, and that all of them were written."""
    for name, array in one.items():
        assert not np.isnan(array).any() and array.tobytes() == other[name].tobytes(), name


@pytest.mark.parametrize("added", [False, True])
def test_training_steps_have_the_same_bits(context, rng, added):
    net = small_net(training=True)
    graph = net.gradients([value.name for value in net.inputs])
    arrays = sample(graph, rng)
    alone, many = outputs(context, graph, arrays, "-join", added=added)
    together, few = outputs(context, graph, arrays, "", runs=3, added=added)
    expect_equal(together, alone)
    assert few < many / 2


def doubled(launches: Launches) -> Launches:
    """Return launches twice, with scalars of a half."""

    def bound(launch: Launch) -> Launch:
        values = tuple(
            Constant(np.dtype(item.dtype).type(0.5)) if isinstance(item, Scalar) else item for item in launch.arguments
        )
        return replace(launch, arguments=values, writes=())

    return replace(launches, launches=tuple(map(bound, (*launches.launches, *launches.again().launches))))


def expect_same_bits(context, problem: core.Problem, algorithm: str | None) -> int:
    """Compare a problem's launches, run twice, with the same launches joined; return how many were saved."""
    launches = doubled(context.choose(problem, algorithm).launches)
    made = join_launches(context, launches, problem.arguments(), (), ())
    found = []
    rng = np.random.default_rng(5)
    start = {**problem.sample(rng)}
    for argument in problem.arguments():
        if argument.role == "out":
            start[argument.name] = np.full(argument.shape, 7 if argument.dtype == "uint8" else np.nan, argument.dtype)
    for each in (launches, made):
        arrays = {name: array.copy() for name, array in start.items()}
        plan = context.plan_launches(problem, each, "test")
        plan.run(dict.fromkeys(plan.scalars, 0.5), **arrays)
        found.append(arrays)
    for name, array in found[0].items():
        assert array.tobytes() == found[1][name].tobytes(), (str(problem), algorithm, name)
    return len(launches.launches) - len(made.launches)


@pytest.mark.parametrize("text", PROBLEMS)
def test_kernels_have_the_same_bits_in_one_launch(context, text):
    if " f64 " in text and not context.device.has_fp64:
        pytest.skip("the device has no float64")
    assert expect_same_bits(context, core.parse(text), None) >= 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.txt")))
def test_every_kernel_has_the_same_bits_in_one_launch(context, name):
    for text in problem_lines(name).values():
        for problem in in_directions(text):
            if problem.dtype == "float64" and not context.device.has_fp64:
                continue
            if sum(argument.size for argument in problem.arguments()) > LARGEST:
                continue
            for implementation in implementations(problem):
                try:
                    context.choose(problem, implementation.NAME)
                except ClgraftError:  # it declines
                    continue
                expect_same_bits(context, problem, implementation.NAME)


def test_kernels_of_different_rounding_share_a_program(context, rng):
    """A product whose sums a compiler may fuse, then a pointwise problem in which it must not across statements."""
    lines = (
        "input x[2,32,9,11] w[32,32,1,1]",
        "a = x w | conv forward n2 ic32 ih9 iw11 oc32 kh1 kw1",
        "b = a | pointwise x0[2,32,9,11] : real t = x0 * x0; y0 = t - 0.1;",
        "c = b w | conv forward n2 ic32 ih9 iw11 oc32 kh1 kw1",
        "output b c",
    )
    graph = parse_graph("\n".join(lines))
    arrays = sample(graph, rng)
    alone, many = outputs(context, graph, arrays, "-all")
    together, few = outputs(context, graph, arrays, "-all,join")
    expect_equal(together, alone)
    assert (many, few) == (3, 1)


def test_many_runs_leave_the_counters_at_zero(context, rng):
    graph = small_net()
    arrays = sample(graph, rng)
    alone, _ = outputs(context, graph, arrays, "-join")
    compiled, other = context.compile(graph), context.compile(small_net(batch=3))
    third = sample(other.graph, rng)
    first = other.run(third)
    for i in range(1000):
        expect_equal(compiled.run(arrays), alone)
        if not i % 10:
            expect_equal(other.run(third), first)


def test_a_kernel_that_cannot_be_joined_is_run_alone(context, rng, monkeypatch):
    """The compiler refuses the joined program."""
    graph = small_net()
    arrays = sample(graph, rng)
    alone, many = outputs(context, graph, arrays, "-join")
    monkeypatch.setattr(joining, "AGAIN", "#error refused\n")
    found, launches = outputs(context, graph, arrays, "")
    expect_equal(found, alone)
    assert launches == many


def test_little_gain_is_not_worth_it(context, rng, monkeypatch):
    monkeypatch.setattr(joined, "LEAST_SHARE", 1e9)
    graph = small_net()
    arrays = sample(graph, rng)
    assert outputs(context, graph, arrays, "")[1] == outputs(context, graph, arrays, "-join")[1]


SCRIPT = """
import numpy as np
from clgraft import core
from clgraft.core.graph import joined
from tests.core.graphs import sample, small_net
joined.LEAST_GAIN = joined.LEAST_SHARE = 0.0
graph = small_net()
arrays = sample(graph, np.random.default_rng(20))
context = core.context()
alone = context.compile(graph, "-join").run(arrays)
compiled = context.compile(graph)
for _ in range(100):
    for name, array in compiled.run(arrays).items():
        assert array.tobytes() == alone[name].tobytes()
print(context.device.compute_units, compiled.report().launches)
"""


@pytest.mark.parametrize("threads", [1, 8])
def test_nobody_waits_forever(threads):
    """One thread runs all work-items one after the other; eight are more than there are cores here."""
    environment = {**os.environ, "POCL_MAX_PTHREAD_COUNT": str(threads), "POCL_AFFINITY": "0"}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) < 8


@pytest.mark.parametrize(
    "code, names",
    [
        ("typedef float real;\ntypedef struct { int a, b; } Grid;\n", {"real", "Grid"}),
        ("__attribute__((noinline)) void f(int x) { if (x) { x++; } }\nint g(void) { return 1; }\n", {"f", "g"}),
        ("constant int numbers[] = {1, 2};\nfloat CAT(load_, VL)(int i) { return i; }\n", {"numbers", "load_16"}),
        ("#if\nvoid f(int a) {\n#else\nvoid f(long a) {\n#endif\n}\n", {"f"}),
        ("DEFINE_ALL(philox, uint)\nvoid f(void) {}\n", None),
        ("void f(void) {\n", None),
    ],
)
def test_names_outside_of_functions(code, names):
    assert joining._names(code, {"VL": "16"}) == (None if names is None else frozenset(names))
