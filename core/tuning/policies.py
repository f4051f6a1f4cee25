"""What the user allows tuning to do, from the environment variable ``CLGRAFT_TUNE``."""

from __future__ import annotations

from clgraft.core import settings


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
    word: str = settings.TUNE.value()
    return word
