"""Batch norm in all directions against float64, gradients against differences, and the hard case of a large mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clgraft import core
from clgraft.core import BatchNormProblem, ProblemError
from clgraft.core.operators.batchnorm.problem import DIRECTIONS
from tests.core.pointwise_checks import MACHINES, ROUNDING, planning_for, run
from tests.problem_sets import problem_lines

LINES = problem_lines("batchnorm")
EPS = 1e-5


def parse(line: str, direction: str) -> BatchNormProblem:
    problem = core.parse(line.replace("batchnorm", f"batchnorm {direction}"))
    assert isinstance(problem, BatchNormProblem)
    return problem


def per_channel(values: Any) -> np.ndarray:
    return np.asarray(values, np.float64)[None, :, None]


def statistics(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and biased variance in float64; 0 where there is nothing."""
    if x.shape[0] * x.shape[2] == 0:
        return np.zeros(x.shape[1]), np.zeros(x.shape[1])
    return x.mean((0, 2), dtype="float64"), x.astype("float64").var((0, 2))


def reference(problem: BatchNormProblem, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compute a direction in float64."""
    return problem.reference(arrays, {"eps": EPS, **SCALARS.get(problem.activation, {})})


def kept_values(a: dict[str, np.ndarray], mean: np.ndarray, var: np.ndarray) -> dict[str, np.ndarray]:
    """Return what forward keeps for backward; its shift may be any value near the mean, here the mean itself."""
    return {"shift": mean, "scale": a["gamma"] / np.sqrt(var + EPS), "offset": a["beta"]}


def random_arrays(
    problem: BatchNormProblem, mean: float = 0.0, std: float = 1.0, seed: int = 0
) -> dict[str, np.ndarray]:
    """Random inputs, `mean` and `var` being x's own statistics."""
    rng = np.random.default_rng(seed)
    shapes = {argument.name: argument.shape for argument in problem.arguments() if argument.role == "in"}
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    arrays["x"] = arrays["x"] * std + mean
    arrays["gamma"] += 1.5
    arrays = {name: array.astype(problem.dtype) for name, array in arrays.items()}
    if "mean" in arrays:
        arrays["mean"], arrays["var"] = (s.astype(problem.dtype) for s in statistics(arrays["x"]))
    return arrays


def check_nan_stays_in_its_channel(run, line: str) -> None:
    """Run forward_training with one NaN in the middle channel of three: its results are NaN, and no other's."""
    problem = parse(f"batchnorm {line}", "forward_training")
    arrays = random_arrays(problem)
    arrays["x"][1, 1, 48] = np.nan
    results = run(problem, arrays)
    for name in ("y", "mean", "var"):
        found = np.isnan(results[name] if name != "y" else results[name].transpose(1, 0, 2))
        assert found[1].all()
        assert not found[[0, 2]].any()


def check(results: dict[str, np.ndarray], exact: dict[str, np.ndarray], dtype: str, roundings: float) -> None:
    """Hold the results to so many roundings of the largest value, plus the rounding of what is stored."""
    assert set(results) == set(exact)
    for name, result in results.items():
        largest = np.abs(exact[name]).max(initial=1e-3)
        allowed = roundings * ROUNDING["float64" if dtype == "float64" else "float32"] * largest
        allowed = allowed + 2 * ROUNDING[dtype] * np.abs(exact[name])
        error = np.abs(result.astype(np.float64) - exact[name])
        assert (error <= allowed).all(), f"{name}: {error.max() / largest:.1e}"


ACTIVATED = {"relu": (0.0, np.inf), "clip": (-0.5, 0.75)}
SCALARS = {"relu": {}, "clip": {"low": -0.5, "high": 0.75}}
FEW = ("one", "no-space", "planes-7x7", "large-planes")


def with_activation(line: str, direction: str, activation: str) -> tuple[BatchNormProblem, dict[str, np.ndarray]]:
    """Return a problem and its inputs, none of whose norms is so near a kink that rounding could carry it across."""
    problem = parse(f"{line} {activation}", direction)
    plain = random_arrays(parse(line, "backward_inference"), 3.0)
    plain["beta"] = np.random.default_rng(1).standard_normal(plain["gamma"].shape).astype(problem.dtype)
    mean, var = (plain[name].astype(np.float64) for name in ("mean", "var"))
    exact = {name: array.astype(np.float64) for name, array in plain.items()}
    norm = (exact["x"] - per_channel(mean)) / np.sqrt(per_channel(var) + EPS) * per_channel(exact["gamma"])
    norm = norm + per_channel(exact["beta"])
    near = np.min([np.abs(norm - kink) for kink in ACTIVATED[activation]], axis=0) < 1e-2
    plain["dy"][near] = 0
    plain.update((name, value.astype(np.float32)) for name, value in kept_values(exact, mean, var).items())
    if problem.dtype == "float64":
        plain.update(kept_values(exact, mean, var))
    names = [argument.name for argument in problem.arguments() if argument.role == "in"]
    return problem, {name: plain[name] for name in names}


@pytest.mark.parametrize("activation", list(ACTIVATED))
@pytest.mark.parametrize("direction", DIRECTIONS[:4])
@pytest.mark.parametrize("name", [*FEW, "batch-0", "prime", "double", "half"])
def test_activations_behind_the_norm(name: str, direction: str, activation: str) -> None:
    problem, arrays = with_activation(LINES[name], direction, activation)
    assert core.parse(str(problem)) == problem
    results = run(core.context(), problem, arrays, {"eps": EPS, **SCALARS[activation]})
    exact = reference(problem, arrays)
    if direction == "forward_training":  # any shift will do: the same norm
        shift = exact.pop("shift") - results.pop("shift").astype(np.float64)
        exact["offset"] = exact["offset"] - shift * exact["scale"]
    check(results, exact, problem.dtype, 300)


@pytest.mark.parametrize(
    ("activation", "low"),
    [("relu", 0.0), ("relu_keep_nan", 0.0), ("leaky_relu", 0.25), ("leaky_relu_stop_nan", 0.25), ("clip", 0.0)],
)
def test_forward_and_backward_see_the_same_kinks(activation: str, low: float) -> None:
    """The gradient flows exactly where the value shows it, however far the mean is from 0."""
    forward, backward = (
        parse(f"batchnorm n4 c3 s999 {activation}", f"{way}_training") for way in ("forward", "backward")
    )
    rng = np.random.default_rng(0)
    scalars = {"slope": 0.25} if "leaky" in activation else {}
    scalars = {"low": -0.01, "high": 0.01} if activation == "clip" else scalars
    arrays = {
        "x": (1e4 + rng.standard_normal((4, 3, 999))).astype("float32"),
        "gamma": np.ones(3, "float32"),
        "beta": np.zeros(3, "float32"),
    }
    given = {"eps": EPS, **scalars}
    found = run(core.context(), forward, arrays, given)
    y = found.pop("y")
    dy = np.zeros_like(y)
    chosen = np.unravel_index(np.argsort(np.abs(y), axis=None)[:40], y.shape)
    for at in zip(*chosen):
        dy[at] = 1.0
        flow = run(core.context(), backward, {"x": arrays["x"], "dy": dy, "gamma": arrays["gamma"], **found}, given)
        dy[at] = 0.0
        inside = -0.01 < y[at] < 0.01 if activation == "clip" else y[at] > 0
        np.testing.assert_allclose(flow["dbeta"].max(), 1.0 if inside else low, rtol=1e-6)


@pytest.mark.parametrize("machine", MACHINES[:2])
@pytest.mark.parametrize(("mean", "std"), [(1000.0, 1.0), (-3e4, 1.0), (5.0, 1e-2), (0.0, 1e4)])
@pytest.mark.parametrize("line", ["n16 c5 s49", "n1 c3 s5000", "n4 c2 s3136", "n64 c7 s1"])
def test_large_means_keep_their_digits(line: str, mean: float, std: float, machine: str) -> None:
    problem = parse(f"batchnorm {line}", "forward_training")
    arrays = random_arrays(problem, mean, std)
    exact = reference(problem, arrays)
    with planning_for(machine) as context:
        results = run(context, problem, arrays, {"eps": EPS})
    assert np.abs(results["mean"] - exact["mean"]).max() <= 2.0**-23 * abs(mean) + 1e-6 * std
    np.testing.assert_allclose(results["var"], exact["var"], rtol=1e-5)
    np.testing.assert_allclose(results["y"], exact["y"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("outlier", [0.0, 1e4])
@pytest.mark.parametrize("line", ["n4 c2 s1000", "n32 c2 s100"])
def test_a_sample_unlike_the_rest(line: str, outlier: float) -> None:
    """The first image, from which the shift is taken, is constant and far away."""
    problem = parse(f"batchnorm {line}", "forward_training")
    arrays = random_arrays(problem, 1000.0)
    arrays["x"][0] = outlier
    exact = reference(problem, arrays)
    results = run(core.context(), problem, arrays, {"eps": EPS})
    np.testing.assert_allclose(results["var"], exact["var"], rtol=1e-5)
    np.testing.assert_allclose(results["y"], exact["y"], rtol=1e-5, atol=1e-5)


def test_constant_channels_have_no_variance() -> None:
    problem = parse("batchnorm n3 c2 s100", "forward_training")
    arrays = random_arrays(problem)
    arrays["x"][:] = 7.3
    results = run(core.context(), problem, arrays, {"eps": EPS})
    np.testing.assert_allclose(results["mean"], np.float32(7.3), rtol=1e-7)
    assert (results["var"] >= 0).all()
    assert (results["var"] < 1e-10).all()
    np.testing.assert_allclose(results["y"], np.broadcast_to(arrays["beta"][None, :, None], (3, 2, 100)), atol=1e-3)


@pytest.mark.parametrize("training", [True, False])
def test_gradients_are_differences(training: bool) -> None:
    """Central differences in float64, of a loss that weighs every output."""
    mode = "training" if training else "inference"
    forward, backward = (parse("batchnorm f64 n3 c2 s5", f"{way}_{mode}") for way in ("forward", "backward"))
    rng = np.random.default_rng(3)
    arrays = random_arrays(backward)
    weights = arrays["dy"]

    def loss(**changed: np.ndarray) -> float:
        given = {**arrays, "beta": np.array([0.3, -0.7]), **changed}
        names = [argument.name for argument in forward.arguments() if argument.role == "in"]
        y = run(core.context(), forward, {name: given[name] for name in names}, {"eps": EPS})["y"]
        return float((y * weights).sum())

    results = run(core.context(), backward, arrays, {"eps": EPS})
    h = 1e-5
    for name, gradient in (("x", "dx"), ("gamma", "dgamma"), ("beta", "dbeta")):
        base = arrays.get(name, np.array([0.3, -0.7]))
        direction = rng.standard_normal(base.shape)
        change = (loss(**{name: base + h * direction}) - loss(**{name: base - h * direction})) / (2 * h)
        np.testing.assert_allclose((results[gradient] * direction).sum(), change, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("machine", MACHINES[:2])
@pytest.mark.parametrize("direction", DIRECTIONS[:4])
def test_write_modes(direction: str, machine: str) -> None:
    problem = parse("batchnorm n3 c5 s40", direction)
    arrays = random_arrays(problem)
    with planning_for(machine) as context:
        plan = context.plan(problem)
        exact = run(context, problem, arrays, {"eps": EPS})
    for kept in exact:
        outputs = {name: np.full_like(array, 10) for name, array in exact.items()}
        given: dict[str, Any] = {name: core.accumulate(outputs[name]) if name == kept else None for name in exact}
        plan.run({"eps": EPS}, **arrays, **given)
        for name, array in exact.items():
            np.testing.assert_allclose(outputs[name], array + 10 if name == kept else 10, rtol=1e-6)


@pytest.mark.parametrize("direction", DIRECTIONS[:4])
def test_in_place(direction: str) -> None:
    problem = parse("batchnorm n3 c5 s41", direction)
    arrays = random_arrays(problem)
    source, target = ("x", "y") if direction.startswith("forward") else ("dy", "dx")
    exact = run(core.context(), problem, arrays, {"eps": EPS})
    again = run(core.context(), problem, {**arrays, target: arrays[source]}, {"eps": EPS})
    for name, array in exact.items():
        np.testing.assert_array_equal(again[name], array)


@pytest.mark.parametrize("channels", [1, 5, 64])
def test_update_statistics(channels: int) -> None:
    problem = parse(f"batchnorm n2 c{channels} s3", "update_statistics")
    rng = np.random.default_rng(0)
    arrays = {argument.name: rng.random(argument.shape, "float32") for argument in problem.arguments()}
    exact = [0.9 * arrays[f"running_{s}"] + f * arrays[s] for s, f in (("mean", 0.1), ("var", 0.25))]
    run(core.context(), problem, arrays, {"keep": 0.9, "add_mean": 0.1, "add_var": 0.25})
    np.testing.assert_allclose(arrays["running_mean"], exact[0], rtol=1e-6)
    np.testing.assert_allclose(arrays["running_var"], exact[1], rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("batchnorm n2 c3 s4", "expected one of"),
        ("batchnorm forward n2 c3 s4", "'forward'"),
        ("batchnorm forward_training n2 c3", "expected a word sN"),
        ("batchnorm forward_training n2 n2 c3 s4", "'n2'"),
        ("batchnorm forward_training n2 c0 s4", "channels 0"),
        ("batchnorm update_statistics n2 c3 s4 relu", "activation 'relu'"),
        ("batchnorm forward_training n2 c3 s4 tanh", "'tanh'"),
    ],
)
def test_wrong_texts_are_named(text: str, part: str) -> None:
    with pytest.raises(ProblemError) as caught:
        core.parse(text)
    assert str(caught.value).startswith("[batchnorm] got ")
    assert part in str(caught.value)


@pytest.mark.parametrize("machine", MACHINES[:2])
@pytest.mark.parametrize(
    "text", ["n3 oc5 ih4 iw5", "n0 oc5 ih4 iw5", "n1 oc1 iw1", "n4 oc33 iw200", "f64 n3 oc5 id3 ih4 iw5"]
)
def test_bias_gradient_is_a_fold(text: str, machine: str) -> None:
    kernel = " ".join(f"k{word[1]}1" for word in text.split() if word[0] == "i")
    problem = core.parse(f"conv backward_bias {text} ic2 {kernel}")
    dy = np.random.default_rng(0).standard_normal(problem.arguments()[0].shape).astype(problem.dtype)
    with planning_for(machine) as context:
        assert context.plan(problem).algorithm == "bias"
        result = run(context, problem, {"dy": dy})["db"]
        exact = dy.sum((0, *range(2, dy.ndim)), dtype="float64")
        np.testing.assert_allclose(result, exact, rtol=1e-5, atol=1e-5)
        again = run(context, problem, {"dy": dy, "db": result.copy()})["db"]
        assert result.tobytes() == again.tobytes()
