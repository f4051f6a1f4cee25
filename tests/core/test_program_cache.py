"""Compiled programs on disk: hits, damage, foreign files, folders that cannot be trusted, two processes at once."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clgraft.core import ArgumentError, BuildError
from clgraft.core.graph import kept_recipes
from clgraft.core.runtime import cache_limit, program_cache, stamps
from clgraft.core.tuning import advisor
from tests.core.graphs import sample, small_net
from tests.folders import ROOT
from tests.logs import logged

SOURCE = "kernel void answer(global int *out) { out[0] = %d; }"


@pytest.fixture(autouse=True)
def no_other_cache(monkeypatch):
    """Otherwise PoCL keeps programs, and the folder stays empty."""
    monkeypatch.setenv("POCL_KERNEL_CACHE", "0")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache folder of this test's own, within the usual limit."""
    monkeypatch.setenv("CLGRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CLGRAFT_CACHE_LIMIT", raising=False)
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

    monkeypatch.setattr(program_cache.files, "write_whole", full)
    assert answer(context, 10) == 10
    assert not list(folder.iterdir())


def test_compiler_errors_carry_the_log(context, folder):
    with pytest.raises(BuildError, match="no_such_function"):
        program_cache.build(
            context.cl_context, context.cl_device, "kernel void f(global int *x) { no_such_function(x); }", ()
        )
    assert not folder.exists() or not list(folder.iterdir())


def test_two_processes_at_once(context, folder, tmp_path):
    program = (
        "import numpy as np; from clgraft import core\n"
        "c = core.context()\n"
        "for k in range(1, 4):\n"
        "    p = core.parse(f'conv forward n1 ic1 iw9 oc1 kw{k}')\n"
        "    y = np.full((1, 1, 10 - k), np.nan, np.float32)\n"
        "    c.plan(p, 'direct').run(x=np.ones((1, 1, 9), np.float32), w=np.ones((1, 1, k), np.float32), y=y)\n"
        "    assert (y == k).all()\n"
    )
    # without its own cache PoCL builds in its folder all the same, where processes disturb each other
    places = [{**os.environ, "POCL_CACHE_DIR": str(tmp_path / number)} for number in "123"]
    command = [sys.executable, "-c", program]
    children = [subprocess.Popen(command, stderr=subprocess.PIPE, env=place) for place in places]
    for child in children:
        _, errors = child.communicate(timeout=300)
        assert child.returncode == 0, errors.decode()
    assert list(folder.iterdir()) and not list(folder.glob(".new-*"))


def sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def test_a_compilers_warning_does_not_escape_from_a_cached_program(context, folder, compiled, monkeypatch):
    """Intel's compiler has output for every binary: with warnings as errors the second process would fail."""
    import warnings

    import pyopencl as cl

    real = cl.Program.build

    def talking(*arguments, **options):
        warnings.warn("Non-empty compiler output encountered", cl.CompilerWarning, stacklevel=2)
        return real(*arguments, **options)

    monkeypatch.setattr(cl.Program, "build", talking)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [answer(context, 61), answer(context, 61)] == [61, 61]
    assert len(compiled) == 1


def test_a_compilers_warning_does_not_escape_from_another_thread():
    """A build that began first and ends first leaves another one's warning hidden; after both, the filters are back."""
    import threading
    import warnings

    import pyopencl as cl

    building, ended = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]
    caught = []

    class Talking:
        def __init__(self, number):
            self.number = number

        def build(self, **_):
            building[self.number].set()
            assert (building[1] if self.number == 0 else ended[0]).wait(60)
            warnings.warn("Non-empty compiler output encountered", cl.CompilerWarning, stacklevel=2)

        def run(self):
            try:
                program_cache._built(self, ())
            except Warning as warning:
                caught.append(warning)
            ended[self.number].set()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = list(warnings.filters)
        for number in (0, 1):
            threading.Thread(target=Talking(number).run, daemon=True).start()
            assert building[number].wait(60)
        assert ended[0].wait(60) and ended[1].wait(60)
        assert not caught and warnings.filters == before


