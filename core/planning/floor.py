"""The floor: the time below which a device's measured peaks let no run of what was planned go."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from clgraft.core.planning.launches import Launches
from clgraft.core.problem import Problem


@dataclass(frozen=True)
class Peaks:
    """Ceilings of one device.

    Attributes
    ----------
    flops : float
        Float32 operations a second, a multiply-add counted as two.
    bandwidth : float
        Bytes a second of a copy in memory, read and written ones counted.
    """

    flops: float
    bandwidth: float

    def change(self, other: Peaks) -> float:
        """Return by how much the other peaks differ, the larger change of both: 0.25 for a quarter more or less."""
        pairs = ((self.flops, other.flops), (self.bandwidth, other.bandwidth))
        return max(max(pair) / min(pair) - 1 for pair in pairs)

    def __str__(self) -> str:
        gflops = self.flops / 1e9
        return f"{gflops:.{0 if gflops >= 10 else 2}f} GFLOPS float32, copy {self.bandwidth / 1e9:.1f} GB/s"


class Work(NamedTuple):
    """What one problem's launches have to do at least.

    Attributes
    ----------
    operations : float
        Of the method that was chosen: those of the direct method (see `Problem.operations`) without what the launches
        save. Transforms are not counted.
    nbytes : float
        That move: every argument once, and twice what is updated (see `Problem.nbytes`). What a method keeps in its
        workspace is not counted.
    """

    operations: float
    nbytes: float

    @classmethod
    def of(cls, problem: Problem, launches: Launches, names: Sequence[str] = (), skipped: Collection[str] = ()) -> Work:
        """Return what a problem's launches have to do.

        Parameters
        ----------
        problem : Problem
        launches : Launches
        names : sequence of str
            The values that fill the arguments, where one may fill several: it moves once.
        skipped : collection of str
            Those of the names that stand for outputs that nobody asked for.
        """
        if not launches.launches:
            return cls(0, 0)
        seen = set(skipped)
        again = 0
        for argument, name in zip(problem.arguments(), names):
            again += argument.nbytes if name in seen else 0
            seen.add(name)
        return cls(problem.operations - launches.saved, max(problem.nbytes - again, 0))


def floor(work: Iterable[Work], peaks: Peaks) -> float:
    """Return the shortest time in seconds that a device's peaks allow for problems, one after the other.

    Each takes the longer of its operations at the peak of multiply-adds and its bytes at the speed of a copy. Data that
    stays in the caches moves faster than a copy in memory, so a run may take less.
    """
    return sum(max(operations / peaks.flops, nbytes / peaks.bandwidth) for operations, nbytes in work)
