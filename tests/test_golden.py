"""What `tests.golden` lets pass, and what not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import golden

EXACT = np.random.default_rng(0).standard_normal(1000)


def summary(array: np.ndarray, exact: np.ndarray) -> dict[str, Any]:
    """Return an array's summary with its error."""
    return golden.summary(array, golden.error(array, exact))


def moved(by: float, dtype: str = "float32") -> np.ndarray:
    """Return the exact array with each element moved by a share of it, rounded to a type."""
    return (EXACT * (1 + by)).astype(dtype)


@pytest.mark.parametrize("by", (0.0, 1e-6, 1e-3))
def test_an_error_is_relative_to_the_exact_array(by: float) -> None:
    assert golden.error(EXACT * (1 + by), EXACT) == pytest.approx(by, rel=1e-6)


@pytest.mark.parametrize("given", (np.nan, np.inf, 1.0))
@pytest.mark.parametrize("expected", (np.nan, np.inf, 1.0))
def test_what_is_not_finite_has_to_be_the_same(given: float, expected: float) -> None:
    same = given == expected or (np.isnan(given) and np.isnan(expected))
    assert golden.error(np.array([given, 2.0]), np.array([expected, 2.0])) == (0 if same else np.inf)


@pytest.mark.parametrize(
    ("before", "after", "passes"),
    (
        (2e-6, 2.9e-6, True),
        (2e-6, 3.1e-6, False),
        (2e-6, 0.0, True),
        (0.0, 2e-7, True),  # a few roundings
        (0.0, 4e-7, False),
        (2e-6, np.nan, False),
        (np.nan, 2e-6, False),
        (np.nan, np.nan, False),
    ),
)
def test_an_error_may_not_grow(before: float, after: float, passes: bool) -> None:
    assert golden.is_rounding(*(summary(moved(by), EXACT) for by in (before, after))) == passes


def test_float64_has_smaller_roundings() -> None:
    wide, narrow = (summary(moved(1e-7, dtype), EXACT) for dtype in ("float64", "float32"))
    exact = summary(EXACT, EXACT)
    assert not golden.is_rounding(exact, wide)
    assert not golden.is_rounding(exact, narrow)  # another type


def test_without_an_exact_array_or_with_whole_numbers_nothing_is_rounding() -> None:
    assert not golden.is_rounding(golden.summary(moved(0)), golden.summary(moved(1e-7)))
    places = np.arange(1000)
    assert not golden.is_rounding(summary(places, places), summary(places, places))


def test_gradients_of_a_net_have_one_error_and_outputs_their_own() -> None:
    exact = {"training": EXACT, "gradient of w": EXACT, "gradient of b": np.full(10, 1e-17)}
    found = {"training": EXACT * 1.5, "gradient of w": EXACT * 1.25, "gradient of b": np.full(10, 1e-8), "other": EXACT}
    named = {name: wrong for name, _, wrong in golden.with_errors("net", found, exact)}
    assert named == {
        "net: training": pytest.approx(0.5),
        "net: gradient of w": pytest.approx(0.25),
        "net: gradient of b": pytest.approx(0.25),
        "net: other": None,
    }


def compare(monkeypatch: pytest.MonkeyPatch, folder: Path, arrays: list[np.ndarray], *options: str) -> int:
    """Return the status of a comparison of two runs, whose only array has the given values."""
    for name, value in (("CLGRAFT_TUNE", "off"), ("GLOG_minloglevel", "2")):  # the command sets them without undoing it
        monkeypatch.setenv(name, value)
    for array, words in zip(arrays, (("--write",), (*options, "--compare"))):
        found = ("an array", array, golden.error(array, EXACT))
        monkeypatch.setattr(golden, "PARTS", {"one": lambda found=found: iter([found])})
        monkeypatch.setattr(sys, "argv", ["golden", "one", *words, str(folder / "golden.json")])
        status = golden.main()
    return status


def test_differences_are_named_with_their_errors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(monkeypatch, tmp_path, [moved(1e-7), moved(1e-7)]) == 0
    assert "all equal" in capsys.readouterr().out
    assert compare(monkeypatch, tmp_path, [moved(2e-6), moved(1e-6)]) == 1
    assert compare(monkeypatch, tmp_path, [moved(2e-6), moved(1e-6)], "--rounding") == 0
    out = capsys.readouterr().out
    assert "one: an array: differs by " in out
    assert "error from float64 2.00e-06 -> 1.00e-06" in out
    assert "1 arrays differ by rounding" in out
    assert compare(monkeypatch, tmp_path, [moved(1e-6), moved(2e-6)], "--rounding") == 1
