"""A pytest plugin (`-p tests.mutant`) that runs tests on kernels with a planted fault.

``CLGRAFT_TEST_FAULT`` holds JSON: the kernel file, the text that is replaced, and by what.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path


def pattern(text: str) -> re.Pattern[str]:
    """Return what matches a text with any white space between its words and signs, and none or some next to signs."""
    tokens = re.findall(r"\w+|[^\w\s]", text)
    parts = [re.escape(tokens[0])]
    for before, token in zip(tokens, tokens[1:]):
        parts.append((r"\s+" if re.match(r"\w", before) and re.match(r"\w", token) else r"\s*") + re.escape(token))
    return re.compile("".join(parts))


def find(folder: Path, file: str, old: str) -> tuple[Path, re.Match[str]]:
    """Return the only place of a text in a file, or in the file's folder and those below it if the file has moved.

    Raises
    ------
    ValueError
        If there is not exactly one place.
    """
    wanted = folder / file
    near = wanted.parent if wanted.parent.is_dir() else folder / Path(file).parts[0]
    files = [wanted] if wanted.is_file() else sorted(near.rglob("*.cl"))
    places = [(path, match) for path in files for match in pattern(old).finditer(path.read_text())]
    if len(places) != 1:
        raise ValueError(f"got {len(places)} places of {old!r} in {file}, expected one: the fault needs new text")
    return places[0]


def plant(file: str, old: str, new: str) -> Path:
    """Make the core read kernels from a copy with the fault; return the copy's folder."""
    sources = importlib.import_module("clgraft.core.runtime.sources")
    outline = importlib.import_module("clgraft.core.runtime.toolchains.pocl3.outline")

    folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    shutil.copytree(sources.KERNELS, folder, dirs_exist_ok=True)
    try:
        path, place = find(folder, file, old)
    except ValueError:
        shutil.rmtree(folder)
        raise
    text = path.read_text()
    path.write_text(text[: place.start()] + new + text[place.end() :])
    sources.KERNELS = folder
    sources.file_source.cache_clear()
    sources.kernel_source.cache_clear()
    outline.outlined_source.cache_clear()
    return folder


def pytest_configure(config) -> None:
    folder = plant(*json.loads(os.environ["CLGRAFT_TEST_FAULT"]))
    config.add_cleanup(lambda: shutil.rmtree(folder))
