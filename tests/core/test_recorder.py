"""Recorded calls as graphs: what memory holds becomes values, and runs give the bits of the calls one by one."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from clgraft.core import ACCUMULATE, OVERWRITE, SKIP, Buffer
from clgraft.core.errors import ProblemError
from clgraft.core.graph.recorder import DeferredScalar, Recorder, Recording
from clgraft.core.graph.replay import Replay

N = 37
DOUBLE = f"pointwise x0[{N}] : y0 = 2 * x0;"
ADD = f"pointwise x0[{N}] x1[{N}] : y0 = x0 + x1;"
SCALE = f"pointwise x0[{N}] scalars{{a}} : y0 = a * x0;"
NORM = "batchnorm update_statistics n4 c3 s5"


def at(address: int, mode: int = OVERWRITE, dtype: str = "float32") -> Buffer:
    return Buffer(address, 4 * N, dtype, mode)


def recorded(*calls: tuple) -> tuple:
    """Return calls, given as a problem, the addresses of its buffers (negative: added to) and scalars."""
    recorder = Recorder()
    for problem, addresses, *scalars in calls:
        buffers = [at(abs(a), ACCUMULATE if a < 0 else OVERWRITE if a else SKIP) for a in addresses]
        recorder.plan(problem).execute(buffers, *scalars)
    return recorder.take()


class Memory(dict):
    """Arrays by address; missing ones are made, poisoned."""

    def __missing__(self, address: int) -> np.ndarray:
        self[address] = np.full(N, np.nan, np.float32)
        return self[address]


def run(replay: Replay, lowered, memory: Memory, **options: object) -> None:
    replay.run(lowered, memory.__getitem__, **options)


@pytest.fixture
def x():
    return np.random.default_rng(3).standard_normal(N).astype(np.float32)


@pytest.fixture
def replay():
    return Replay(core.context(), {}, passes="-all")


def test_each_write_of_an_address_is_a_new_value(replay, x):
    recording = Recording(recorded((DOUBLE, (1, 1)), (ADD, (1, 1, 2)), (DOUBLE, (1, 1))), results={1, 2})
    lowered = recording.forward()
    assert sorted(lowered.bound.values()) == [1, 1, 2]  # the memory's first content, its last, and the sum
    memory = Memory({1: x.copy()})
    replay.overlapping = frozenset({1})
    run(replay, lowered, memory)
    np.testing.assert_array_equal(memory[2], 4 * x)
    np.testing.assert_array_equal(memory[1], 4 * x)


def test_memory_that_is_no_result_is_not_touched(replay, x):
    recording = Recording(recorded((DOUBLE, (1, 2)), (DOUBLE, (2, 3))), results={3})
    memory = Memory({1: x})
    run(replay, recording.forward(), memory)
    assert set(memory) == {1, 3}
    np.testing.assert_array_equal(memory[3], 4 * x)


def test_backward_reads_what_forward_kept(replay, x):
    recording = Recording(recorded((DOUBLE, (1, 2)), (DOUBLE, (2, 3)), (DOUBLE, (3, 4))), results={4})
    # 11 = gradient of 4; reads an inside value, a result, and an input
    back = recorded((ADD, (11, 2, 12)), (ADD, (12, 4, 12)), (ADD, (12, 1, 13)))
    lowered = recording.backward(back, {13})
    assert len(lowered.kept) == 1
    memory = Memory({1: x, 11: np.ones(N, np.float32)})
    run(replay, recording.forward(lowered.kept), memory, keeps=True)
    run(replay, lowered, memory)
    assert set(memory) == {1, 4, 11, 13}
    np.testing.assert_array_equal(memory[13], ((1 + 2 * x) + 8 * x) + x)
    again = recording.backward(back, {13}, again=True)
    assert not again.kept
    memory[13][:] = np.nan
    run(replay, again, memory)
    np.testing.assert_array_equal(memory[13], ((1 + 2 * x) + 8 * x) + x)


def test_memory_that_changes_is_copied(replay, x):
    recording = Recording(recorded((DOUBLE, (1, 2))), results={2}, changing={1, 2})
    lowered = recording.backward(recorded((ADD, (1, 2, 12))), {12})
    assert len(lowered.kept) == 2 and set(lowered.bound.values()) == {12}
    memory = Memory({1: x.copy()})
    run(replay, recording.forward(lowered.kept), memory, keeps=True)
    memory[1][:], memory[2][:] = np.nan, np.nan
    run(replay, lowered, memory)
    np.testing.assert_array_equal(memory[12], x + 2 * x)


def test_what_is_added_to_is_added_up_first(replay, x):
    recording = Recording(recorded((DOUBLE, (1, 2))), results={2})
    back = recorded((DOUBLE, (11, -21)), (DOUBLE, (21 - 10, -21)), (DOUBLE, (11, -22)), (DOUBLE, (11, 12)))
    lowered = recording.backward(back, {12})
    assert len(lowered.added) == 2
    memory = Memory({11: x, 21: np.ones(N, np.float32), 22: np.full(N, 2, np.float32)})
    run(replay, lowered, memory)
    np.testing.assert_array_equal(memory[21], 1 + (2 * x + 2 * x))
    np.testing.assert_array_equal(memory[22], 2 + 2 * x)
    np.testing.assert_array_equal(memory[12], 2 * x)
    only = recording.backward(back, {12}, only={22})
    memory[12][:] = np.nan
    run(replay, only, memory)
    np.testing.assert_array_equal(memory[22], 2 + 2 * x + 2 * x)
    np.testing.assert_array_equal(memory[21], 1 + (2 * x + 2 * x))
    assert np.isnan(memory[12]).all() and len(only.graph.nodes) == 1


def test_states_change_in_place_and_once():
    random = np.random.default_rng(5)
    mean, var, running_mean, running_var = (random.uniform(1, 2, 3).astype(np.float32) for _ in range(4))
    recorder = Recorder()
    buffers = [Buffer(address, 12, "float32") for address in (1, 2, 3, 4)]
    recorder.plan(NORM).execute(buffers, (0.5, 1.0, 2.0))
    recorder.plan("pointwise x0[3] : y0 = x0;").execute((buffers[0], Buffer(9, 12, "float32")))
    recording = Recording(recorder.take(), results={9})
    memory = Memory({1: mean, 2: var, 3: running_mean.copy(), 4: running_var.copy(), 9: np.zeros(3, np.float32)})
    replay = Replay(core.context(), {}, passes="-all")
    run(replay, recording.forward(), memory)
    np.testing.assert_allclose(memory[3], 0.5 * running_mean + mean, rtol=1e-6)
    np.testing.assert_allclose(memory[4], 0.5 * running_var + 2 * var, rtol=1e-6)
    recorder.plan("pointwise x0[3] : y0 = x0;").execute((Buffer(9, 12, "float32"), Buffer(8, 12, "float32")))
    again = recording.backward(recorder.take(), {8}, again=True)
    memory[8] = np.zeros(3, np.float32)
    run(replay, again, memory)
    np.testing.assert_allclose(memory[3], 0.5 * running_mean + mean, rtol=1e-6)
    np.testing.assert_array_equal(memory[8], mean)


def test_late_scalars_are_asked_for_in_every_run(replay, x):
    numbers = iter((2.0, 3.0))
    factor = DeferredScalar(lambda: next(numbers))
    recording = Recording(recorded((SCALE, (1, 2), (factor,)), (SCALE, (2, 3), (0.5,))), results={2, 3})
    lowered = recording.forward()
    assert len(lowered.scalars) == 1
    memory = Memory({1: x})
    for number in (2, 3):
        run(replay, lowered, memory)
        np.testing.assert_array_equal(memory[2], number * x)
        np.testing.assert_array_equal(memory[3], np.float32(0.5) * (number * x))


def test_constants_are_no_arrays_of_a_run(x):
    recording = Recording(recorded((ADD, (1, 2, 3))), results={3})
    memory = Memory({1: x})
    run(Replay(core.context(), {2: np.ones(N, np.float32)}), recording.forward(), memory)
    assert set(memory) == {1, 3}
    np.testing.assert_array_equal(memory[3], x + 1)


def test_whole_numbers_may_have_no_sign(replay):
    key = np.array([7, 9, 0, 2**31 + 5], np.uint32)
    recorder = Recorder()
    x, y = Buffer(1, 4 * N, "float32"), Buffer(3, 4 * N, "float32")
    recorder.plan(f"dropout forward x[{N}]").execute((x, Buffer(2, 16, "int32"), y), (0.5, 2.0))
    memory = Memory({1: np.ones(N, np.float32), 2: key})
    run(replay, Recording(recorder.take(), {3}).forward(), memory)
    assert set(np.unique(memory[3])) == {0.0, 2.0}


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        (((DOUBLE, (1,)),), "1 buffers for pointwise"),
        (((SCALE, (1, 2)),), "0 scalars for pointwise"),
        (((DOUBLE, (1, -2)), (DOUBLE, (2, 3))), "which was only added to"),
    ],
)
def test_wrong_calls_are_refused(calls, expected):
    with pytest.raises(ProblemError, match=expected):
        Recording(recorded(*calls), results={3})


def test_a_state_is_memory_that_nothing_wrote():
    recorder = Recorder()
    three = [Buffer(address, 12, "float32") for address in (1, 2, 3, 4)]
    recorder.plan("pointwise x0[3] : y0 = x0;").execute((three[0], three[2]))
    recorder.plan(NORM).execute(three, (0.5, 1.0, 2.0))
    with pytest.raises(ProblemError, match="a value for the state"):
        Recording(recorder.take(), results=())
