"""The suites' own sets of problem lines in `tests/problems`, and the package's."""

from __future__ import annotations

from pathlib import Path

from clgraft.core.tuning import problem_sets

FOLDER = Path(__file__).resolve().parent / "problems"


def problem_lines(name: str) -> dict[str, str]:
    """Read a set, name to text, from `tests/problems` or, if it has none of that name, from the package."""
    path = FOLDER / f"{name}.txt"
    return problem_sets.read(path) if path.is_file() else problem_sets.lines(name)
