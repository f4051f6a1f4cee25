"""Sets of problems as lines of text, by name: what common networks hold. For tuning, benchmarks and tests."""

from __future__ import annotations

from pathlib import Path

from clgraft.core.errors import ProblemError, hint

FOLDER = Path(__file__).resolve().parent


def names() -> list[str]:
    """Return the names of the sets."""
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def read(path: Path) -> dict[str, str]:
    """Read a file of lines ``name: problem text``; a ``#`` starts a comment."""
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return {key.strip(): text.strip() for key, _, text in (line.partition(":") for line in lines if line)}


def lines(name: str) -> dict[str, str]:
    """Return a set: the text of each problem by its name.

    Raises
    ------
    ProblemError
        If there is no such set.
    """
    if name not in names():
        raise ProblemError(f"[problem_sets] got set {name!r}, expected one of {names()}{hint(name, names())}")
    return read(FOLDER / f"{name}.txt")
