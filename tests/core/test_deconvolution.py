"""Deconvolution against its float64 reference, in every direction."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from clgraft.core import DeconvProblem, ProblemError
from tests.core.rounding_bounds import run_to_bound
from tests.problem_sets import problem_lines

LINES = problem_lines("deconvolution")
OUTPUTS = {"forward": "y", "backward_data": "dx", "backward_filter": "dw", "backward_bias": "db"}


def check(
    context: core.Context,
    problem: DeconvProblem,
    accumulate: bool = False,
    seed: int = 0,
    algorithm: str | None = None,
) -> np.ndarray:
    rng = np.random.default_rng(seed)
    shapes = {a.name: a.shape for d in OUTPUTS for a in problem.with_direction(d).arguments() if a.role == "in"}
    arrays = {name: rng.standard_normal(shape).astype(problem.dtype) for name, shape in shapes.items()}
    return run_to_bound(context, problem, arrays, algorithm, rng if accumulate else None)


@pytest.mark.parametrize("seed", range(24))
def test_random_problems(context, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ndim, groups = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2, 3]))
    kernel, dilate, stride = rng.integers(1, 5, ndim), rng.integers(1, 4, ndim), rng.integers(1, 5, ndim)
    size = rng.integers(1, (30, 9, 5)[ndim - 1], ndim)
    whole = stride * (size - 1) + dilate * (kernel - 1) + 1
    begin = np.minimum(rng.integers(0, 4, ndim), (whole - 1) // 2)
    end = np.minimum(rng.integers(0, 4, ndim), (whole - 1) // 2)
    problem = DeconvProblem(
        direction=str(rng.choice(list(OUTPUTS))),
        batch=int(rng.integers(1, 4)),
        in_channels=groups * int(rng.integers(1, 20)),
        out_channels=groups * int(rng.integers(1, 20)),
        groups=groups,
        in_size=tuple(size),
        kernel=tuple(kernel),
        stride=tuple(stride),
        dilate=tuple(dilate),
        pad_begin=tuple(begin),
        pad_end=tuple(end),
        adj=tuple(rng.integers(0, 4, ndim) % stride),
        bias=bool(rng.integers(2)),
    )
    assert core.parse(str(problem)) == problem
    check(context, problem, accumulate=bool(seed % 2), seed=seed)


WRONG = {
    "deconv n1 ic1 oc1 ih3 iw3 kh3 kw3 ph3 pw3": "pad_begin (3, 3), expected an output of 1 or more, not (-1, -1)",
    "deconv n1 ic1 oc1 ih3 iw3 kh3 kw3 ah1 aw0": "adj (1, 0), expected less than stride (1, 1)",
    "deconv n1 ic3 oc4 g2 ih3 iw3 kh3 kw3": "in_channels 3, expected a multiple of groups 2",
    "deconv n1 ic4 oc3 g2 ih3 iw3 kh3 kw3": "out_channels 3, expected a multiple of groups 2",
    "deconv n1 ic1 oc1 ih0 iw3 kh3 kw3": "in_size (0, 3), expected numbers from 1",
    "deconv n1 ic1 oc1 ih3 iw3 kh3": "expected a word kwN",
    "deconv n1 ic1 oc1 ih3 kh3": "expected iw, or ih iw",
    "deconv n1 ic1 oc1 iw3 kw3 kh3": "expected only axes ['w']",
    "deconv n1 ic1 oc1 iw3 kw3 kw3": "got word 'kw3'",
}


@pytest.mark.parametrize("text", WRONG)
def test_errors_name_what_does_not_fit(text: str) -> None:
    with pytest.raises(ProblemError) as error:
        core.parse(text)
    assert str(error.value).startswith("[deconv] got") and WRONG[text] in str(error.value)
