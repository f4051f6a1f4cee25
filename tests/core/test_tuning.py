"""What tuning knows and says: choices as text, the policy, shipped rows, neighbours, and what contexts make of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core import tuning
from clgraft.core.errors import ArgumentError, ProblemError
from clgraft.core.planning.implementation import IMPLEMENTATIONS, implementations
from clgraft.core.tuning import HEURISTIC, Choice, advice, database, identity, nearest, rows
from clgraft.core.tuning.database import Database, Timing, Winner
from clgraft.core.tuning.identity import device_key
from tests.core import tuning_plants
from tests.core.conv_checks import check


@pytest.fixture(autouse=True)
def own_database(tmp_path, monkeypatch):
    """Nothing that the user has tuned counts here."""
    monkeypatch.setattr(database, "location", lambda: tmp_path / database.FILE)
    monkeypatch.delenv("CLGRAFT_TUNE", raising=False)
    tuning.forget_database()
    yield
    tuning.forget_database()


@pytest.fixture
def fresh():
    """A context without plans."""
    return core.Context.on(None)


def keep(context, problem: str, choice: Choice) -> None:
    """Put a winner into the user's database."""
    timing = Timing(9, 1e-3, 1e-3, 0.01)
    assert Database(device_key(context.device)).finish(Winner(problem, choice, timing, timing))
    tuning.forget_database()


@pytest.mark.parametrize("text", ["winograd", "cpu_gemm row_tiles=8 tiles=3", "gpu_gemm parts=-1 tile=128x64x16"])
def test_a_choice_is_its_text(text):
    assert str(Choice.parse(text)) == text
    assert Choice.parse(text) == Choice.parse(" ".join([text.split()[0], *reversed(text.split()[1:])]))


@pytest.mark.parametrize("text", ["", "a b", "a b=1 b=2", "a b=", "a=1", "3", "a b=1;drop"])
def test_other_texts_are_no_choice(text):
    with pytest.raises(ProblemError, match="tuning"):
        Choice.parse(text)


def test_policy(monkeypatch):
    assert tuning.policy() == "cached"
    for word, policy in (("off", "off"), (" FULL ", "full"), ("cached", "cached"), ("", "cached")):
        monkeypatch.setenv("CLGRAFT_TUNE", word)
        assert tuning.policy() == policy


def test_a_bad_policy_is_a_clear_error(monkeypatch, fresh):
    monkeypatch.setenv("CLGRAFT_TUNE", "fast")
    with pytest.raises(ArgumentError, match=r"got CLGRAFT_TUNE='fast', expected one of \('off', 'cached', 'full'\)"):
        fresh.plan(core.parse(tuning_plants.PROBLEM))
    assert fresh.plan(core.parse(tuning_plants.PROBLEM), "direct").algorithm == "direct"  # asks no policy


def test_shipped_files_can_be_read_and_planned(context):
    """Every shipped row names a problem and a choice that exist; those for this device can be planned."""
    listed = [(path.name, rows.read(path.read_text(), path.name)) for path in sorted(rows.FOLDER.glob("*.txt"))]
    words = set(identity.device_words(context.device))
    for name, (pattern, found) in listed:
        assert pattern and len({row.problem for row in found}) == len(found), name
        for row in found:
            problem = core.parse(row.problem)
            assert str(problem) == row.problem
            assert row.choice.algorithm in [i.NAME for i in implementations(problem)], f"{name}: {row}"
            if pattern <= words:
                assert context.launches(problem, row.choice).launches, f"{name}: {row}"


def test_rows_name_the_line_that_is_wrong():
    pattern, found = rows.read("# of a test\ndevice: cpu pocl\n\nconv n1 iw3 -> direct # 1.1x\n")
    assert pattern == {"cpu", "pocl"}
    assert found == (rows.TunedRow("conv n1 iw3", Choice("direct")),)
    with pytest.raises(ProblemError, match="file:2"):
        rows.read("device: cpu\nconv n1 iw3 direct\n", "file")
    with pytest.raises(ProblemError, match="device: line"):
        rows.read("conv n1 iw3 -> direct\n")


