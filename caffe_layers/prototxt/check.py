"""Checks a tree against Caffe's schema, so that an error has a line and a column and not only a name."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from clgraft.caffe_layers.prototxt.build import integer, real
from clgraft.caffe_layers.prototxt.tree import Document, Field, Message, Scalar

_BOOLS = {"true", "false", "True", "False", "t", "f"}
_INT32 = (-(2**31), 2**31 - 1)
_LIMITS = {
    FieldDescriptor.CPPTYPE_INT32: _INT32,
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


@dataclass(frozen=True)
class Unknown:
    """A field or an enum value that Caffe's master does not have; a fork may have it, or it may be a typing error.

    Attributes
    ----------
    name : str
        The field.
    start : int
        Its offset in the text.
    value : str
        The enum value as written; empty if the field itself is unknown.
    expected : str
        The values that Caffe's master has.
    """

    name: str
    start: int
    value: str = ""
    expected: str = ""

    def __str__(self) -> str:
        if self.value:
            return f"{self.name}: {self.value} is not one of {self.expected}"
        return f"{self.name} is not a field of Caffe's"


def check(document: Document, message: Any, foreign: Collection[str] = ()) -> list[Unknown]:
    """Check that a document is a message of Caffe's.

    Fields and enum values that the schema lacks are a fork's and are left to it.

    Parameters
    ----------
    document : Document
        What was read.
    message : Descriptor
        Of the message that it should be, such as `schema.descriptor("NetParameter")`.
    foreign : collection of str
        Fields that count as unknown although the schema has them, for nets without Caffe.

    Returns
    -------
    list of Unknown
        The fields and enum values that Caffe's master does not have.

    Raises
    ------
    PrototxtError
        On a value of the wrong type, or a second value for a field that has one.
    """
    unknown: list[Unknown] = []
    _check_message(document, document.root, message, unknown, foreign)
    return unknown


def _check_message(
    document: Document, message: Message, descriptor: Any, unknown: list[Unknown], foreign: Collection[str]
) -> None:
    seen: set[str] = set()
    for item in message.fields:
        known = descriptor.fields_by_name.get(item.name)
        if known is None or item.name in foreign:
            unknown.append(Unknown(item.name, item.start))
            continue
        if not _is_repeated(known):
            if item.is_list:
                raise document.lines.error(f"got a list for {item.name}, expected one value", item.start)
            if item.name in seen:
                raise document.lines.error(f"got {item.name} a second time, expected it once", item.start)
            seen.add(item.name)
        for value in item.values:
            if known.message_type is not None:
                if not isinstance(value, Message):
                    raise document.lines.error(f"got {value.raw} for {item.name}, expected a message", value.start)
                _check_message(document, value, known.message_type, unknown, foreign)
            else:
                _check_scalar(document, item, value, known, unknown)


def _is_repeated(known: Any) -> bool:
    if hasattr(known, "is_repeated"):
        return bool(known.is_repeated)
    return bool(known.label == known.LABEL_REPEATED)


def _check_scalar(document: Document, item: Field, value: Scalar | Message, known: Any, unknown: list[Unknown]) -> None:
    if isinstance(value, Message):
        raise document.lines.error(f"got a message for {item.name}, expected a value", value.start)
    expected = ""
    if known.cpp_type == known.CPPTYPE_STRING:
        expected = "" if value.kind == "string" else "text in quotes"
    elif known.cpp_type == known.CPPTYPE_ENUM:
        choices = ", ".join(entry.name for entry in known.enum_type.values)
        if value.kind == "name":
            is_known = value.value in known.enum_type.values_by_name
        elif _is_integer(value, _INT32):
            is_known = integer(value.value) in known.enum_type.values_by_number
        else:
            is_known, expected = True, f"one of {choices}"
        if not is_known:
            unknown.append(Unknown(item.name, value.start, value.raw, choices))
    elif known.cpp_type == known.CPPTYPE_BOOL:
        expected = (
            "" if (value.value in _BOOLS and value.kind == "name") or _is_integer(value, (0, 1)) else "true or false"
        )
    elif known.cpp_type in (known.CPPTYPE_FLOAT, known.CPPTYPE_DOUBLE):
        expected = "" if value.kind != "string" and _is_real(value.value) else "a number"
    else:
        limits = _LIMITS[known.cpp_type]
        expected = "" if _is_integer(value, limits) else f"a whole number from {limits[0]} to {limits[1]}"
    if expected:
        raise document.lines.error(f"got {value.raw} for {item.name}, expected {expected}", value.start)


def _is_integer(value: Scalar, limits: tuple[int, int]) -> bool:
    if value.kind != "number":
        return False
    try:
        return limits[0] <= integer(value.value) <= limits[1]
    except ValueError:
        return False


def _is_real(text: str) -> bool:
    try:
        real(text)
    except ValueError:
        return False
    return True
