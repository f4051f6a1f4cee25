"""Makes shared libraries with the compilers of the user's machine."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from clgraft.core.errors import BuildError


def find_compiler(word: str, language: str, variable: str, names: Sequence[str], package: str) -> list[str]:
    """Return a compiler's words: those of an environment variable, else the first of some names that can be run.

    Parameters
    ----------
    word : str
        Who wants it, for the error.
    language, variable, package : str
        What it compiles, the variable that names it, and the package of Debian that brings one.
    names : sequence of str

    Raises
    ------
    BuildError
        If there is none.
    """
    given = os.environ.get(variable)
    tried = [given] if given else names
    for words in map(shlex.split, tried):
        if shutil.which(words[0]):
            return words
    raise BuildError(
        f"[{word}] got no {language} compiler (tried {', '.join(tried)}), expected one on PATH or in {variable}"
        f" (on Debian: apt install {package})"
    )


def make_library(word: str, language: str, command: Sequence[str], library: Path, shown: int | None = None) -> None:
    """Compile a shared library; a process that has an old one open keeps that.

    Parameters
    ----------
    word, language : str
        As of `find_compiler`.
    command : sequence of str
        The compiler's words without the output.
    library : Path
        The output, in a folder that exists.
    shown : int, optional
        How many letters of what the compiler says an error holds; by default all.

    Raises
    ------
    BuildError
        If the compiler fails.
    """
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch, library.name)
        words = [*command, f"-Wl,-soname,{library.name}", "-o", str(made)]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            said = done.stderr[:shown]
            raise BuildError(f"[{word}] got an error of the {language} compiler:\n{shlex.join(words)}\n{said}")
        fresh = library.with_name(f"{library.name}.new")
        shutil.copy(made, fresh)
        fresh.replace(library)
