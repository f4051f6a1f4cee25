"""Fixtures of the PyTorch plugin's tests."""

from __future__ import annotations

import dataclasses

import pyopencl as cl
import pytest

from clgraft import core
from clgraft.core.runtime.plan import Plan
from clgraft.core.session.context import Context


@pytest.fixture
def fresh(caplog):
    """Let no other test's graphs be reused, and keep PyTorch's traces out of reports."""
    import torch

    caplog.set_level("WARNING")
    torch._dynamo.reset()
    torch.manual_seed(1)


@pytest.fixture
def bound(monkeypatch):
    """The addresses that each run of a plan reads and writes, a set for each run."""
    runs, run = [], Plan.run_bound

    def remember(self, buffers, *arguments):
        runs.append({int(self._ffi.cast("uintptr_t", buffer.handle)) for buffer in buffers})
        return run(self, buffers, *arguments)

    monkeypatch.setattr(Plan, "run_bound", remember)
    return runs


@pytest.fixture
def staged():
    """A context that is told that its device cannot reach host memory."""
    context = core.context()
    device = dataclasses.replace(context.device, host_access="staged")
    queue = cl.CommandQueue(context.cl_context, context.cl_device)
    return Context(context.cl_context, context.cl_device, queue, device=device)
