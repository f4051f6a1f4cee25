"""The C side of MXNet's calls under random ones: a program plays MXNet and Python, and anything may fail."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from clgraft.mxnet_ops.engine.calls.build import ABI, HERE, SOURCES
from tests.fuzzing import CLANG, REPEATABLE, unpack

FUZZ = Path(__file__).parent / "fuzz"
RUNS = 20_000  # six seconds
# A size that came up at random may be gigabytes: it is refused, as a machine would, and not counted as a finding.
ASAN = "allocator_may_return_null=1:max_allocation_size_mb=32:quarantine_size_mb=64"
WRAPPED = "-Wl,--wrap=malloc,--wrap=calloc,--wrap=posix_memalign"  # so that memory may run out

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
    "a region has no room": ("region.c", "count <= execution->room", "count <= execution->room + 16"),
    "kept memory is asked for twice": ("region.c", "        execution->keeps = true;\n", ""),
    "passes are mixed up": ("region.c", "memcmp(pass->requests, modes, count * sizeof *modes)", "false"),
    "a forward has no version of its own": (
        "region.c",
        "__atomic_add_fetch(&versions, 1,",
        "__atomic_add_fetch(&versions, 0,",
    ),
    "a key is too short": ("properties.c", "1 + (ndims[i] > 0 ? (size_t)ndims[i] : 0)", "1"),
}


def build(folder: Path, sources: Path = HERE) -> Path:
    """Compile the library with what plays MXNet and Python."""
    files = [str(sources / name) for name in SOURCES] + [str(FUZZ / "fuzz_calls.c")]
    command = [str(CLANG), "-g", "-O1", "-std=gnu11", "-fsanitize=fuzzer,address,undefined", WRAPPED]
    command += ["-fno-sanitize-recover=undefined", f"-I{sources}", f"-I{ABI}", *files, "-lpthread", "-lm"]
    target = folder / "fuzz"
    done = subprocess.run([*command, "-o", str(target)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


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


def test_random_calls_break_nothing(tmp_path, corpus):
    done = run(build(tmp_path), f"-runs={RUNS}", REPEATABLE, "-max_len=1000", corpus)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    assert f"Done {RUNS} runs" in done.stderr


@pytest.mark.parametrize("name", PLANTS)
def test_the_corpus_finds_a_planted_fault(name, tmp_path, corpus):
    file, text, instead = PLANTS[name]
    folder = tmp_path / "calls"
    shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns("*.so", "*.py", "__pycache__"))
    source = (folder / file).read_text()
    assert source.count(text) == 1
    (folder / file).write_text(source.replace(text, instead))
    assert run(build(tmp_path, folder), "-runs=0", corpus).returncode != 0, "nothing was found"
