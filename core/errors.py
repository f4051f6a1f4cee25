"""Every error that clgraft raises, under one base class, and the words that one names for a misspelled one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class ClgraftError(Exception):
    """Base class of all errors raised by clgraft."""


class ProblemError(ClgraftError, ValueError):
    """A problem whose text cannot be read or whose shapes are inconsistent."""


class ArgumentError(ClgraftError, ValueError):
    """An argument of a run that does not fit its plan: name, shape, dtype, layout or count."""


class SettingError(ArgumentError):
    """An environment variable of clgraft that holds something else than it may."""


class DeviceError(ClgraftError, ValueError):
    """A device selector that matches no device, or a runtime that is unusable."""


class SelectorError(DeviceError):
    """A device selector that matches no device."""


class SelectionError(ClgraftError, ValueError):
    """A choice of a model's operators that matches none of them."""


class BuildError(ClgraftError, RuntimeError):
    """A kernel that the device's compiler refused; the text holds its log."""


class ExecutionError(ClgraftError, RuntimeError):
    """The runtime refused or failed a call; `status` is the ABI's code."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Declined(Exception):
    """Raised by an implementation that does not serve a problem; the text is the reason."""


def nearest(word: str, known: Iterable[str], most: int = 3, likeness: float = 0.6) -> list[str]:
    """Return the known words that are spelled most like a word, in any case, the nearest first; empty if none is.

    A likeness of 1 is that of words that differ in nothing but the case.
    """
    spelled: dict[str, str] = {}
    for name in known:
        spelled.setdefault(name.lower(), name)
    return [spelled[name] for name in get_close_matches(word.lower(), spelled, n=most, cutoff=likeness)]


def hint(word: str, known: Iterable[str]) -> str:
    """Return the end of a message that names the known words nearest to a wrong one; empty if none is near."""
    found = nearest(word, known)
    return f"; nearest: {', '.join(found)}" if found else ""
