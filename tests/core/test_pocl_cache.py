"""PoCL's cache: which folder it is, what a process that died leaves in it, room and limits."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clgraft.core import BuildError
from clgraft.core.runtime import building, folders
from clgraft.core.runtime.toolchains import pocl_cache
from tests.folders import ROOT
from tests.logs import logged

CONVOLUTION = """
import numpy as np
from clgraft import core
arrays = {name: np.ones(shape, "f") for name, shape in (("x", (1, 3, 8, 8)), ("w", (4, 3, 3, 3)), ("y", (1, 4, 6, 6)))}
core.context().plan(core.parse("conv n1 ic3 ih8 iw8 oc4 kh3 kw3")).run(**arrays)
print(int(arrays["y"].min()), int(arrays["y"].max()))
"""
GRAPH = """
from clgraft import core
from clgraft.core.runtime.toolchains.pocl import PoCL
from dataclasses import replace
from tests.core.graphs import sample, small_net
import numpy as np
PoCL.CHILDREN = replace(PoCL.CHILDREN, seconds_of_a_child=0.0)
graph = small_net()
print(sorted(core.context().compile(graph).run(sample(graph, np.random.default_rng(3)))) == sorted(graph.outputs))
"""
FOLDER = """
import os
from clgraft.core.runtime import folders
from clgraft.core.runtime.toolchains import pocl_cache
{before}
pocl_cache.choose_folder()
print(os.environ.get("POCL_CACHE_DIR"), pocl_cache.keeps_programs())
"""
CHOSEN = ("POCL_CACHE_DIR", "POCL_KERNEL_CACHE", "CLGRAFT_CACHE", "XDG_CACHE_HOME")


def run(program: str, **environment: str) -> subprocess.CompletedProcess:
    there = {name: value for name, value in os.environ.items() if name not in CHOSEN}
    there["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        env={**there, **environment},
        cwd=ROOT,
    )


@pytest.fixture
def device(context):
    if not context.toolchain.keeps_programs():
        pytest.skip("of PoCL's cache")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of PoCL that is clgraft's own; this process has not entered it."""
    monkeypatch.setenv("CLGRAFT_CACHE", str(tmp_path))
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "pocl"))
    monkeypatch.setattr(pocl_cache, "_forgets", [])
    monkeypatch.setattr(pocl_cache, "_held", [])
    monkeypatch.setattr(pocl_cache.atexit, "register", lambda *_: None)
    monkeypatch.delenv("POCL_KERNEL_CACHE", raising=False)
    (tmp_path / "pocl").mkdir()
    yield tmp_path / "pocl"
    for file in pocl_cache._held:
        file.close()


def program(folder: Path, name: str, content: bytes, used: float = 1.0) -> Path:
    """Make the folder of a program that PoCL has built."""
    place = folder / name[:2] / name[2:]
    place.mkdir(parents=True)
    (place / "program.bc").write_bytes(content)
    (place / "last_accessed").touch()
    os.utime(place / "last_accessed", (used, used))
    return place


def bitcode(words: int = 5) -> bytes:
    """Return two blocks of LLVM's bitcode with so many words each."""
    block = struct.pack("<II", 13 << 2 | 1, words) + b"\1" * 4 * words
    return b"BC\xc0\xde" + 2 * block


def a_library() -> bytes:
    """Return the content of a shared library that this process has loaded."""
    paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
    return min((Path(path).read_bytes() for path in paths if path.startswith("/")), key=len)


