"""The sets of named problem lines in `tests/problems`, shared by all suites and benchmarks."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "problems"


def problem_lines(name: str) -> dict[str, str]:
    """Read a set, name to text: lines ``name: problem text``, a ``#`` starts a comment."""
    lines = (line.split("#")[0].strip() for line in (FOLDER / f"{name}.txt").read_text().splitlines())
    return {key.strip(): text.strip() for key, _, text in (line.partition(":") for line in lines if line)}
