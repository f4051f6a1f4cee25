"""Lets the tests of MXNet run with regions where they do not say: `pytest tests/mxnet_ops --regions on`."""

from __future__ import annotations

import dataclasses

import pytest

from clgraft import core
from clgraft.core.session.context import Context


@pytest.fixture(scope="session", autouse=True)
def regions(request):
    """Change the defaults of both swaps."""
    chosen = request.config.getoption("regions")
    if chosen is None:
        yield
        return
    from clgraft.mxnet_ops import swap_block, swap_symbol

    functions = (swap_block, swap_symbol)
    before = [dict(function.__kwdefaults__) for function in functions]
    for function in functions:
        function.__kwdefaults__["regions"] = chosen == "on"
    yield
    for function, defaults in zip(functions, before):
        function.__kwdefaults__.update(defaults)


@pytest.fixture
def staged(context, monkeypatch):
    """A context that copies every array of the host, as on a device with memory of its own."""
    device = dataclasses.replace(context.device, host_access="staged")
    found = Context(context.cl_context, context.cl_device, context.queue, device=device)
    monkeypatch.setattr(core, "context", lambda *arguments: found)
    return found
