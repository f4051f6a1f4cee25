"""The problems of an MXNet symbol: what its swapped operators plan in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from clgraft import core
from clgraft.core.problem import Problem
from clgraft.plugins.mxnet import symbols
from clgraft.plugins.plugin import PluginError


def problems(
    path: str, shapes: Mapping[str, Sequence[int]], training: bool = True, passes: int = 1, regions: bool = False
) -> tuple[Problem, ...]:
    """Return what a symbol's swapped operators plan, forward and, in training, backward.

    Parameters
    ----------
    path : str
        A symbol's JSON, swapped or not.
    shapes : mapping
        Shapes of its inputs, by name.
    training : bool
        Without it only forward.
    passes : int
        How often the symbol is run.
    regions : bool
        Whether to swap with regions.
    """
    mxnet, swap_symbol = symbols.framework("read a symbol's shapes")
    symbol = symbols.load(mxnet, Path(path))
    symbols.expect_shapes(mxnet, symbol, shapes)
    given = {name: tuple(shape) for name, shape in shapes.items()}
    try:
        swapped, _ = swap_symbol(symbol, regions=regions)
        executor = swapped.simple_bind(mxnet.cpu(), grad_req="write" if training else "null", **given)
        for _ in range(passes):
            outputs = executor.forward(is_train=training)
            if training:
                executor.backward([mxnet.nd.ones_like(output) for output in outputs])
            mxnet.nd.waitall()
    except mxnet.MXNetError as error:
        raise PluginError(f"[mxnet] got {path}: {symbols.reason(error)}") from None
    found = core.context().problems()
    if not found:
        raise PluginError(f"[mxnet] got {path}, in which no operator has an OpenCL counterpart")
    return found
