"""Turns a tree into one of Caffe's messages, with the same outcome on every release of protobuf.

protobuf's own reader for Python differs between releases in what it takes of fields that it does not know.
"""

from __future__ import annotations

import contextlib
import struct
from typing import Any

from clgraft.caffe_layers.prototxt.tree import Message, Scalar

_TRUE = {"true", "True", "t"}


def fill(message: Any, tree: Message) -> None:
    """Set a message's fields from a tree that `check` has accepted; unknown fields are skipped."""
    for item in tree.fields:
        known = message.DESCRIPTOR.fields_by_name.get(item.name)
        if known is None:
            continue
        for value in item.values:
            current = getattr(message, item.name)
            if isinstance(value, Message):
                inner = current.add() if hasattr(current, "add") else current
                inner.SetInParent()
                fill(inner, value)
            elif hasattr(current, "append"):
                current.append(convert(value, known))
            else:
                setattr(message, item.name, convert(value, known))


def convert(value: Scalar, known: Any) -> Any:
    """Return the Python value of a scalar for a field's descriptor."""
    if known.cpp_type == known.CPPTYPE_STRING:
        return value.value.encode("utf-8", "surrogateescape") if known.type == known.TYPE_BYTES else value.value
    if known.cpp_type == known.CPPTYPE_BOOL:
        return value.value in _TRUE if value.kind == "name" else bool(integer(value.value))
    if known.cpp_type == known.CPPTYPE_ENUM and value.kind == "name":
        return known.enum_type.values_by_name[value.value].number
    if known.cpp_type == known.CPPTYPE_FLOAT:
        return single(real(value.value))
    if known.cpp_type == known.CPPTYPE_DOUBLE:
        return real(value.value)
    return integer(value.value)


def integer(text: str) -> int:
    """Return a decimal, octal or hexadecimal number's value; raises `ValueError` if the text is not a number."""
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    is_octal = len(digits) > 1 and digits.isdigit() and digits[0] == "0"
    return sign * int(digits, 8 if is_octal else 0)


def real(text: str) -> float:
    """Return a number's value, a suffix `f` allowed; raises `ValueError` if the text is not a number."""
    has_digits = any(letter.isdigit() for letter in text)  # the last letter of "inf" is no suffix
    return float(text.rstrip("fF") if has_digits else text)


def single(number: float) -> float:
    """Return the nearest float32; protobuf in Python takes what is rounded to the largest one for infinity."""
    with contextlib.suppress(OverflowError):
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    return number
