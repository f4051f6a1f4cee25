"""Protobuf text format, read without loss: comments, layout and unknown fields stay, errors name line and column."""

from __future__ import annotations

from clgraft.caffe_layers.prototxt.build import fill
from clgraft.caffe_layers.prototxt.check import Unknown, check
from clgraft.caffe_layers.prototxt.edits import Edits, indent_of, newline_of
from clgraft.caffe_layers.prototxt.tokens import PrototxtError, quote, unquote
from clgraft.caffe_layers.prototxt.tree import Document, Field, Message, Scalar, Value

__all__ = [
    "Document",
    "Edits",
    "Field",
    "Message",
    "PrototxtError",
    "Scalar",
    "Unknown",
    "Value",
    "check",
    "fill",
    "indent_of",
    "newline_of",
    "quote",
    "unquote",
]
