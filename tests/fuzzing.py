"""What the fuzzed suites share: the compiler, its object files, and kept inputs as libFuzzer wants them."""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

MEMORY = 2048  # MiB that a fuzzed program may take
CLANG = shutil.which("clang") or shutil.which("clang-14")


@dataclass(frozen=True)
class Objects:
    """Programs out of object files, each of which is compiled once: a planted fault changes one of them.

    Attributes
    ----------
    command : sequence of str
        The compiler and its options.
    folder : pathlib.Path
        Of the object files.
    """

    command: Sequence[str]
    folder: Path

    def _run(self, *words: str) -> None:
        done = subprocess.run([*self.command, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def compiled(self, source: Path) -> Path:
        """Return the object file of a source."""
        target = self.folder / (str(source).replace("/", "_") + ".o")
        if not target.exists():
            self._run("-c", str(source), "-o", str(target))
        return target

    def link(self, target: Path, sources: Iterable[Path], *libraries: str) -> Path:
        """Return a program out of sources."""
        self._run(*(str(self.compiled(source)) for source in sources), *libraries, "-o", str(target))
        return target


def plant(sources: Sequence[Path], file: str, text: str, instead: str, folder: Path) -> list[Path]:
    """Return sources of which one has another text, in a folder; it finds its headers where the others do."""
    (original,) = (source for source in sources if source.name == file)
    whole = original.read_text()
    assert whole.count(text) == 1
    (folder / file).write_text(whole.replace(text, instead))
    return [folder / file if source == original else source for source in sources]


def runs(count: int, config: pytest.Config) -> list[str]:
    """Return libFuzzer's options for a number of runs: the same inputs on every machine, and others with `--turn`."""
    return [f"-runs={count}", f"-seed={1 + config.getoption('turn')}"]  # 0 would be a seed by chance


def memory_limit() -> str:
    """Return libFuzzer's option for `MEMORY`: a child process starts with the peak of the process that forked it."""
    inherited = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return f"-rss_limit_mb={inherited + MEMORY}"


def unpack(kept: Path, folder: Path) -> Path:
    """Write the inputs that a file keeps, one a line in hexadecimal, to files of a folder, and return the folder."""
    for i, line in enumerate(kept.read_text().split()):
        (folder / str(i)).write_bytes(bytes.fromhex(line))
    return folder
