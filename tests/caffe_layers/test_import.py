"""`import caffe` as a new user types it after the install."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(importlib.util.find_spec("caffe") is None, reason="Caffe is not installed for this Python")
@pytest.mark.parametrize("code", ["import caffe", "import clgraft.caffe_layers.layers.convolution, caffe"])
def test_caffe_is_imported_without_a_variable_for_protobuf(code):
    """Message classes as old as Caffe's need a protobuf before 4, which the extra `caffe` asks for."""
    clean = {name: value for name, value in os.environ.items() if name != "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"}
    code += "; print(caffe.proto.caffe_pb2.NetParameter(name='fine').name)"
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, timeout=120)
    assert done.stdout == "fine\n", done.stderr[-2000:]
