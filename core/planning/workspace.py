"""Lays out a plan's workspace: one memory that all launches of the plan share, cut into aligned parts."""

from __future__ import annotations

from clgraft.core.planning.launches import Workspace
from clgraft.core.problem import round_up

ALIGN = 256  # bytes, of parts of the workspace


class WorkspaceLayout:
    """Reserves parts of a workspace, one after the other.

    Parameters
    ----------
    nbytes : int
        Bytes at the beginning that are taken already.

    Attributes
    ----------
    nbytes : int
        Size of the workspace with all parts so far; above 0 if there are any, so that a part without bytes has memory.
    """

    def __init__(self, nbytes: int = 0) -> None:
        self.nbytes = self._end = round_up(nbytes, ALIGN)

    def take(self, nbytes: int, itemsize: int = 4) -> Workspace:
        """Reserve a part of the workspace, whose elements have `itemsize` bytes."""
        part = Workspace(self._end, itemsize)
        self._end += round_up(nbytes, ALIGN)
        self.nbytes = max(self._end, ALIGN)
        return part
