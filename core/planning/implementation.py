"""What implementations of operators satisfy, what they plan with, and which of them serve a problem."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from clgraft.core.planning.choice import Value
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.epilogue import Epilogue
from clgraft.core.planning.launches import Launches, Sums, WantedSums
from clgraft.core.planning.structs import StructConstant
from clgraft.core.planning.tensor_map import TensorMap
from clgraft.core.problem import Problem
from clgraft.core.problem.layout import FIRST, LAST


class Planner(Protocol):
    """What an implementation plans with.

    Attributes
    ----------
    device : DeviceInfo
    """

    @property
    def device(self) -> DeviceInfo: ...

    def kernel(
        self,
        file: str,
        name: str,
        defines: Mapping[str, Any] | None = None,
        dtype: str = "float32",
        options: tuple[str, ...] = (),
    ) -> Any:
        """Return a new kernel of a file in the kernels folder (see `DeviceContext.kernel`)."""

    def tensor_map(self, matrix: TensorMap) -> StructConstant:
        """Return a map of a matrix as the device's copy engine takes it."""

    def launches(self, problem: Problem) -> Launches:
        """Return the launches for another problem, which becomes a part of the planned one."""

    def fused(self, problem: Problem, epilogue: Epilogue) -> Launches:
        """Return the launches for another problem with an epilogue.

        Raises
        ------
        Declined
            If the implementation that serves the problem has no epilogues.
        """

    def fused_sums(self, problem: Problem, epilogue: Epilogue, wanted: WantedSums) -> Sums:
        """Return the launches for another problem with an epilogue, one of which leaves sums; or decline as `fused`."""


class Implementation(Protocol):
    """A way to compute a kind of problem: a module with a name and a function `plan`.

    Its ``FOR_GPUS = True`` says that a search on a CPU device need not try it.

    Attributes
    ----------
    NAME : str
        Unique among the implementations of a problem; tuning rows and `Plan.algorithm` hold it.
    """

    NAME: str

    def plan(self, problem: Any, planner: Planner) -> Launches:
        """Return the launches for a problem.

        Raises
        ------
        Declined
            With the reason, if this implementation does not serve the problem on the planner's device.
        """


@runtime_checkable
class Reserved(Protocol):
    """An implementation that is not the default for all that it serves: a search and tuned rows may choose it."""

    def reserved(self, problem: Any) -> str:
        """Return why it is not the default for a problem that it may serve; empty if it is."""


@runtime_checkable
class Tunable(Protocol):
    """An implementation with settings, which its `plan` takes as a third argument."""

    NAME: str

    def plan(self, problem: Any, planner: Planner, settings: Mapping[str, Value] | None = None) -> Launches:
        """Return the launches for a problem with these settings, or with settings of its own choice."""

    def candidates(self, problem: Any, planner: Planner) -> Iterable[Mapping[str, Value]]:
        """Return the settings that a search tries."""


@runtime_checkable
class Fusable(Protocol):
    """An implementation whose kernels can compute an epilogue, which its `plan` takes."""

    NAME: str

    def fuses(self, problem: Any, epilogue: Epilogue) -> bool:
        """Return whether it has this epilogue for this problem, if it serves it at all."""

    def plan(self, problem: Any, planner: Planner, *, epilogue: Epilogue | None = None, **settings: Any) -> Launches:
        """Return the launches for a problem with an epilogue; `Tunable` ones take settings, too."""


@runtime_checkable
class Summing(Protocol):
    """An implementation of layers whose kernels can leave the sums that a batch norm of their result needs."""

    def plan_sums(
        self,
        problem: Any,
        planner: Planner,
        wanted: WantedSums,
        settings: Mapping[str, Value] | None = None,
        epilogue: Epilogue | None = None,
    ) -> Sums:
        """Return the launches for a problem, one of which leaves the sums that are wanted; decline if none can."""


@runtime_checkable
class Joining(Protocol):
    """An implementation of batch norms that takes sums which the layer before has left."""

    def wanted_sums(self, problem: Any, planner: Planner) -> WantedSums:
        """Return which sums a layer is to leave for a problem; decline if it takes none."""

    def plan_after(self, problem: Any, planner: Planner, sums: Sums) -> Launches:
        """Return the launches for a problem, with `Statistics` among the arguments; decline if it cannot."""


# (class of problems, direction or None for all other directions) -> implementations, in order of preference
IMPLEMENTATIONS: dict[tuple[type[Problem], str | None], tuple[Implementation, ...]] = {}
# the same for problems in channels last, which none of the others sees
CHANNELS_LAST: dict[type[Problem], tuple[Implementation, ...]] = {}


def register(problems: type[Problem], implementations: Sequence[Implementation], direction: str | None = None) -> None:
    """Set the implementations for a class of problems.

    Parameters
    ----------
    problems : type
        A subclass of `Problem`.
    implementations : sequence of Implementation
        In order of preference; the last one never declines.
    direction : str, optional
        The only direction that they are for.
    """
    IMPLEMENTATIONS[problems, direction] = tuple(implementations)


def register_channels_last(problems: type[Problem], implementations: Sequence[Implementation]) -> None:
    """Set the implementations for a class of problems in channels last, for all directions; see `register`."""
    CHANNELS_LAST[problems] = tuple(implementations)


def implementations(problem: Problem) -> tuple[Implementation, ...]:
    """Return the implementations for a problem, in order of preference.

    The module `implementations` next to a class of problems registers them; it is imported when they are first asked
    for, because a process that follows kept recipes needs none.
    """
    if (type(problem), None) not in IMPLEMENTATIONS:
        importlib.import_module(f"{type(problem).__module__.rpartition('.')[0]}.implementations")
    if getattr(problem, "layout", FIRST) == LAST:
        return CHANNELS_LAST[type(problem)]
    direction = getattr(problem, "direction", None)
    found = IMPLEMENTATIONS.get((type(problem), direction))
    return IMPLEMENTATIONS[type(problem), None] if found is None else found
