"""The runtime as Python sees it: write modes, zero copies, staging, foreign OpenCL objects, threads, fork."""

from __future__ import annotations

import multiprocessing
import threading
from dataclasses import replace

import numpy as np
import pyopencl as cl
import pytest

from clgraft import core
from clgraft.core import abi
from clgraft.core.session.context import Context

PROBLEM = core.parse("conv forward n2 ic3 ih8 iw9 oc4 kh3 kw3 ph1 pw1 b1")


def arrays_of(problem, rng):
    """Random inputs and NaN outputs."""
    arrays = {}
    for argument in problem.arguments():
        values = rng.standard_normal(argument.shape).astype(argument.dtype)
        arrays[argument.name] = values if argument.role == "in" else np.full_like(values, np.nan)
    return arrays


@pytest.fixture
def staged(context):
    """A second context on the same device that is told it cannot reach host memory."""
    import dataclasses

    device = dataclasses.replace(context.device, host_access="staged")
    queue = cl.CommandQueue(context.cl_context, context.cl_device)
    return Context(context.cl_context, context.cl_device, queue, device=device)


def test_accumulate_adds(context, rng):
    arrays = arrays_of(PROBLEM, rng)
    plan = context.plan(PROBLEM)
    plan.run(**arrays)
    once = arrays["y"].copy()
    assert np.isfinite(once).all()
    plan.run(**{**arrays, "y": core.accumulate(arrays["y"])})
    np.testing.assert_allclose(arrays["y"], 2 * once, rtol=1e-6)


def test_no_copies_where_memory_is_shared(context, rng):
    if context.device.host_access == "staged":
        pytest.skip("the device does not share the host's memory")
    plan, arrays = context.plan(PROBLEM), arrays_of(PROBLEM, rng)
    before = context.counters()
    plan.run(**arrays)
    after = context.counters()
    for name in ("bytes_to_device", "bytes_to_host", "buffers_created"):
        assert after[name] == before[name], name
    assert after["launches"] > before["launches"]


def test_staging_gives_the_same_bits_and_reuses_buffers(context, staged, rng):
    arrays = arrays_of(PROBLEM, rng)
    context.plan(PROBLEM).run(**arrays)
    expected = arrays["y"].copy()
    arrays["y"][:] = np.nan
    plan = staged.plan(PROBLEM)
    plan.run(**arrays)
    np.testing.assert_array_equal(arrays["y"], expected)
    first = staged.counters()
    assert first["bytes_to_device"] == sum(arrays[name].nbytes for name in "xwb")
    assert first["bytes_to_host"] == arrays["y"].nbytes
    plan.run(**{**arrays, "y": core.accumulate(arrays["y"])})
    np.testing.assert_allclose(arrays["y"], 2 * expected, rtol=1e-6)
    second = staged.counters()
    assert second["buffers_created"] == first["buffers_created"]
    assert second["buffers_reused"] == first["buffers_reused"] + 2  # one for what is sent, one for what goes both ways


@pytest.mark.parametrize("awake", [False, True])
def test_runs_are_over_when_they_return(context, rng, awake):
    if context.device.host_access == "staged":
        pytest.skip("the device does not share the host's memory")
    device = replace(context.device, stays_awake=awake)
    ours = Context(context.cl_context, context.cl_device, cl.CommandQueue(context.cl_context), device=device)
    for size in (1, 97, 1 << 19, 1 << 23):  # the last one is no short run
        problem = core.parse(f"pool forward max n1 c1 ih{size} iw2 kh1 kw2")
        plan = ours.plan(problem)
        x = rng.standard_normal((1, 1, size, 2)).astype(np.float32)
        y = np.empty((1, 1, size, 1), np.float32)
        for _ in range(20):
            y.fill(np.nan)
            plan.run(x=x, y=y)
            last = y[0, 0, -1, 0]  # before the rest is compared, which takes time
            np.testing.assert_array_equal(y[..., 0], x.max(3))
            assert last == x[0, 0, -1].max()


def test_two_plans_of_the_same_launches(context, rng):
    """A kernel that both use keeps the arguments of the last run, whichever plan made it."""
    launches = context.choose(PROBLEM).launches
    first, second = (context.plan_launches(PROBLEM, launches, name) for name in ("first", "second"))
    arrays, others = arrays_of(PROBLEM, rng), arrays_of(PROBLEM, rng)
    for plan, given in ((first, arrays), (second, others)):
        plan.run(**given)
    expected = arrays["y"].copy()
    arrays["y"][...] = np.nan
    first.run(**arrays)
    np.testing.assert_array_equal(arrays["y"], expected)


