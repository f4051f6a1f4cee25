"""Normalisations."""

from __future__ import annotations

from collections.abc import Sequence

from clgraft.core.nn import norms
from clgraft.plugins.onnx.lowering import ModelBuilder
from clgraft.plugins.onnx.nodes import OnnxNode, operator
from clgraft.plugins.onnx.operators.shapes import axis_of
from clgraft.plugins.onnx.values import OnnxValue

MOMENT_EPS = 1e-9  # of MeanVarianceNormalization, which has no attribute for it


@operator("BatchNormalization")
def batch_norm(
    on: ModelBuilder, node: OnnxNode, x: OnnxValue, gamma: OnnxValue, beta: OnnxValue, mean: OnnxValue, var: OnnxValue
) -> OnnxValue | tuple[OnnxValue, ...]:
    """Lower a batch norm with given statistics, or with the batch's; averages that are states follow those."""
    node.expect(bool(node.get("spatial", 1)), "spatial 0")
    eps, carrier = float(node.get("epsilon", 1e-5)), on.carrier(x)
    affine = [on.given(value, carrier) for value in (gamma, beta)]
    stated = bool(node.get("training_mode", 0))
    if not on.trains(stated):
        node.expect(stated or not any(node.wants(output) for output in range(1, 5)), "several outputs")
        statistics = on.given(mean, carrier), on.given(var, carrier)
        y = norms.batch_norm(on.build, on.given(x), *affine, statistics, eps=eps).y
        return (on.taken(y, x.dtype), mean, var) if stated else on.taken(y, x.dtype)
    normed = norms.batch_norm(on.build, on.given(x), *affine, eps=eps)
    y, *current = normed
    shares = norms.shares(keep=float(node.get("momentum", 0.9)))
    if {mean.name, var.name} <= on.states and normed.mean.dtype == mean.carrier:
        averages = on.given(mean), on.given(var)
        norms.update_averages(on.build, on.given(x), normed, averages, **shares)
        return on.taken(y, x.dtype), mean, var
    moved = []
    for running, value in zip((mean, var), current):
        wide = on.widest([running, on.taken(value, x.dtype)])
        pair = on.given(running, wide), on.build.cast(value, wide)
        moved.append(
            on.taken(norms.moved_average(on.build, *pair, keep=shares["keep"], add=shares["add"][0]), running.dtype)
        )
    return (on.taken(y, x.dtype), *moved)


def by_moments(
    on: ModelBuilder,
    x: OnnxValue,
    axes: Sequence[int],
    eps: float,
    gamma: OnnxValue | None = None,
    beta: OnnxValue | None = None,
) -> tuple[OnnxValue, OnnxValue, OnnxValue]:
    """Return a norm by mean and variance over some axes, the mean, and 1 / deviation; these are float32 for 16 bits."""
    build, carrier = on.build, on.carrier(x)
    affine = (None if value is None else on.given(value, carrier) for value in (gamma, beta))
    found = norms.moments(build, on.given(x), axes)
    inverse = norms.inverse_deviation(build, found, eps=eps)
    y = norms.normed_once(build, on.given(x), found, inverse, *affine)
    kept = x.dtype if inverse.dtype == y.dtype else inverse.dtype
    return on.taken(y, x.dtype), on.taken(norms.mean(build, found), kept), on.taken(inverse, kept)


@operator("LayerNormalization")
def layer_norm(
    on: ModelBuilder, node: OnnxNode, x: OnnxValue, gamma: OnnxValue, beta: OnnxValue | None = None
) -> tuple[OnnxValue | None, ...]:
    """Lower a layer norm over the last axes, from one on."""
    axes = range(axis_of(node.get("axis", -1), x.ndim), x.ndim)
    y, mean, inverse = by_moments(on, x, axes, float(node.get("epsilon", 1e-5)), gamma, beta)
    kept = "float32" if node.get("stash_type", 1) == 1 else x.dtype
    statistics = (on.cast(value, kept) for value in (mean, inverse))
    return (y, *(value if node.wants(i) else None for i, value in enumerate(statistics, 1)))


@operator("InstanceNormalization")
def instance_norm(on: ModelBuilder, node: OnnxNode, x: OnnxValue, gamma: OnnxValue, beta: OnnxValue) -> OnnxValue:
    """Lower an instance norm over the pixels of each channel."""
    along = (x.shape[1], *(1,) * (x.ndim - 2))
    scale, shift = on.reshaped(gamma, along), on.reshaped(beta, along)
    return by_moments(on, x, range(2, x.ndim), float(node.get("epsilon", 1e-5)), scale, shift)[0]


@operator("GroupNormalization")
def group_norm(on: ModelBuilder, node: OnnxNode, x: OnnxValue, gamma: OnnxValue, beta: OnnxValue) -> OnnxValue:
    """Lower a group norm; scale and bias are per channel, up to opset 20 per group."""
    view = norms.in_groups(x.shape, int(node.get("num_groups")))
    wide = on.reshaped(x, view)
    along = (view[1], 1, 1) if node.opset < 21 else (view[1], view[2], 1)
    scale, shift = on.reshaped(gamma, along), on.reshaped(beta, along)
    y, _, _ = by_moments(on, wide, norms.GROUP_AXES, float(node.get("epsilon", 1e-5)), scale, shift)
    return on.reshaped(y, x.shape)


@operator("MeanVarianceNormalization")
def moment_norm(on: ModelBuilder, node: OnnxNode, x: OnnxValue) -> OnnxValue:
    """Lower a norm by mean and variance over some axes."""
    axes = sorted(axis_of(axis, x.ndim) for axis in node.get("axes", [0, 2, 3]))
    return by_moments(on, x, axes, MOMENT_EPS)[0]


@operator("RMSNormalization")
def mean_square_norm(on: ModelBuilder, node: OnnxNode, x: OnnxValue, gamma: OnnxValue) -> OnnxValue:
    """Lower a norm by the root of the mean square over the last axes."""
    axes, eps = range(axis_of(node.get("axis", -1), x.ndim), x.ndim), float(node.get("epsilon", 1e-5))
    wide = on.widest([x, gamma])
    return on.taken(norms.mean_square_norm(on.build, on.given(x, wide), on.given(gamma, wide), axes, eps=eps), x.dtype)


@operator("LpNormalization")
def length_norm(on: ModelBuilder, node: OnnxNode, x: OnnxValue) -> OnnxValue:
    """Lower vectors of length 1 along an axis, by absolute values or Euclid; a vector of zeros stays."""
    axis = axis_of(node.get("axis", -1), x.ndim)
    return on.taken(norms.unit_length(on.build, on.given(x), {axis}, absolute=node.get("p", 2) != 2), x.dtype)


@operator("LRN")
def local_response_norm(on: ModelBuilder, node: OnnxNode, x: OnnxValue) -> OnnxValue:
    """Lower local response normalisation across channels."""
    size = int(node.get("size"))
    node.expect(size % 2 == 1, f"size {size}")
    alpha, beta, k = (float(node.get(*one)) for one in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))
    y = norms.local_response_norm(on.build, on.given(x), size=size, alpha=alpha, beta=beta, k=k)
    return on.taken(y, x.dtype)
