"""Compiled programs on disk: hits, damage, foreign files, folders that cannot be trusted, two processes at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from clgraft.core import BuildError
from clgraft.core.runtime import program_cache

SOURCE = "kernel void answer(global int *out) { out[0] = %d; }"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache folder of this test's own."""
    monkeypatch.setenv("CLGRAFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / program_cache.FOLDER


@pytest.fixture
def compiled(monkeypatch):
    """Counts compilations."""
    calls = []
    real = program_cache._compile

    def counting(*arguments):
        calls.append(arguments[1])
        return real(*arguments)

    monkeypatch.setattr(program_cache, "_compile", counting)
    return calls


def answer(context, number: int, options: tuple[str, ...] = ()) -> int:
    """Build a program that answers a number, and run it."""
    import pyopencl as cl

    program = program_cache.build(context.cl_context, context.cl_device, SOURCE % number, options)
    out = cl.Buffer(context.cl_context, cl.mem_flags.READ_WRITE, 4)
    kernel = cl.Kernel(program, "answer")
    kernel.set_args(out)
    cl.enqueue_nd_range_kernel(context.queue, kernel, (1,), None)
    got = np.zeros(1, np.int32)
    cl.enqueue_copy(context.queue, got, out)
    return int(got[0])


def test_second_build_comes_from_disk(context, folder, compiled):
    assert [answer(context, 41), answer(context, 41)] == [41, 41]
    assert len(compiled) == 1
    assert answer(context, 42) == 42
    assert answer(context, 42, ("-cl-mad-enable",)) == 42  # options count in the key
    assert len(compiled) == 3
    assert len(list(folder.iterdir())) == 3


def test_key_holds_what_can_change_a_program(context, monkeypatch):
    key = program_cache.key_of(context.cl_device, "source", ("-a",))
    assert key != program_cache.key_of(context.cl_device, "source ", ("-a",))
    assert key != program_cache.key_of(context.cl_device, "source", ("-b",))
    for word in (context.cl_device.driver_version, context.cl_device.name, program_cache.VERSION):
        assert word.replace('"', '\\"') in key
    monkeypatch.setenv("POCL_MAX_WORK_GROUP_SIZE", "64")
    assert key != program_cache.key_of(context.cl_device, "source", ("-a",))
    monkeypatch.delenv("POCL_MAX_WORK_GROUP_SIZE")
    monkeypatch.setattr(program_cache, "VERSION", "9.9.9")
    assert key != program_cache.key_of(context.cl_device, "source", ("-a",))


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "another key's", "noise"])
def test_damaged_files_are_built_anew(context, folder, compiled, damage):
    answer(context, 1)
    answer(context, 2)
    first, second = sorted(folder.iterdir())
    contents = {path: path.read_bytes() for path in (first, second)}
    content = contents[first]
    middle = len(content) // 2
    first.write_bytes(
        {
            "cut": content[:middle],
            "flipped": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
            "empty": b"",
            "another key's": contents[second],
            "noise": os.urandom(len(content)),
        }[damage]
    )
    del compiled[:]
    assert [answer(context, 1), answer(context, 2)] == [1, 2]
    assert len(compiled) == 1
    assert (
        program_cache.unpack(first.read_bytes(), program_cache.key_of(context.cl_device, compiled[0], ())) is not None
    )


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_folder_that_others_may_write_is_not_used(context, folder, compiled, mode):
    folder.parent.mkdir(mode=0o700)
    folder.mkdir()
    folder.chmod(mode)
    assert [answer(context, 5), answer(context, 5)] == [5, 5]
    assert len(compiled) == 2
    assert not list(folder.iterdir())


def test_folder_behind_a_link_is_not_used(context, folder, compiled, tmp_path):
    folder.parent.mkdir(mode=0o700)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    assert answer(context, 6) == 6
    assert not list((tmp_path / "elsewhere").iterdir())


def test_file_that_others_may_write_is_not_loaded(context, folder, compiled):
    answer(context, 7)
    next(folder.iterdir()).chmod(0o666)
    assert answer(context, 7) == 7
    assert len(compiled) == 2


def test_folder_is_its_users_alone(context, folder):
    answer(context, 8)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert next(folder.iterdir()).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("choice", ["off", "/proc/no/such/place"])
def test_works_without_a_cache(context, monkeypatch, compiled, choice):
    monkeypatch.setenv("CLGRAFT_CACHE", choice)
    assert [answer(context, 9), answer(context, 9)] == [9, 9]
    assert len(compiled) == 2


def test_full_disk_is_no_error(context, folder, compiled, monkeypatch):
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(program_cache.runtimes, "write_atomically", full)
    assert answer(context, 10) == 10
    assert not list(folder.iterdir())


def test_compiler_errors_carry_the_log(context, folder):
    with pytest.raises(BuildError, match="no_such_function"):
        program_cache.build(
            context.cl_context, context.cl_device, "kernel void f(global int *x) { no_such_function(x); }", ()
        )
    assert not folder.exists() or not list(folder.iterdir())


def test_two_processes_at_once(context, folder):
    program = (
        "import numpy as np; from clgraft import core\n"
        "c = core.context()\n"
        "for k in range(1, 4):\n"
        "    p = core.parse(f'conv forward n1 ic1 iw9 oc1 kw{k}')\n"
        "    y = np.full((1, 1, 10 - k), np.nan, np.float32)\n"
        "    c.plan(p, 'direct').run(x=np.ones((1, 1, 9), np.float32), w=np.ones((1, 1, k), np.float32), y=y)\n"
        "    assert (y == k).all()\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE) for _ in range(3)]
    for child in children:
        _, errors = child.communicate(timeout=300)
        assert child.returncode == 0, errors.decode()
    assert list(folder.iterdir()) and not list(folder.glob(".new-*"))
