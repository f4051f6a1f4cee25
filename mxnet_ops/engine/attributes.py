"""MXNet hands an operator's attributes over as strings: they are read, checked and named in errors here."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clgraft.core import ProblemError
from clgraft.core.errors import hint, nearest

TRUE = ("True", "true", "1")
FALSE = ("False", "false", "0")
LARGEST = 2**31 - 1


class Attributes:
    """The attributes of one operator call; reading one takes it, `finish` refuses what nobody read.

    Parameters
    ----------
    op_type : str
        Names the operator in errors.
    given : mapping of str to str
        As MXNet passes them. Names that begin with ``__`` are attributes of the scope and left out.
    """

    def __init__(self, op_type: str, given: Mapping[str, str]) -> None:
        self.op_type = op_type
        self._left = {name: text for name, text in given.items() if not name.startswith("__")}
        self._known: list[str] = []

    def error(self, name: str, got: Any, expected: str) -> ProblemError:
        """Return the error of an attribute that does not fit."""
        return ProblemError(f"[{self.op_type}] got {name} {got}, expected {expected}")

    def _wrong(self, name: str, got: Any, expected: str) -> ProblemError:
        """Return the error of an attribute that has to be given; one that looks like its misspelling is named."""
        near = nearest(name, self._left, 1, likeness=0.75) if got is None else []
        if near:
            return ProblemError(
                f"[{self.op_type}] got attribute {near[0]!r} and no {name}, expected {name}: {expected}"
            )
        return self.error(name, "nothing" if got is None else got, expected)

    def _take(self, name: str) -> str | None:
        self._known.append(name)
        text = self._left.pop(name, None)
        return None if text in (None, "None") else text

    def _read(self, name: str, expected: str) -> Any:
        text = self._take(name)
        if text is None:
            return None
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            raise self.error(name, repr(text), expected) from None

    def is_none(self, name: str) -> bool:
        """Return whether an attribute is written as None, which most readers take for one that is not given."""
        return self._left.get(name) == "None"

    def text(self, name: str, default: str | None = None) -> str:
        """Read a text; without a default it has to be given."""
        text = self._take(name)
        if text is None:
            if default is None:
                raise self._wrong(name, None, "a text")
            return default
        return text

    def choice(self, name: str, options: Iterable[str], default: str | None = None) -> str:
        """Read one of several words; without a default it has to be given."""
        options = tuple(options)
        text = self._take(name)
        if text is None and default is not None:
            return default
        if text not in options:
            raise self._wrong(name, None if text is None else repr(text), f"one of {options}")
        return text

    def flag(self, name: str, default: bool) -> bool:
        """Read a truth value."""
        text = self._take(name)
        if text is None:
            return default
        if text not in TRUE + FALSE:
            raise self.error(name, repr(text), "True or False")
        return text in TRUE

    def integer(self, name: str, default: int | None = None, low: int = -LARGEST) -> int:
        """Read a whole number; without a default it has to be given."""
        expected = f"a whole number from {low}" if low > -LARGEST else "a whole number"
        value = self._read(name, expected)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= LARGEST:
            raise self._wrong(name, value, expected)
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Read a real number; without a default it has to be given."""
        text = self._take(name)
        if text is None and default is not None:
            return default
        try:
            return float(text if text is not None else "nothing")
        except ValueError:
            raise self._wrong(name, text or None, "a number") from None

    def sizes(self, name: str, default: tuple[int, ...] | None = None, low: int = 0) -> tuple[int, ...]:
        """Read a tuple of whole numbers; a single number is a tuple of one. Without a default it has to be given."""
        expected = f"a tuple of whole numbers from {low}"
        value = self._read(name, expected)
        if value is None or value == ():
            if default is None:
                raise self._wrong(name, value, expected)
            return default
        sizes = tuple(value) if isinstance(value, (tuple, list)) else (value,)
        if not all(isinstance(v, int) and not isinstance(v, bool) and low <= v <= LARGEST for v in sizes):
            raise self.error(name, value, expected)
        return sizes

    def numbers(self, name: str, default: tuple[float, ...]) -> tuple[float, ...]:
        """Read a tuple of real numbers; a single number is a tuple of one."""
        expected = "a tuple of numbers"
        value = self._read(name, expected)
        if value is None:
            return default
        values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
        if not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
            raise self.error(name, value, expected)
        return tuple(float(v) for v in values)

    def names(self, name: str, known: Sequence[str]) -> tuple[str, ...]:
        """Read a JSON list of names, all of them known; none by default."""
        text = self._take(name)
        try:
            found = json.loads(text or "[]")
        except ValueError:
            found = None
        if not isinstance(found, list) or not all(each in known for each in found):
            raise self.error(name, repr(text), f"a JSON list of some of {list(known)}")
        return tuple(found)

    def ignore(self, *names: str) -> None:
        """Accept and ignore attributes of other backends of MXNet."""
        for name in names:
            self._take(name)

    def finish(self) -> None:
        """Refuse what is left.

        Raises
        ------
        ProblemError
            Naming the attribute and those that there are.
        """
        if self._left:
            name = sorted(self._left)[0]
            raise self.error("attribute", repr(name), f"one of {sorted(self._known)}{hint(name, self._known)}")
