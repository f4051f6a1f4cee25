"""Chooses an implementation for a problem: advice first, then the implementations in their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from clgraft.core.errors import BuildError, Declined, ProblemError
from clgraft.core.planning.choice import HEURISTIC, Choice
from clgraft.core.planning.epilogue import Epilogue
from clgraft.core.planning.implementation import (
    Fusable,
    Implementation,
    Joining,
    Planner,
    Reserved,
    Summing,
    Tunable,
    implementations,
)
from clgraft.core.planning.launches import Launches, Sums, WantedSums
from clgraft.core.problem import Problem


class Advice(Protocol):
    """A choice that somebody recommends; its text says where it comes from."""

    @property
    def choice(self) -> Choice: ...


@dataclass(frozen=True)
class Chosen:
    """An implementation's launches.

    Attributes
    ----------
    launches : Launches
    algorithm : str
        The implementation's name.
    declined : tuple of (str, str)
        Who declined before, and why; advice that could not be followed comes first.
    tuned : str
        The advice that was followed; empty if there was none.
    """

    launches: Launches
    algorithm: str
    declined: tuple[tuple[str, str], ...] = ()
    tuned: str = ""

    @property
    def label(self) -> str:
        """The implementation's name, and the precision of its products if it is less than the dtype's."""
        return f"{self.algorithm} {self.launches.precision}".rstrip()


def choose(problem: Problem, planner: Planner, advice: Advice | None = None, algorithm: str | None = None) -> Chosen:
    """Return the first implementation that serves a problem.

    Parameters
    ----------
    problem : Problem
    planner : Planner
    advice : Advice, optional
        Tried first; `HEURISTIC` means the order of the implementations.
    algorithm : str, optional
        Ask only the implementation of this name.

    Raises
    ------
    ProblemError
        If no implementation of that name serves the problem.
    BuildError
        If the device's compiler refuses a kernel.
    """
    declined: list[tuple[str, str]] = []
    if not any(argument.size for argument in problem.arguments() if argument.role != "in"):
        return Chosen(Launches(()), "empty")
    if advice is not None and advice.choice != HEURISTIC:
        try:
            return Chosen(plan_choice(problem, planner, advice.choice), advice.choice.algorithm, tuned=str(advice))
        except (Declined, BuildError, ProblemError) as reason:
            declined.append((str(advice), str(reason)))
    listed = implementations(problem)
    for implementation in listed:
        if algorithm not in (None, implementation.NAME):
            continue
        reason_to_wait = _reserved(implementation, problem) if algorithm is None else ""
        if reason_to_wait:
            declined.append((implementation.NAME, reason_to_wait))
            continue
        try:
            return Chosen(implementation.plan(problem, planner), implementation.NAME, tuple(declined))
        except Declined as reason:
            declined.append((implementation.NAME, str(reason)))
    names = [implementation.NAME for implementation in listed]
    raise ProblemError(
        f"[{problem.kind}] got algorithm {algorithm!r} for {problem}, expected one of {names} that serves it"
        + "".join(f"; {name}: {reason}" for name, reason in declined)
    )


def choose_fused(
    problem: Problem, planner: Planner, dry: Planner, epilogue: Epilogue, advice: Advice | None = None
) -> Chosen:
    """Return the implementation that serves a problem, with an epilogue in its kernels.

    It is the one that `choose` returns for the problem alone: an epilogue never costs a faster implementation.

    Parameters
    ----------
    problem : Problem
    planner : Planner
    dry : Planner
        One that builds nothing, to ask implementations whether they serve the problem alone.
    epilogue : Epilogue
    advice : Advice, optional

    Raises
    ------
    Declined
        If that implementation has no epilogues.
    """
    implementation, choice = _serving_fused(problem, dry, epilogue, advice)
    given = {"settings": dict(choice.settings)} if choice.settings else {}
    return Chosen(implementation.plan(problem, planner, epilogue=epilogue, **given), choice.algorithm)


def choose_with_sums(
    layer: Problem,
    norm: Problem,
    planner: Planner,
    dry: Planner,
    advice: tuple[Advice | None, Advice | None] = (None, None),
) -> tuple[Chosen, Chosen, int]:
    """Return what serves a layer and the batch norm that reads its result, which takes sums that the layer leaves.

    The norm is that of the result, or the gradient of a norm of whose result the layer makes the gradient. Both are the
    implementations that `choose` returns for the problems alone.

    Parameters
    ----------
    layer, norm : Problem
    planner, dry : Planner
        See `choose_fused`.
    advice : pair of Advice, optional
        For the layer and for the norm.

    Returns
    -------
    layer, norm : Chosen
    nbytes : int
        Bytes of the sums.

    Raises
    ------
    Declined
        If one of the implementations does not leave sums or does not take them.
    """
    (first, choice), (second, other) = (_serving(*each) for each in ((layer, dry, advice[0]), (norm, dry, advice[1])))
    if not isinstance(first, Summing) or not isinstance(second, Joining):
        raise Declined(f"{choice.algorithm} and {other.algorithm} serve {layer} and {norm} without sums in between")
    wanted = second.wanted_sums(norm, planner)
    sums = first.plan_sums(layer, planner, wanted, dict(choice.settings) or None)
    after = second.plan_after(norm, planner, sums)
    return Chosen(sums.launches, choice.algorithm), Chosen(after, other.algorithm), sums.nbytes


def choose_fused_sums(
    problem: Problem,
    planner: Planner,
    dry: Planner,
    epilogue: Epilogue,
    wanted: WantedSums,
    advice: Advice | None = None,
) -> Sums:
    """Return the launches of `choose_fused`, one of which leaves the sums that are wanted.

    Raises
    ------
    Declined
        If that implementation has no epilogues, or leaves no sums.
    """
    implementation, choice = _serving_fused(problem, dry, epilogue, advice)
    if not isinstance(implementation, Summing):
        raise Declined(f"{choice.algorithm} leaves no sums")
    return implementation.plan_sums(problem, planner, wanted, dict(choice.settings) or None, epilogue)


def _serving_fused(problem: Problem, dry: Planner, epilogue: Epilogue, advice: Advice | None) -> tuple[Fusable, Choice]:
    """Return what serves a problem with an epilogue in its kernels, if what serves it alone has that."""
    implementation, choice = _serving(problem, dry, advice)
    if not (isinstance(implementation, Fusable) and implementation.fuses(problem, epilogue)):
        raise Declined(f"{choice.algorithm} serves {problem} without epilogues")
    return implementation, choice


def _serving(problem: Problem, dry: Planner, advice: Advice | None) -> tuple[Implementation, Choice]:
    """Return the implementation that `choose` takes for a problem, and that choice; decline if there is none."""
    choices = [Choice(item.NAME) for item in implementations(problem) if not _reserved(item, problem)]
    if advice is not None and advice.choice != HEURISTIC:
        choices.insert(0, advice.choice)
    by_name = {item.NAME: item for item in implementations(problem)}
    for choice in choices:
        implementation = by_name.get(choice.algorithm)
        try:
            plan_choice(problem, dry, choice)
        except (Declined, BuildError, ProblemError):
            continue
        assert implementation is not None
        return implementation, choice
    raise Declined(f"nothing serves {problem}")


def _reserved(implementation: Implementation, problem: Problem) -> str:
    return implementation.reserved(problem) if isinstance(implementation, Reserved) else ""


def plan_choice(problem: Problem, planner: Planner, choice: Choice) -> Launches:
    """Return the launches of one choice.

    Raises
    ------
    Declined
        If its implementation does not serve the problem, or not with these settings.
    ProblemError
        If there is no such implementation.
    BuildError
        If the device's compiler refuses a kernel.
    """
    by_name: dict[str, Implementation] = {item.NAME: item for item in implementations(problem)}
    if choice.algorithm not in by_name:
        raise ProblemError(f"[{problem.kind}] got algorithm {choice.algorithm!r}, expected one of {list(by_name)}")
    implementation = by_name[choice.algorithm]
    if not choice.settings:
        return implementation.plan(problem, planner)
    if not isinstance(implementation, Tunable):
        raise Declined(f"{choice.algorithm} has no settings")
    try:
        return implementation.plan(problem, planner, dict(choice.settings))
    except (TypeError, ValueError, KeyError, IndexError, ZeroDivisionError, OverflowError) as error:
        if isinstance(error, ProblemError):
            raise
        raise Declined(f"{choice} has settings of another kind: {error}") from None
