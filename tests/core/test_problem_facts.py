"""What problems say about themselves, for every problem of every set: gradients, costs, samples and references."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.problem import DTYPES, Gradient, kinds
from tests.core.every_run import SETS, in_directions
from tests.problem_sets import problem_lines

LARGEST = 40_000  # elements of all arguments, for finite differences
STEP = 1e-6
# scalars that have to stay apart from the data: kinks would lie among the points
# forward only: they have no gradient problems, and say so
FORWARD_ONLY = (
    "gradients",
    "separable",
    "resample",
    "gridsample",
    "roialign",
    "cumulative product",
    "scatter",
    "update",
    "casts",
)
SCALARS = {"low": -0.3, "high": 1.1}


def lines() -> Iterator[tuple[str, str]]:
    for name in SETS:
        for label, text in problem_lines(name).items():
            yield f"{name}-{label}", text


def forward_problems() -> Iterator[pytest.param]:
    """Yield every problem of the sets that has gradients, in float64."""
    for label, text in lines():
        for problem in in_directions(text):
            own = {part.name for part in fields(problem)}
            alone = {"float32_parameters": False} if "float32_parameters" in own else {}
            if "dtype" in own:
                problem = replace(problem, dtype="float64", **alone)
            direction = getattr(problem, "direction", "")
            gradient = direction.startswith("backward") and problem.kind not in ("concat", "slice")
            small = sum(argument.size for argument in problem.arguments()) <= LARGEST
            if (
                small
                and not gradient
                and direction not in ("mask", "count", "update_statistics")
                and "=fold" not in text
                and (not text.startswith(FORWARD_ONLY) or "onto_zero" in text)
            ):
                yield pytest.param(problem, id=f"{label}-{direction}")


def scalars_of(problem: core.Problem) -> dict[str, float]:
    return {name: SCALARS.get(name, value) for name, value in problem.trial_scalars().items()}


def start(problem: core.Problem, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return a sample with its differentiable values moved away from ties and kinks, and labels that name a channel."""
    values = {name: np.asarray(value) for name, value in problem.sample(rng).items()}
    if getattr(problem, "keep_nan", False):
        values = {name: np.nan_to_num(value) for name, value in values.items()}
    for name, value in values.items():
        if value.dtype.kind == "f" and name not in ("label", "y", "key"):
            values[name] = value + 0.3 * rng.standard_normal(value.shape) * (0 if name in ("var", "gamma") else 1)
    if "label" in values:  # for another label the gradient is a convention, not a derivative
        values["label"] = values["label"].clip(0, problem.channels - 1)
    return values


def backpropagate(
    problem: core.Problem, gradients: tuple[Gradient, ...], values: dict[str, np.ndarray], scalars: dict[str, float]
) -> dict[str, np.ndarray]:
    """Run the gradient problems' references on symbolic values; return all values."""
    values = dict(values)
    for gradient in gradients:
        own = {name: scalars[v] if isinstance(v, str) else v for name, v in gradient.scalars.items()}
        given = {}
        for argument in gradient.problem.arguments():
            if argument.role != "out":
                symbol = gradient.arguments[argument.name]
                assert symbol in values, f"{gradient.problem} reads {symbol}, which {problem} does not have"
                given[argument.name] = values[symbol].reshape(argument.shape)
        for name, result in gradient.problem.reference(given, own).items():
            values[gradient.arguments[name]] = result
    return values


