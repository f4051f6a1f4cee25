"""Gradients of weights on a second queue: the same bits, and memory that no two launches use at the same time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.graph import Graph, GraphBuilder, assembly, kept_recipes
from clgraft.core.graph.assembly import Assembly
from clgraft.core.graph.lanes import Lanes
from clgraft.core.graph.memory import Life
from clgraft.core.graph.passes import order_gradients
from clgraft.core.model.memory import Memory
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.planning.launches import Launches
from clgraft.core.session.context import Context
from tests.core.graphs import sample

SIZES = (3, 6, 8, 5, 16, 9, 7, 12, 4)
PASSES = "-all,queues,order,views"


@pytest.fixture
def overlapping() -> Context:
    """A context that plans for a device whose queues overlap."""
    found = Context.on(None)
    found.device = replace(found.device, overlaps_queues=True)
    return found


def learned(size: int = 14) -> tuple[Graph, list[str]]:
    """Return layers with a dense one at their end and the gradients of their weights, and the names of these."""
    on, pairs = GraphBuilder(), [*zip(SIZES, SIZES[1:])]
    x = on.input("x", (4, SIZES[0], size, size))
    names = [on.input(f"w{i}", (o, c, 3, 3)) for i, (c, o) in enumerate(pairs)]
    for (c, o), name in zip(pairs, names):
        (x,) = on.add(f"conv forward n4 ic{c} ih{size} iw{size} oc{o} kh3 kw3 ph1 pw1", x, name)
        (x,) = on.add(f"pointwise x0[4,{o},{size},{size}] : y0 = x0 > 0 ? x0 : 0.1f * x0;", x)
    features = SIZES[-1] * size * size
    (y,) = on.add(f"dense forward n4 i{features} o5 b1", x, on.input("wd", (5, features)), on.input("b", (5,)))
    names.append("wd")
    return on.graph(y).gradients(names), names


def trained(size: int = 14) -> Graph:
    """Return layers, and what becomes of the gradients of their weights at the end."""
    whole, names = learned(size)
    more = GraphBuilder(whole, "u")
    found = []
    for name in names:
        shape = ",".join(map(str, whole.values[name].shape))
        found += more.add(f"pointwise x0[{shape}] x1[{shape}] : y0 = x1 - 0.125f * x0;", f"d.{name}", name)
    return more.graph(whole.outputs[0], *found)


@pytest.mark.parametrize("size", [14, 33])
def test_two_queues_compute_the_bits_of_one(overlapping, rng, size):
    graph = trained(size)
    arrays = sample(graph, rng)
    one = overlapping.compile(graph, f"{PASSES},-queues")
    two = overlapping.compile(graph, PASSES)
    expected = one.run(arrays)
    for _ in range(12):
        outputs = {name: np.full(array.shape, np.nan, np.float32) for name, array in expected.items()}
        found = two.run({**arrays, **outputs})
        for name, array in expected.items():
            assert np.array_equal(found[name], array), name
    report = two.report()
    assert report.second_queue >= len(SIZES) - 1 and one.report().second_queue == 0
    assert f"{report.second_queue} on a second queue" in str(report)
    assert report.launches == one.report().launches


def test_steps_of_both_kinds_take_turns(overlapping, rng):
    """Runs with and without a second queue share the arena."""
    graph = trained()
    one, two = (overlapping.compile(graph, passes) for passes in (f"{PASSES},-queues", PASSES))
    for _ in range(6):
        arrays = sample(graph, rng)
        (first, second) = (compiled.run(arrays) for compiled in (one, two))
        for name, array in first.items():
            assert np.array_equal(second[name], array), name


def ancestors(planned: Launches) -> list[set[int]]:
    """Return for each launch those that have ended when it begins."""
    found: list[set[int]] = []
    last: dict[int, int] = {}
    for number, launch in enumerate(planned.launches):
        before = {last[launch.lane]} if launch.lane in last else set()
        before |= {launch.after - 1} if launch.after else set()
        found.append(before.union(*(found[each] for each in before)))
        last[launch.lane] = number
    return found


@pytest.mark.parametrize("ordered", [order_gradients, lambda graph: graph], ids=["weights first", "data first"])
def test_what_shares_memory_never_runs_at_the_same_time(overlapping, monkeypatch, ordered):
    """Of each two lives in one place all launches of one come before all of the other."""
    placed: list[tuple[Life, int]] = []
    real = assembly.place

    def place(lives):
        offsets, size = real(lives)
        base = max((start + life.nbytes for life, start in placed), default=0) + 256
        placed.extend((life, base + offsets[life.name]) for life in lives)
        return offsets, size

    monkeypatch.setattr(assembly, "place", place)
    graph = ordered(trained())
    planned = Assembly(graph, overlapping, frozenset(), queues=True)
    launches, arena = planned.launches()
    counts = [sum(0 not in launch.global_size for launch in each.launches) for each in planned.planned]
    ends = np.cumsum(counts)
    assert ends[-1] == len(launches.launches) and arena < sum(life.nbytes for life, _ in placed)
    numbers = [range(end - count, end) for end, count in zip(ends, counts)]
    before = ancestors(launches)
    users: dict[str, set[int]] = {}
    for i, node in enumerate(graph.nodes):
        for name in (*node.reads, *node.writes):
            if name in planned.homes.places:
                users.setdefault(planned.homes.places[name].name, set()).update(numbers[i])
    for life, _ in placed:
        users.setdefault(life.name, set()).update(numbers[int(life.name.split()[0])] if " " in life.name else ())
    shared = 0
    for i, (life, start) in enumerate(placed):
        for other, place_of in placed[:i]:
            if start < place_of + other.nbytes and place_of < start + life.nbytes:
                pairs = [(a, b) for a in users[life.name] for b in users[other.name]]
                assert all(a in before[b] for a, b in pairs) or all(b in before[a] for a, b in pairs), (life, other)
                shared += 1
    assert shared > len(SIZES)
    reading = {name: i for i, node in enumerate(graph.nodes) for name in node.writes}
    for i, node in enumerate(graph.nodes):  # what a launch reads was written before
        for name in node.reads:
            for a in numbers[reading[name]] if name in reading else ():
                assert all(a in before[b] for b in numbers[i]), (name, str(node.problem))


def test_a_state_changes_after_all_that_may_read_parts_of_it():
    on = GraphBuilder()
    state, w, v = on.state("s", (4, 3, 8, 8)), on.input("w", (4, 3, 3, 3)), on.input("v", (2, 4, 3, 3))
    (x,) = on.add("slice x[4,3,8,8] y[2,3,8,8] at[0,0,0,0]", state)
    (y,) = on.add("conv forward n2 ic3 ih8 iw8 oc4 kh3 kw3 ph1 pw1", x, w)
    (z,) = on.add("conv forward n2 ic4 ih8 iw8 oc2 kh3 kw3 ph1 pw1", y, v)
    whole = on.graph(z).gradients(["w", "v"])
    more = GraphBuilder(whole, "u")
    Build(more, training=True).update("y0 = 2 * x0;", [], [Tensor("s", (4, 3, 8, 8))])
    more_of = more.add("pointwise x0[4,3,3,3] : y0 = 2 * x0;", "d.w")
    graph = more.graph(*more_of)
    lanes = Lanes.of(graph, {"s", "w", "v", *(value.name for value in graph.inputs), *graph.outputs})
    (second,) = (number for number, lane in enumerate(lanes.second) if lane and "d.w" in graph.nodes[number].writes)
    changing = next(number for number, node in enumerate(graph.nodes) if node.changes)
    waits = [after for number, after in enumerate(lanes.after) if not lanes.second[number] and number <= changing]
    assert second < changing and max(waits) >= second


def test_little_memory_keeps_one_queue(overlapping):
    graph = trained()
    needed = overlapping.compile(graph, PASSES).report().arena_bytes
    assert overlapping.compile(graph, PASSES, memory=2 * needed).report().second_queue
    assert not overlapping.compile(graph, PASSES, memory=2 * needed - 1).report().second_queue


def test_one_queue_on_other_devices_and_for_gradients_that_a_caller_receives(overlapping, context):
    graph = trained()
    assert bool(context.compile(graph, PASSES).report().second_queue) == context.device.overlaps_queues
    on = GraphBuilder()
    x, w = on.input("x", (2, 3, 8, 8)), on.input("w", (4, 3, 3, 3))
    (y,) = on.add("conv forward n2 ic3 ih8 iw8 oc4 kh3 kw3 ph1 pw1", x, w)
    assert not overlapping.compile(on.graph(y).gradients(["w"]), PASSES).report().second_queue


@pytest.mark.parametrize("added", [False, True], ids=["written", "added"])
def test_gradients_that_a_caller_receives_in_memory_of_the_device(overlapping, rng, added):
    """The bits of one queue, of runs that follow one another without a wait; the first image comes from the host."""
    device = replace(overlapping.device, host_access="staged")
    context = Context(overlapping.cl_context, overlapping.cl_device, overlapping.queue, device=device)
    graph, names = learned()
    weights = [f"d.{name}" for name in names]
    graph = graph.with_outputs(weights)
    memory, arrays = Memory(context), sample(graph, rng)
    on_device = [*weights, *names]
    found = []
    for passes in (f"{PASSES},-queues", PASSES):
        compiled = context.compile(graph, passes, on_device=on_device)
        held = {name: memory.array(arrays[name]) for name in names}
        results = {name: memory.array(np.full(graph.values[name].shape, 0.5, np.float32)) for name in weights}
        for step in range(6):
            held["x"] = arrays["x"] * np.float32(1 + step)
            outputs = {name: core.accumulate(array) if added else array for name, array in results.items()}
            compiled.run({**arrays, **held, **outputs})
        found.append({name: memory.elements(array) for name, array in results.items()})
        second = compiled.report().second_queue
        assert (second >= len(SIZES) - 2) == (passes == PASSES), second
    for name, array in found[0].items():
        assert np.array_equal(found[1][name], array), name
    on_host = context.compile(graph, PASSES, on_device=names)
    assert not on_host.report().second_queue


def test_recipes_keep_the_queues(overlapping):
    handed = overlapping.compile(trained(), PASSES)._handed(frozenset(trained().outputs), frozenset())
    again = kept_recipes._read(overlapping, kept_recipes._written(handed.recipe))
    lanes = [(launch.lane, launch.after) for launch in handed.recipe.launches.launches]
    assert [(launch.lane, launch.after) for launch in again.launches.launches] == lanes
    assert any(lane for lane, _ in lanes) and again.report.second_queue == handed.recipe.report.second_queue


@pytest.mark.parametrize("changes", [{"lane": 2}, {"lane": 1}, {"after": 1}, {"lane": 1, "after": 2}])
def test_the_runtime_refuses_other_orders(overlapping, changes):
    """Of two launches on one queue, the second one: on no queue, without a wait, after one of its own or itself."""
    problem = core.parse("pointwise x0[8] : y0 = x0;")
    (launch,) = overlapping.choose(problem).launches.launches
    launch = replace(launch, writes=())
    second = replace(launch, kernel=launch.kernel.again(), **changes)
    with pytest.raises(core.ClgraftError, match=r"launch 1 on queue \d after launch \d"):
        overlapping.hand_over(problem, Launches((launch, second)), "malformed")
