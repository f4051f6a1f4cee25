"""The user's own results: an SQLite file in the cache folder, every candidate a row and every problem's winner one.

Nothing here may stop an operator from running: what cannot be read or written is a warning, once.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from clgraft.core import log
from clgraft.core.planning.choice import Choice
from clgraft.core.runtime import folders
from clgraft.core.tuning.rows import TunedRow

FILE = "tuning.sqlite3"
PATIENCE = 20.0  # seconds to wait for another process that writes
TABLES = """
create table if not exists candidates (
    device text not null, problem text not null, choice text not null,
    outcome text not null, reason text not null, runs integer not null,
    mean real, median real, spread real, least real, error real, measured real not null,
    primary key (device, problem, choice));
create table if not exists winners (
    device text not null, problem text not null, choice text not null, complete integer not null,
    before_mean real, before_median real, before_spread real,
    mean real, median real, spread real, measured real not null,
    primary key (device, problem));
"""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Timing:
    """Seconds of one run: arithmetic mean, median, spread as the interquartile range over the median, and the least."""

    runs: int
    mean: float
    median: float
    spread: float
    least: float = 0.0


@dataclass(frozen=True)
class Candidate:
    """What became of one candidate.

    Attributes
    ----------
    choice : Choice
    outcome : str
        ``measured``; or ``slow``, stopped early; ``duplicate`` of an earlier one; ``declined``; ``failed``, to build or
        to run; ``wrong``; ``timeout`` or ``crashed``, which cost the process that tried it.
    reason : str
        Of all but ``measured``.
    timing : Timing, optional
    error : float, optional
        Largest error over what is allowed.
    """

    choice: Choice
    outcome: str
    reason: str = ""
    timing: Timing | None = None
    error: float | None = None


@dataclass(frozen=True)
class Winner:
    """A search's winner, and the heuristic's and its own times, taken in turn.

    `choice` is `HEURISTIC` where no candidate was clearly faster; `complete` says whether all candidates were tried.
    """

    problem: str
    choice: Choice
    before: Timing
    after: Timing
    complete: bool = True


def location() -> Path | None:
    """Return where the database is or would be; None where there is no cache folder."""
    folder = folders.cache_folder()
    return folder / FILE if folder else None


class Database:
    """The results of one device (see `identity.device_key`) in a file.

    Parameters
    ----------
    device : str
        The device's key.
    path : Path, optional
        The file; by default the user's.
    """

    def __init__(self, device: str, path: Path | None = None) -> None:
        self.device = device
        self.path = path or location()

    def winners(self) -> tuple[Winner, ...]:
        """Return the winners of all searches; none where the file is missing or cannot be read."""

        def read(connection: sqlite3.Connection) -> tuple[Winner, ...]:
            columns = "problem, choice, complete, before_mean, before_median, before_spread, mean, median, spread"
            found = connection.execute(f"select {columns} from winners where device = ?", (self.device,))
            return tuple(
                Winner(problem, Choice.parse(choice), Timing(0, *times[:3]), Timing(0, *times[3:]), bool(complete))
                for problem, choice, complete, *times in found
            )

        return self._read(read, ())

    def rows(self) -> tuple[TunedRow, ...]:
        """Return the winners as rows."""
        return tuple(TunedRow(winner.problem, winner.choice) for winner in self.winners())

    def candidates(self, problem: str) -> dict[Choice, Candidate]:
        """Return what is known of a problem's candidates."""

        def read(connection: sqlite3.Connection) -> dict[Choice, Candidate]:
            columns = "choice, outcome, reason, error, runs, mean, median, spread, least"
            where = "device = ? and problem = ?"
            found = connection.execute(f"select {columns} from candidates where {where}", (self.device, problem))
            known = {}
            for choice, outcome, reason, error, *times in found:
                timing = Timing(*times) if times[0] else None
                known[Choice.parse(choice)] = Candidate(Choice.parse(choice), outcome, reason, timing, error)
            return known

        return self._read(read, {})

    def add(self, problem: str, candidate: Candidate) -> bool:
        """Keep a candidate's row; say whether it could be written."""
        t = candidate.timing
        values = (t.runs, t.mean, t.median, t.spread, t.least) if t else (0, None, None, None, None)
        row = (self.device, problem, str(candidate.choice), candidate.outcome, candidate.reason[:2000], *values)
        return self._write("candidates", (*row, candidate.error, time.time()))

    def finish(self, winner: Winner) -> bool:
        """Keep a problem's winner; say whether it could be written."""
        times = (
            *(winner.before.mean, winner.before.median, winner.before.spread),
            *(winner.after.mean, winner.after.median, winner.after.spread),
        )
        row = (self.device, winner.problem, str(winner.choice), winner.complete, *times, time.time())
        return self._write("winners", row)

    def forget(self, problem: str) -> None:
        """Drop what is known of a problem."""

        def drop(connection: sqlite3.Connection) -> None:
            for table in ("candidates", "winners"):
                connection.execute(f"delete from {table} where device = ? and problem = ?", (self.device, problem))

        self._read(drop, None)

    def _read(self, work: Callable[[sqlite3.Connection], Result], otherwise: Result) -> Result:
        if self.path is None or not self.path.exists():
            return otherwise
        if not folders.owned(self.path):
            log.warn_once(f"[tuning] {self.path} is a link or not a regular file, or others may write to it: not used")
            return otherwise
        try:
            with self._open() as connection:
                return work(connection)
        except (sqlite3.Error, OSError, ValueError, TypeError) as error:
            log.warn_once(f"[tuning] {self.path} cannot be read ({error}): shipped rows and heuristics serve instead")
            return otherwise

    def _write(self, table: str, row: tuple) -> bool:
        if self.path is None:
            log.warn_once("[tuning] there is no cache folder to keep results in")
            return False
        places = ", ".join("?" * len(row))
        for attempt in range(2):
            try:
                if self.path.exists() and not folders.owned(self.path):
                    raise PermissionError("it is a link or not a regular file, or others may write to it")
                with self._open() as connection:
                    connection.executescript(TABLES)
                    connection.execute(f"insert or replace into {table} values ({places})", row)
                return True
            except sqlite3.OperationalError as error:  # full, locked, read-only
                log.warn_once(f"[tuning] {self.path} cannot be written ({error}): results are not kept")
                return False
            except sqlite3.DatabaseError as error:
                if attempt or not self._set_aside(error):
                    return False
            except OSError as error:
                log.warn_once(f"[tuning] {self.path} cannot be written ({error}): results are not kept")
                return False
        return False

    def _set_aside(self, error: Exception) -> bool:
        assert self.path is not None
        broken = self.path.with_name(f"{FILE}.damaged-{os.getpid()}")
        try:
            self.path.replace(broken)
        except OSError:
            log.warn_once(f"[tuning] {self.path} is damaged ({error}) and cannot be moved: results are not kept")
            return False
        log.warn_once(f"[tuning] {self.path} was damaged ({error}); it is now {broken.name}, and a new one begins")
        return True

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        new = not self.path.exists() if self.path else False
        connection = sqlite3.connect(str(self.path), timeout=PATIENCE)
        try:
            if new and self.path:
                self.path.chmod(0o600)
            with connection:
                yield connection
        finally:
            connection.close()