def test_arguments_are_set_again_where_memory_changed(context, rng):
    """Arrays that take turns, and results in arrays that are new in every run."""
    plan = context.plan(PROBLEM)
    sets = [arrays_of(PROBLEM, rng) for _ in range(3)]
    for arrays in sets:
        plan.run(**arrays)
    expected = [arrays["y"].copy() for arrays in sets]
    assert not np.array_equal(expected[0], expected[1])
    for turn in range(9):
        arrays = sets[turn % 3]
        y = np.full_like(expected[0], np.nan)
        plan.run(**{**arrays, "y": y})
        np.testing.assert_array_equal(y, expected[turn % 3])


def test_misaligned_host_memory(context, rng):
    """Frameworks hand out memory that is only aligned to its element."""
    arrays = arrays_of(PROBLEM, rng)
    plan = context.plan(PROBLEM)
    plan.run(**arrays)
    shifted = {}
    for name, values in arrays.items():
        block = np.full(values.size + 2, np.nan, values.dtype)
        block[1:-1] = values.ravel()
        shifted[name] = block[1:-1].reshape(values.shape)
    shifted["y"][...] = np.nan
    plan.run(**shifted)
    np.testing.assert_array_equal(shifted["y"], arrays["y"])
    assert np.isnan(shifted["y"].base.ravel()[[0, -1]]).all()


def test_device_buffers_with_offsets(context, rng):
    """A framework that owns OpenCL memory passes cl_mem and offset; nothing is copied."""
    theirs = cl.Context([context.cl_device])
    queue = cl.CommandQueue(theirs)
    ours = core.adopt(theirs.int_ptr, context.cl_device.int_ptr, queue.int_ptr)
    arrays = arrays_of(PROBLEM, rng)
    context.plan(PROBLEM).run(**arrays)
    plan = ours.plan(PROBLEM)
    ffi, lib = abi.ffi, abi.lib
    buffers, memory = ffi.new("clg_buffer[]", 4), []
    for i, argument in enumerate(PROBLEM.arguments()):
        block = np.concatenate([np.zeros(5, np.float32), arrays[argument.name].ravel()])
        mem = cl.Buffer(theirs, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=block)
        memory.append(mem)
        buffers[i] = {
            "size": ffi.sizeof("clg_buffer"),
            "kind": lib.CLG_DEVICE,
            "dtype": lib.CLG_FLOAT32,
            "handle": ffi.cast("void *", mem.int_ptr),
            "offset": 20,
            "bytes": argument.nbytes,
        }
    before = ours.counters()
    assert lib.clg_plan_run(plan._handle, buffers, 4, ffi.NULL, 0) == 0, ffi.string(lib.clg_last_error())
    assert lib.clg_context_finish(ours.handle) == 0
    got = np.empty(arrays["y"].size + 5, np.float32)
    cl.enqueue_copy(queue, got, memory[3])
    np.testing.assert_array_equal(got[5:].reshape(arrays["y"].shape), arrays["y"])
    assert not got[:5].any()
    assert ours.counters()["bytes_to_device"] == before["bytes_to_device"]
    buffers[3].offset = 24
    assert lib.clg_plan_run(plan._handle, buffers, 4, ffi.NULL, 0) == lib.CLG_BUFFER_TOO_SMALL
    stranger = context.plan(PROBLEM)
    buffers[3].offset = 20
    assert lib.clg_plan_run(stranger._handle, buffers, 4, ffi.NULL, 0) == lib.CLG_INVALID_ARGUMENT
    assert b"another cl_context" in ffi.string(lib.clg_last_error())


@pytest.mark.parametrize(
    "change, words",
    [
        ({"x": np.zeros((2, 3, 8, 9))}, "dtype float64 for x, expected float32"),
        ({"x": np.zeros((2, 3, 9, 8), np.float32)}, r"shape \(2, 3, 9, 8\) for x"),
        ({"y": None, "w": [1, 2]}, "list for w"),
        ({"w": None}, "NoneType for w"),
        ({"x": np.zeros((9, 8, 3, 2), np.float32).T}, "strides"),
    ],
)
def test_wrong_arrays_are_named(context, rng, change, words):
    arrays = {**arrays_of(PROBLEM, rng), **change}
    with pytest.raises(core.ArgumentError, match=words):
        context.plan(PROBLEM).run(**arrays)


