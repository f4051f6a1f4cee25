"""The floor of what a call runs: the time that the device's measured peaks allow for it."""

from __future__ import annotations

from collections.abc import Callable

from clgraft.core import context
from clgraft.core.planning.floor import floor
from clgraft.plugins.command_line.bench import peaks


def of(call: Callable[[], object]) -> float:
    """Run a call and return the floor in seconds of the plans that it ran on the process's own device.

    What a framework's own operators do in the call has no floor, and neither has what runs for the first time only
    (such as packing of frozen weights): the call runs twice, and the second run counts.
    """
    call()
    with context().watched() as work:
        call()
    return floor(work, peaks.here())
