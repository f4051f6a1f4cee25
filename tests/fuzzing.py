"""What the fuzzed suites share: the compiler, and kept inputs as libFuzzer wants them."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path

REPEATABLE = "-seed=1"  # with a number of runs: every machine tries the same inputs
MEMORY = 2048  # MiB that a fuzzed program may take
CLANG = shutil.which("clang") or shutil.which("clang-14")


def memory_limit() -> str:
    """Return libFuzzer's option for `MEMORY`: a child process starts with the peak of the process that forked it."""
    inherited = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return f"-rss_limit_mb={inherited + MEMORY}"


def unpack(kept: Path, folder: Path) -> Path:
    """Write the inputs that a file keeps, one a line in hexadecimal, to files of a folder, and return the folder."""
    for i, line in enumerate(kept.read_text().split()):
        (folder / str(i)).write_bytes(bytes.fromhex(line))
    return folder
