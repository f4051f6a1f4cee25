"""A pytest plugin (`-p tests.mutant`) that runs tests on kernels with a planted fault.

``CLGRAFT_TEST_FAULT`` holds JSON: the kernel file, the text that is replaced, and by what.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import tempfile
from pathlib import Path


def plant(file: str, old: str, new: str) -> Path:
    """Make the core read kernels from a copy with the fault; give the copy's folder."""
    sources = importlib.import_module("clgraft.core.runtime.sources")

    folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    shutil.copytree(sources.KERNELS, folder, dirs_exist_ok=True)
    text = (folder / file).read_text()
    if text.count(old) != 1:
        shutil.rmtree(folder)
        raise ValueError(f"got {text.count(old)} places of {old!r} in {file}, expected one: the fault needs new text")
    (folder / file).write_text(text.replace(old, new))
    sources.KERNELS = folder
    sources.kernel_source.cache_clear()
    return folder


def pytest_configure(config) -> None:
    folder = plant(*json.loads(os.environ["CLGRAFT_TEST_FAULT"]))
    config.add_cleanup(lambda: shutil.rmtree(folder))
