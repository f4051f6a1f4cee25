"""What the digits demo says about its trainings, and about packages that it lacks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.folders import ROOT

FOLDER = ROOT / "examples" / "digits"


@pytest.fixture
def comparison(monkeypatch):
    """Make a comparison of three nets with these test accuracies, whose losses agree."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import record

    def make(original: float, swapped: float, regions: float, apart: float = 0.0):
        accuracies = (original, swapped, regions, original)
        runs = [record.Run([2.0, 1.0 + apart * (i in (1, 2))], [0.1], each) for i, each in enumerate(accuracies)]
        runs[3].losses[1] += 1e-4
        return record.Comparison("MXNet", "a device", *runs, 1e-6, "w", 1e-6)

    return make


@pytest.mark.parametrize(
    "accuracies, apart, agree, learnt",
    [
        ((0.99, 0.99, 0.99), 0.0, True, True),
        ((0.91, 0.91, 0.91), 0.0, True, False),  # too few epochs
        ((0.99, 0.91, 0.99), 0.0, False, True),
        ((0.99, 0.99, 0.91), 0.0, False, True),
        ((0.99, 0.99, 0.99), 0.5, False, True),
        ((0.91, 0.91, 0.91), 0.5, False, False),
    ],
)
def test_agreement_and_learning_are_told_apart(comparison, accuracies, apart, agree, learnt):
    import record

    lines, status = record.verdict([comparison(*accuracies, apart=apart)])
    assert ("original and swapped nets agree" in lines) == agree
    assert ("original and swapped nets do not agree" in lines) != agree
    assert any("learnt too little: got test accuracy MXNet 91.00%" in line for line in lines) != learnt
    assert any(line.startswith("FAILED ") for line in lines) != agree
    assert status == (0 if agree and learnt else 1)


def test_missing_packages_are_named_with_the_extra_that_brings_them(tmp_path):
    """In front of the training, which takes minutes."""
    code = (
        "import importlib.util, runpy\n"
        "importlib.util.find_spec = lambda name: None if name == 'skimage' else object()\n"
        f"runpy.run_path({str(FOLDER / 'demo.py')!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--output", str(tmp_path / "out")], capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout == 'got no skimage, expected what pip install ".[demo]" brings, next to an OpenCL driver\n'
    assert not (tmp_path / "out").exists()


def test_the_extra_holds_what_the_demo_needs(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import demo

    (line,) = [line for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("demo = ")]
    packages = {"skimage": "scikit-image", "sklearn": "scikit-learn"}
    for name in demo.NEEDED:
        assert f'"{packages.get(name, name)}"' in line