def test_missing_arguments_and_scalars_are_named(context):
    with pytest.raises(core.ArgumentError, match=r"expected \['x', 'w', 'b', 'y'\]"):
        context.plan(PROBLEM).run(x=np.zeros(1))
    with pytest.raises(core.ProblemError, match="expected one of"):
        core.parse("convolution n1")


def test_threads_share_a_context(context, rng):
    plan = context.plan(PROBLEM)
    arrays = arrays_of(PROBLEM, rng)
    plan.run(**arrays)
    expected, wrong = arrays["y"].copy(), []

    def work():
        mine = {**arrays, "y": np.empty_like(expected)}
        for _ in range(50):
            mine["y"][:] = np.nan
            plan.run(**mine)
            if not np.array_equal(mine["y"], expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _child(pipe, plan, arrays, context, kind):
    messages = []
    unplanned = replace(PROBLEM, batch=PROBLEM.batch + 5)
    attempts = (
        lambda: plan.run(**arrays),
        lambda: core.context(kind),
        lambda: context.plan(unplanned),
        lambda: context._check(context.lib.clg_plan_create(context.handle, str(unplanned).encode(), place)),
    )
    place = context.ffi.new("clg_plan *")
    for attempt in attempts:
        try:
            attempt()
            messages.append("ran")
        except core.ExecutionError as error:
            messages.append(f"{error!s} {error.status == context.lib.CLG_FORKED}")
    pipe.send(messages)


def test_fork_after_use_is_refused_clearly(context, rng):
    plan, arrays = context.plan(PROBLEM), arrays_of(PROBLEM, rng)
    plan.run(**arrays)
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    child = fork.Process(target=_child, args=(theirs, plan, arrays, context, "cpu" if context.device.is_cpu else "gpu"))
    child.start()
    assert ours.poll(60), "the child hangs"
    for message in ours.recv():
        assert "fork()" in message and message.endswith("True"), message
    child.join(60)
    assert child.exitcode == 0
    plan.run(**arrays)  # the parent goes on


@pytest.mark.parametrize("text", ["conv forward n1 ic2 ih5 iw5 oc2 kh3 kw3 ph1 pw1", "dense forward n3 i4 o4"])
def test_an_output_on_an_input_is_refused(context, rng, text):
    """In host memory and on the device; whole and in part. Inputs may be one array, and outputs may be skipped."""
    problem = core.parse(text)
    plan, arrays = context.plan(problem), arrays_of(problem, rng)
    shape, size = arrays["y"].shape, arrays["y"].size
    memory = np.full(2 * size, 7, np.float32)
    for start in (0, 1, size - 1):
        x, y = memory[:size].reshape(arrays["x"].shape), memory[start : start + size].reshape(shape)
        with pytest.raises(core.ArgumentError, match="got y in the memory of x, expected memory of its own"):
            plan.run(**{**arrays, "x": x, "y": y})
    assert (memory == 7).all()
    import pyopencl.array as device_array

    x = device_array.to_device(context.queue, arrays["x"])
    with pytest.raises(core.ArgumentError, match="got y in the memory of x"):
        plan.run(**{**arrays, "x": x, "y": x.reshape(shape)})
    y = memory[size:].reshape(shape)
    plan.run(**{**arrays, "x": memory[:size].reshape(arrays["x"].shape), "y": y})
    assert not (y == 7).all()


def test_hundreds_of_arrays_are_staged(staged, rng):
    """Each array of a run has a buffer of its own, however many there are."""
    from clgraft.core.graph import GraphBuilder

    on = GraphBuilder()
    names = [on.input(f"x{i}", (3,)) for i in range(400)]
    total = names[0]
    for name in names[1:]:
        (total,) = on.add("pointwise x0[3] x1[3] : y0 = x0 + x1;", total, name)
    arrays = {name: rng.integers(-9, 9, 3).astype(np.float32) for name in names}
    found = staged.compile(on.graph(total)).run(arrays)[total]
    assert np.array_equal(found, sum(arrays.values()))
