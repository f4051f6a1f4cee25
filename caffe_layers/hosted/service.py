"""Answers layers in C++: `clg_ask` calls `answer` here.

A question is a line of words, for `setup` followed by the layer's LayerParameter in binary form. An answer is lines.

    setup TYPE PHASE f32|f64 LAYER POINTER SHAPE FILL TOPS BOTTOM... | BLOB...
        number of the layer, then `blob SHAPE FILLER`, `fixed`, `loss`, and `begin`, `end` or `region`
    reshape LAYER 0|1 BOTTOM...       whether it works in place, shapes: `top SHAPE`
    forward LAYER                     `array ELEMENTS`, `run COUNT BUFFER... COUNT SCALAR... PROBLEM`,
                                      `graph LINES PASSES PRECISION COUNT BUFFER... COUNT SCALAR... OUTPUT...`,
                                      followed by the lines of the graph;
                                      `divide ADDRESS BLOB BLOB`: before these, write the quotient of a blob and a
                                      number, 0 if that is 0; `count BLOB FACTOR TERM`: after them, multiply a blob's
                                      only number, then add to it
    backward LAYER FLAGS FLAGS        a digit for each bottom, and for each blob: the same
    begin LAYER, end LAYER            does the layer's work on the host
    enter LAYER, leave LAYER FLAGS    takes part in the forward or backward pass of its region; at first
                                      `hidden TOP` for each top that is not on the host
    number LAYER INDEX                a scalar `@INDEX` of the last backward
    drop LAYER
    net TYPES BLOB,...|none           followed by a net's text: `@INDEX`, then that layer's marks of regions, and so on;
                                      the blobs, or patterns, are kept on the host

A buffer is `b0`, `t0`, `p0` for a bottom, top or learnable blob, with a capital letter for its gradient, `s0` for an
array of the layer's own, `hADDRESS:BYTES` for host memory, `-` for none; `+` in front says that it is added to.
"""

from __future__ import annotations

import itertools

import numpy as np

from clgraft.caffe_layers.hosted.blobs import Host
from clgraft.caffe_layers.hosted.layer import HostedLayer, bits, read_parameters
from clgraft.caffe_layers.hosted.nets import marks

_layers: dict = {}
_numbers = itertools.count(1)
_REALS = {"f32": np.float32, "f64": np.float64}


def answer(question: bytes) -> bytes:
    """Answer a question."""
    line, _, data = question.partition(b"\n")
    words = line.decode().split()
    step, first = words[0], words[1]
    if step in ("begin", "end"):
        _layers[int(first)].on_host(step)
        return b""
    if step == "enter":
        return "\n".join(_layers[int(first)].enter()).encode()
    if step == "leave":
        _layers[int(first)].leave(_flags(words[2]))
        return b""
    if step == "number":
        return bits(_layers[int(first)].number(int(words[2]))).encode()
    if step == "net":
        keep = [name for name in " ".join(words[2:]).replace(",", " ").split() if name != "none"]
        lines = marks(data.decode("utf-8", "surrogateescape"), first.split(","), keep)
    elif step == "setup":
        lines = _setup(words, data)
    elif step == "reshape":
        lines = _layers[int(first)].reshape([_shape(word) for word in words[3:]], words[2] == "1")
    elif step == "forward":
        lines = _layers[int(first)].forward()
    elif step == "backward":
        lines = _layers[int(first)].backward(_flags(words[2]), _flags(words[3]))
    elif step == "drop":
        _layers.pop(int(first), None)
        lines = []
    else:
        raise ValueError(f"[caffe] got question {step!r}, expected one of those that service.py names")
    return "\n".join(lines).encode()


def _setup(words: list, data: bytes) -> list:
    kind, phase, real = words[1], int(words[2]), _REALS[words[3]]
    host = Host(*(int(word) for word in words[4:8]), real)
    tops, middle = int(words[8]), words.index("|")
    bottoms, blobs = words[9:middle], words[middle + 1 :]
    found = HostedLayer(
        kind, read_parameters(data), phase, host, [_shape(one) for one in bottoms], [_shape(one) for one in blobs], tops
    )
    number = next(_numbers)
    _layers[number] = found
    return [str(number), *found.described()]


def _shape(word: str) -> tuple:
    return tuple(int(size) for size in word[1:-1].split(",") if size)


def _flags(word: str) -> list:
    return [digit == "1" for digit in word if digit != "."]
