"""Run a suite of tests until each of them has a result, also where processes die.

The command is pytest's, with `-p tests.record` and the file in ``CLGRAFT_TEST_RECORD``. Where a process dies, pytest is
called again and runs what is left; the test that was running comes first, alone. The exit status is 0 if all
tests have passed or were skipped. What the suite took is printed, and written to a file next to FILE: the seconds,
those of processors, the MiB of its largest process, and the MiB of memory that the machine had left at the least.

usage: suite.py FILE SECONDS COMMAND...
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests import recorded

MOST_CALLS = 12  # of pytest for one suite
KILL_AFTER = 30  # seconds that pytest has to end when its time is over


def available() -> int:
    """Return the MiB of memory that programs can still get."""
    found = re.search(r"MemAvailable:\s*(\d+)", Path("/proc/meminfo").read_text(encoding="ascii"))
    return int(found[1]) // 1024 if found else 0


class Watch(threading.Thread):
    """Looks every second how much memory is left; `least` has the MiB of the worst moment."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.least = available()

    def run(self) -> None:
        while True:
            time.sleep(1)
            self.least = min(self.least, available())


def call(command: list[str], seconds: float) -> bool:
    """Run a command with all that it starts; return whether it ended in time."""
    process = subprocess.Popen(command, start_new_session=True)
    try:
        process.wait(max(seconds, 10))
        return True
    except subprocess.TimeoutExpired:
        with contextlib.suppress(subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(KILL_AFTER)
        return False
    finally:  # also of an interrupt, and what a process that has died left running
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run(path: Path, seconds: float, command: list[str]) -> recorded.State:
    """Call pytest until all tests have a result, the time is over, or a call has brought nothing."""
    end, state = time.monotonic() + seconds, recorded.read(path)
    for _ in range(MOST_CALLS):
        before = len(state.done), sum(state.crashes.values())
        in_time = call(command, end - time.monotonic())
        state = recorded.read(path)
        if not in_time:
            print(f"{path.stem}: ended after {seconds:.0f} seconds, {len(state.left)} tests are left", flush=True)
            break
        if not state.left or before == (len(state.done), sum(state.crashes.values())):
            break
        named = ", ".join(sorted(name for name in state.left if state.crashes[name])) or "none"
        print(f"{path.stem}: a process died, {len(state.left)} tests are left, running: {named}", flush=True)
    return state


def main(path: Path, seconds: float, command: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the command ends, too
    watch, began = Watch(), time.monotonic()
    watch.start()
    state = run(path, seconds, command)
    failed, _ = state.results()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = {
        "seconds": round(time.monotonic() - began),
        "processors": round(children.ru_utime + children.ru_stime),
        "largest": children.ru_maxrss // 1024,
        "left": watch.least,
    }
    path.with_suffix(".usage").write_text(json.dumps(took), encoding="ascii")
    line = "{}: {seconds} s, {processors} s of processors, largest process {largest} MiB, {left} MiB left"
    print(line.format(path.stem, **took), flush=True)
    return 1 if failed or not state.done else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
