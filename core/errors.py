"""Every error that clgraft raises, under one base class."""

from __future__ import annotations


class ClgraftError(Exception):
    """Base class of all errors raised by clgraft."""


class ProblemError(ClgraftError, ValueError):
    """A problem whose text cannot be read or whose shapes are inconsistent."""


class ArgumentError(ClgraftError, ValueError):
    """An argument of a run that does not fit its plan: name, shape, dtype, layout or count."""


class DeviceError(ClgraftError, ValueError):
    """A device selector that matches no device, or a runtime that is unusable."""


class BuildError(ClgraftError, RuntimeError):
    """A kernel that the device's compiler refused; the text holds its log."""


class ExecutionError(ClgraftError, RuntimeError):
    """The runtime refused or failed a call; `status` is the ABI's code."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Declined(Exception):
    """Raised by an implementation that does not serve a problem; the text is the reason."""
