"""Reads the subset of the protobuf language in which `caffe.proto` is written, so that no compiler is needed.

The compiled form differs between protobuf releases and binds to one of them; descriptors made at import do not.
"""

from __future__ import annotations

import re
import struct

from google.protobuf import descriptor_pb2

_TOKEN = re.compile(r'\s+|//[^\n]*|(?P<word>[\w.+-]+)|(?P<string>"[^"]*")|(?P<mark>[{}=;\[\],])')
_FIELD = descriptor_pb2.FieldDescriptorProto
_LABELS = {"optional": _FIELD.LABEL_OPTIONAL, "required": _FIELD.LABEL_REQUIRED, "repeated": _FIELD.LABEL_REPEATED}
_SCALARS = {
    name: getattr(_FIELD, "TYPE_" + name.upper())
    for name in ("int32", "int64", "uint32", "uint64", "float", "double", "bool", "string", "bytes")
}


def read_proto(text: str, name: str) -> descriptor_pb2.FileDescriptorProto:
    """Read proto2 text made of messages, enums and fields with `default` and `packed`.

    Parameters
    ----------
    text : str
        The definition.
    name : str
        File name that the result carries.

    Raises
    ------
    ValueError
        On anything outside the subset.
    """
    return _Reader(text).file(name)


class _Reader:
    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                line = text.count("\n", 0, position) + 1
                raise ValueError(f"[proto] got {text[position]!r} in line {line}, expected a word or a mark")
            if match.lastgroup:
                self.tokens.append(match.group())
            position = match.end()
        self.tokens.reverse()

    def take(self, expected: str = "") -> str:
        token = self.tokens.pop() if self.tokens else "end of file"
        if expected and token != expected:
            raise ValueError(f"[proto] got {token}, expected {expected}")
        return token

    def file(self, name: str) -> descriptor_pb2.FileDescriptorProto:
        result = descriptor_pb2.FileDescriptorProto(name=name)
        while self.tokens:
            keyword = self.take()
            if keyword == "message":
                self.message(result.message_type.add())
            elif keyword == "enum":
                self.enum(result.enum_type.add())
            elif keyword == "package":
                result.package = self.take()
                self.take(";")
            elif keyword == "syntax":
                self.take("=")
                self.take('"proto2"')
                self.take(";")
            else:
                raise ValueError(f"[proto] got {keyword}, expected message, enum, package or syntax")
        enums = {enum.name for enum in result.enum_type}
        for message in result.message_type:
            self._resolve(message, result.package, enums)
        return result

    def enum(self, result: descriptor_pb2.EnumDescriptorProto) -> None:
        result.name = self.take()
        self.take("{")
        while self.tokens[-1] != "}":
            value = result.value.add(name=self.take())
            self.take("=")
            value.number = int(self.take())
            self.take(";")
        self.take("}")

    def message(self, result: descriptor_pb2.DescriptorProto) -> None:
        result.name = self.take()
        self.take("{")
        while self.tokens[-1] != "}":
            keyword = self.take()
            if keyword == "enum":
                self.enum(result.enum_type.add())
                continue
            if keyword not in _LABELS:
                raise ValueError(f"[proto] got {keyword} in {result.name}, expected a label or enum")
            field = result.field.add(label=_LABELS[keyword])
            kind = self.take()
            if kind in _SCALARS:
                field.type = _SCALARS[kind]
            else:
                field.type_name = kind
            field.name = self.take()
            self.take("=")
            field.number = int(self.take())
            if self.tokens[-1] == "[":
                self._options(field)
            self.take(";")
        self.take("}")

    def _options(self, field: descriptor_pb2.FieldDescriptorProto) -> None:
        self.take("[")
        option = self.take()
        self.take("=")
        value = self.take()
        if option == "packed":
            field.options.packed = value == "true"
        elif option == "default":
            if field.type == field.TYPE_FLOAT:  # what the text stands for: protobuf for Python takes it as a double
                (number,) = struct.unpack("f", struct.pack("f", float(value)))
                value = repr(number)
            field.default_value = value.strip('"')
        else:
            raise ValueError(f"[proto] got option {option}, expected packed or default")
        self.take("]")

    @staticmethod
    def _resolve(message: descriptor_pb2.DescriptorProto, package: str, enums: set[str]) -> None:
        nested = {enum.name for enum in message.enum_type}
        for field in message.field:
            if not field.type_name:
                continue
            name = field.type_name
            if name in nested or name in enums:
                field.type = _FIELD.TYPE_ENUM
            else:
                field.type = _FIELD.TYPE_MESSAGE
            field.type_name = f".{package}.{message.name}.{name}" if name in nested else f".{package}.{name}"
