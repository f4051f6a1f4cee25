"""What peers allocate in each call: memory that is kept, so that nobody waits for new pages."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import pytest

from clgraft.plugins.command_line.bench import allocation, peer_process

SCRIPT = """
import json, resource, sys
import numpy as np
from clgraft.plugins.command_line.bench.allocation import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for size in (2**24, 2**26):
        np.ones(size, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(json.dumps([sys.argv[1] == "keep" and keep_freed_memory(), *(faults() for _ in range(4))]))
"""
PAGE = 4096


def counted(word: str) -> tuple[bool, list[int]]:
    """Return whether memory is kept, and the page faults of each of some rounds of two large arrays."""
    environment = {**os.environ, "NUMPY_MADVISE_HUGEPAGE": "0"}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, word], env=environment, capture_output=True, text=True, check=True
    )
    kept, *faults = json.loads(run.stdout)
    return kept, faults


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_arrays_that_were_freed_serve_again():
    kept, faults = counted("keep")
    assert kept
    assert max(faults[1:]) < 100
    _, without = counted("as it is")
    assert min(without) > 2**26 // PAGE // 2


def test_operators_of_peers_run_with_it(monkeypatch):
    called = []
    monkeypatch.setattr(allocation, "keep_freed_memory", lambda: called.append(True))
    monkeypatch.setattr(peer_process, "_read_back", lambda peer: 1)
    monkeypatch.setattr(peer_process.operators, "measure", lambda *words: iter(()))
    monkeypatch.setattr(peer_process.peers, "mode", lambda *words: "")
    list(peer_process.work("numpy"))
    assert not called
    list(peer_process.work("numpy", cases=[("elements", "relu", "relu n1 c1 s16", False)]))
    assert called == [True]
