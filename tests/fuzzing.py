"""What the fuzzed suites share: the compiler, and kept inputs as libFuzzer wants them."""

from __future__ import annotations

import shutil
from pathlib import Path

CLANG = shutil.which("clang") or shutil.which("clang-14")


def unpack(kept: Path, folder: Path) -> Path:
    """Write the inputs that a file keeps, one a line in hexadecimal, to files of a folder; give the folder."""
    for i, line in enumerate(kept.read_text().split()):
        (folder / str(i)).write_bytes(bytes.fromhex(line))
    return folder
