"""Fixtures of the PyTorch plugin's tests."""

from __future__ import annotations

import dataclasses

import pyopencl as cl
import pytest

from clgraft import core
from clgraft.core.session.context import Context


@pytest.fixture
def fresh(caplog):
    """Let no other test's graphs be reused, and keep PyTorch's traces out of reports."""
    import torch

    caplog.set_level("WARNING")
    torch._dynamo.reset()
    torch.manual_seed(1)


@pytest.fixture
def staged():
    """A context that is told that its device cannot reach host memory."""
    context = core.context()
    device = dataclasses.replace(context.device, host_access="staged")
    queue = cl.CommandQueue(context.cl_context, context.cl_device)
    return Context(context.cl_context, context.cl_device, queue, device=device)