def test_device_words(context):
    words = identity.device_words(context.device)
    assert words[0] == ("cpu" if context.device.is_cpu else "gpu")
    assert f"units{context.device.compute_units}" in words
    other = replace(context.device, is_cpu=True, vector_width=8, toolchain="pocl")
    assert identity.device_class(other) == "cpu avx2 pocl"
    assert identity.device_class(replace(other, vector_width=16, toolchain="intel")) == "cpu avx512 intel"
    gpu = replace(context.device, is_cpu=False, is_gpu=True, device_class="nvidia", name="NVIDIA H200")
    assert identity.device_class(gpu) == "gpu nvidia"
    assert {"h200", "nvidia"} <= set(identity.device_words(gpu))


def test_a_key_holds_what_can_change_a_result(context, monkeypatch):
    key = device_key(context.device)
    for field in ("driver", "name", "platform", "version"):
        assert device_key(replace(context.device, **{field: "another"})) != key
    assert device_key(replace(context.device, compute_units=99)) != key
    monkeypatch.setenv("POCL_MAX_PTHREAD_COUNT", "1")
    assert device_key(context.device) != key
    monkeypatch.delenv("POCL_MAX_PTHREAD_COUNT")
    monkeypatch.setattr(identity, "source_digest", lambda: "another")
    assert device_key(context.device) != key


@pytest.mark.parametrize(
    "first, second, expected",
    [
        ("n8 ic64 ih56 iw56 oc64 kh3 kw3 ph1 pw1", "n8 ic64 ih56 iw56 oc64 kh3 kw3 ph1 pw1", 0),
        ("n8 ic64 ih56 iw56 oc64 kh3 kw3 ph1 pw1", "n16 ic64 ih56 iw56 oc64 kh3 kw3 ph1 pw1", 1),
        ("n8 ic64 ih56 iw56 oc64 kh3 kw3 ph1 pw1", "n4 ic64 ih56 iw56 oc128 kh3 kw3", 2),
        ("n8 ic64 ih56 iw56 oc64 kh3 kw3", "n8 ic64 ih28 iw28 oc64 kh3 kw3", 2),
        ("n8 ic64 ih56 iw56 oc64 kh3 kw3", "n8 ic64 ih56 iw56 oc64 kh3 kw3 b1", 0),
        ("n8 ic64 ih56 iw56 oc64 kh3 kw3", "n8 ic64 ih56 iw56 oc64 kh1 kw1", np.inf),
        ("n8 ic64 ih56 iw56 oc64 kh3 kw3", "n8 ic64 ih56 iw56 oc64 kh3 kw3 sh2 sw2", np.inf),
        ("n8 ic64 ih56 iw56 oc64 kh3 kw3", "n8 ic64 ih56 iw56 oc64 kh3 kw3 dh2 dw2", np.inf),
        ("n8 ic64 ih56 iw56 oc64 kh3 kw3", "f16 n8 ic64 ih56 iw56 oc64 kh3 kw3", np.inf),
        ("n8 ic64 ih56 iw56 oc64 kh3 kw3", "g2 n8 ic64 ih56 iw56 oc64 kh3 kw3", np.inf),
        ("g64 n8 ic64 ih56 iw56 oc64 kh3 kw3", "g32 n8 ic32 ih56 iw56 oc32 kh3 kw3", 2),
        ("n0 ic1 iw9 oc1 kw3", "n1 ic1 iw9 oc1 kw3", 0),
        ("n1 ic1 iw9 oc1 kw3", "n1 ic1 ih1 iw9 oc1 kh3 kw3 ph1", np.inf),
    ],
)
def test_distance(first, second, expected):
    for one, other in ((first, second), (second, first)):
        texts = [str(core.parse(f"conv forward {text}")) for text in (one, other)]
        assert nearest.distance(*texts) == pytest.approx(expected)
    texts = [str(core.parse(f"conv {direction} {first}")) for direction in ("forward", "backward_data")]
    assert nearest.distance(*texts) == np.inf


def test_pooling_and_batch_norm_have_neighbours_and_programs_have_none():
    pair = [str(core.parse(f"pool backward max n{n} c8 ih9 iw9 kh2 kw2")) for n in (2, 4)]
    assert nearest.distance(*pair) == 1
    assert nearest.distance(pair[0], pair[0].replace("max", "average")) == np.inf
    assert nearest.distance("batchnorm forward_training n8 c64 s100", "batchnorm forward_training n8 c32 s200") == 2
    assert nearest.distance("pointwise x0[3] : y0 = x0;", "pointwise x0[4] : y0 = x0;") == np.inf


