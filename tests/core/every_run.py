"""Every problem of the sets by every implementation that serves it: plans, and what holds for all of their runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np

from clgraft import core
from clgraft.core.errors import ClgraftError
from clgraft.core.planning.implementation import implementations
from clgraft.core.problem import ROUNDING, kinds
from clgraft.core.session.context import Context
from clgraft.core.tuning.trial import ALLOWED
from tests.problem_sets import FOLDER, problem_lines

ENLARGED = {"fused": 4}  # what follows a convolution enlarges its errors
# methods of convolutions whose results are sums of their own products alone: each element has its own bound
ELEMENTWISE = ("direct", "gpu_gemm")
SETS = tuple(sorted(path.stem for path in FOLDER.glob("*.txt")))


def in_directions(text: str) -> Iterator[core.Problem]:
    """Yield the problems of a line, in all directions unless it names one itself."""
    kind, _, rest = text.partition(" ")
    directions = kinds()[kind].directions
    named = set(directions) & set(rest.split())
    for direction in ("",) if named or not directions else directions:
        try:
            yield core.parse(" ".join(filter(None, (kind, direction, rest))))
        except core.ProblemError:  # it has no such direction
            continue


def nelements(problem: core.Problem) -> int:
    """Return the number of elements of all arguments together."""
    return sum(argument.size for argument in problem.arguments())


def problems(name: str, largest: int) -> Iterator[core.Problem]:
    """Yield the problems of a set that the device serves and that have no more than so many elements."""
    has_fp64 = core.context().device.has_fp64
    for text in problem_lines(name).values():
        for problem in in_directions(text):
            if (problem.dtype != "float64" or has_fp64) and nelements(problem) <= largest:
                yield problem


def served_by(problem: core.Problem, for_gpus: bool | None = None, context: Context | None = None) -> list[str]:
    """Return the names of the implementations that serve a problem; with `for_gpus` those for GPUs, or the others."""
    context = context or core.context()
    return [
        implementation.NAME
        for implementation in implementations(problem)
        if for_gpus in (None, getattr(implementation, "FOR_GPUS", False))
        and context.serves(problem, implementation.NAME)
    ]


def plans(sets: Sequence[str], largest: int, every: int = 1, turn: int = 0) -> Iterator[core.Plan]:
    """Yield plans, one for each implementation that does not decline.

    Parameters
    ----------
    sets : sequence of str
        Of `SETS`.
    largest : int
        Number of elements of all arguments together, above which a problem is left out.
    every : int
        Take only every so many-th problem.
    turn : int
        Which of them: as many turns take all problems.
    """
    context = core.context()
    for count, problem in enumerate((problem for name in sets for problem in problems(name, largest)), 1):
        if (count + turn) % every:
            continue
        for implementation in implementations(problem):
            try:
                yield context.plan(problem, implementation.NAME)
            except ClgraftError:  # it declines
                continue


def arrays(plan: core.Plan, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return random inputs, and outputs of NaN."""
    return {
        argument.name: (
            np.full(argument.shape, np.nan, argument.dtype)
            if argument.role == "out"
            else rng.standard_normal(argument.shape).astype(argument.dtype)
        )
        for argument in plan.arguments
    }


def run(plan: core.Plan, values: dict[str, np.ndarray]) -> None:
    """Run with all scalars a half."""
    plan.run(dict.fromkeys(plan.scalars, 0.5), **values)


