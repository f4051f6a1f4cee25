"""The problems of an MXNet symbol: what its swapped operators plan in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clgraft import core
from clgraft.core.problem import Problem
from clgraft.plugins.command_line.tune.supervise import TuneError


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
    try:
        from clgraft.mxnet_ops import swap_symbol  # isort: skip  (prepares what MXNet needs from newer NumPys)
        import mxnet
    except (ImportError, OSError) as error:
        raise TuneError(f"[tune] MXNet is needed to read a symbol's shapes and cannot be imported: {error}") from None
    given = {name: tuple(shape) for name, shape in shapes.items()}
    try:
        symbol: Any = mxnet.sym.load(path)
        unknown = [name for name in given if name not in symbol.list_arguments()]
        if unknown:
            raise TuneError(f"[tune] got a shape of {unknown[0]}, expected one of an argument of {path}")
        known = symbol.infer_shape_partial(**given)[0]
        missing = [name for name, shape in zip(symbol.list_arguments(), known) if not shape or 0 in shape]
        if missing:
            raise TuneError(f"[tune] got no shape of {missing[0]}, expected --shape {missing[0]}=N,N,...")
        swapped, _ = swap_symbol(symbol, regions=regions)
        executor = swapped.simple_bind(mxnet.cpu(), grad_req="write" if training else "null", **given)
        for _ in range(passes):
            outputs = executor.forward(is_train=training)
            if training:
                executor.backward([mxnet.nd.ones_like(output) for output in outputs])
            mxnet.nd.waitall()
    except (mxnet.MXNetError, UnicodeDecodeError) as error:
        raise TuneError(f"[tune] got {path}: {str(error).strip().splitlines()[0]}") from None
    found = core.context().problems()
    if not found:
        raise TuneError(f"[tune] got {path}, in which no operator has an OpenCL counterpart")
    return found
