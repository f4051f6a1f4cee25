"""Reads the cost constants of planners for CPU devices."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import MappingProxyType

ROWS = Path(__file__).with_name("cpu_costs.txt")


@cache
def costs(planner: str, family: str = "cpu") -> MappingProxyType[str, float]:
    """Return a planner's constants by name.

    Parameters
    ----------
    planner : str
        The second column of ``cpu_costs.txt``.
    family : str
        Its first column: a family of devices.
    """
    found: dict[str, float] = {}
    for line in ROWS.read_text().splitlines():
        words = line.split("#")[0].split(maxsplit=4)
        if words and words[:2] == [family, planner]:
            found[words[2]] = float(words[3])
    if not found:
        raise KeyError(f"[conv] got no costs of {planner!r} for {family!r} in {ROWS.name}")
    return MappingProxyType(found)