def test_the_least_recently_used_programs_go_first(context, folder, compiled, monkeypatch):
    assert [answer(context, number) for number in (1, 2, 3)] == [1, 2, 3]
    names = {number: path for path in folder.iterdir() for number in (1, 2, 3) if SOURCE % number in str(key(path))}
    for number, age in ((1, 300), (2, 200), (3, 100)):
        os.utime(names[number], (time.time() - age,) * 2)
    assert answer(context, 1) == 1  # used again
    total, largest = sum(sizes(folder).values()), max(sizes(folder).values())
    monkeypatch.setenv("CLGRAFT_CACHE_LIMIT", str(total + largest // 2))
    del compiled[:]
    assert answer(context, 4) == 4
    assert not names[2].exists() and names[1].exists() and names[3].exists()
    assert sum(sizes(folder).values()) <= total + largest // 2
    assert [answer(context, 1), answer(context, 3), answer(context, 2)] == [1, 3, 2]
    assert len(compiled) == 2


def test_pocl_keeps_its_programs_itself(context, folder, compiled, monkeypatch):
    """It would compile every kernel twice for a binary; where its own cache is off, programs are kept here."""
    if "portable" not in context.device.platform.lower():
        pytest.skip("of PoCL")
    monkeypatch.delenv("POCL_KERNEL_CACHE")
    assert [answer(context, 101), answer(context, 101)] == [101, 101]
    assert len(compiled) == 2 and not folder.exists()


def key(path: Path) -> str:
    return program_cache.key_in(path)["source"]


@pytest.mark.parametrize(
    "text, expected",
    [("", 512 << 20), ("1000", 1000), ("3K", 3072), ("2 MiB", 2 << 20), ("1gb", 1 << 30), ("off", None), ("0", 0)],
)
def test_the_limit_is_read(monkeypatch, text, expected):
    monkeypatch.setenv("CLGRAFT_CACHE_LIMIT", text)
    with logged():
        assert cache_limit.limit() == expected


def test_a_limit_that_is_no_number_is_an_error(context, folder, monkeypatch):
    monkeypatch.setenv("CLGRAFT_CACHE_LIMIT", "much")
    with pytest.raises(ArgumentError, match=r"^\[cache\] got CLGRAFT_CACHE_LIMIT='much', expected bytes such as 512M"):
        answer(context, 75)


def test_a_limit_that_holds_no_program_keeps_none(context, folder, compiled, monkeypatch):
    monkeypatch.setenv("CLGRAFT_CACHE_LIMIT", "10")
    assert [answer(context, 71), answer(context, 71)] == [71, 71]
    assert len(compiled) == 2 and not sizes(folder)


def test_leftovers_of_killed_processes_go(context, folder):
    answer(context, 81)
    old, young = folder / ".new-old", folder / ".new-young"
    for path in (old, young):
        path.write_bytes(b"x")
    os.utime(old, (1, 1))
    answer(context, 82)
    assert not old.exists() and young.exists()


def test_processes_that_share_a_full_cache(context, folder, tmp_path):
    """Two processes write into a cache with room for three programs: every answer is right and the limit holds."""
    program = """
import sys
sys.path[:0] = {path!r}
from clgraft import core
from tests.core.test_program_cache import answer
context = core.context()
for number in range(12):
    assert answer(context, number % 6) == number % 6
"""
    program = program.format(path=[str(ROOT)])
    answer(context, 7)
    (size,) = sizes(folder).values()
    limit = 3 * size // 1024 + 8
    environment = {**os.environ, "CLGRAFT_CACHE_LIMIT": f"{limit}K"}
    children = []
    for number in range(2):  # PoCL without a cache removes files that another process may be linking
        (tmp_path / f"pocl{number}").mkdir()
        own = {**environment, "POCL_CACHE_DIR": str(tmp_path / f"pocl{number}")}
        children.append(subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, env=own))
    for child in children:
        assert child.wait(timeout=300) == 0, child.stderr.read()[-2000:]
        child.stderr.close()
    found = sizes(folder)
    # each of the two may write one file after both have looked
    assert found and sum(found.values()) <= limit * 1024 + max(found.values())


def test_a_fifo_in_place_of_a_program_does_not_hang(context, folder, compiled):
    answer(context, 91)
    (path,) = folder.iterdir()
    path.unlink()
    os.mkfifo(path, 0o600)
    assert answer(context, 91) == 91
    assert len(compiled) == 2 and path.is_file()


@pytest.mark.parametrize(
    "kind, reason",
    [
        ("writable", r"others may write to it; run `chmod go-w .*/cache`"),
        ("link", "it is a symbolic link; set CLGRAFT_CACHE to the folder itself"),
        ("fifo", "File exists|neither a folder"),
        ("missing", "it cannot be made .*: set CLGRAFT_CACHE"),
    ],
)
def test_a_refused_folder_is_one_warning_with_the_remedy(context, tmp_path, monkeypatch, kind, reason):
    place = tmp_path / "cache"
    if kind == "writable":
        place.mkdir()
        place.chmod(0o775)
    elif kind == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "elsewhere")
    elif kind == "fifo":
        os.mkfifo(place, 0o600)
    else:
        place = Path("/proc/no/such/place")
    monkeypatch.setenv("CLGRAFT_CACHE", str(place))
    with logged(rf"{place} is not used, so kernels are compiled anew in every process: .*({reason})") as texts:
        assert [answer(context, 95), answer(context, 95)] == [95, 95]
        assert len(texts) == 1