@pytest.mark.parametrize("content", [bitcode(), a_library()], ids=["bitcode", "library"])
def test_files_that_are_cut_are_told_from_whole_ones(content):
    assert not pocl_cache.is_cut(content)
    for length in (20, 50, len(content) // 2, len(content) - 1):
        assert pocl_cache.is_cut(content[:length])
    half = len(content) // 2
    assert pocl_cache.is_cut(content[:half] + bytes(len(content) - half))
    assert pocl_cache.is_cut(b"") and pocl_cache.is_cut(bytes(100))
    assert not pocl_cache.is_cut(b"another format")


@pytest.mark.parametrize("pattern", ["program.bc", "*.so"])
def test_a_cut_file_ends_one_process_at_most(device, tmp_path, pattern):
    environment = {"CLGRAFT_CACHE": str(tmp_path), "CLGRAFT_BUILD_PROCESSES": "0"}
    assert run(CONVOLUTION, **environment).stdout == "27 27\n"
    whole = {path: path.read_bytes() for path in (tmp_path / "pocl").rglob(pattern)}
    assert whole and not any(pocl_cache.is_cut(content) for content in whole.values())
    for path, content in whole.items():
        os.truncate(path, len(content) // 2)
    run(CONVOLUTION, **environment)  # PoCL reads what is cut: this process ends or not
    done = run(CONVOLUTION, **environment)
    assert done.returncode == 0 and done.stdout == "27 27\n", done.stderr[-2000:]
    assert "damaged" in done.stderr
    again = run(CONVOLUTION, **environment)
    assert (again.returncode, again.stdout, again.stderr) == (0, "27 27\n", "")
    assert not list((tmp_path / "pocl").glob(f"{pocl_cache.RUNNING}*"))


def test_a_cut_file_that_ends_a_child_is_removed_by_its_parent(device, tmp_path):
    environment = {"CLGRAFT_CACHE": str(tmp_path), "CLGRAFT_BUILD_PROCESSES": "2"}
    assert run(GRAPH, **environment).stdout == "True\n"
    for path in (tmp_path / "pocl").rglob("program.bc"):
        os.truncate(path, path.stat().st_size // 2)
    for path in (tmp_path / "programs").iterdir():
        path.unlink()  # what notes that the kernels are there
    done = run(GRAPH, **environment)
    assert done.returncode == 0 and done.stdout == "True\n", done.stderr[-2000:]
    assert "damaged" in done.stderr


def test_what_was_checked_is_not_checked_again(folder, monkeypatch):
    """Unless it has changed, the machine was started since, or the check is an hour old."""
    program(folder, "ABCD", bitcode())
    assert pocl_cache.repair() == 0
    seen = []
    monkeypatch.setattr(pocl_cache, "_is_cut_file", lambda path: seen.append(path.name))
    pocl_cache.repair()
    assert seen.pop() == "program.bc"  # it was written within the steps of clocks
    monkeypatch.setattr(pocl_cache, "CLOCK_STEPS", -60.0)  # as if it had been written a minute before
    pocl_cache.repair()
    assert seen == []
    monkeypatch.setattr(pocl_cache, "CHECK_HOLDS", 0.0)
    pocl_cache.repair()
    assert seen.pop() == "program.bc"
    monkeypatch.setattr(pocl_cache, "CHECK_HOLDS", 3600.0)
    assert pocl_cache._last_check(folder) > 0.0
    monkeypatch.setattr(pocl_cache, "_boot", lambda: b"another start")
    assert pocl_cache._last_check(folder) == 0.0


def test_a_check_follows_the_death_of_a_process_only(folder):
    """A file that a living process holds is no reason to check."""
    path = program(folder, "ABCD", bitcode()[:-4]) / "program.bc"
    kept = program(folder, "ABEF", bitcode()) / "program.bc"
    marker = folder / f"{pocl_cache.RUNNING}1"
    marker.touch()
    with marker.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with logged():
            pocl_cache.enter()
        assert path.exists() and marker.exists()
    pocl_cache._held.pop().close()
    with logged(r"^\[cache\] removed a damaged file from PoCL's cache .*: kernels are built anew$"):
        pocl_cache.enter()
    assert kept.exists() and not path.exists() and not marker.exists()


def test_no_build_begins_without_room(folder, monkeypatch):
    pocl_cache.expect_room(1)
    asked = []
    monkeypatch.setattr(folders, "has_room", lambda *given: asked.append(given) or False)
    with pytest.raises(BuildError, match=r"^\[kernel\] got no room in PoCL's cache .*, expected 3670016 bytes"):
        pocl_cache.expect_room(10)
    assert asked == [(folder, 3670016)]


def test_room_is_tried_and_leaves_nothing_behind(tmp_path, monkeypatch):
    assert folders.has_room(tmp_path / "new", 2**20)
    assert not list((tmp_path / "new").iterdir())
    (tmp_path / "file").touch()
    assert not folders.has_room(tmp_path / "file", 1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert not folders.has_room(tmp_path / "new", 2**20)


def test_which_folder_pocl_gets(tmp_path):
    def found(before: str = "", **environment: str) -> list[str]:
        done = run(FOLDER.format(before=before), HOME=str(tmp_path / "home"), TMPDIR=str(tmp_path), **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    cache = str(tmp_path / "cache")
    assert found(CLGRAFT_CACHE=cache) == [f"{cache}/pocl", "True"]
    assert found(CLGRAFT_CACHE=cache, POCL_CACHE_DIR="/own") == ["/own", "True"]
    assert found(CLGRAFT_CACHE="off") == ["None", "True"]
    assert found("pocl_cache._is_loaded = lambda: True", CLGRAFT_CACHE=cache) == ["None", "True"]
    full, keeps = found("folders.has_room = lambda *_: False", CLGRAFT_CACHE=cache)
    assert full.startswith(f"{tmp_path}/clgraft-pocl-") and keeps == "False" and not Path(full).exists()


def test_the_limit_removes_what_was_used_least_recently(folder, monkeypatch):
    old, new, newest = (program(folder, f"AB{used}", bytes(1000), used) for used in (1, 2, 3))
    (folder / "tempfile_old").touch()
    os.utime(folder / "tempfile_old", (1, 1))
    (folder / "tempfile_new").touch()
    monkeypatch.setenv("CLGRAFT_CACHE_LIMIT", "2000")
    pocl_cache.trim(folder)
    assert not old.exists() and new.exists() and newest.exists()
    assert sorted(path.name for path in folder.iterdir()) == ["AB", "tempfile_new"]


def test_a_process_looks_at_all_programs_only_after_new_ones(folder, monkeypatch):
    old = program(folder, "AB1", bytes(1000), 1)
    os.utime(folder / "AB", (1, 1))
    began = time.time() - 5
    monkeypatch.setattr(pocl_cache, "is_own", lambda: True)
    monkeypatch.setattr(building, "built", [1])
    monkeypatch.setenv("CLGRAFT_CACHE_LIMIT", "1000")
    with monkeypatch.context() as patched:
        patched.setattr(pocl_cache, "programs", lambda _: pytest.fail("all programs were looked at"))
        pocl_cache._leave(folder / "running", os.getpid(), began)
    program(folder, "AB2", bytes(1000), 2)
    pocl_cache._leave(folder / "running", os.getpid(), began)
    assert not old.exists()


def test_a_program_that_was_used_since_it_was_listed_stays(folder, monkeypatch):
    old, newer = (program(folder, f"AB{used}", bytes(1000), used) for used in (1, 2))
    listed = pocl_cache.programs(folder)
    os.utime(old / "last_accessed", (5, 5))
    monkeypatch.setattr(pocl_cache, "programs", lambda _: listed)
    monkeypatch.setenv("CLGRAFT_CACHE_LIMIT", "1000")
    pocl_cache.trim(folder)
    assert old.exists() and not newer.exists()


@pytest.mark.parametrize("way", ["trim", "clear"])
def test_no_process_sees_a_part_of_a_program(folder, monkeypatch, way):
    """A program goes by a change of its name: PoCL ends a process in which a file is gone that it has just seen."""
    place = program(folder, "ABCD", bytes(1000))
    monkeypatch.setenv("CLGRAFT_CACHE_LIMIT", "0")
    removed, real = [], pocl_cache.shutil.rmtree
    monkeypatch.setattr(
        pocl_cache.shutil,
        "rmtree",
        lambda path, **options: removed.append((path.name, place.exists())) or real(path, **options),
    )
    pocl_cache.trim(folder) if way == "trim" else pocl_cache.clear()
    ((name, seen),) = removed
    assert name.startswith(pocl_cache.REMOVED) and not seen
    assert not list(folder.rglob("*.bc"))


def test_files_that_pocl_is_writing_are_left_alone(folder):
    """The library of a kernel is an empty file until it is linked, and is renamed then."""
    written = folder / "tempfile_gx7Kq2.so"
    written.touch()
    (folder / f"{pocl_cache.RUNNING}1").touch()
    pocl_cache.enter()
    pocl_cache.trim(folder)
    pocl_cache.clear()
    assert written.exists()
    os.utime(written, (1, 1))
    pocl_cache.clear()
    assert not written.exists()


HOLDER = """
import fcntl, sys
with open(sys.argv[1], "ab") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_program_waits_for_a_process_that_builds_it(folder, monkeypatch):
    monkeypatch.setattr(pocl_cache, "PATIENCE", 0.0)
    with pocl_cache.alone("text"):
        (path,) = folder.glob(f"{pocl_cache.BUILDING}*")
    waits = []
    monkeypatch.setattr(pocl_cache.time, "sleep", lambda _: waits.append(1) or other.stdin.close() or other.wait())
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pocl_cache.alone("text"):  # one that takes too long is not waited for
            assert other.poll() is None and not waits
        monkeypatch.setattr(pocl_cache, "PATIENCE", 60.0)
        with pocl_cache.alone("another text"):
            assert not waits
        with pocl_cache.alone("text"):
            assert other.poll() == 0 and waits == [1]


def test_a_cache_without_locks_is_no_error(folder, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    with pocl_cache.alone("text"):
        pass
    monkeypatch.setenv("POCL_CACHE_DIR", str(folder / "missing"))
    with pocl_cache.alone("text"):
        pass


def test_only_a_folder_of_our_own_is_cleared(folder, tmp_path, monkeypatch):
    place = program(folder, "ABCD", bytes(1000))
    monkeypatch.setenv("CLGRAFT_CACHE", str(tmp_path / "another"))
    assert pocl_cache.clear() == (0, 0)
    assert place.exists()
    monkeypatch.setenv("CLGRAFT_CACHE", str(tmp_path))
    (folder / f"{pocl_cache.RUNNING}1").touch()
    assert pocl_cache.clear() == (1, 1000)
    assert [path.name for path in folder.iterdir()] == [f"{pocl_cache.RUNNING}1"]
