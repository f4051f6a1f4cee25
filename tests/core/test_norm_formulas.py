"""Norms by moments as pointwise problems: against float64, where the mean is large, and of constants."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from clgraft.core.operators.pointwise.formulas.norms import MomentNorm
from tests.core.pointwise_checks import run

EPS = 1e-5
SHAPES = [
    ((5, 7, 33), (2,), (7, 1)),
    ((4, 50), (1,), (50,)),
    ((3, 4, 9, 11), (2, 3), (4, 1, 1)),
    ((2, 3, 777), (2,), (3, 1)),
]


def normed(
    shape: tuple[int, ...], folded: tuple[int, ...], affine: tuple[int, ...], arrays: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Run all problems of a norm; return y, dx, dgamma and dbeta."""
    norm = MomentNorm(shape, folded, affine, str(arrays["x"].dtype))
    context = core.context()
    share = {"share": 1 / np.prod([shape[axis] for axis in folded])}
    eps, x, dy, gamma = {"eps": EPS}, arrays["x"], arrays["dy"], arrays["gamma"]
    (shift,) = run(context, norm.shift(), {"x0": x}, share).values()
    difference, square = run(context, norm.moments(), {"x0": x, "x1": shift}, share).values()
    given = {"x0": x, "x1": shift, "x2": difference, "x3": square}
    (y,) = run(context, norm.forward(), {**given, "x4": gamma, "x5": arrays["beta"]}, eps).values()
    first, second = run(context, norm.sums(), {**given, "x4": gamma, "x5": dy}, {**share, **eps}).values()
    dgamma, dbeta = run(context, norm.parameters(), {**given, "x4": dy}, eps).values()
    sums = {"x4": gamma, "x5": dy, "x6": first, "x7": second}
    (dx,) = run(context, norm.backward(), {**given, **sums}, eps).values()
    return {"y": y, "dx": dx, "dgamma": dgamma, "dbeta": dbeta}


def exact(folded: tuple[int, ...], affine: tuple[int, ...], arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compute the same in float64 from the definition."""
    x, dy, gamma, beta = (arrays[name].astype(np.float64) for name in ("x", "dy", "gamma", "beta"))
    deviation = np.sqrt(x.var(folded, keepdims=True) + EPS)
    norm = (x - x.mean(folded, keepdims=True)) / deviation
    flow = dy * gamma
    inner = flow - flow.mean(folded, keepdims=True) - norm * (flow * norm).mean(folded, keepdims=True)
    full = (1,) * (x.ndim - len(affine)) + affine
    axes = tuple(axis for axis in range(x.ndim) if full[axis] == 1)
    dgamma, dbeta = ((dy * each).sum(axes).reshape(affine) for each in (norm, 1.0))
    return {"y": norm * gamma + beta, "dx": inner / deviation, "dgamma": dgamma, "dbeta": dbeta}


def data(shape: tuple[int, ...], affine: tuple[int, ...], mean: float) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(8)
    arrays = {"x": mean + rng.standard_normal(shape), "dy": rng.standard_normal(shape)}
    arrays |= {"gamma": rng.uniform(0.5, 1.5, affine), "beta": rng.standard_normal(affine)}
    return {name: value.astype(np.float32) for name, value in arrays.items()}


@pytest.mark.parametrize("mean", [0.0, 3.0, 1e4, -1e6])
@pytest.mark.parametrize(("shape", "folded", "affine"), SHAPES, ids=str)
def test_matches_float64_at_any_mean(
    shape: tuple[int, ...], folded: tuple[int, ...], affine: tuple[int, ...], mean: float
) -> None:
    arrays = data(shape, affine, mean)
    expected = exact(folded, affine, arrays)
    for name, got in normed(shape, folded, affine, arrays).items():
        np.testing.assert_allclose(
            got, expected[name], rtol=2e-5, atol=4e-6 * np.abs(expected[name]).max(), err_msg=name
        )


@pytest.mark.parametrize("value", [0.1, 3.3, 12345.678, -7e5])
@pytest.mark.parametrize(("shape", "folded", "affine"), SHAPES, ids=str)
def test_a_constant_becomes_beta(
    shape: tuple[int, ...], folded: tuple[int, ...], affine: tuple[int, ...], value: float
) -> None:
    arrays = data(shape, affine, 0.0)
    arrays["x"][:], arrays["beta"][:] = value, 0
    assert np.abs(normed(shape, folded, affine, arrays)["y"]).max() <= 1e-8 * abs(value)
