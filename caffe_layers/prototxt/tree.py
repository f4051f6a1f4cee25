"""The tree of a prototxt: every node knows the span of text that it came from, so edits touch nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Union

from clgraft.caffe_layers.prototxt.tokens import Lines, Token, tokenize, unquote

_DEEPEST = 100  # as protobuf limits it
_CLOSING = {"{": "}", "<": ">"}


@dataclass
class Scalar:
    """A value that is no message.

    Attributes
    ----------
    kind : str
        `string`, `number` or `name` (an enum value, true, false, inf, nan).
    raw : str
        As written; adjacent string literals with what stands between them.
    value : str
        What it stands for: strings decoded and joined, a minus sign joined to its number.
    """

    kind: str
    raw: str
    value: str
    start: int
    end: int


@dataclass
class Message:
    """A message; `start` and `end` span its brackets, or the whole text at the root."""

    fields: list[Field]
    start: int
    end: int

    def all(self, name: str) -> list[Field]:
        """Return the fields of that name, in order."""
        return [item for item in self.fields if item.name == name]

    def values(self, name: str) -> list[Value]:
        """Return the values of the fields of that name, lists unpacked."""
        return [value for item in self.fields if item.name == name for value in item.values]

    def messages(self, name: str) -> list[Message]:
        """Return the values of that name that are messages."""
        return [value for value in self.values(name) if isinstance(value, Message)]

    def text(self, name: str, default: str = "") -> str:
        """Return the last scalar of that name as text."""
        found = [value for value in self.values(name) if isinstance(value, Scalar)]
        return found[-1].value if found else default

    def texts(self, name: str) -> list[str]:
        """Return all scalars of that name as text."""
        return [value.value for value in self.values(name) if isinstance(value, Scalar)]


Value = Union[Scalar, Message]


@dataclass
class Field:
    """A field with one value, or the values of a list.

    `start` is where its name begins, `end` where its value ends, `after` where a separator after it ends.
    """

    name: str
    values: list[Value]
    start: int
    end: int
    after: int
    is_list: bool = False
    name_end: int = field(default=0)


class Document:
    """A text and its tree.

    Raises
    ------
    PrototxtError
        When the text is not protobuf text format; names line and column.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = Lines(text)
        self._tokens: Iterator[Token] = tokenize(text, self.lines)
        self._token = next(self._tokens)
        self._last = self._token
        self.root = Message(self._fields("", 0), 0, len(text))

    def place(self, offset: int) -> tuple[int, int]:
        """Return line and column of an offset."""
        return self.lines.place(offset)

    def span(self, node: Field | Value) -> str:
        """Return the text of a node."""
        return self.text[node.start : node.end]

    def _take(self) -> Token:
        self._last = self._token
        if self._token.kind != "end":
            self._token = next(self._tokens)
        return self._last

    def _take_mark(self, *marks: str) -> bool:
        if self._token.kind == "mark" and self._token.text in marks:
            self._take()
            return True
        return False

    def _error(self, expected: str) -> Exception:
        got = repr(self._token.text) if self._token.text else "the end of the text"
        return self.lines.error(f"got {got}, expected {expected}", self._token.start)

    def _fields(self, closing: str, depth: int) -> list[Field]:
        if depth > _DEEPEST:
            raise self._error(f"at most {_DEEPEST} messages inside each other")
        result: list[Field] = []
        while True:
            token = self._token
            if token.kind == "end" and not closing:
                return result
            if token.kind == "mark" and token.text == closing and closing:
                return result
            result.append(self._field(closing, depth))

    def _field(self, closing: str, depth: int) -> Field:
        start = self._token.start
        name = self._name(closing)
        name_end = self._last.end
        colon = self._take_mark(":")
        is_list = False
        if self._token.kind == "mark" and self._token.text == "[":
            is_list = True
            values = self._list(depth, colon)
        else:
            values = [self._value(depth, colon)]
        end = self._last.end
        self._take_mark(";", ",")
        return Field(name, values, start, end, max(end, self._last.end), is_list, name_end)

    def _name(self, closing: str) -> str:
        if self._token.kind == "name":
            return self._take().text
        if self._take_mark("["):  # an extension; never Caffe's, but legal
            parts = []
            while self._token.kind in ("name", "number") or (self._token.kind == "mark" and self._token.text in "./-"):
                parts.append(self._take().text)
            if parts and self._take_mark("]"):
                return "[" + "".join(parts) + "]"
            raise self._error("the name of an extension in brackets")
        raise self._error(f"a field name or {closing!r}" if closing else "a field name")

    def _list(self, depth: int, colon: bool) -> list[Value]:
        self._take()
        values: list[Value] = []
        if self._take_mark("]"):
            return values
        while True:
            values.append(self._value(depth, colon))
            if self._take_mark("]"):
                return values
            if not self._take_mark(","):
                raise self._error("',' or ']'")

    def _value(self, depth: int, colon: bool) -> Value:
        token = self._token
        if token.kind == "mark" and token.text in _CLOSING:
            self._take()
            fields = self._fields(_CLOSING[token.text], depth + 1)
            self._take()
            return Message(fields, token.start, self._last.end)
        if not colon:
            raise self._error("':' or a message in brackets")
        if token.kind == "string":
            return self._string()
        if token.kind == "mark" and token.text == "-":
            self._take()
            if self._token.kind != "number" and self._token.text.lower() not in ("inf", "infinity", "nan"):
                raise self._error("a number after the minus sign")
            number = self._take()
            return Scalar("number", self.text[token.start : number.end], "-" + number.text, token.start, number.end)
        if token.kind in ("number", "name"):
            self._take()
            return Scalar(token.kind, token.text, token.text, token.start, token.end)
        raise self._error("a value")

    def _string(self) -> Scalar:
        start = self._token.start
        parts = []
        while self._token.kind == "string":
            token = self._take()
            try:
                parts.append(unquote(token.text))
            except ValueError as error:
                raise self.lines.error(str(error), token.start) from None
        return Scalar("string", self.text[start : self._last.end], "".join(parts), start, self._last.end)
