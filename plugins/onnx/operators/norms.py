"""Normalisations."""

from __future__ import annotations

import math
from collections.abc import Sequence

from clgraft.core.operators.batchnorm import BatchNormProblem
from clgraft.core.operators.lrn import LRNProblem
from clgraft.core.operators.pointwise.formulas.norms import MomentNorm
from clgraft.plugins.onnx.lowering import Lowering
from clgraft.plugins.onnx.nodes import Node, operator
from clgraft.plugins.onnx.operators.reductions import reduced
from clgraft.plugins.onnx.operators.shapes import axis_of
from clgraft.plugins.onnx.values import Value


@operator("BatchNormalization")
def batch_norm(
    on: Lowering, node: Node, x: Value, gamma: Value, beta: Value, mean: Value, var: Value
) -> Value | tuple[Value, ...]:
    """Lower a batch norm with given statistics, or with the batch's."""
    node.expect(bool(node.get("spatial", 1)), "spatial 0")
    channels = x.shape[1] if x.ndim > 1 else 1
    eps, pixels = float(node.get("epsilon", 1e-5)), math.prod(x.shape[2:])
    batch = x.shape[0] if x.ndim else 1
    parameters = [on.tensor(value, on.carrier(x)) for value in (gamma, beta)]
    scalars = {"eps": eps}
    if not node.get("training_mode", 0):
        node.expect(not any(node.wants(output) for output in range(1, 5)), "several outputs")
        problem = BatchNormProblem("forward_inference", batch, channels, pixels, dtype=on.carrier(x))
        statistics = [on.tensor(value, on.carrier(x)) for value in (mean, var)]
        (name,) = on.add(problem, on.tensor(x), *parameters, *statistics, scalars=scalars)
        return on.made(name, x.shape, x.dtype)
    problem = BatchNormProblem("forward_training", batch, channels, pixels, dtype=on.carrier(x))
    names = on.add(problem, on.tensor(x), *parameters, scalars=scalars)
    keep = float(node.get("momentum", 0.9))
    moved = []
    for running, name in zip((mean, var), names[1:]):
        current = on.made(name, (channels,), x.dtype)
        moved.append(on.pointwise(f"{keep!r} * x0 + {1 - keep!r} * x1", [running, current], running.dtype))
    return (on.made(names[0], x.shape, x.dtype), *moved)


def by_moments(
    on: Lowering,
    x: Value,
    axes: Sequence[int],
    eps: float,
    gamma: Value | None = None,
    beta: Value | None = None,
) -> tuple[Value, Value, Value]:
    """Return (x - mean) / sqrt(variance + eps) gamma + beta, the mean, and 1 / deviation.

    The mean is computed twice, around the first result, so that no digits are lost where it is large.
    """
    count = math.prod(x.shape[axis] for axis in axes)
    norm = MomentNorm(x.shape, tuple(axes), (1,), on.carrier(x))
    share = {"share": 1 / count}
    tensor = on.tensor(x)
    (shift,) = on.add(norm.shift(), tensor, scalars=share)
    difference, square = on.add(norm.moments(), tensor, shift, scalars=share)
    kept = [on.made(name, norm.kept, x.dtype, on.carrier(x)) for name in (shift, difference, square)]
    text = f"real v = x2 - x1 * x1; y0 = 1 / sqrt((v > 0 ? v : 0) + {eps!r});"
    inverse = on.pointwise(text, kept)
    values, result = [x, kept[0], kept[1], inverse], "(x0 - x1 - x2) * x3"
    for value, sign in ((gamma, "*"), (beta, "+")):
        if value is not None:
            result = f"({result}) {sign} x{len(values)}"
            values.append(value)
    y = on.pointwise(result, values, x.dtype, on.carrier(x), shape=x.shape)
    return y, on.pointwise("x0 + x1", kept[:2]), inverse


