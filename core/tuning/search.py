"""The search for a problem's fastest choice: every candidate planned, checked and timed, the best few again in turn."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clgraft.core.errors import Declined
from clgraft.core.planning.choice import HEURISTIC, Choice
from clgraft.core.planning.implementation import Tunable, implementations
from clgraft.core.tuning.database import Candidate, Winner
from clgraft.core.tuning.timing import Runner, in_turn, summary
from clgraft.core.tuning.trial import Trial

if TYPE_CHECKING:
    from clgraft.core.planning.launches import Launches
    from clgraft.core.problem import Problem
    from clgraft.core.session.context import Context

# relative to the best: a candidate whose first run is that slow is stopped, and one whose best of two or three runs is
SLOW = (8.0, 3.0, 1.5)
FIRST_RUNS = 5
FIRST_SECONDS = 0.3  # the time for a candidate's first runs; at least three are made
FINALISTS = 4
MARGIN = 1.05  # a winner's speed relative to the heuristic, in the median of the rounds
MOST_OF_ROUNDS = 0.75  # the share of rounds in which a winner has to be faster
ALIKE = 1.01  # finalists this near to the fastest are told apart by their spread
LAST_RESORT_OPERATIONS = 3e8  # with more, the implementation that never declines is not worth a run
# what another run would find again
SETTLED = ("wrong", "failed", "timeout", "crashed", "declined", "duplicate", "slow", "measured")


@dataclass(frozen=True)
class Effort:
    """How much a search may cost.

    Attributes
    ----------
    seconds : float
        After which no further candidate is tried.
    rounds : int
        In which the best few are timed in turn, at most.
    final_seconds : float
        Of these rounds; three are timed in any case.
    """

    seconds: float = 60.0
    rounds: int = 25
    final_seconds: float = 3.0


def choices(problem: Problem, context: Context) -> list[Choice]:
    """Return what can be tried: the heuristic, every implementation's own choice, then all their settings in turn."""
    found, settings = [HEURISTIC], []
    if not any(argument.size for argument in problem.arguments() if argument.role != "in"):
        return found
    listed = implementations(problem)
    for implementation in listed:
        if context.device.is_cpu and getattr(implementation, "FOR_GPUS", False):
            continue
        last = implementation is listed[-1] and len(listed) > 1
        if last and problem.operations > LAST_RESORT_OPERATIONS:
            continue
        found.append(Choice(implementation.NAME))
        if isinstance(implementation, Tunable):
            settings.append(_settings(implementation, problem, context))
    in_turns = itertools.chain.from_iterable(itertools.zip_longest(*settings))
    return list(dict.fromkeys([*found, *(choice for choice in in_turns if choice is not None)]))


def _settings(implementation: Tunable, problem: Problem, context: Context) -> list[Choice]:
    try:
        listed = list(implementation.candidates(problem, context.planner))
    except Declined:
        return []
    return [Choice.of(implementation.NAME, settings) for settings in listed if settings]


