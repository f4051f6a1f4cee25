"""Problem texts, damaged at random, here and through the C ABI: read back the same, or refused in words."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clgraft import core
from clgraft.core import abi
from clgraft.core.errors import ClgraftError, ProblemError
from clgraft.core.tuning import problem_sets
from tests.problem_sets import FOLDER, problem_lines

LINES = [
    line
    for name in [*problem_sets.names(), *sorted(path.stem for path in FOLDER.glob("*.txt"))]
    for line in problem_lines(name).values()
]
WORDS = sorted({word for line in LINES for word in line.split()})
NUMBERS = st.sampled_from([0, 1, 2, 7, 255, 65535, 2**31 - 1, 2**31, 2**32, 2**63, 10**30, -1])
EFFORT = settings(max_examples=400, suppress_health_check=list(HealthCheck))


@st.composite
def damaged(draw):
    """A line with words exchanged, left out or doubled, numbers changed, letters added."""
    words = draw(st.sampled_from(LINES)).split()
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, max(len(words) - 1, 0)))
        kind = draw(st.sampled_from(["number", "drop", "double", "word", "letters", "direction"]))
        if not words or kind == "word":
            words.insert(place, draw(st.sampled_from(WORDS)))
        elif kind == "number":
            words[place] = re.sub(r"\d+", str(draw(NUMBERS)), words[place])
        elif kind == "drop":
            del words[place]
        elif kind == "double":
            words.insert(place, words[place])
        elif kind == "direction":
            words.insert(1, draw(st.sampled_from(["forward", "backward", "backward_data", "backward_filter"])))
        else:
            words[place] += draw(st.text(max_size=4))
    return " ".join(words)


@EFFORT
@given(damaged())
def test_read_back_or_refused(text):
    try:
        problem = core.parse(text)
    except ProblemError as error:
        assert str(error).startswith("[")
        return
    assert core.parse(str(problem)) == problem
    assert str(core.parse(str(problem))) == str(problem)
    for argument in problem.arguments():
        assert argument.nbytes >= 0


@pytest.mark.parametrize("number", [7, 2**31, 10**30])
def test_outputs_are_counted_before_they_are_made(number):
    """A number that a caller got wrong must not take the memory of the process."""
    with pytest.raises(ProblemError, match=f"got {number + 1} reductions, expected at most 1, one per output"):
        core.parse(f"pointwise x0[3,4] y{number}=sum[1] : y0 = x0")


@pytest.fixture(scope="module")
def handle():
    """A context made through the C ABI."""
    out = abi.ffi.new("clg_context *")
    assert abi.lib.clg_context_create(abi.ffi.NULL, out) == abi.lib.CLG_OK
    yield out[0]
    assert abi.lib.clg_context_destroy(out[0]) == abi.lib.CLG_OK


@settings(EFFORT, max_examples=60)
@given(text=damaged() | st.text(max_size=60).filter(lambda text: "\0" not in text))
def test_the_abi_refuses_what_cannot_be_read(text, handle):
    try:
        core.parse(text)
    except ClgraftError:
        plan = abi.ffi.new("clg_plan *")
        status = abi.lib.clg_plan_create(handle, text.encode("utf-8", "surrogatepass"), plan)
        assert status == abi.lib.CLG_INVALID_PROBLEM
        assert plan[0] == abi.ffi.NULL
        assert abi.ffi.string(abi.lib.clg_last_error())


@pytest.mark.parametrize(
    "text",
    [
        "conv n1 ic1 ih2147483647 iw2147483647 oc1 kh3 kw3",
        "conv n2147483647 ic2147483647 ih8 iw8 oc2147483647 kh1 kw1",
        "conv backward_filter n2147483647 ic64 ih512 iw512 oc64 kh3 kw3",
        "conv g1000000 n1000000 ic1000000 ih64 iw64 oc1000000 kh3 kw3 ph1 pw1",
        "pool max n2147483647 c2147483647 ih8 iw8 kh2 kw2",
        "batchnorm forward_training n2147483647 c2147483647 s2147483647",
    ],
)
def test_problems_that_fit_no_machine_are_planned_or_refused_at_once(text):
    try:
        plan = core.context().plan(core.parse(text))
    except ClgraftError as error:
        assert str(error)
    else:
        assert plan.arguments


@pytest.mark.parametrize("given", [None, 5, b"lrn forward n1 c3 s4"])
def test_what_is_no_text_is_named(given):
    expected = f"[problem] got {type(given).__name__}, expected the text of a problem, such as 'conv forward n8"
    with pytest.raises(ProblemError, match=f"^{re.escape(expected)}"):
        core.parse(given)


def test_a_misspelt_kind_has_the_nearest():
    with pytest.raises(ProblemError, match=r"got kind 'cnov', expected one of \[.*\]; nearest: conv"):
        core.parse("cnov forward n1 ic1 iw9 oc1 kw3")