class Check:
    """A problem with inputs on which it is meaningful, and its results in float64."""

    def __init__(self, problem: core.Problem) -> None:
        self.problem, self.scalars = problem, problem.trial_scalars()
        self.inputs = problem.sample(np.random.default_rng(5))
        self.exact = problem.determined(problem.reference(self.inputs, self.scalars))
        self.read = max((a.size for a in problem.arguments() if a.role == "in"), default=1)

    @cached_property
    def bounds(self) -> dict[str, np.ndarray]:
        """The sums of the products' absolute values."""
        absolute = {name: np.abs(array) for name, array in self.inputs.items()}
        return self.problem.reference(absolute, self.scalars)

    def run(self, plan: core.Plan, **requests: np.ndarray | core.accumulate | None) -> dict[str, np.ndarray]:
        """Run a plan and return the results by name; outputs for which nothing else is given begin as NaN."""
        results, given = {}, {}
        for argument in plan.arguments:
            if argument.role == "in":
                given[argument.name] = self.inputs[argument.name]
                continue
            if argument.role == "out":
                start = np.full(argument.shape, np.nan if argument.dtype in ROUNDING else 77, argument.dtype)
            else:
                start = self.inputs[argument.name].copy()
            given[argument.name] = requests.get(argument.name, start)
            if isinstance(given[argument.name], np.ndarray):
                results[argument.name] = given[argument.name]
        plan.run(self.scalars, **given)
        return results

    def expect_right(self, plan: core.Plan, results: dict[str, np.ndarray]) -> None:
        """Hold results to ten times the rounding errors that the direct method has, as tuning does with candidates.

        Whole numbers have no errors, and what is not finite is the same.
        """
        results = self.problem.determined(results)
        for argument in plan.arguments:
            name = argument.name
            if name not in self.exact or not argument.size:
                continue
            found, exact = results[name].astype(np.float64), self.exact[name]
            if argument.dtype not in ROUNDING:
                assert np.array_equal(found, exact.astype(argument.dtype)), f"{plan}: {name}"
                continue
            finite = np.isfinite(exact)
            assert np.array_equal(found[~finite], exact[~finite], equal_nan=True), f"{plan}: {name}"
            found, exact = found[finite], exact[finite]
            wide = self.problem.dtype == argument.dtype == "float64"
            terms = max(self.problem.terms, self.read / argument.size)
            unit = ROUNDING["float64" if wide else "float32"] * (2 + terms**0.5) + ROUNDING[argument.dtype] / 4
            scale = np.abs(exact).max(initial=0) or 1.0
            enlarged = ENLARGED.get(self.problem.kind, 1)
            error = np.abs(found - exact).max(initial=0) / (ALLOWED * enlarged * unit * scale)
            assert error <= 1, f"{plan}: {name} has {error:.1f} times the error that is allowed"
            if self.problem.kind == "conv" and plan.algorithm in ELEMENTWISE and finite.all():
                self._expect_each_right(plan, name, found, exact)

    def _expect_each_right(self, plan: core.Plan, name: str, found: np.ndarray, exact: np.ndarray) -> None:
        """Hold every element to Higham's bound of a sum of products, and the rounding of what is stored."""
        dtype = self.problem.dtype
        summing = (self.problem.terms + 3) * ROUNDING["float64" if dtype == "float64" else "float32"]
        summed = summing * self.bounds[name].reshape(-1)
        stored = 2 * ROUNDING[dtype] * (np.abs(exact) + summed) + (2.0**-25 if dtype == "float16" else 0)
        wrong = np.flatnonzero(~(np.abs(found - exact) <= summed + stored))
        assert not len(wrong), f"{plan}: {len(wrong)} of {exact.size} elements of {name} wrong, first {wrong[0]}"

    def expect_added(self, plan: core.Plan, first: dict[str, np.ndarray]) -> None:
        """Expect that every output can be added to, but for whole numbers, which stand for places."""
        names = [a.name for a in plan.arguments if a.role == "out" and a.dtype in ROUNDING]
        rng = np.random.default_rng(1)
        base = {name: rng.integers(-3, 4, first[name].shape).astype(first[name].dtype) for name in names}
        sums = {name: array.copy() for name, array in base.items()}
        self.run(plan, **{name: core.accumulate(array) for name, array in sums.items()})
        unit = 16 * max(ROUNDING[first[name].dtype.name] for name in names) if names else 0
        for name, array in sums.items():
            with np.errstate(invalid="ignore"):
                expected = first[name].astype(np.float64) + base[name]
                allowed = unit * (3 + np.abs(np.where(np.isfinite(expected), expected, 0)).max(initial=0))
                good = (
                    (np.abs(array - expected) <= allowed) | (array == expected) | (np.isnan(array) & np.isnan(expected))
                )
            assert good.all(), f"{plan}: {name} is not added to"

    def expect_alone(self, plan: core.Plan, first: dict[str, np.ndarray]) -> None:
        """Expect the same bits of every output where the others are left out."""
        names = [a.name for a in plan.arguments if a.role == "out"]
        for name in names if len(names) > 1 else ():
            alone = self.run(plan, **{other: None for other in names if other != name})
            assert alone[name].tobytes() == first[name].tobytes(), f"{plan}: {name} alone"


def expect_all_of(plan: core.Plan, poison: Callable[[], None], check: Check | None = None) -> None:
    """Expect right results of a plan, the same bits of a second run with another workspace, added and alone."""
    check = check or Check(plan.problem)
    first = check.run(plan)
    check.expect_right(plan, first)
    poison()
    for name, result in check.run(plan).items():
        assert result.tobytes() == first[name].tobytes(), f"{plan}: {name} of a second run"
    check.expect_added(plan, first)
    check.expect_alone(plan, first)
