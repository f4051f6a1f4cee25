"""Fuzzing of the prototxt reader and of swap, guided by coverage: `fuzz_prototxt.py [options of libFuzzer] CORPUS`."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["clgraft.caffe_layers"]):
    from clgraft.caffe_layers.prototxt import Document, PrototxtError, check, schema
    from clgraft.caffe_layers.swap import SwapError, swap_back, swap_net
    from clgraft.caffe_layers.swap.rules import FOREIGN


def one_input(data: bytes) -> None:
    """Refuse with a place, or swap into what reads as a net and comes back letter by letter."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        swapped, _ = swap_net(text)
    except PrototxtError as error:
        assert error.line >= 1 and error.column >= 1
        return
    except SwapError:
        return
    check(Document(swapped), schema.descriptor("NetParameter"), FOREIGN)
    assert "layers" in text or swap_back(swapped)[0] == text  # nets of older forms stay upgraded


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