@pytest.fixture
def reachable():
    """A folder that others get to, which those of tests are not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.parametrize(
    "above, below, used", [(0o777, 0o755, False), (0o1777, 0o755, True), (0o700, 0o777, True), (0o755, 0o777, False)]
)
def test_folders_above_that_others_may_write_to(context, reachable, monkeypatch, above, below, used):
    """There they could put a folder of theirs in the cache's place."""
    place = reachable / "above" / "below" / "cache"
    place.parent.mkdir(parents=True)
    place.parent.chmod(below)
    place.parents[1].chmod(above)
    monkeypatch.setenv("CLGRAFT_CACHE", str(place))
    expected = r"lies below (.*), which others may write to; run `chmod go-w \1`"
    with logged("" if used else expected) as texts:
        assert answer(context, 96) == 96
        assert len(texts) == (not used)
    assert (place / program_cache.FOLDER).is_dir() == used


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give a folder to another user")
def test_a_folder_above_that_belongs_to_another_user(context, reachable, monkeypatch):
    above = reachable / "theirs"
    above.mkdir(mode=0o755)
    os.chown(above, 12345, -1)
    monkeypatch.setenv("CLGRAFT_CACHE", str(above / "cache"))
    with logged(f"lies below {above}, which belongs to user 12345; set CLGRAFT_CACHE to another folder") as texts:
        assert answer(context, 97) == 97
        assert len(texts) == 1
    assert not (above / "cache" / program_cache.FOLDER).exists()


@pytest.fixture
def planned(context, monkeypatch):
    """Collects the problems for which implementations are chosen; graphs of any size are kept."""
    calls, real = [], context.choose

    def counting(problem):
        calls.append(problem)
        return real(problem)

    monkeypatch.setattr(context, "choose", counting)
    monkeypatch.setattr(kept_recipes, "LEAST", 1)
    return calls


class Compiled:
    """A small net with constants, compiled for what another process would have left in the cache."""

    def __init__(self, context, planned, passes: str | None = None, fewer: int = 0) -> None:
        graph = small_net()
        arrays = sample(graph, np.random.default_rng(4))
        names = [value.name for value in graph.inputs if value.name != "x"][fewer:]
        del planned[:]
        compiled = context.compile(graph, passes, {name: arrays.pop(name) for name in names}, kept=True)
        (output,) = compiled.run(arrays).values()
        self.bits, self.report, self.text = output.tobytes(), compiled.report(), compiled.plan().problem.details
        self.planned = len(planned)


