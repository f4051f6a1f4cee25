"""Parameters and moving statistics of a region that stay on the device: its programs read and write them there."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from clgraft.core.runtime.plan import ACCUMULATE, OVERWRITE, SKIP
from clgraft.mxnet_ops.regions.held import Held, held_as

if TYPE_CHECKING:
    from clgraft.mxnet_ops.engine.residents import Home, Resident

Pattern = tuple[tuple[str, int], ...]  # the write mode of each gradient that is wanted, by the parameter's name


class Residents(Held):
    """The residents of a region.

    Parameters
    ----------
    arrays : mapping of str to Resident
        By their names in the region.
    homes : collection of Home
        Whose tokens the region takes.

    Attributes
    ----------
    patterns : list of Pattern
        What backwards write, by the numbers that stand for it among write requests; the first writes nothing.
    """

    def __init__(self, arrays: Mapping[str, Resident], homes: Collection[Home]) -> None:
        super().__init__({name: resident.shape for name, resident in arrays.items()})
        self.arrays, self.homes = dict(arrays), tuple(homes)
        self.patterns: list[Pattern] = [()]
        self._numbers: dict[Any, int] = {}  # of the patterns, by the parameters' names and how each is written

    @property
    def text(self) -> str:
        """The attribute of a region that has these residents."""
        return json.dumps({**json.loads(super().text), "tokens": len(self.homes)}, separators=(",", ":"))

    def begin_backward(self, learned: tuple[str, ...]) -> int:
        """Return the number of the pattern that a backward follows, and let nobody else write until it ends.

        A gradient is added to if that is its request, or if another region, or this one, has written it in the same
        backward: MXNet adds up what flows to a parameter on several ways.
        """
        for home in self.homes:
            home.lock.acquire()
        try:
            found = []
            for name in learned:  # in line: it is on the way from a forward to its backward
                resident = self.arrays[name]
                gradient, home = resident.gradient, resident.home
                if gradient is None or resident.request == "null" or home.discards:
                    found.append(SKIP)
                    continue
                again = gradient.backward == home.backwards or resident.request == "add"
                gradient.backward = home.backwards
                found.append(ACCUMULATE if again else OVERWRITE)
            modes = tuple(found)
            if (learned, modes) not in self._numbers:
                pattern = tuple((name, mode) for name, mode in zip(learned, modes) if mode != SKIP)
                if pattern not in self.patterns:
                    self.patterns.append(pattern)
                self._numbers[learned, modes] = self.patterns.index(pattern)
            return self._numbers[learned, modes]
        except BaseException:
            self._unlock()
            raise

    def end_backward(self, pattern: int, states: Collection[str], zeros: Collection[str], good: bool) -> None:
        """Let others write.

        Parameters
        ----------
        pattern : int
            What `begin_backward` returned.
        states : collection of str
            Moving statistics that the backward changed.
        zeros : collection of str
            Parameters whose gradients are zero, which nothing has written.
        good : bool
            Whether it has succeeded.
        """
        if good:
            for name, mode in self.patterns[pattern]:
                gradient = self.arrays[name].gradient
                if gradient is not None:
                    gradient.written(name in zeros, mode == OVERWRITE)
                self.arrays[name].fresh = True
            for name in states:
                self.arrays[name].place = "device"
        self._unlock()

    def _unlock(self) -> None:
        for home in self.homes:
            home.lock.release()

    def device_array(self, name: str) -> Any:
        """Return the array of a resident on the device."""
        return self.arrays[name].device

    def device_gradient(self, name: str) -> Any:
        """Return the array of a parameter's gradient on the device."""
        gradient = self.arrays[name].gradient
        assert gradient is not None
        return gradient.device


def residents_of(number: int) -> Residents:
    """Return the residents of a number.

    Raises
    ------
    core.ProblemError
        If they are gone, or of another process.
    """
    return held_as(Residents, number, "residents")