def test_the_nearest_is_found_within_a_limit():
    table = nearest.Neighbours([(f"conv forward n{n} ic1 iw9 oc1 kw3", n) for n in (1, 4, 16, 4)])
    assert table.nearest("conv forward n5 ic1 iw9 oc1 kw3")[1:] == ("conv forward n4 ic1 iw9 oc1 kw3", 4)
    assert table.nearest("conv forward n2 ic1 iw9 oc1 kw3")[2] == 1  # the first of equals
    assert table.nearest("conv forward n128 ic1 iw9 oc1 kw3") is None
    assert table.nearest("conv forward n1 ic1 iw9 oc1 kw5") is None


def test_a_context_takes_the_users_choice(fresh, monkeypatch):
    problem = core.parse(tuning_plants.PROBLEM)
    keep(fresh, str(problem), Choice("direct"))
    plan = fresh.plan(problem)
    assert (plan.algorithm, plan.tuned, plan.declined) == ("direct", "direct (user row)", ())
    check(fresh, problem, None)
    near = replace(problem, batch=3)
    assert fresh.plan(near).tuned == f"direct (user row of {problem})"
    check(fresh, near, None)
    far = replace(problem, batch=30)
    assert fresh.plan(far).tuned == ""
    monkeypatch.setenv("CLGRAFT_TUNE", "off")
    assert core.Context.on(None).plan(problem).tuned == ""


def test_the_users_choice_wins_over_shipped_rows(fresh, monkeypatch):
    text = str(core.parse(tuning_plants.PROBLEM))
    monkeypatch.setattr("clgraft.core.tuning.recall.shipped", lambda device: (rows.TunedRow(text, Choice("direct")),))
    tuning.forget_database()
    assert str(advice(text, fresh.device)) == "direct (shipped row)"
    keep(fresh, text.replace("n2", "n3"), Choice("cpu_gemm"))
    assert str(advice(text, fresh.device)) == "direct (shipped row)"  # the same problem is nearer than another one
    keep(fresh, text, HEURISTIC)
    assert advice(text, fresh.device).choice == HEURISTIC
    assert fresh.plan(core.parse(text)).tuned == ""


@pytest.mark.parametrize(
    "choice, reason",
    [
        ("declining", "is planted to decline"),
        ("unbuildable", "is planted not to build"),
        ("gone", "got algorithm 'gone'"),
        ("direct colour=7", "direct has no settings"),
    ],
)
def test_a_choice_that_cannot_serve_falls_back_with_the_reason(fresh, monkeypatch, choice, reason):
    plants = tuning_plants.of_plants(tuning_plants.right, tuning_plants.declining, tuning_plants.unbuildable)
    monkeypatch.setitem(IMPLEMENTATIONS, (core.ConvProblem, None), plants)
    problem = core.parse(tuning_plants.PROBLEM)
    keep(fresh, str(problem), Choice.parse(choice))
    plan = fresh.plan(problem)
    assert (plan.algorithm, plan.tuned) == ("right", "")
    assert plan.declined[0][0] == f"{choice} (user row)"
    assert reason in plan.declined[0][1]
    check(fresh, problem, None)


def test_an_algorithm_that_is_insisted_on_is_not_tuned(fresh):
    keep(fresh, tuning_plants.PROBLEM, Choice("direct"))
    other = "cpu_gemm" if fresh.device.is_cpu else "gpu_gemm"
    assert fresh.plan(core.parse(tuning_plants.PROBLEM), other).algorithm == other


def test_the_c_library_is_tuned_as_well(fresh):
    problem = core.parse(tuning_plants.PROBLEM)
    keep(fresh, str(problem), Choice("direct"))
    chosen = fresh.choose(problem)
    assert (chosen.algorithm, chosen.declined) == ("direct", ())
    handle = fresh.assemble(problem)
    assert handle
    fresh.lib.clg_plan_destroy(handle)


def test_a_context_lists_its_problems(fresh):
    problems = [core.parse(tuning_plants.PROBLEM), core.parse("pool max n1 c1 ih4 iw4 kh2 kw2")]
    for problem in (*problems, *problems):
        fresh.plan(problem)
    fresh.plan(problems[0], "direct")
    assert fresh.problems() == tuple(problems)