def test_graphs_are_planned_once(context, folder, planned):
    first, again = Compiled(context, planned), Compiled(context, planned)
    assert first.planned and not again.planned
    assert (again.bits, again.report, again.text) == (first.bits, first.report, first.text)
    other = Compiled(context, planned, "-all")
    assert other.planned and other.report != first.report


def test_plans_of_graphs_hang_on_all_that_decides(context, folder, planned, monkeypatch):
    first = Compiled(context, planned)
    other_device = replace(context.device, cache_bytes=context.device.cache_bytes + 1)
    changes = {
        "another device": lambda patch: patch.setattr(context, "device", other_device),
        "another setting": lambda patch: patch.setenv("CLGRAFT_WINOGRAD", "off"),
        "an environment that steers compilers": lambda patch: patch.setenv("POCL_MAX_WORK_GROUP_SIZE", "4096"),
        "another version": lambda patch: patch.setattr(program_cache, "VERSION", "9.9.9"),
        "other sources": lambda patch: patch.setattr(stamps, "code", lambda: "others"),
        "a measured choice": lambda patch: patch.setattr(advisor, "results", lambda device: "conv: direct"),
    }
    for name, change in changes.items():
        with monkeypatch.context() as patch:
            change(patch)
            stale, again = Compiled(context, planned), Compiled(context, planned)
        assert stale.planned and not again.planned, name
    assert Compiled(context, planned, fewer=3).planned and not Compiled(context, planned, fewer=3).planned
    kept = Compiled(context, planned)
    assert not kept.planned and kept.bits == first.bits


def test_plans_that_may_change_are_not_kept(context, folder, monkeypatch):
    def key() -> str | None:
        return kept_recipes.key_of(context, "graph")

    assert key() is not None
    for change in (
        lambda patch: patch.setenv("CLGRAFT_TUNE", "full"),
        lambda patch: patch.setenv("CLGRAFT_CACHE", "off"),
        lambda patch: patch.setattr(type(context), "advisor", staticmethod(lambda problem, context: None)),
        lambda patch: patch.setattr(context.planner, "at_once", True),
        lambda patch: patch.setattr(stamps, "code", lambda: None),
    ):
        with monkeypatch.context() as patch:
            change(patch)
            assert key() is None
    assert key() is not None


def test_damaged_plans_are_made_anew(context, folder, planned, monkeypatch):
    first = Compiled(context, planned)
    (path,) = [path for path in folder.iterdir() if "recipe" in program_cache.key_in(path)]
    whole = path.read_bytes()
    key = whole[len(program_cache.MAGIC) + 40 :][: int.from_bytes(whole[len(program_cache.MAGIC) + 32 :][:8], "little")]
    content = zlib.decompress(program_cache.unpack(whole, key.decode()))
    middle = len(whole) // 2
    refused = content.replace(b"kernel void", b"#error\nkernel void")
    for name, damaged in {
        "cut": whole[:middle],
        "flipped": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        "empty": b"",
        "no recipe": program_cache.pack(key.decode(), b"noise"),
        "of another form": program_cache.pack(key.decode(), zlib.compress(b'{"recipe": {}, "programs": []}')),
        "refused by the device": program_cache.pack(key.decode(), zlib.compress(refused)),
    }.items():
        path.write_bytes(damaged)
        made = Compiled(context, planned)
        monkeypatch.setattr(context.planner, "at_once", False)
        assert made.planned and made.bits == first.bits, name
        path.write_bytes(whole)
    assert not Compiled(context, planned).planned


def test_stamps_change_with_files(tmp_path):
    file = tmp_path / "below" / "module.py"
    file.parent.mkdir()
    found = set()
    for text, when in (("a", 1), ("b", 2), ("ab", 2)):
        file.write_text(text)
        os.utime(file, (when, when))
        found.add(stamps._digest.__wrapped__(str(tmp_path)))
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "module.pyc").write_text("")
    found.add(stamps._digest.__wrapped__(str(tmp_path)))
    assert len(found) == 3 and stamps._digest.__wrapped__(str(tmp_path / "missing")) is None
