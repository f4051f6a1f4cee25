"""What the user allows tuning to do, from the environment variable ``CLGRAFT_TUNE``."""

from __future__ import annotations

import os

from clgraft.core.errors import ArgumentError

POLICIES = ("off", "cached", "full")
VARIABLE = "CLGRAFT_TUNE"


def policy() -> str:
    """Return the policy.

    Returns
    -------
    str
        ``off``: heuristics only; ``cached``: the user's results and the shipped rows; ``full``: a search at the first
        use of a problem that has no result of the user's.

    Raises
    ------
    ArgumentError
        If the variable holds another word.
    """
    word = os.environ.get(VARIABLE, "").strip().lower() or "cached"
    if word not in POLICIES:
        raise ArgumentError(f"[tuning] got {VARIABLE}={word!r}, expected one of {POLICIES}")
    return word