@operator("LayerNormalization")
def layer_norm(on: Lowering, node: Node, x: Value, gamma: Value, beta: Value | None = None) -> tuple[Value | None, ...]:
    """Lower a layer norm over the last axes, from one on."""
    axes = range(axis_of(node.get("axis", -1), x.ndim), x.ndim)
    y, mean, inverse = by_moments(on, x, axes, float(node.get("epsilon", 1e-5)), gamma, beta)
    statistics = (on.cast(value, "float32") if node.get("stash_type", 1) == 1 else value for value in (mean, inverse))
    return (y, *(value if node.wants(i) else None for i, value in enumerate(statistics, 1)))


@operator("InstanceNormalization")
def instance_norm(on: Lowering, node: Node, x: Value, gamma: Value, beta: Value) -> Value:
    """Lower an instance norm over the pixels of each channel."""
    along = (x.shape[1], *(1,) * (x.ndim - 2))
    scale, shift = on.reshaped(gamma, along), on.reshaped(beta, along)
    return by_moments(on, x, range(2, x.ndim), float(node.get("epsilon", 1e-5)), scale, shift)[0]


@operator("GroupNormalization")
def group_norm(on: Lowering, node: Node, x: Value, gamma: Value, beta: Value) -> Value:
    """Lower a group norm; scale and bias are per channel, up to opset 20 per group."""
    groups = int(node.get("num_groups"))
    n, c, pixels = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    wide = on.reshaped(x, (n, groups, c // groups, pixels))
    along = (groups, 1, 1) if node.opset < 21 else (groups, c // groups, 1)
    scale, shift = on.reshaped(gamma, along), on.reshaped(beta, along)
    return on.reshaped(by_moments(on, wide, (2, 3), float(node.get("epsilon", 1e-5)), scale, shift)[0], x.shape)


@operator("MeanVarianceNormalization")
def moment_norm(on: Lowering, node: Node, x: Value) -> Value:
    """Lower a norm by mean and variance over some axes."""
    axes = sorted(axis_of(axis, x.ndim) for axis in node.get("axes", [0, 2, 3]))
    return by_moments(on, x, axes, 1e-9)[0]


@operator("RMSNormalization")
def mean_square_norm(on: Lowering, node: Node, x: Value, gamma: Value) -> Value:
    """Lower a norm by the root of the mean square over the last axes."""
    axes = set(range(axis_of(node.get("axis", -1), x.ndim), x.ndim))
    square = reduced(on, x, axes, "x0 * x0", "sum")
    count = float(math.prod(x.shape[axis] for axis in axes))
    text = f"x0 / sqrt(x1 / {count!r} + {float(node.get('epsilon', 1e-5))!r}) * x2"
    return on.pointwise(text, [x, square, gamma], x.dtype)


@operator("LpNormalization")
def length_norm(on: Lowering, node: Node, x: Value) -> Value:
    """Lower vectors of length 1 along an axis, by absolute values or Euclid; a vector of zeros stays."""
    axis, p = axis_of(node.get("axis", -1), x.ndim), node.get("p", 2)
    length = reduced(on, x, {axis}, "x0 * x0" if p == 2 else "fabs(x0)", "sum")
    return on.pointwise(f"x1 == 0 ? 0 : x0 / {'sqrt(x1)' if p == 2 else 'x1'}", [x, length])


@operator("LRN")
def local_response_norm(on: Lowering, node: Node, x: Value) -> Value:
    """Lower local response normalisation across channels."""
    size = int(node.get("size"))
    node.expect(size % 2 == 1, f"size {size}")
    pixels = math.prod(x.shape[2:])
    problem = LRNProblem("forward", x.shape[0], x.shape[1], pixels, size, float(node.get("beta", 0.75)), x.dtype)
    scalars = {"alpha": float(node.get("alpha", 1e-4)), "k": float(node.get("bias", 1.0))}
    (name,) = on.add(problem, on.tensor(x), scalars=scalars)
    return on.made(name, x.shape, x.dtype)
