"""Lets the tests of MXNet run with regions where they do not say: `pytest tests/mxnet_ops --regions on`."""

from __future__ import annotations

import ast
import dataclasses
import re
from functools import cache
from pathlib import Path

import pytest

from clgraft import core
from clgraft.core.session.context import Context

HERE = Path(__file__).parent
# the swap whose default each choice changes
CHANGED = {"on": "swap_symbol", "off": "swap_block"}


@cache
def leaves_open(module: str, swap: str) -> bool:
    """Return whether a module of this folder, or one of this folder that it imports, calls a swap without a choice."""
    path = HERE / f"{module}.py"
    if not path.is_file():
        return False
    text = path.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(text)))
    calls = (node for node in nodes if isinstance(node, ast.Call))
    chosen = {call.func for call in calls if any(keyword.arg == "regions" for keyword in call.keywords)}
    named = {node for node in nodes if swap in (getattr(node, "id", ""), getattr(node, "attr", ""))}
    imported = re.findall(r"^from tests\.mxnet_ops(?:\.| import )(\w+)", text, re.M)
    return bool(named - chosen) or any(leaves_open(other, swap) for other in imported)


def pytest_collection_modifyitems(config, items) -> None:
    """Leave out files for which a choice of regions changes nothing."""
    chosen = config.getoption("regions")
    if chosen is None:
        return
    left = [item for item in items if HERE in item.path.parents and not leaves_open(item.path.stem, CHANGED[chosen])]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


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
