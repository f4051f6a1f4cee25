"""Checks a tree against Caffe's schema, so that an error has a line and a column and not only a name."""

from __future__ import annotations

from typing import Any

from clgraft.caffe_layers import schema
from clgraft.caffe_layers.prototxt.tree import Document, Field, Message, Scalar

_BOOLS = {"true", "false", "True", "False", "t", "f", "0", "1"}
_SPECIAL = {"inf", "infinity", "nan"}


def check(document: Document, name: str) -> list[Field]:
    """Check that a document is a message of Caffe's.

    Fields that the schema lacks are a fork's and are left to it.

    Parameters
    ----------
    document : Document
        What was read.
    name : str
        `NetParameter`, `SolverParameter`, ...

    Returns
    -------
    list of Field
        The unknown fields.

    Raises
    ------
    PrototxtError
        On a value of the wrong type, or a second value for a field that has one.
    """
    unknown: list[Field] = []
    _check_message(document, document.root, schema.descriptor(name), unknown)
    return unknown


def _check_message(document: Document, message: Message, descriptor: Any, unknown: list[Field]) -> None:
    seen: set[str] = set()
    for item in message.fields:
        known = descriptor.fields_by_name.get(item.name)
        if known is None:
            unknown.append(item)
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
                _check_message(document, value, known.message_type, unknown)
            else:
                _check_scalar(document, item.name, value, known)


def _is_repeated(known: Any) -> bool:
    if hasattr(known, "is_repeated"):
        return bool(known.is_repeated)
    return bool(known.label == known.LABEL_REPEATED)


def _check_scalar(document: Document, name: str, value: Scalar | Message, known: Any) -> None:
    if isinstance(value, Message):
        raise document.lines.error(f"got a message for {name}, expected a value", value.start)
    expected = ""
    if known.cpp_type == known.CPPTYPE_STRING:
        expected = "" if value.kind == "string" else "text in quotes"
    elif known.cpp_type == known.CPPTYPE_ENUM:
        expected = (
            ""
            if value.kind == "name" or _is_integer(value)
            else "one of " + ", ".join(entry.name for entry in known.enum_type.values)
        )
    elif known.cpp_type == known.CPPTYPE_BOOL:
        expected = "" if value.kind != "string" and value.value in _BOOLS else "true or false"
    elif known.cpp_type in (known.CPPTYPE_FLOAT, known.CPPTYPE_DOUBLE):
        special = value.kind == "name" and value.value.lower() in _SPECIAL
        expected = "" if value.kind == "number" or special else "a number"
    else:
        unsigned = known.cpp_type in (known.CPPTYPE_UINT32, known.CPPTYPE_UINT64)
        fits = _is_integer(value) and not (unsigned and value.value.startswith("-"))
        expected = "" if fits else "a whole number" + (", not negative" if unsigned else "")
    if expected:
        raise document.lines.error(f"got {value.raw} for {name}, expected {expected}", value.start)


def _is_integer(value: Scalar) -> bool:
    if value.kind != "number":
        return False
    digits = value.value.lstrip("-")
    return digits.isdigit() or digits[:2].lower() == "0x"
