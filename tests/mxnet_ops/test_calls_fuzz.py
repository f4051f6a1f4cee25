"""The C side of MXNet's calls under random ones: a program plays MXNet and Python, and anything may fail."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from clgraft.mxnet_ops.engine.calls.build import ABI, HERE, SOURCES
from tests.fuzzing import CLANG, Objects, plant, runs, unpack

FUZZ = Path(__file__).parent / "fuzz"
FILES = [*(HERE / name for name in SOURCES), FUZZ / "fuzz_calls.c"]
RUNS = 20_000  # six seconds
# A size that came up at random may be gigabytes: it is refused, as a machine would, and not counted as a finding.
ASAN = "allocator_may_return_null=1:max_allocation_size_mb=32:quarantine_size_mb=64"
LIBRARIES = ("-Wl,--wrap=malloc,--wrap=calloc,--wrap=posix_memalign", "-lpthread", "-lm")  # memory may run out

pytestmark = pytest.mark.skipif(CLANG is None, reason="needs clang and its sanitizers")

PLANTS = {
    "an array's handle is kept": ("execution.c", "        mx.free_array(handles[i]);\n", ""),
    "a call is kept": (
        "operator.c",
        "    clg_mx_release(execution->call);\n    free(execution);",
        "    free(execution);",
    ),
    "a copy is too short": ("execution.c", "work->out_bytes[i] + 1)", "work->out_bytes[i] / 2 + 1)"),
    "an absent array is asked for": ("execution.c", "!empty && mx.get_data", "mx.get_data"),
    "names leak": ("table.c", "        if (!whole) free_signature(call);\n", ""),
    "a pass has no room": ("pass.c", "count <= execution->room", "count <= execution->room + 16"),
    "kept memory is asked for twice": ("pass.c", "        execution->keeps = true;\n", ""),
    "passes are mixed up": ("pass.c", "memcmp(pass->requests, modes, (count + 1) * sizeof *modes)", "false"),
    "a forward has no version of its own": (
        "pass.c",
        "__atomic_add_fetch(&versions, 1,",
        "__atomic_add_fetch(&versions, 0,",
    ),
    "a pass is not copied whole": ("pass.c", "+ zeros + requests + text", "+ zeros + requests"),
    "a key is too short": ("properties.c", "1 + (ndims[i] > 0 ? (size_t)ndims[i] : 0)", "1"),
}


@pytest.fixture(scope="module")
def objects(tmp_path_factory) -> Objects:
    """What compiles the library with what plays MXNet and Python."""
    command = [str(CLANG), "-g", "-O1", "-std=gnu11", "-fsanitize=fuzzer,address,undefined"]
    command += ["-fno-sanitize-recover=undefined", f"-I{HERE}", f"-I{ABI}"]
    return Objects(command, tmp_path_factory.mktemp("objects"))


def run(program: Path, *words: object) -> subprocess.CompletedProcess:
    """Run it without what operators say of every failure."""
    command = [
        str(program),
        "-close_fd_mask=2",
        "-malloc_limit_mb=100000000",
        "-rss_limit_mb=8192",
        "-timeout=20",
        *map(str, words),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "CLGRAFT_DEVICE"}
    environment["ASAN_OPTIONS"] = ASAN
    return subprocess.run(
        command, cwd=program.parent, capture_output=True, text=True, timeout=120, env=environment, errors="replace"
    )


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """The kept inputs, a file each."""
    return unpack(FUZZ / "corpus.txt", tmp_path_factory.mktemp("corpus"))


def test_random_calls_break_nothing(tmp_path, corpus, objects, pytestconfig):
    program = objects.link(tmp_path / "fuzz", FILES, *LIBRARIES)
    done = run(program, *runs(RUNS, pytestconfig), "-max_len=1000", corpus)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    assert f"Done {RUNS} runs" in done.stderr


@pytest.mark.parametrize("name", PLANTS)
def test_the_corpus_finds_a_planted_fault(name, tmp_path, corpus, objects):
    program = objects.link(tmp_path / "fuzz", plant(FILES, *PLANTS[name], tmp_path), *LIBRARIES)
    assert run(program, "-runs=0", corpus).returncode != 0, "nothing was found"
