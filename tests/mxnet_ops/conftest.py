"""Lets the tests of MXNet run with regions where they do not say: `pytest tests/mxnet_ops --regions on`."""

from __future__ import annotations

import pytest


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
