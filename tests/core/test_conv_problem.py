"""The convolution problem: its text, its shapes, its errors."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from clgraft import core
from tests.problem_sets import problem_lines

SETS = ("conv", "depthwise", "resnet50", "vgg16", "mobilenet", "alexnet", "classic")
LINES = {f"{name}/{key}": text for name in SETS for key, text in problem_lines(name).items()}
small = st.integers(1, 5)


@pytest.mark.parametrize("name", LINES)
def test_shared_lines_read_and_print(name):
    problem = core.parse(LINES[name])
    assert core.parse(str(problem)) == problem
    for direction in ("backward_data", "backward_filter", "backward_bias"):
        turned = problem.with_direction(direction)
        assert core.parse(str(turned)) == turned
        assert turned.with_direction("forward").out_size == problem.out_size


@given(data=st.data(), ndim=st.integers(1, 3))
def test_any_problem_survives_its_text(data, ndim):
    def sizes(low: int, high: int) -> tuple[int, ...]:
        return tuple(data.draw(st.integers(low, high)) for _ in range(ndim))

    groups = data.draw(small)
    fields = {
        "direction": data.draw(st.sampled_from(("forward", "backward_data", "backward_filter", "backward_bias"))),
        "batch": data.draw(st.integers(0, 3)),
        "in_channels": groups * data.draw(small),
        "out_channels": groups * data.draw(small),
        "groups": groups,
        "in_size": sizes(1, 20),
        "kernel": sizes(1, 5),
        "stride": sizes(1, 4),
        "pad_begin": sizes(0, 4),
        "pad_end": sizes(0, 4),
        "dilate": sizes(1, 3),
        "bias": data.draw(st.booleans()),
        "dtype": data.draw(st.sampled_from(("float32", "float16", "float64"))),
    }
    try:
        problem = core.ConvProblem(**fields)
    except core.ProblemError as error:
        assert "kernel" in str(error)
        assume(False)
    assert core.parse(str(problem)) == problem
    assert all(size >= 1 for size in problem.out_size)
    assert len({problem, core.parse(str(problem))}) == 1


@pytest.mark.parametrize(
    "text, words",
    [
        ("conv n1 ic1 iw4 oc1", "kwN"),
        ("conv n1 ic1 iw4 oc1 kw3 kw3", "'kw3'"),
        ("conv n1 ic1 iw4 oc1 kw3 kh3", "kh"),
        ("conv n1 ic1 ih4 oc1 kh3", "expected iw"),
        ("conv n1 ic1 iw4 oc1 kw9", "kernel"),
        ("conv n1 ic1 iw4 oc1 kw3 dw2", "dilated kernel"),
        ("conv n1 ic3 iw4 oc4 kw3 g2", "in_channels 3"),
        ("conv n1 ic4 iw4 oc3 kw3 g2", "out_channels 3"),
        ("conv n1 ic1 iw4 oc1 kw3 sw0", "stride"),
        ("conv n1 ic1 iw4 oc1 kw3 dw0", "dilate"),
        ("conv n1 ic0 iw4 oc1 kw3", "in_channels 0"),
        ("conv sideways n1 ic1 iw4 oc1 kw3", "'sideways'"),
        ("conv n1 ic1 iw99999999999 oc1 kw3", "in_size"),
        ("convolve n1", "'convolve'"),
        ("", "''"),
    ],
)
def test_wrong_texts_are_named(text, words):
    with pytest.raises(core.ProblemError, match=words):
        core.parse(text)
