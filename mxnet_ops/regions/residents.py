"""Parameters and moving statistics of a region that stay on the device: its programs read and write them there."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clgraft.core.runtime.plan import ACCUMULATE, OVERWRITE, SKIP
from clgraft.mxnet_ops.engine.calls import ffi
from clgraft.mxnet_ops.engine.results import Slot, forget_marks
from clgraft.mxnet_ops.regions.held import Held, held_as

if TYPE_CHECKING:
    from clgraft.mxnet_ops.engine.residents import Home, Resident

# the write mode of each gradient that is wanted, by the parameter's name; the number of the call by the name of each
# moving statistic whose change is left aside; of a forward the turn of its memory by the name of each output that
# is left on the device
Pattern = tuple[tuple[str, int], ...]
TURNS = 2  # slots of an output, so that a result may be asked for after the next forward


class Residents(Held):
    """The residents of a region.

    Parameters
    ----------
    arrays : mapping of str to Resident
        By their names in the region.
    homes : collection of Home
        Whose tokens the region takes.
    states : collection of str
        Those that are moving statistics.

    Attributes
    ----------
    patterns : list of Pattern
        What backwards write, by the numbers that stand for it among write requests; the first writes nothing.
    forward : cffi pointer
        To the number of the pattern of forwards that train, which C reads.
    marks : cffi pointer
        To an event of the runtime for each turn: the end of the last forward that left outputs in its memory.
    """

    def __init__(self, arrays: Mapping[str, Resident], homes: Collection[Home], states: Collection[str] = ()) -> None:
        super().__init__({name: resident.shape for name, resident in arrays.items()})
        self.arrays, self.homes, self.states = dict(arrays), tuple(homes), tuple(states)
        self.patterns: list[Pattern] = [()]
        self._numbers: dict[Any, int] = {}  # of the patterns, by the parameters' names and how each is written
        self.forward = ffi.new("int32_t *")
        self.marks = ffi.new("void *[]", TURNS)
        weakref.finalize(self, forget_marks, self.marks).atexit = False
        self._slots: dict[Any, Slot] = {}  # by the outputs' places, turns, numbers of elements and types

    @property
    def text(self) -> str:
        """The attribute of a region that has these residents."""
        return json.dumps({**json.loads(super().text), "tokens": len(self.homes)}, separators=(",", ":"))

    def begin_backward(
        self,
        learned: tuple[str, ...],
        tokens: Callable[[], Sequence[int]],
        kept: Callable[[Collection[str]], Mapping[str, float]],
    ) -> int:
        """Return the number of the pattern that a backward follows, and let nobody else write until it ends.

        A gradient is added to if that is its request, or if another region, or this one, has written it in the same
        backward: MXNet adds up what flows to a parameter on several ways.

        Parameters
        ----------
        learned : tuple of str
            Parameters.
        tokens : callable
            Returns the addresses of the tokens of the `homes`.
        kept : callable
            Gets the parameters whose gradients are wanted; returns the share that the backward keeps of each moving
            statistic that it changes.
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
            aside: Pattern = ()
            if any(home.changes for home in self.homes):
                kept_shares = kept([name for name, mode in zip(learned, modes) if mode != SKIP])
                aside = self._left_aside(kept_shares, tokens())
            if (learned, modes, aside) not in self._numbers:
                pattern = (*((name, mode) for name, mode in zip(learned, modes) if mode != SKIP), *aside)
                self._numbers[learned, modes, aside] = self._number(pattern)
            return self._numbers[learned, modes, aside]
        except BaseException:
            self._unlock()
            raise

    def _number(self, pattern: Pattern) -> int:
        if pattern not in self.patterns:
            self.patterns.append(pattern)
        return self.patterns.index(pattern)

    def leave(self, outputs: Collection[int]) -> int:
        """Have forwards that train leave outputs on the device, given by their places; return the turn of their slots.

        Results of the turn that may still be asked for move to other memory.
        """
        free = [turn for turn in range(TURNS) if all(slot.result is None for slot in self._of_turn(turn))]
        turn = free[0] if free else 0
        for slot in self._of_turn(turn):
            slot.clear()
        with self._lock:
            number = self._number(tuple((output_name(place), turn) for place in outputs))
        if self.forward[0] != number:
            for home in self.homes:
                home.settle()  # forwards that were called before read it
            self.forward[0] = number
        return turn

    def _of_turn(self, turn: int) -> list[Slot]:
        with self._lock:
            return [slot for (_, own, *_), slot in self._slots.items() if own == turn]

    def slot(self, place: int, turn: int, count: int, dtype: str) -> Slot:
        """Return the memory of an output of so many elements that is left on the device."""
        key = (place, turn, count, dtype)
        with self._lock:
            if key not in self._slots:
                self._slots[key] = Slot(self.homes[0], count, dtype, self.marks + turn)
            return self._slots[key]

    def _left_aside(self, kept: Mapping[str, float], tokens: Sequence[int]) -> Pattern:
        """Return the moving statistics that other backwards change, too, with the number of this call."""
        calls = {home: home.number_of(token) for home, token in zip(self.homes, tokens)}
        found = []
        for name, resident in self.arrays.items():
            call = calls[resident.home]
            if resident.home.waits(resident, (call, self.number), kept.get(name)):
                found.append((name, call))
        return tuple(found)

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
        try:
            if good:
                self._written(self.patterns[pattern], states, zeros)
        finally:
            self._unlock()

    def _written(self, pattern: Pattern, states: Collection[str], zeros: Collection[str]) -> None:
        changed = frozenset(states)
        for name, mode in pattern:
            resident = self.arrays[name]
            if name in changed:
                resident.home.arrived(resident, (mode, self.number))
                continue
            if resident.gradient is not None:
                resident.gradient.written(name in zeros, mode == OVERWRITE)
            resident.fresh = True
        for home in self.homes:
            home.add_what_arrived()
        for name in states:
            self.arrays[name].place = "device"

    def _unlock(self) -> None:
        for home in self.homes:
            home.lock.release()

    def device_array(self, name: str) -> Any:
        """Return the array of a resident on the device."""
        return self.arrays[name].device

    def device_aside(self, name: str, call: int) -> Any:
        """Return the array on the device for what a call changes of a moving statistic."""
        return self.arrays[name].aside((call, self.number))

    def device_gradient(self, name: str) -> Any:
        """Return the array of a parameter's gradient on the device."""
        gradient = self.arrays[name].gradient
        assert gradient is not None
        return gradient.device


def output_name(place: int) -> str:
    """Return the name of an output in patterns, which no variable has."""
    return f"-> {place}"


def residents_of(number: int) -> Residents:
    """Return the residents of a number.

    Raises
    ------
    core.ProblemError
        If they are gone, or of another process.
    """
    return held_as(Residents, number, "residents")
