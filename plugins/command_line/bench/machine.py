"""Where a benchmark runs: the record of the machine, the device and the versions that its results begin with."""

from __future__ import annotations

import datetime
import platform
import re
from pathlib import Path

from clgraft import __version__
from clgraft.core import Context, settings
from clgraft.plugins.command_line.bench import peaks, peer_threads
from clgraft.plugins.command_line.bench.results import Results


def record(context: Context, command: str) -> Results:
    """Return results without rows of a command that measures on a context's device, whose peaks are measured now."""
    found = peaks.measure(context)
    return Results(
        str(context.device),
        command,
        peer_threads.processors(),
        found.flops,
        found.bandwidth,
        processor=processor(),
        driver=context.device.driver,
        versions={"clgraft": __version__, "Python": platform.python_version()},
        date=datetime.date.today().isoformat(),
        precision=settings.PRECISION.value(),
    )


def processor() -> str:
    """Return the name of the machine's processor."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    return found[1].strip() if found else platform.processor() or platform.machine()
