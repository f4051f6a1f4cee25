"""`CLGRAFT_VERBOSE` names the problems of a session's graph."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx", reason="needs onnx")
from tests.plugins.verbose_graphs import expect_problems

PROGRAM = """
import numpy as np
from clgraft.plugins.onnx import Session
from tests.plugins.onnx.models import small_net
Session(small_net()).run({"x": np.zeros((2, 3, 16, 16), np.float32)})
"""


def test_problems_of_a_session_are_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CLGRAFT_CACHE", str(tmp_path))
    expect_problems(PROGRAM, {"pool", "dense", "softmax"}, tmp_path)
