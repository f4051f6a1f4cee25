"""`CLGRAFT_VERBOSE` names the problems of a compiled model."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from tests.plugins.verbose_graphs import expect_problems

PROGRAM = """
import torch
from torch import nn
import clgraft.plugins.torch
net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))
torch.compile(net, backend="clgraft")(torch.zeros(2, 2, 8, 8)).sum().backward()
"""


def test_problems_of_a_model_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("CLGRAFT_CACHE", str(tmp_path))
    expect_problems(PROGRAM, {"conv", "pool", "dense"}, tmp_path)
