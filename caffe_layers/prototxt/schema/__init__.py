"""Caffe's messages as protobuf classes of our own, in a descriptor pool of our own.

They read and write Caffe's files, and never meet the classes that Caffe itself registers in the same process.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pool, message_factory

from clgraft.caffe_layers.prototxt import Document, check, fill
from clgraft.caffe_layers.prototxt.schema.language import read_proto
from clgraft.core.errors import ClgraftError

PACKAGE = "clgraft.caffe"
_FILE = "clgraft/caffe_layers/caffe.proto"


class SchemaError(ClgraftError, ValueError):
    """Bytes that are not the message asked for."""


@functools.cache
def pool() -> descriptor_pool.DescriptorPool:
    """Return the descriptor pool that holds Caffe's messages under the package `clgraft.caffe`."""
    result = descriptor_pool.DescriptorPool()
    text = (Path(__file__).parent / "caffe.proto").read_text(encoding="utf-8")
    # as bytes: the one way in that every protobuf release has
    result.AddSerializedFile(read_proto(text, _FILE).SerializeToString())
    return result


def descriptor(name: str) -> Any:
    """Return the descriptor of a message, such as `"LayerParameter"`."""
    return pool().FindMessageTypeByName(f"{PACKAGE}.{name}")


@functools.cache
def message_class(name: str) -> Any:
    """Return the class of a message.

    Parameters
    ----------
    name : str
        Caffe's name of it: `"NetParameter"`, `"SolverState"`, ...
    """
    found = descriptor(name)
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(found)
    return message_factory.MessageFactory(pool()).GetPrototype(found)  # protobuf before 4.22


def parse(name: str, text: str | Document, *, forks: bool = True) -> Any:
    """Read a message from protobuf text format.

    Parameters
    ----------
    name : str
        The message's name.
    text : str or Document
        Its fields in text format, or the tree of such a text.
    forks : bool
        Whether fields that Caffe's master does not have, as forks write them, are skipped or refused.

    Raises
    ------
    PrototxtError
        When the text is not such a message; names line and column.
    """
    document = text if isinstance(text, Document) else Document(text)
    for unknown in check(document, descriptor(name)):
        if unknown.value:
            message = f"got {unknown.value} for {unknown.name}, expected one of {unknown.expected}"
            raise document.lines.error(message, unknown.start)
        if not forks:
            raise document.lines.error(f"got {unknown.name}, expected a field of Caffe's", unknown.start)
    message = message_class(name)()
    fill(message, document.root)
    return message


def parse_layer(text: str) -> Any:
    """Read a `LayerParameter` from text format; unknown fields are skipped."""
    return parse("LayerParameter", text)


def parse_bytes(name: str, data: bytes) -> Any:
    """Read a message from its binary form, as in a caffemodel or a solverstate.

    Raises
    ------
    SchemaError
        When the bytes are not such a message.
    """
    message = message_class(name)()
    try:
        message.ParseFromString(data)
    except Exception as error:  # each protobuf implementation has its own class for it
        raise SchemaError(f"[schema] got {len(data)} bytes that are no {name}: {error}") from None
    return message


__all__ = ["PACKAGE", "SchemaError", "descriptor", "message_class", "parse", "parse_bytes", "parse_layer", "pool"]
