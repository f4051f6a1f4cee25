"""The user's results on disk: kept, resumed, shared by processes; damaged, full, read-only and foreign files."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys

import pytest

from clgraft.core.tuning import HEURISTIC, Choice, database
from clgraft.core.tuning.database import Candidate, Database, Timing, Winner
from tests.logs import logged

TIMING = Timing(5, 2e-3, 1e-3, 0.1)


@pytest.fixture
def file(tmp_path):
    return tmp_path / database.FILE


def winner(problem: str = "p", choice: str = "direct") -> Winner:
    return Winner(problem, Choice.parse(choice), TIMING, TIMING)


def test_what_is_kept_comes_back(file):
    kept = Database("device", file)
    assert kept.winners() == () and kept.candidates("p") == {}
    assert not file.exists()  # reading makes no file
    candidates = [
        Candidate(HEURISTIC, "measured", "", TIMING, 0.5),
        Candidate(Choice.parse("a x=1"), "wrong", "3.0 times the error that is allowed", None, 3.0),
        Candidate(Choice("b"), "timeout", "no end after 1 s"),
    ]
    for candidate in candidates:
        assert kept.add("p", candidate)
    assert Database("device", file).candidates("p") == {candidate.choice: candidate for candidate in candidates}
    assert kept.add("p", Candidate(Choice("b"), "crashed", "again"))
    assert kept.candidates("p")[Choice("b")].outcome == "crashed"
    assert kept.finish(winner("p", "a x=1")) and kept.finish(winner("q", "heuristic"))
    assert {w.problem: str(w.choice) for w in Database("device", file).winners()} == {"p": "a x=1", "q": "heuristic"}
    assert kept.winners()[0].after.median == TIMING.median
    assert Database("another device", file).winners() == ()
    kept.forget("p")
    assert [w.problem for w in kept.winners()] == ["q"] and kept.candidates("p") == {}
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", ["noise", "cut", "another's tables", "a choice that is none"])
def test_a_damaged_file_is_a_warning_once_and_a_new_file(file, damage):
    kept = Database("device", file)
    kept.finish(winner())
    if damage == "noise":
        file.write_bytes(os.urandom(5000))
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2 + 100])
    else:
        with sqlite3.connect(file) as connection:
            if damage == "another's tables":
                connection.execute("drop table winners")
                connection.execute("create table winners (colour text)")
            else:
                connection.execute("update winners set choice = '???'")
        connection.close()
    with logged(r"cannot be read .*shipped rows and heuristics serve instead") as texts:
        assert kept.winners() == ()
        del texts[1:]
        assert kept.winners() == ()
        assert len(texts) == 1  # the second time in silence
    if damage in ("noise", "cut"):
        with logged("was damaged .*a new one begins"):
            assert kept.finish(winner())
        assert [w.problem for w in kept.winners()] == ["p"]
        assert list(file.parent.glob("*.damaged-*"))


def test_a_full_disk_is_a_warning_once(file, monkeypatch):
    kept = Database("device", file)
    kept.finish(winner())
    size = file.stat().st_size // 4096

    def small(*arguments, **options):
        connection = connect(*arguments, **options)
        connection.execute(f"pragma max_page_count = {size}")
        return connection

    connect = sqlite3.connect
    monkeypatch.setattr(database.sqlite3, "connect", small)
    with logged("full.*results are not kept"):
        results = [kept.add("p" * 3000, Candidate(Choice(f"c{i}"), "failed", "x" * 1500)) for i in range(20)]
    assert not results[-1]
    assert kept.winners()  # what was there is there


def test_a_place_that_cannot_be_written_is_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / database.FILE, tmp_path / "missing" / database.FILE):
        with logged("results are not kept"):
            assert not Database("device", place).finish(winner())
        assert Database("device", place).winners() == ()


def test_no_cache_folder_is_a_warning(monkeypatch):
    monkeypatch.setenv("CLGRAFT_CACHE", "off")
    assert database.location() is None
    with logged("no cache folder"):
        assert not Database("device").finish(winner())
    assert Database("device").winners() == ()


@pytest.mark.parametrize("kind", ["writable by others", "link"])
def test_a_file_that_others_may_write_is_not_used(file, kind):
    kept = Database("device", file)
    kept.finish(winner())
    if kind == "link":
        file.rename(file.with_name("elsewhere"))
        file.symlink_to(file.with_name("elsewhere"))
    else:
        file.chmod(0o666)
    with logged("not used"):
        assert kept.winners() == ()
    with logged("others may write"):
        assert not kept.finish(winner())


def test_processes_that_write_at_once(file):
    program = (
        "import sys; from pathlib import Path\n"
        "from clgraft.core.tuning import Choice\n"
        "from clgraft.core.tuning.database import Candidate, Database, Timing, Winner\n"
        "t = Timing(1, 1.0, 1.0, 0.0)\n"
        "for i in range(20):\n"
        "    kept = Database('device', Path(sys.argv[1]))\n"
        "    assert kept.add('p', Candidate(Choice('c', (('i', i), ('who', sys.argv[2]))), 'measured', '', t))\n"
        "    assert kept.finish(Winner(f'{sys.argv[2]}{i}', Choice('c'), t, t))\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", program, str(file), who], stderr=subprocess.PIPE)
        for who in ("a", "b", "c")
    ]
    for child in children:
        _, errors = child.communicate(timeout=300)
        assert child.returncode == 0, errors.decode()
    assert len(Database("device", file).winners()) == 60
    assert len(Database("device", file).candidates("p")) == 60
