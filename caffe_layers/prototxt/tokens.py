"""Splits protobuf text format into tokens with their offsets."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from typing import NamedTuple

from clgraft.core.errors import ClgraftError


class PrototxtError(ClgraftError, ValueError):
    """Text that is not protobuf text format, or not the message that it should be.

    Attributes
    ----------
    line, column : int
        Where, both counted from 1.
    """

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(f"[prototxt] line {line}, column {column}: {message}" if line else f"[prototxt] {message}")
        self.line = line
        self.column = column


class Token(NamedTuple):
    """A piece of text; `kind` is name, number, string, mark or end."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


_PATTERN = re.compile(
    r"""
    (?P<space>[ \t\r\n\v\f]+ | \#[^\n]*)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<number>0[xX][0-9a-fA-F]+ | (?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?)
  | (?P<string>"(?:[^"\\\n]|\\[^\n])*" | '(?:[^'\\\n]|\\[^\n])*')
  | (?P<mark>[{}<>\[\]:;,.\-/])
    """,
    re.VERBOSE,
)
_BYTE_ORDER_MARK = "\ufeff"


class Lines:
    """Turns offsets into lines and columns."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def place(self, offset: int) -> tuple[int, int]:
        """Return line and column of an offset, both counted from 1."""
        line = bisect.bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def error(self, message: str, offset: int) -> PrototxtError:
        """Return an error that names the place."""
        return PrototxtError(message, *self.place(offset))


def tokenize(text: str, lines: Lines) -> Iterator[Token]:
    """Yield the tokens of a text, and one of kind `end`.

    Raises
    ------
    PrototxtError
        On a character that starts no token, an unfinished string, or a number that runs into a name.
    """
    position = len(_BYTE_ORDER_MARK) if text.startswith(_BYTE_ORDER_MARK) else 0
    after_number = -1
    while position < len(text):
        match = _PATTERN.match(text, position)
        if match is None:
            if text[position] in "\"'":
                raise lines.error("got a string that does not end in its line, expected a closing quote", position)
            raise lines.error(f"got {text[position]!r}, expected a field name or a value", position)
        kind = match.lastgroup or ""
        if kind in ("name", "number") and position == after_number:
            raise lines.error(f"got {match.group()!r} right after a number, expected a space between them", position)
        if kind != "space":
            yield Token(kind, match.group(), position)
        position = match.end()
        after_number = position if kind == "number" else -1
    yield Token("end", "", len(text))


_ESCAPES = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, "'": 39, '"': 34, "?": 63}
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))")


def unquote(literal: str) -> str:
    """Return the text that one string literal, quotes included, stands for.

    Raises
    ------
    ValueError
        On an escape that protobuf does not know.
    """
    body = literal[1:-1]
    if "\\" not in body:
        return body
    result = bytearray()
    position = 0
    for match in _ESCAPE.finditer(body):
        result += body[position : match.start()].encode("utf-8", "surrogateescape")
        octal, hexadecimal, short, long, letter = match.groups()
        if octal:
            result.append(int(octal, 8) & 0xFF)
        elif hexadecimal:
            result.append(int(hexadecimal, 16))
        elif short or long:
            result += chr(int(short or long, 16)).encode("utf-8", "surrogatepass")
        elif letter in _ESCAPES:
            result.append(_ESCAPES[letter])
        else:
            raise ValueError(f"got the escape \\{letter}, expected one that protobuf knows")
        position = match.end()
    result += body[position:].encode("utf-8", "surrogateescape")
    return result.decode("utf-8", "surrogateescape")


def quote(text: str, mark: str = '"') -> str:
    """Return a string literal that stands for the text."""
    escaped = text.replace("\\", "\\\\").replace(mark, "\\" + mark)
    for letter, code in (("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        escaped = escaped.replace(letter, code)
    return mark + re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\{ord(match.group()):03o}", escaped) + mark