@pytest.mark.parametrize("problem", forward_problems())
def test_gradients_are_differences(problem: core.Problem) -> None:
    """A step in some direction changes <dy, y> by <dx, step>, for references in float64."""
    gradients = problem.gradients()
    rng, scalars = np.random.default_rng(3), scalars_of(problem)
    through = next((g.through for g in gradients if g.through is not None), None)
    values = start(problem, rng)
    if through is not None:
        values["x"] = rng.standard_normal(through.arguments()[0].shape)

    def results(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if through is not None:
            values = {**values, **through.reference({"x": values["x"]}, {"scale": 1.0})}
        given = {a.name: values[a.name] for a in problem.arguments() if a.role != "out"}
        return {**values, **problem.reference(given, scalars)}

    known = results(values)
    writes = [name for gradient in gradients for name in gradient.writes if not name.startswith("_")]
    assert len(set(writes)) == len(writes) and (writes or not gradients)
    outputs = [a for a in problem.arguments() if a.role != "in" and a.dtype in DTYPES]
    read = {name for gradient in gradients for name in gradient.reads}
    seeds = {a.name: rng.standard_normal(a.shape) for a in outputs if f"d{a.name}" in read}
    found = backpropagate(problem, gradients, {**known, **{f"d{n}": v for n, v in seeds.items()}}, scalars)
    inputs = [a for a in problem.arguments() if a.role != "out"]
    moving = {name[1:] for name in writes}
    names = ["x"] if through is not None else [a.name for a in inputs if a.dtype in DTYPES]
    fixed = {"label", "mean", "var", "key"}
    along = {name: rng.standard_normal(values[name].shape) for name in names if name not in fixed}
    high, low = (results({**values, **{name: values[name] + h * along[name] for name in along}}) for h in (STEP, -STEP))
    change = 0.0
    for name, seed in seeds.items():
        with np.errstate(all="ignore"):  # extrema of nothing, which are infinite, do not change
            change += (seed * np.where(high[name] == low[name], 0, high[name] - low[name])).sum() / (2 * STEP)
    expected = sum(
        (found[f"d{name}"].reshape(step.shape) * step).sum() for name, step in along.items() if name in moving
    )
    sizes = sum(np.abs(found[f"d{name}"]).sum() for name in along if name in moving)
    assert abs(change - expected) <= 2e-6 * max(1.0, float(sizes)), (change, expected)


def test_every_kind_has_facts() -> None:
    assert {"conv", "deconv", "dense", "pool", "softmax", "crossentropy", "lrn", "dropout", "batchnorm"} <= set(kinds())
    sets = {text.split()[0] for _, text in lines()}
    for kind, problems in kinds().items():
        if not problems.__module__.startswith("clgraft."):
            continue  # another test covers these
        assert problems.examples, f"{kind} has no examples for clgraft check"
        assert kind in sets, f"no set in tests/problems has a {kind}"


@pytest.mark.parametrize("name", SETS)
def test_facts_of_a_set(name: str) -> None:
    rng = np.random.default_rng(4)
    for label, text in problem_lines(name).items():
        for problem in in_directions(text):
            arguments = problem.arguments()
            if sum(argument.size for argument in arguments) > LARGEST:
                continue
            given = problem.sample(rng)
            assert set(given) == {a.name for a in arguments if a.role != "out"}
            for argument in arguments:
                if argument.name in given:
                    value = given[argument.name]
                    assert (value.shape, str(value.dtype)) == (argument.shape, argument.dtype), (str(problem), argument)
            results = problem.reference(given)
            assert set(results) == {a.name for a in arguments if a.role != "in"}
            for argument in arguments:
                if argument.name in results:
                    assert results[argument.name].shape == argument.shape, (str(problem), argument)
                    # an extremum of nothing is infinite, and a sample may hold NaN that is kept
                    free = "of-nothing" in label or getattr(problem, "keep_nan", False)
                    assert np.isfinite(results[argument.name]).all() or free, str(problem)
            assert problem.terms >= 0 and problem.operations >= 0
            assert problem.nbytes <= sum(a.nbytes * (1 + (a.role == "inout")) for a in arguments)


@pytest.mark.parametrize(
    ("text", "operations", "nbytes", "terms"),
    [
        ("conv forward n2 ic4 ih5 iw6 oc8 kh3 kw3 ph1 pw1", 2 * 2 * 8 * 30 * 4 * 9, 4 * (240 + 288 + 480), 36),
        ("conv backward_data g2 n2 ic4 ih5 iw6 oc8 kh3 kw3 ph1 pw1", 2 * 2 * 8 * 30 * 2 * 9, 4 * (240 + 144 + 480), 36),
        ("conv backward_filter f16 n2 ic4 ih5 iw6 oc8 kh3 kw3 ph1 pw1", 34560, 2 * (240 + 288 + 480), 60),
        ("conv backward_bias n2 ic4 ih5 iw6 oc8 kh3 kw3 ph1 pw1", 480, 4 * (480 + 8), 60),
        ("deconv forward n1 ic3 ih4 iw4 oc5 kh2 kw2 sh2 sw2", 2 * 3 * 16 * 5 * 4, 4 * (48 + 60 + 320), 12),
        ("dense backward_data n7 i11 o13", 2 * 7 * 11 * 13, 4 * (91 + 143 + 77), 13),
        ("pool forward max n2 c3 ih6 iw6 kh2 kw2 sh2 sw2", 2 * 3 * 9 * 4, 4 * (216 + 54), 4),
        ("pool backward average n1 c1 ih9 iw9 kh3 kw3 sh2 sw2", 16 * 9, 4 * (16 + 81), 4),
        ("batchnorm forward_training n2 c3 s5", 120, 4 * (60 + 4 * 3), 10),
        ("batchnorm update_statistics n2 c3 s5", 18, 4 * (6 + 2 * 6), 1),
        ("softmax forward n2 c3 s5", 120, 240, 3),
        ("crossentropy forward n2 c3 s5", 10, 4 * (10 + 10 + 1 + 2), 10),
        ("lrn forward n2 c3 s5 size3", 180, 240, 3),
        ("matmul n2 m3 k4 c5", 2 * 2 * 3 * 4 * 5, 4 * (24 + 40 + 30), 4),
        ("gather shared outer2 extent3 inner5 count4", 0, 4 * (30 + 4 + 40), 1),
        ("dropout forward x[40]", 1040, 4 * (80 + 4), 1),
        ("concat forward outer[2] extents[1,2] inner[5]", 0, 240, 1),
        ("pad backward reflect x[5] before[2] behind[1]", 8, 4 * 13, 3),
        ("pad backward edge x[5] before[2] behind[1]", 8, 4 * 13, 3),
        ("pointwise x0[5,6] x1[6] y1=sum[0] : y0 = x0 * x1 + 1; y1 = exp(x0)", 30 * 4, 4 * (30 + 6 + 30 + 6), 5),
    ],
)
def test_costs(text: str, operations: int, nbytes: int, terms: int) -> None:
    problem = core.parse(text)
    assert (problem.operations, problem.nbytes, problem.terms) == (operations, nbytes, terms)


@pytest.mark.parametrize(
    "text", ["conv backward_data n1 ic1 iw3 oc1 kw1", "pool backward max n1 c1 iw3 kw1", "softmax backward n1 c1"]
)
def test_gradients_have_no_gradient_problems(text: str) -> None:
    with pytest.raises(core.ProblemError, match="expected a problem that has gradient problems"):
        core.parse(text).gradients()


def test_forward_only_problems_have_no_gradient_problems() -> None:
    for _, text in lines():
        if text.startswith(FORWARD_ONLY) and "onto_zero" not in text:
            with pytest.raises(core.ProblemError, match="expected a problem that has gradient problems"):
                core.parse(text).gradients()


def test_what_is_not_differentiable_has_no_gradients() -> None:
    for text in ("pool mask max n1 c1 iw3 kw1", "crossentropy count n1 c2", "batchnorm update_statistics n1 c1 s1"):
        assert core.parse(text).gradients() == ()


def test_unknown_derivatives_are_refused() -> None:
    with pytest.raises(core.ProblemError, match=r"\[pointwise\] got the function 'lgamma'"):
        core.parse("pointwise x0[3] : y0 = lgamma(x0)").gradients()
    assert core.parse("pointwise x0[3] x1[3] : y0 = x0 + lgamma(2)").gradients()
