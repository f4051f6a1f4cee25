"""The search: wrong, failing and slow candidates become rows; the winner is faster in turn; a search can go on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core import tuning
from clgraft.core.planning.implementation import IMPLEMENTATIONS
from clgraft.core.tuning import HEURISTIC, Choice, database
from clgraft.core.tuning.database import Candidate, Database, Timing
from clgraft.core.tuning.identity import device_key
from clgraft.core.tuning.search import Effort, Search, choices, choose
from clgraft.core.tuning.timing import Runner
from clgraft.core.tuning.trial import Trial
from tests.core import tuning_plants
from tests.core.tuning_plants import PROBLEM, implementation, of_plants
from tests.logs import logged

QUICK = Effort(seconds=60, rounds=7, final_seconds=0.2)


@pytest.fixture(autouse=True)
def own_database(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "location", lambda: tmp_path / database.FILE)
    monkeypatch.delenv("CLGRAFT_TUNE", raising=False)
    tuning.forget_database()
    yield
    tuning.forget_database()


@pytest.fixture(autouse=True)
def launches_take_the_time(monkeypatch):
    """Make a run take as long as it has launches, on a busy machine too."""

    def count(runner: Runner, runs: int) -> float:
        context = runner.buffers.context
        before = context.counters()["launches"]
        for _ in range(runs):
            runner._run()
        return (context.counters()["launches"] - before) / runs * 1e-4

    monkeypatch.setattr(Runner, "_time", count)


CONVOLUTIONS = (core.ConvProblem, None)


def searched(context, problem=PROBLEM, known=None, trying=lambda choice: None) -> tuple[dict, Search]:
    search = Search(core.parse(problem), context, known, QUICK, trying)
    return {str(candidate.choice): candidate for candidate in search.run()}, search


def test_bad_candidates_are_rows_with_a_reason(context, monkeypatch):
    bad = (
        tuning_plants.half,
        tuning_plants.shifted,
        tuning_plants.declining,
        tuning_plants.unbuildable,
        tuning_plants.raising,
        tuning_plants.slow,
    )
    monkeypatch.setitem(IMPLEMENTATIONS, CONVOLUTIONS, (implementation("right", tuning_plants.right), *of_plants(*bad)))
    rows, search = searched(context)
    assert {name: row.outcome for name, row in rows.items()} == {
        "heuristic": "measured",
        "right": "duplicate",
        "half": "wrong",
        "shifted": "wrong",
        "declining": "declined",
        "unbuildable": "failed",
        "raising": "failed",
        "slow": "slow",
        "direct": "duplicate",
    }
    assert rows["half"].reason == "not a number"
    assert rows["shifted"].error > 100
    assert rows["raising"].reason == "ZeroDivisionError: is planted to raise"
    assert "is planted not to build" in rows["unbuildable"].reason
    assert "times the best's time" in rows["slow"].reason
    assert rows["direct"].reason == "the same programs and launches as heuristic"
    assert search.winner.choice == HEURISTIC


def test_the_faster_candidate_wins_and_is_used(context, monkeypatch):
    slow = implementation("slow", tuning_plants.slow, {"times": 30}, {"times": 2}, {"times": 20})
    monkeypatch.setitem(IMPLEMENTATIONS, CONVOLUTIONS, (slow, *of_plants(tuning_plants.half)))
    rows, search = searched(context)
    assert next(iter(rows)) == "heuristic" and "slow times=2" in rows
    winner = search.winner
    assert winner.choice == Choice("direct")
    assert winner.after.median < winner.before.median / 2
    kept = Database(device_key(context.device))
    assert kept.finish(winner)
    fresh = core.Context.on(None)
    assert fresh.plan(core.parse(PROBLEM)).algorithm == "direct"


def test_a_wrong_heuristic_has_no_winner(context, monkeypatch):
    monkeypatch.setitem(IMPLEMENTATIONS, CONVOLUTIONS, of_plants(tuning_plants.shifted))
    rows, search = searched(context)
    assert rows["heuristic"].outcome == "wrong"
    assert rows["direct"].outcome == "measured"
    assert search.winner is None and search.heuristic.outcome == "wrong"


def test_a_search_goes_on_where_it_stopped(context, monkeypatch):
    slow = implementation("slow", tuning_plants.slow, *({"times": times} for times in (3, 4, 5, 6)))
    monkeypatch.setitem(IMPLEMENTATIONS, CONVOLUTIONS, (slow, *of_plants(tuning_plants.raising)))
    listed = choices(core.parse(PROBLEM), context)
    assert [str(choice) for choice in listed] == [
        *("heuristic", "slow", "raising", "direct"),
        *(f"slow times={times}" for times in (3, 4, 5, 6)),
    ]
    kept = Database(device_key(context.device))
    first = Search(core.parse(PROBLEM), context, None, QUICK)
    for candidate, _ in zip(first.run(), range(5)):
        assert kept.add(PROBLEM, candidate)
    tried = []
    _, search = searched(context, known=kept.candidates(PROBLEM), trying=tried.append)
    assert tried[0] == HEURISTIC  # its time is needed for comparison
    assert not set(map(str, tried)) & {"raising", "direct", "slow"}
    assert search.winner.choice == Choice("direct")  # it comes from the first search, and was checked and timed again


def test_no_time_left_still_gives_what_was_found(context):
    search = Search(core.parse(PROBLEM), context, None, replace(QUICK, seconds=0.0))
    assert [candidate.choice for candidate in search.run()] == [HEURISTIC]
    assert search.winner.choice == HEURISTIC and not search.winner.complete


def test_noise_picks_no_winner():
    rng = np.random.default_rng(3)
    wins = 0
    for _ in range(300):
        base = 1 + 0.2 * rng.random(25)  # what both meet in a round
        usual, same = (list(base + 0.1 * rng.random(25)) for _ in range(2))
        wins += choose("p", {HEURISTIC: usual, Choice("a"): same}).choice != HEURISTIC
    assert wins == 0
    faster = [value / 1.2 for value in usual]
    assert choose("p", {HEURISTIC: usual, Choice("a"): faster}).choice == Choice("a")


def test_of_equals_the_steadier_wins():
    usual = [2.0] * 9
    unsteady = [1.0, 1.4, 1.0, 1.5, 1.0, 1.0, 1.4, 1.3, 1.0]
    steady = [1.005] * 9
    winner = choose("p", {HEURISTIC: usual, Choice("a"): unsteady, Choice("b"): steady})
    assert winner.choice == Choice("b")
    assert winner.before.median == 2.0 and winner.after.spread == 0


def test_full_searches_at_first_use_and_keeps_what_it_found(monkeypatch):
    slow = implementation("slow", tuning_plants.slow)
    monkeypatch.setitem(IMPLEMENTATIONS, CONVOLUTIONS, (slow, *of_plants()))
    problem = core.parse(PROBLEM)
    assert core.Context.on(None).plan(problem).algorithm == "slow"
    monkeypatch.setenv("CLGRAFT_TUNE", "full")
    context = core.Context.on(None)
    plan = context.plan(problem)
    assert (plan.algorithm, plan.tuned) == ("direct", "direct (user row)")
    assert [w.choice for w in Database(device_key(context.device)).winners()] == [Choice("direct")]
    monkeypatch.setattr(Search, "run", None)  # a second search would fail
    tuning.forget_database()
    assert core.Context.on(None).plan(problem).algorithm == "direct"
    monkeypatch.setenv("CLGRAFT_TUNE", "cached")
    assert core.Context.on(None).plan(problem).algorithm == "direct"
    monkeypatch.setenv("CLGRAFT_TUNE", "off")
    assert core.Context.on(None).plan(problem).algorithm == "slow"


def test_full_without_a_database_searches_and_goes_on(monkeypatch):
    monkeypatch.setattr(database, "location", lambda: None)
    monkeypatch.setitem(IMPLEMENTATIONS, CONVOLUTIONS, (implementation("slow", tuning_plants.slow), *of_plants()))
    monkeypatch.setenv("CLGRAFT_TUNE", "full")
    with logged("no cache folder"):
        assert core.Context.on(None).plan(core.parse(PROBLEM)).algorithm == "direct"


def test_one_implementation_without_settings_is_not_searched(monkeypatch):
    monkeypatch.setenv("CLGRAFT_TUNE", "full")
    monkeypatch.setattr(Search, "run", None)
    core.Context.on(None).plan(core.parse("pointwise x0[7] : y0 = x0 + 1;"))


@pytest.mark.parametrize(
    "text",
    [
        "conv backward_filter g2 n2 ic4 ih9 iw8 oc6 kh3 kw2 sh2 ph1 pw1 qh0",
        "conv forward f16 n2 ic3 id4 ih5 iw6 oc2 kd2 kh3 kw1 dd2 b1",
        "conv backward_data n1 ic5 iw11 oc3 kw3 sw2 pw1",
        "conv backward_bias n3 ic2 iw7 oc5 kw1",
        "pool backward max n2 c3 ih9 iw11 kh3 kw3 sh2 sw2",
        "pool forward lp2 n2 c3 ih9 iw11 kh3 kw3 sh2 sw2",
        "batchnorm backward_training n2 c3 s15",
        "batchnorm update_statistics n2 c3 s15",
        "batchnorm forward_training n4 c16 s1024 relu_keep_nan",
        "pointwise x0[3,7] scalars{slope} y0[3,1]=sum[1] : y0 = x0 * slope;",
        "pointwise x0[3,700] x1[3,1] scalars{eps} : y0 = x0 / sqrt(x1 + eps); y1 = log(x1);",
    ],
)
def test_every_kind_can_be_judged(context, text):
    """The implementations that planning chooses are right, and their results with one element off are not."""
    problem = core.parse(text)
    trial = Trial(problem, context)
    chosen = context.choose(problem)
    steps, name = chosen.launches, chosen.algorithm
    results = {key: array.copy() for key, array in trial.runner(steps, name).results().items()}
    assert trial.error(results) <= 1
    for array in results.values():
        largest = np.argmax(np.abs(array.astype(np.float64)))
        for value in (np.nan, array.flat[largest] * array.dtype.type(1.02)):
            kept, array.flat[largest] = array.flat[largest], value
            assert not trial.error(results) <= 1
            array.flat[largest] = kept
    assert trial.error(results) <= 1


def test_values_that_are_not_finite_have_to_be_the_same(context):
    trial = Trial(core.parse("pointwise x0[64] x1[64] : y0 = x0 > 0 ? log(x0 - x1) : -INFINITY;"), context)
    exact = trial.exact["y0"]
    assert np.isnan(exact).any() and np.isinf(exact).any() and np.isfinite(exact).any()
    assert trial.error({"y0": exact.astype(np.float32)}) <= 1
    for bad in (np.isnan(exact), np.isinf(exact), np.isfinite(exact)):
        for value in (0.0, np.inf, np.nan):
            result = exact.copy()
            result[bad] = value
            assert (np.isnan(exact[bad]).all() and np.isnan(value)) or not trial.error({"y0": result}) <= 1


def test_a_timing_names_its_spread():
    times = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    from clgraft.core.tuning.timing import summary

    assert summary(times) == Timing(8, 4.5, 4.5, pytest.approx(3.0 / 4.5), 1.0)
    assert Candidate(Choice("a"), "measured").timing is None


def test_devices_with_memory_of_their_own_are_timed_in_it(context):
    """The same search on buffers of the device: what a discrete GPU gets, here on whatever there is."""
    own = core.Context.on(None)
    own.device = replace(own.device, host_access="staged")
    for text in (PROBLEM, "batchnorm update_statistics n2 c3 s15", "pool backward max n2 c3 ih9 iw11 kh3 kw3"):
        rows, search = searched(own, text)
        assert search.winner is not None
        assert {row.outcome for row in rows.values()} <= {"measured", "slow", "duplicate", "declined"}
