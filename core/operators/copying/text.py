"""Words of the texts of copying problems: ``x[8,64,7,7]``, read and checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from clgraft.core.errors import ProblemError
from clgraft.core.problem import DTYPE_WORDS

WORD = re.compile(r"([a-z]+)\[([-\d,]*)\]")


def expect(kind: str, good: bool, name: str, got: object, expected: str) -> None:
    """Raise `ProblemError` unless `good`."""
    if not good:
        raise ProblemError(f"[{kind}] got {name} {got}, expected {expected}")


def listed(name: str, numbers: Iterable[int]) -> str:
    """Write a word."""
    return f"{name}[{','.join(str(number) for number in numbers)}]"


def read_words(
    kind: str, text: str, choices: Mapping[str, str], names: tuple[str, ...], optional: tuple[str, ...] = ()
) -> tuple[dict[str, tuple[int, ...]], str, str]:
    """Read a problem's text.

    Parameters
    ----------
    kind : str
    text : str
        Without the kind.
    choices : mapping of str to str
        Plain words and what they mean; the first one's meaning is the default.
    names, optional : tuple of str
        Of the lists of numbers.

    Returns
    -------
    lists : dict of str to tuple of int
    chosen : str
        What the last plain word means.
    dtype : str
    """
    chosen, dtype = next(iter(choices.values())), "float32"
    lists: dict[str, tuple[int, ...]] = {}
    for word in text.split():
        found = WORD.fullmatch(word)
        if word in choices:
            chosen = choices[word]
        elif word in DTYPE_WORDS:
            dtype = DTYPE_WORDS[word]
        elif found and found[1] in (*names, *optional) and found[1] not in lists:
            lists[found[1]] = tuple(int(number) for number in found[2].split(",") if number)
        else:
            known = [*choices, *(f"{name}[...]" for name in (*names, *optional))]
            raise ProblemError(f"[{kind}] got word {word!r}, expected one of {known}, once")
    for name in names:
        expect(kind, name in lists, "text", repr(text), f"a word {name}[...] in it")
    return lists, chosen, dtype
