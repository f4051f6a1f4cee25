"""The text of problems: a class lists its words in `TEXT`, in their order, and is written and read by that list.

``lrn forward n8 c96 s3025 size5 beta0.75`` consists of the kind and of one word, or some words, for each entry of the
list. Words may be read in any order, each once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Union

from clgraft.core.errors import ProblemError
from clgraft.core.problem.dtypes import DTYPE_WORDS

AXES = "dhw"
REAL = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"


class Choice(NamedTuple):
    """One of several words.

    Attributes
    ----------
    field : str
    words : mapping of str to str, or sequence of str
        The values that they stand for; in a sequence each stands for itself.
    default : str, optional
        The value of a text without such a word; without a default there has to be one.
    always : bool
        Whether the default is written, too.
    """

    field: str
    words: Mapping[str, str] | Sequence[str]
    default: str | None = None
    always: bool = False

    @property
    def meanings(self) -> Mapping[str, str]:
        """The value of each word."""
        return self.words if isinstance(self.words, Mapping) else {word: word for word in self.words}

    @property
    def described(self) -> str:
        """What may stand there, for messages."""
        return ("an " if self.field[0] in "aeiou" else "a ") + self.field


class Flag(NamedTuple):
    """A word that stands there if a field has a value."""

    word: str
    field: str
    value: bool = True

    @property
    def described(self) -> str:
        """What may stand there, for messages."""
        return self.word


class Number(NamedTuple):
    """A word such as ``n8``: a whole number, or a real one.

    Attributes
    ----------
    word, field : str
    default : float, optional
        The value of a text without the word; without a default it has to be there.
    always : bool
        Whether the default is written, too.
    real : bool
    """

    word: str
    field: str
    default: float | None = None
    always: bool = False
    real: bool = False

    @property
    def described(self) -> str:
        """What may stand there, for messages."""
        return f"{self.word}{'0.75' if self.real else 8}"


class PerAxis(NamedTuple):
    """A word for each spatial axis, such as ``kh3 kw3``; the axes are those of the letter ``i``.

    Attributes
    ----------
    letter, field : str
    default : int or str, optional
        What a missing number means: a number, or that of the same axis in another field. A number that is equal to it
        is not written. Without a default every axis has its word.
    """

    letter: str
    field: str
    default: int | str | None = None

    @property
    def described(self) -> str:
        """What may stand there, for messages."""
        return f"{self.letter}w8"


class Numbers(NamedTuple):
    """A word such as ``x[8,64]``.

    Attributes
    ----------
    word, field : str
    default : int or str, optional
        What a missing word means: so many times the same number, or what another field holds. It is not written.
    single : bool
        Whether the field is one number instead of a tuple.
    """

    word: str
    field: str
    default: int | str | None = None
    single: bool = False

    @property
    def described(self) -> str:
        """What may stand there, for messages."""
        return f"{self.word}[...]"


Entry = Union[Choice, Flag, Number, PerAxis, Numbers]
DTYPE = Choice("dtype", DTYPE_WORDS, "float32")


def direction_word(directions: Sequence[str], default: str | None = "forward") -> Choice:
    """Return the entry of the direction, which is always written."""
    return Choice("direction", directions, default, always=True)


def dtype_word(dtype: str) -> list[str]:
    """Return the word of a dtype; none for the default."""
    return list(_written(DTYPE, dtype))


def write(problem: Any, entries: Sequence[Entry]) -> str:
    """Return the text of a problem."""
    words = [problem.kind]
    for entry in entries:
        value = getattr(problem, entry.field)
        default = getattr(entry, "default", None)
        if isinstance(entry, (PerAxis, Numbers)) and isinstance(default, str):
            default = getattr(problem, default)
        words += _written(entry, value, default)
    return " ".join(words)


def _written(entry: Entry, value: Any, default: Any = None) -> Iterator[str]:
    """Yield the words of a value."""
    if isinstance(entry, Choice):
        if entry.always or value != entry.default:
            yield next(word for word, meaning in entry.meanings.items() if meaning == value)
    elif isinstance(entry, Flag):
        if value == entry.value:
            yield entry.word
    elif isinstance(entry, Number):
        if entry.always or value != entry.default:
            yield f"{entry.word}{float(value)!r}" if entry.real else f"{entry.word}{int(value)}"
    elif isinstance(entry, PerAxis):
        usual = default if isinstance(default, tuple) else (default,) * len(value)
        axes = zip(AXES[-len(value) :], value, usual)
        yield from (f"{entry.letter}{axis}{number}" for axis, number, u in axes if number != u)
    else:
        numbers = (value,) if entry.single else value
        if entry.default is None or numbers != (default if isinstance(default, tuple) else (default,) * len(numbers)):
            yield f"{entry.word}[{','.join(map(str, numbers))}]"


class Reader:
    """Reads the texts of a kind of problems.

    Parameters
    ----------
    kind : str
        For messages.
    entries : sequence of Choice, Flag, Number, PerAxis or Numbers
    """

    def __init__(self, kind: str, entries: Sequence[Entry]) -> None:
        self.kind, self.entries = kind, entries
        self._words: dict[str, Choice | Flag] = {}
        for entry in entries:
            if isinstance(entry, Choice):
                self._words.update(dict.fromkeys(entry.meanings, entry))
            elif isinstance(entry, Flag):
                self._words[entry.word] = entry

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """What matches the words that hold numbers; most processes read no text of most kinds."""
        numbers: list[str] = []
        reals: list[str] = []
        lists: list[str] = []
        for entry in self.entries:
            if isinstance(entry, Numbers):
                lists.append(entry.word)
            elif isinstance(entry, PerAxis):
                numbers.append(f"{entry.letter}[{AXES}]")
            elif isinstance(entry, Number):
                (reals if entry.real else numbers).append(entry.word)
        never = "(?!)"
        return re.compile(
            rf"(?P<number>{'|'.join(numbers) or never})(?P<whole>\d+)"
            rf"|(?P<real>{'|'.join(reals) or never})(?P<value>{REAL})"
            rf"|(?P<list>{'|'.join(lists) or never})\[(?P<numbers>[-\d,]*)\]"
        )

    def read(self, text: str) -> dict[str, Any]:
        """Return the values of the fields that a text without the kind states, and the defaults of the others.

        Raises
        ------
        ProblemError
            If a word is unknown or there a second time, or one is missing.
        """
        said = self._said(text)
        axes = [axis for axis in AXES if f"i{axis}" in said]
        if any(isinstance(entry, PerAxis) for entry in self.entries) and (
            not axes or axes != list(AXES[3 - len(axes) :])
        ):
            raise ProblemError(f"[{self.kind}] got {text!r}, expected iw, or ih iw, or id ih iw")
        fields: dict[str, Any] = {}
        for entry in self.entries:
            fields[entry.field] = self._value(entry, said, fields, axes, text)
        if said:
            raise ProblemError(f"[{self.kind}] got {sorted(said)}, expected only axes {axes}")
        return fields

    def _said(self, text: str) -> dict[str, Any]:
        """Return what each word says, by the field of a choice or a flag, and by the word of a number."""
        said: dict[str, Any] = {}
        for word in text.split():
            entry = self._words.get(word)
            found = None if entry else self._pattern.fullmatch(word)
            name, value = word, None  # type: str, Any
            if isinstance(entry, Choice):
                name, value = entry.field, entry.meanings[word]
            elif entry:
                value = entry.value
            elif found and found["number"]:
                name, value = found["number"], int(found["whole"])
            elif found and found["real"]:
                name, value = found["real"], float(found["value"])
            elif found:
                name, value = found["list"], tuple(int(number) for number in found["numbers"].split(",") if number)
            if not (entry or found) or name in said:
                *most, last = [entry.described for entry in self.entries]
                expected = f"{', '.join(most)} or {last}" if most else last
                raise ProblemError(f"[{self.kind}] got word {word!r}, expected {expected}, once")
            said[name] = value
        return said

    def _value(
        self, entry: Entry, said: dict[str, Any], fields: Mapping[str, Any], axes: Sequence[str], text: str
    ) -> Any:
        """Return an entry's value, and take out what was said of it."""
        if isinstance(entry, Choice):
            if entry.field not in said and entry.default is None:
                expected = f"one of {tuple(entry.meanings)}"
                raise ProblemError(f"[{self.kind}] got {entry.field} '', expected {expected}")
            return said.pop(entry.field, entry.default)
        if isinstance(entry, Flag):
            return said.pop(entry.word, not entry.value)
        if isinstance(entry, PerAxis):
            default = fields[entry.default] if isinstance(entry.default, str) else (entry.default,) * len(axes)
            names = (entry.letter + axis for axis in axes)
            return tuple(self._number(name, said, u, f"{name}N", text) for name, u in zip(names, default))
        if isinstance(entry, Number):
            return self._number(entry.word, said, entry.default, f"{entry.word}N", text)
        absent = None if entry.default is None else ()
        numbers = self._number(entry.word, said, absent, f"{entry.word}[...]", text)
        if not entry.single:
            return numbers
        if len(numbers) != 1:
            raise ProblemError(f"[{self.kind}] got {entry.word} {numbers}, expected one number")
        return numbers[0]

    def _number(self, name: str, said: dict[str, Any], default: Any, expected: str, text: str) -> Any:
        if name not in said and default is None:
            raise ProblemError(f"[{self.kind}] got {text!r}, expected a word {expected} in it")
        return said.pop(name, default)
