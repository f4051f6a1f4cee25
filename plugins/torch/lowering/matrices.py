"""Products of matrices."""

from __future__ import annotations

import torch

from clgraft.core import DenseProblem
from clgraft.plugins.torch.lowering.builder import Builder, lowers
from clgraft.plugins.torch.lowering.values import NotLowered, Operand

aten = torch.ops.aten
TURNED = (1, 0)


@lowers(aten.mm.default)
def mm(build: Builder, a: Operand, b: Operand) -> Operand:
    """Return a b; a transposed one is read as it is stored."""
    (rows, depth), columns = a.shape, b.shape[1]
    if a.axes == TURNED and b.axes != TURNED:
        problem = DenseProblem("backward_weight", depth, columns, rows, dtype=a.dtype)
        return build.run(problem, {"x": b, "dy": a.permuted(TURNED)})["dw"]
    return _dense(build, a, b, None)


@lowers(aten.addmm.default)
def addmm(build: Builder, bias: Operand, a: Operand, b: Operand, beta: float = 1, alpha: float = 1) -> Operand:
    """Return a b + bias."""
    if beta != 1 or alpha != 1:
        raise NotLowered(f"[torch] got factors {beta} and {alpha} of a product's terms, expected 1")
    if bias.shape != (b.shape[1],):
        product = mm(build, a, b)
        return build.pointwise("y0 = x0 + x1;", [product, bias])[0]
    return _dense(build, a, b, bias)


def _dense(build: Builder, a: Operand, b: Operand, bias: Operand | None) -> Operand:
    turned = b.axes == TURNED
    problem = DenseProblem(
        "forward", a.shape[0], a.shape[1], b.shape[1], transposed=not turned, bias=bias is not None, dtype=a.dtype
    )
    reads = {"x": a, "w": b.permuted(TURNED) if turned else b, **({} if bias is None else {"b": bias})}
    return build.run(problem, reads)["y"]
