"""The C runtime under random calls: an OpenCL of the test's own that may fail anywhere, under sanitizers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from clgraft.core.abi.build import SOURCES, version_number
from tests.fuzzing import CLANG, Objects, memory_limit, plant, runs, unpack

FUZZ = Path(__file__).parent / "fuzz"
RUNTIME = Path(__import__("clgraft.core.abi", fromlist=["abi"]).__file__).parent
FILES = [*(RUNTIME / name for name in SOURCES), FUZZ / "calls.c", FUZZ / "fake_opencl.c"]
RUNS = 12_000  # of which the kept inputs are 1254
SLOT = 512  # bytes of one transfer, so that small arrays take many
ENVIRONMENT = {
    "ASAN_OPTIONS": "allocator_may_return_null=1",
    "TSAN_OPTIONS": "allocator_may_return_null=1",
    "CLGRAFT_COPY_THREADS": "2",
}

pytestmark = pytest.mark.skipif(CLANG is None, reason="needs clang and its sanitizers")


def objects(sanitizers: str, folder: Path) -> Objects:
    """Return what compiles the runtime with a harness."""
    command = [str(CLANG), "-g", "-O1", "-std=gnu11", f"-DCLG_VERSION={version_number()}", f"-fsanitize={sanitizers}"]
    command += [f"-DCLG_SLOT_BYTES={SLOT}", *(["-DCLG_PLAIN_COPIES"] if sanitizers == "thread" else [])]
    command += ["-fno-sanitize-recover=undefined", f"-I{RUNTIME}", f"-I{FUZZ}"]
    return Objects(command, folder)


def run(*command: object) -> subprocess.CompletedProcess:
    """Run with the sanitizers' options."""
    words = [str(word) for word in command]
    folder = Path(words[0]).parent  # where inputs that fail are kept
    return subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=300, env={**os.environ, **ENVIRONMENT}
    )


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """The kept inputs, a file each."""
    return unpack(FUZZ / "corpus.txt", tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory) -> Objects:
    """What compiles for libFuzzer."""
    return objects("fuzzer,address,undefined", tmp_path_factory.mktemp("objects"))


def test_random_calls_break_nothing(tmp_path, corpus, fuzzed, pytestconfig):
    """Addresses, undefined behaviour, leaks of memory and of OpenCL objects."""
    program = fuzzed.link(tmp_path / "fuzz", [*FILES, FUZZ / "fuzz_runtime.c"], "-lpthread")
    done = run(
        program,
        "-malloc_limit_mb=0",
        memory_limit(),
        *runs(RUNS, pytestconfig),
        "-max_len=1000",
        "-timeout=20",
        corpus,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"Done {RUNS} runs" in done.stderr


def test_the_corpus_finds_planted_faults(tmp_path, corpus, fuzzed):
    plants = {
        "job.c": ("if (r->wrapped) cl_release_mem(r->mem);", ""),
        "plan.c": ("if (context) clg_handle_drop(context);", ""),
        "arrays.c": ("if (a->mem) cl_release_mem(a->mem);", ""),
        "events.c": ("clg_handle_return(s->handle);", ""),
        "transfer.c": ("if (k->mem) cl_release_mem(k->mem);", ""),
        "device.c": ("if (c->pool[i].mem) cl_release_mem(c->pool[i].mem);", ";"),
    }
    for file, (text, instead) in plants.items():
        sources = plant([*FILES, FUZZ / "fuzz_runtime.c"], file, text, instead, tmp_path)
        program = fuzzed.link(tmp_path / f"fuzz_{file[:-2]}", sources, "-lpthread")
        assert run(program, "-runs=0", "-malloc_limit_mb=0", memory_limit(), corpus).returncode != 0, (
            f"nothing was found in {file}"
        )


def test_threads_race_for_nothing(tmp_path):
    """Four threads make random calls on the same handles."""
    program = objects("thread", tmp_path).link(tmp_path / "race", [*FILES, FUZZ / "race_runtime.c"], "-lpthread")
    done = run(program, 1, 8)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "done\n"