class Search:
    """One problem's search.

    Parameters
    ----------
    known : mapping of Choice to Candidate
        What an earlier search that was interrupted found; it is not tried again.
    effort : Effort
    trying : callable
        Is told every choice before it is tried: what a process that hangs or crashes was doing.
    only : collection of Choice, optional
        What is tried besides the heuristic; by default everything that can be. The search is not complete then.

    Attributes
    ----------
    winner : Winner or None
        Once `run` is through.
    complete : bool
        Whether there was time to try all candidates.
    heuristic : Candidate or None
        What became of the heuristic's own choice; without its time there is no winner.
    """

    def __init__(
        self,
        problem: Problem,
        context: Context,
        known: Mapping[Choice, Candidate] | None = None,
        effort: Effort | None = None,
        trying: Callable[[Choice], None] = lambda choice: None,
        only: Collection[Choice] | None = None,
    ) -> None:
        self.problem, self.context = problem, context
        self.known = dict(known or {})
        self.effort, self.trying = effort or Effort(), trying
        self.winner: Winner | None = None
        self.heuristic: Candidate | None = None
        self.only = only
        self.complete = only is None
        self._seen: dict[Any, Choice] = {}
        self._digests: dict[int, Any] = {}
        self._measured: dict[Choice, float] = {}
        self._runners: dict[Choice, Runner] = {}

    def run(self) -> Iterator[Candidate]:
        """Try the candidates, each as it is done; then time the best few in turn and set `winner`."""
        listed = choices(self.problem, self.context)
        if self.only is not None:
            listed = [choice for choice in listed if choice in (HEURISTIC, *self.only, *self.known)]
        trial: Trial | None = None
        end = time.perf_counter() + self.effort.seconds
        for choice in listed:
            before = self.known.get(choice)
            if before is not None and before.outcome in SETTLED and choice != HEURISTIC:
                if before.outcome == "measured" and before.timing:
                    self._measured[choice] = before.timing.least
                continue
            if choice != HEURISTIC and time.perf_counter() > end:
                self.complete = False
                break
            trial = trial or Trial(self.problem, self.context)
            self.trying(choice)
            candidate = self._try(choice, trial)
            self.heuristic = candidate if choice == HEURISTIC else self.heuristic
            yield candidate
        if trial and HEURISTIC in self._runners:
            yield from self._finals(trial)

    def _steps(self, choice: Choice) -> Launches:
        if choice != HEURISTIC:
            return self.context.launches(self.problem, choice)
        for implementation in implementations(self.problem):
            try:
                return implementation.plan(self.problem, self.context.planner)
            except Declined:
                continue
        raise Declined("no implementation serves it")

    def _try(self, choice: Choice, trial: Trial) -> Candidate:
        checked = self._check(choice, trial)
        return checked if isinstance(checked, Candidate) else self._time(choice, *checked)

    def _check(self, choice: Choice, trial: Trial) -> Candidate | tuple[Runner, float]:
        """Plan and run a candidate; return its runner and error if it is right, else what became of it."""
        try:
            steps = self._steps(choice)
            fingerprint = self._fingerprint(steps)
            twin = self._seen.setdefault(fingerprint, choice)
            if twin != choice:
                return Candidate(choice, "duplicate", f"the same programs and launches as {twin}")
            runner = trial.runner(steps, str(choice))
            error = trial.error(runner.results())
        except Declined as reason:
            return Candidate(choice, "declined", str(reason))
        except Exception as reason:  # whatever a candidate does, the search goes on
            return Candidate(choice, "failed", f"{type(reason).__name__}: {reason}")
        if error <= 1:
            return runner, error
        much = f"{error:.1f} times the error that is allowed" if error < float("inf") else "not a number"
        return Candidate(choice, "wrong", much, None, error)

    def _time(self, choice: Choice, runner: Runner, error: float) -> Candidate:
        """Time a right candidate, unless it is slow; keep the runners of the best few."""
        best = min(self._measured.values(), default=float("inf"))
        if runner.first > 2 * SLOW[0] * best:  # a first run also fills caches
            return Candidate(choice, "slow", f"more than {SLOW[0]:.0f} times the best's time", None, error)
        times: list[float] = []
        while len(times) < 3 or (len(times) < FIRST_RUNS and sum(times) < FIRST_SECONDS):
            times.append(runner.seconds())
            if min(times) > SLOW[min(len(times), len(SLOW)) - 1] * best:
                reason = f"{min(times) / best:.1f} times the best's time"
                return Candidate(choice, "slow", reason, summary(times), error)
        timing = summary(times)
        self._measured[choice] = timing.least  # what else runs on the machine only adds
        self._runners[choice] = runner
        for surplus in sorted(self._runners, key=self._measured.__getitem__)[FINALISTS:]:
            if surplus != HEURISTIC:
                del self._runners[surplus]
        return Candidate(choice, "measured", "", timing, error)

    def _finals(self, trial: Trial) -> Iterator[Candidate]:
        """Time the best few and the heuristic in turn; those of an earlier process are planned and checked again."""
        best = sorted((c for c in self._measured if c != HEURISTIC), key=self._measured.__getitem__)[:FINALISTS]
        for choice in best:
            if choice not in self._runners:
                again = self._check(choice, trial)
                if isinstance(again, Candidate):
                    yield again
                else:
                    self._runners[choice] = again[0]
        finalists = [HEURISTIC, *(choice for choice in best if choice in self._runners)]
        runners = [self._runners[choice] for choice in finalists]
        times = in_turn(runners, self.effort.rounds, self.effort.final_seconds)
        self.winner = replace(choose(str(self.problem), dict(zip(finalists, times))), complete=self.complete)

    def _fingerprint(self, steps: Launches) -> Any:
        return tuple(
            (
                self._digest(launch.kernel),
                launch.kernel.function_name,
                launch.global_size,
                launch.local_size,
                tuple(map(repr, launch.arguments)),
            )
            for launch in steps.launches
            if 0 not in launch.global_size
        )

    def _digest(self, kernel: Any) -> Any:
        """Return what tells a kernel's program from others: its binary; where a driver gives none the program."""
        import pyopencl as cl

        program = kernel.program
        if program.int_ptr not in self._digests:
            try:
                binary = program.get_info(cl.program_info.BINARIES)[0]
            except cl.Error:
                binary = b""
            self._digests[program.int_ptr] = hashlib.sha256(binary).digest() if binary else program.int_ptr
        return self._digests[program.int_ptr]


def choose(problem: str, times: Mapping[Choice, list[float]]) -> Winner:
    """Choose from times that were taken in turn: who is faster than the heuristic in the median and in most rounds.

    Parameters
    ----------
    times : mapping of Choice to list of float
        Seconds of every round; the heuristic is one of the choices.
    """
    usual = times[HEURISTIC]
    timings = {choice: summary(values) for choice, values in times.items()}

    def clearly_faster(values: list[float]) -> bool:
        ratios = sorted(a / b for a, b in zip(usual, values))
        most = sum(ratio > 1 for ratio in ratios) >= MOST_OF_ROUNDS * len(ratios)
        return most and ratios[len(ratios) // 2] > MARGIN

    better = [choice for choice, values in times.items() if choice != HEURISTIC and clearly_faster(values)]
    winner = HEURISTIC
    if better:
        fastest = min(timings[choice].median for choice in better)
        alike = [choice for choice in better if timings[choice].median <= ALIKE * fastest]
        winner = min(alike, key=lambda choice: timings[choice].spread)
    return Winner(problem, winner, timings[HEURISTIC], timings[winner])
