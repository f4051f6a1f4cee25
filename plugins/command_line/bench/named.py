"""The cases that a user names: sets, and problems by their text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from clgraft.core import BatchNormProblem, ConvProblem, PoolProblem, Problem, parse
from clgraft.plugins.command_line import asked, problem_text
from clgraft.plugins.command_line.bench.cases import Case, cases, set_names
from clgraft.plugins.plugin import PluginError

OWN = "own"  # the set of problems that are named by their text


class LoneCase(Case):
    """A problem that no peer has, in its one direction."""

    @property
    def group(self) -> str:
        """Return the operator's name."""
        return str(self.work.kind)

    def flops(self, direction: str) -> int:
        """Return the operations of the one direction."""
        return int(self.work.operations)

    def nbytes(self, direction: str) -> int:
        """Return the bytes of all arguments."""
        return int(self.work.nbytes)


def named(words: Sequence[str], batch: int | None = None, only: str = "") -> Iterator[Case]:
    """Yield the cases that words name.

    Parameters
    ----------
    words : sequence of str
        Names of sets, and what `problem_text.read` reads.
    batch : int, optional
        Instead of the sets' own batch size.
    only : str
        Part of the names of the wanted cases of sets.

    Raises
    ------
    PluginError
        If a word is neither.
    FileError
        If a word names a file that cannot be read or holds no problem.
    """
    seen: set[str] = set()
    sets = set_names()
    asked.expect_files((word for word in words if word not in sets), "bench")
    for word in words:
        if asked.is_model(word):
            raise PluginError(f"[bench] got the model {word}, expected problems; clgraft profile measures models")
        problems = None if word in sets else asked.read(word, "bench")
        if problems is None and word not in sets:
            expected = f"one of {sets}, a problem, a file of problems or -"
            near = asked.near(word, [*sets, *problem_text.kinds()])
            raise PluginError(f"[bench] got set {word!r}, expected {expected}{near}")
        found = cases([word], batch, only) if problems is None else map(case_of, map(parse, problems))
        for case in found:
            if case.text not in seen:
                seen.add(case.text)
                yield case


def case_of(problem: Problem) -> Case:
    """Return the case of a problem.

    Where peers have the operator that is the forward problem in float32 without a bias, with all its gradients; else
    the problem itself, for ours alone.
    """
    wide: Any = problem
    forward: Any = None
    if problem.dtype == "float32":
        if isinstance(problem, ConvProblem):
            forward = replace(wide, direction="forward", bias=False)
        elif isinstance(problem, PoolProblem):
            forward = replace(wide, direction="forward")
        elif isinstance(problem, BatchNormProblem) and wide.direction in ("forward_training", "backward_training"):
            forward = replace(wide, direction="forward_training")
    if forward is None:
        return LoneCase(OWN, str(problem), str(problem), problem)
    return Case(OWN, str(forward), str(forward), forward)
