"""The tuned choices that are known: the user's results and shipped rows, of a problem or of one like it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clgraft.core.planning.choice import Choice
from clgraft.core.tuning import database
from clgraft.core.tuning.identity import device_key
from clgraft.core.tuning.nearest import Neighbours
from clgraft.core.tuning.rows import shipped

if TYPE_CHECKING:
    from clgraft.core.planning.device import DeviceInfo

_databases: dict[tuple[DeviceInfo, str], dict[str, Choice]] = {}
_tables: dict[tuple[DeviceInfo, str], Neighbours[Advice]] = {}


@dataclass(frozen=True)
class Advice:
    """A tuned choice, and where it comes from: ``user`` or ``shipped``, and the problem if it is another one."""

    choice: Choice
    source: str
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.choice} ({self.source} row{f' of {self.problem}' if self.problem else ''})"


def _user(device: DeviceInfo) -> tuple[tuple[DeviceInfo, str], dict[str, Choice]]:
    """Return the user's results by problem; the database is read once in a process."""
    path = database.location()
    key = (device, str(path))
    if key not in _databases:
        rows = database.Database(device_key(device), path).rows() if path is not None and path.exists() else ()
        _databases[key] = {row.problem: row.choice for row in rows}
    return key, _databases[key]


def known(text: str, device: DeviceInfo) -> bool:
    """Return whether a problem itself has a result of the user's."""
    return text in _user(device)[1]


def results(device: DeviceInfo) -> str:
    """Return the user's results on a device as text."""
    return "; ".join(f"{problem}: {choice}" for problem, choice in sorted(_user(device)[1].items()))


def remember(text: str, choice: Choice, device: DeviceInfo) -> None:
    """Let a result that was just found count in this process, whether or not it could be written."""
    key, results = _user(device)
    results[text] = choice
    _tables.pop(key, None)


def forget_database() -> None:
    """Read the database again at its next use."""
    _databases.clear()
    _tables.clear()


def advice(text: str, device: DeviceInfo) -> Advice | None:
    """Return the best choice that is known for a problem: the user's, a shipped one, then the nearest of both.

    Parameters
    ----------
    text : str
        The problem's text.
    device : DeviceInfo
    """
    key, results = _user(device)
    if key not in _tables:
        own = [(problem, Advice(choice, "user")) for problem, choice in results.items()]
        _tables[key] = Neighbours([*own, *((row.problem, Advice(row.choice, "shipped")) for row in shipped(device))])
    table = _tables[key]
    if text in table.exact:
        return table.exact[text]
    found = table.nearest(text)
    return None if found is None else replace(found[2], problem=found[1])
