"""Reads the words of a problem's text: choices such as a direction, flags, and numbers such as ``kh3``, each once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from clgraft.core.errors import ProblemError
from clgraft.core.problem.base import DTYPE_WORDS, expect

AXES = "dhw"
LIST = re.compile(r"([a-z]+)\[([-\d,]*)\]")


@dataclass
class Words:
    """What a text says; numbers are taken out one by one.

    Attributes
    ----------
    kind, text : str
        For messages.
    choices : dict of str to str
        The chosen words by what they choose.
    flags : set of str
    numbers : dict of str to float
        Those that were not taken yet; whole ones are int.
    """

    kind: str
    text: str
    choices: dict[str, str]
    flags: set[str]
    numbers: dict[str, float]

    @property
    def dtype(self) -> str:
        """The dtype; float32 where none is said."""
        return DTYPE_WORDS[self.choices["dtype"]] if "dtype" in self.choices else "float32"

    def take(self, word: str, default: int | None = None) -> int:
        """Return a whole number and take it out; without a default it has to be there."""
        if word not in self.numbers and default is None:
            raise ProblemError(f"[{self.kind}] got {self.text!r}, expected a word {word}N in it")
        return int(self.numbers.pop(word, default or 0))

    def axes(self) -> list[str]:
        """Return the letters of the spatial axes, by the input sizes that are there."""
        found = [axis for axis in AXES if f"i{axis}" in self.numbers]
        if not found or found != list(AXES[3 - len(found) :]):
            raise ProblemError(f"[{self.kind}] got {self.text!r}, expected iw, or ih iw, or id ih iw")
        return found

    def expect_none_left(self, axes: Sequence[str]) -> None:
        """Refuse numbers that were not taken: those of other axes."""
        if self.numbers:
            raise ProblemError(f"[{self.kind}] got {sorted(self.numbers)}, expected only axes {list(axes)}")


def read_words(
    kind: str,
    text: str,
    number: re.Pattern[str],
    expected: str,
    choices: Mapping[str, Sequence[str]],
    flags: Sequence[str] = (),
) -> Words:
    """Read a text.

    Parameters
    ----------
    kind : str
        The problem's.
    text : str
        Without the kind.
    number : re.Pattern
        A number's word; of its groups two match, the name and the value.
    expected : str
        What could stand there, for messages.
    choices : mapping of str to sequence of str
        The words to choose from by what they choose; the dtype's are always known.
    flags : sequence of str
        Words that may stand there or not.

    Raises
    ------
    ProblemError
        If a word is none of these, or a second of the same.
    """
    meaning = {word: name for name, words in {**choices, "dtype": tuple(DTYPE_WORDS)}.items() for word in words}
    words = Words(kind, text, {}, set(), {})
    for word in text.split():
        found = number.fullmatch(word)
        name, value = (group for group in found.groups() if group) if found else ("", "")
        if word in meaning and meaning[word] not in words.choices:
            words.choices[meaning[word]] = word
        elif word in flags and word not in words.flags:
            words.flags.add(word)
        elif name and name not in words.numbers:
            words.numbers[name] = int(value) if value.isdigit() else float(value)
        else:
            raise ProblemError(f"[{kind}] got word {word!r}, expected {expected}, once")
    return words


def listed(name: str, numbers: Iterable[int]) -> str:
    """Return the word of a list of numbers."""
    return f"{name}[{','.join(str(number) for number in numbers)}]"


def read_lists(
    kind: str, text: str, choices: Mapping[str, str], names: tuple[str, ...], optional: tuple[str, ...] = ()
) -> tuple[dict[str, tuple[int, ...]], str, str]:
    """Read a text of plain words and of lists such as ``x[8,64,7,7]``.

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
        found = LIST.fullmatch(word)
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
