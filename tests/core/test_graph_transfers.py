"""Runs on host arrays where the device has memory of its own: streams through pinned memory, and copies that stay."""

from __future__ import annotations

import dataclasses
import gc

import numpy as np
import pyopencl as cl
import pytest

from clgraft import core
from clgraft.core.graph import Copies, GraphBuilder
from clgraft.core.session.context import Context
from tests.core.graphs import sample, small_net

SLOT = 2 << 20  # bytes of one transfer


@pytest.fixture(params=["1", "3"], ids=["one thread", "three threads"])
def staged(context, request, monkeypatch):
    """A context on the same device that is told it cannot reach host memory."""
    monkeypatch.setenv("CLGRAFT_COPY_THREADS", request.param)
    device = dataclasses.replace(context.device, host_access="staged")
    queue = cl.CommandQueue(context.cl_context, context.cl_device)
    return Context(context.cl_context, context.cl_device, queue, device=device)


def whole(rng, size):
    """Random whole numbers, whose sums are exact."""
    return rng.integers(-99, 99, size).astype(np.float32)


def test_streams_longer_than_all_pinned_memory(staged, rng):
    """More slots than there are, parts of arrays in several slots, several arrays in one, and both directions."""
    sizes = [5, 700_001, SLOT // 4, 3, 9_000_000, 17, 16_000, SLOT // 4 + 1, 8_000_003, 333]
    on = GraphBuilder()
    names = [on.input(f"x{i}", (size,)) for i, size in enumerate(sizes)]
    outputs = [on.add(f"pointwise x0[{size}] : y0 = 2 * x0;", name)[0] for size, name in zip(sizes, names)]
    arrays = {name: whole(rng, size) for size, name in zip(sizes, names)}
    arrays.update({name: np.full(size, np.nan, np.float32) for size, name in zip(sizes, outputs)})
    kept = {name: whole(rng, sizes[i]) for i, name in enumerate(outputs) if i in (1, 5, 8)}
    given = {**arrays, **{name: core.accumulate(array.copy()) for name, array in kept.items()}}
    before = staged.counters()
    found = staged.compile(on.graph(*outputs)).run(given)
    for x, y in zip(names, outputs):
        assert np.array_equal(found[y], 2 * arrays[x] + kept.get(y, 0)), y
    after = staged.counters()
    total, added = 4 * sum(sizes), 4 * (sizes[1] + sizes[5] + sizes[8])
    assert after["bytes_to_device"] - before["bytes_to_device"] == total + added
    assert after["bytes_to_host"] - before["bytes_to_host"] == total


def test_inputs_that_travel_while_launches_need_none_of_them(staged, rng):
    """Slots that are sent early are awaited by the launches that read them; there are more than pinned memory has."""
    few, sizes = 4096, [1_300_003, SLOT // 4, 9_000_000, 700_001, 9_000_001]
    on = GraphBuilder()
    state = on.input("first", (few,))
    names = [on.input(f"x{i}", (size,)) for i, size in enumerate(sizes)]
    for _ in range(40):
        (state,) = on.add(f"pointwise x0[{few}] : y0 = x0 + 1;", state)
    outputs = [state]
    for name, size in [*zip(names, sizes)][::-1]:
        outputs += on.add(f"pointwise x0[{size}] : y0 = 2 * x0;", name)
    arrays = {"first": whole(rng, few), **{name: whole(rng, size) for name, size in zip(names, sizes)}}
    compiled = staged.compile(on.graph(*outputs), "-all")
    for _ in range(3):
        found = compiled.run(arrays)
        assert np.array_equal(found[state], arrays["first"] + 40)
        for name, output in zip(names[::-1], outputs[1:]):
            assert np.array_equal(found[output], 2 * arrays[name]), name
            arrays[name] += 1


def test_an_output_may_lie_on_an_input(staged, rng):
    """Whatever the order of launches, no array is written before all have been read."""
    sizes = (400_000, 1_200_000, 600_000, 3_000_000)
    on = GraphBuilder()
    names = [on.input(f"x{i}", (size,)) for i, size in enumerate(sizes)]
    outputs = [on.add(f"pointwise x0[{size}] : y0 = x0 + 1;", name)[0] for size, name in zip(sizes, names)]
    block = whole(rng, sum(sizes))
    parts = np.split(block, np.cumsum(sizes)[:-1])
    expected = block + 1
    order = [3, 0, 2, 1]  # the last input's memory receives the first result, and so on
    arrays = dict(zip(names, parts))
    results, at = {}, 0
    for i in order:
        results[outputs[i]] = block[at : at + sizes[i]]
        at += sizes[i]
    found = staged.compile(on.graph(*outputs)).run({**arrays, **results})
    for name, want in zip(outputs, np.split(expected, np.cumsum(sizes)[:-1])):
        assert np.array_equal(found[name], want), name


def test_memory_of_any_alignment(staged, rng):
    size = 1_300_003
    on = GraphBuilder()
    x = on.input("x", (size,))
    (y,) = on.add(f"pointwise x0[{size}] : y0 = 3 * x0;", x)
    blocks = whole(rng, size + 3), np.full(size + 3, np.nan, np.float32)
    arrays = {x: blocks[0][1:-2], y: blocks[1][1:-2]}
    staged.compile(on.graph(y)).run(arrays)
    assert np.array_equal(arrays[y], 3 * arrays[x])
    assert np.isnan(blocks[1][[0, -2, -1]]).all()


def test_training_gives_the_bits_of_runs_in_place(context, staged, rng):
    graph = small_net(training=True)
    graph = graph.gradients([value.name for value in graph.inputs if value.name != "x"])
    arrays = sample(graph, rng)
    again = {name: array.copy() for name, array in arrays.items()}
    expected = context.compile(graph, "-all").run(arrays)
    found = staged.compile(graph, "-all").run(again)
    for name, array in expected.items():
        assert np.array_equal(array, found[name]), name
    for state in graph.states:
        assert np.array_equal(arrays[state.name], again[state.name]), state.name


def sums(size=700_000):
    """A graph of two inputs, of which one stands for a parameter."""
    on = GraphBuilder()
    x, w = on.input("x", (size,)), on.input("w", (size,))
    (y,) = on.add(f"pointwise x0[{size}] x1[{size}] : y0 = x0 + x1;", x, w)
    return on.graph(y), y


def test_an_input_of_the_same_version_is_not_sent_again(staged, rng):
    graph, y = sums()
    compiled = staged.compile(graph)
    x, w = whole(rng, 700_000), whole(rng, 700_000)
    old, sent = w.copy(), []

    def run(**versions):
        before = staged.counters()["bytes_to_device"]
        found = compiled.run({"x": x, "w": w}, versions=versions)[y]
        sent.append((staged.counters()["bytes_to_device"] - before) // x.nbytes)
        return found

    assert np.array_equal(run(w=1), x + old)
    w += 1
    assert np.array_equal(run(w=1), x + old), "it was sent although its version says that it is unchanged"
    assert np.array_equal(run(w=2), x + old + 1)
    w += 1
    assert np.array_equal(run(w=0), x + old + 2)  # not known: sent, and not kept
    assert np.array_equal(run(), x + old + 2)
    assert np.array_equal(run(w=2), x + old + 1), "what was kept is version 2 all the same"
    assert sent == [2, 1, 2, 2, 2, 1]


def test_graphs_share_copies(staged, rng):
    graph, _ = sums()
    on = GraphBuilder()
    (z,) = on.add("pointwise x0[700000] : y0 = 5 * x0;", on.input("w", (700_000,)))
    other = on.graph(z)
    x, w = whole(rng, 700_000), whole(rng, 700_000)
    copies = Copies(staged)
    first, second = staged.compile(graph), staged.compile(other)
    first.run({"x": x, "w": w}, versions={"w": 7}, copies=copies)
    before = staged.counters()["bytes_to_device"]
    assert np.array_equal(second.run({"w": w}, versions={"w": 7}, copies=copies)[z], 5 * w)
    assert staged.counters()["bytes_to_device"] == before
    assert copies.nbytes == w.nbytes
    third = staged.compile(sums(3)[0])
    with pytest.raises(core.ArgumentError, match="expected 2800000: its copy"):
        third.run({"x": x[:3], "w": w[:3]}, versions={"w": 7}, copies=copies)
    del copies
    gc.collect()


def test_a_copy_may_change_while_an_earlier_run_is_queued(staged, rng):
    """Runs on device arrays alone return before the device is done."""
    import pyopencl.array as device_array

    graph, y = sums()
    compiled = staged.compile(graph)
    x = device_array.to_device(staged.queue, whole(rng, 700_000))
    w = whole(rng, 700_000)
    results = [device_array.zeros(staged.queue, 700_000, np.float32) for _ in range(6)]
    for i, result in enumerate(results):
        w[:] = i
        compiled.run({"x": x, "w": w, y: result}, versions={"w": i // 2 + 1})
    staged.finish()
    for i, result in enumerate(results):
        assert np.array_equal(result.get(), x.get() + i // 2 * 2), i


@pytest.mark.parametrize(
    "versions, message",
    [
        ({"v": 1}, r"got a version of 'v', expected one of the inputs \['w', 'x'\]"),
        ({"w": -1}, "got version -1 of w, expected an int from 0"),
        ({"w": 2**64}, "expected an int from 0"),
        ({"w": "new"}, "got version 'new' of w"),
    ],
)
def test_versions_that_do_not_fit_are_refused(context, rng, versions, message):
    graph, _ = sums(3)
    with pytest.raises(core.ArgumentError, match=message):
        context.compile(graph).run({"x": whole(rng, 3), "w": whole(rng, 3)}, versions=versions)


def test_versions_change_nothing_where_memory_is_used_in_place(context, rng):
    if context.device.host_access == "staged":
        pytest.skip("the device has memory of its own")
    graph, y = sums(5)
    compiled = context.compile(graph)
    x, w = whole(rng, 5), whole(rng, 5)
    for _ in range(2):
        assert np.array_equal(compiled.run({"x": x, "w": w}, versions={"w": 1})[y], x + w)
        w += 1
    assert compiled.copies.nbytes == 0


def test_arrays_of_the_last_run_may_go(context, rng):
    """What a plan remembers of arrays does not keep them, and does not outlive them."""
    import weakref

    graph, y = sums(1000)
    compiled = context.compile(graph)
    for _ in range(20):
        x, w = whole(rng, 1000), whole(rng, 1000)
        expected = x + w
        assert np.array_equal(compiled.run({"x": x, "w": w})[y], expected)
        assert np.array_equal(compiled.run({"x": w, "w": x})[y], expected)
    alive = weakref.ref(x)
    del x, w
    gc.collect()
    assert alive() is None
    x = whole(rng, 1000)
    result = np.empty(1000, np.float32)
    compiled.run({"x": x, "w": x, y: result})
    result.flags.writeable = False
    with pytest.raises(core.ArgumentError, match="read-only array"):
        compiled.run({"x": x, "w": x, y: result})


def test_too_large_an_arena_is_refused_and_the_context_goes_on(context, staged, rng):
    size = 2**22  # an intermediate value of 64 TiB, between arrays of 16 MiB
    on = GraphBuilder()
    (y,) = on.add(
        f"pointwise x0[{size},1] x1[1,{size}] : y0 = x0 + x1;", on.input("x", (size, 1)), on.input("z", (1, size))
    )
    (z,) = on.add(f"pointwise x0[{size},{size}] y0=sum[1] : y0 = x0;", y)
    for each in (context, staged):
        with pytest.raises(
            core.ExecutionError, match=r"no memory on .* for an arena of 7036874417766\d bytes"
        ) as caught:
            each.compile(on.graph(z), "-all").report()
        assert caught.value.status == core.abi.lib.CLG_OUT_OF_MEMORY
        graph, w = sums(700_000)
        arrays = {"x": whole(rng, 700_000), "w": whole(rng, 700_000)}
        assert np.array_equal(each.compile(graph).run(arrays)[w], arrays["x"] + arrays["w"])


def test_arrays_of_the_device_are_bound_where_they_lie(context):
    """A run looks at an array again only where it is another one, or has another buffer."""
    import pyopencl.array as device_array

    arrays = [device_array.to_device(context.queue, np.full(8, i, np.float32)) for i in range(3)]
    plan = context.plan(core.parse("pointwise x0[8] : y0 = 2 * x0"))
    for _ in range(2):
        plan.run(x0=arrays[1], y0=arrays[0])
        np.testing.assert_array_equal(arrays[0].get(), 2.0)
    arrays[1].base_data = arrays[2].base_data
    plan.run(x0=arrays[1], y0=arrays[0])
    np.testing.assert_array_equal(arrays[0].get(), 4.0)


@pytest.mark.parametrize("size", [1000, 3 * SLOT // 4 + 5, 2 * SLOT + 7], ids=["in line", "a slot", "a stream"])
def test_runs_without_results_on_the_host_return_early(staged, rng, size):
    """Inputs may change as soon as a run returns; more runs than there is pinned memory, and no wait but the last."""
    import pyopencl.array as device_array

    on = GraphBuilder()
    x, total = on.input("x", (size,)), on.state("total", (size,))
    on.add(f"update x0[{size}] x1[{size}] : y0 = x0 - x1", x, total)
    compiled = staged.compile(on.graph())
    for versions in (None, {"x": 1}):
        given, expected = np.empty(size, np.float32), np.zeros(size, np.float32)
        held = device_array.zeros(staged.queue, size, np.float32)
        before = staged.counters()
        for number in range(20):
            given[:] = rng.integers(-9, 9, size)
            own = None if versions is None else {"x": 100 + number // 2}  # every other one is the copy's
            if versions is None or number % 2 == 0:
                sent = given.copy()
            expected = sent - expected
            compiled.run({"x": given, "total": held}, versions=own)
            given[:] = np.nan
        after = staged.counters()
        assert after["waits"] == before["waits"]
        runs = 20 if versions is None else 10
        assert after["bytes_to_device"] - before["bytes_to_device"] == 4 * size * runs
        staged.finish()
        found = held.get(staged.queue)
        assert np.array_equal(found, expected)


def test_an_early_return_holds_memory_only_until_the_device_has_passed(staged, rng):
    """Buffers of runs that have returned are used again."""
    import pyopencl.array as device_array

    size = SLOT
    on = GraphBuilder()
    x, y = on.input("x", (size,)), on.state("y", (size,))
    on.add(f"update x0[{size}] x1[{size}] : y0 = x0 + x1", x, y)
    compiled, held = staged.compile(on.graph()), device_array.zeros(staged.queue, size, np.float32)
    for _ in range(60):
        compiled.run({"x": np.ones(size, np.float32), "y": held})
    staged.finish()
    assert staged.counters()["buffers_created"] <= 18
    assert np.array_equal(held.get(staged.queue), np.full(size, 60, np.float32))
