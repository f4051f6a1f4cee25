"""Makers of random layers of nets: softmax, losses, convolutions, norms, poolings, resizing, sequences."""

from __future__ import annotations

import math
from typing import Any

import mxnet as mx

from tests.mxnet_ops.random_operators import operator, positive, sizes


@operator(2)
def softmax(m):
    value = m.value((1, 2, 3, 4))
    rank = len(value.shape)
    keys: dict[str, Any] = {"axis": m.integer(-rank, rank - 1)} if m.chance(0.6) else {}
    if m.chance(0.3):
        keys["temperature"] = m.choice([0.5, 2.0, -1.5])
    if m.chance(0.1):
        keys["dtype"] = m.choice(["float32", "float64"])
    name = m.choice(["softmax", "log_softmax", "softmin", "SoftmaxActivation"])
    if name == "SoftmaxActivation":  # MXNet's gradient of its instances is right for two axes alone
        if rank != 2:
            return mx.sym.SoftmaxActivation(value.symbol, mode="channel")
        return mx.sym.SoftmaxActivation(value.symbol, mode=m.choice(["instance", "channel"]))
    if name == "softmax" and rank == 2 and m.chance(0.2):
        lengths = m.variable(value.shape[:1], "int32", fresh=True, whole=value.shape[1] + 1)
        return mx.sym.softmax(value.symbol, length=lengths, use_length=True, axis=1)
    return getattr(mx.sym, name)(value.symbol, **keys)


@operator(1.5)
def loss(m):
    value = m.value((1, 2, 3, 4))
    n, classes = value.shape[0], value.shape[1] if len(value.shape) > 1 else 2
    scale = {"grad_scale": m.choice([0.5, 2.0])} if m.chance(0.3) else {}
    name = m.choice(["SoftmaxOutput", "SoftmaxOutput", "regression", "regression", "cross", "svm", "makeloss"])
    if name == "makeloss":
        return mx.sym.MakeLoss(value.symbol, **scale)
    if name == "regression":
        kind = m.choice(["Linear", "Logistic", "MAE"])
        label = [m.variable(value.shape, value.dtype, fresh=True, data=True)] if m.chance(0.5) else []
        return getattr(mx.sym, f"{kind}RegressionOutput")(value.symbol, *label, **scale)
    multi = len(value.shape) > 2
    shape = (n, *value.shape[2:]) if multi else (n,)
    label = m.variable(shape, value.dtype, fresh=True, data=True, whole=classes)
    if name == "cross":
        return mx.sym.softmax_cross_entropy(value.symbol, label)
    if name == "svm":
        return mx.sym.SVMOutput(value.symbol, label)
    keys = {"multi_output": True} if multi else {}
    if m.chance(0.3):
        keys["normalization"] = m.choice(["batch", "valid", "null"])
    if m.chance(0.3):
        keys.update(use_ignore=True, ignore_label=m.choice([-1, 0, 1]))
    if m.chance(0.15):
        keys["smooth_alpha"] = 0.1
    return mx.sym.SoftmaxOutput(value.symbol, label, **keys, **scale)


@operator(4)
def convolution(m):
    value = m.value(m.choice([(4,), (4,), (3,), (5,)]))
    if value.dtype == "int8":
        return None  # forward alone, and not on every processor
    rank, channels = len(value.shape) - 2, value.shape[1]
    groups = m.choice([1, 1, channels, *(g for g in range(2, channels) if not channels % g)])
    filters = groups * m.integer(1, 3)
    kernel = sizes(m, rank, 1, 3)
    keys: dict[str, Any] = {"kernel": kernel, "num_filter": filters}
    if groups > 1 or m.chance(0.2):
        keys["num_group"] = groups
    for name, low, high, share in (("stride", 1, 3, 0.5), ("dilate", 1, 2, 0.2), ("pad", 0, 2, 0.6)):
        if m.chance(share):
            keys[name] = sizes(m, rank, low, high)
    if m.chance(0.4):
        keys["no_bias"] = m.choice([True, 1, "true"])
    elif m.chance(0.3):
        keys["bias"] = m.variable((filters,), value.dtype)
    if m.chance(0.1):
        keys.update(cudnn_tune="off", workspace=512)
    if m.chance(0.05):
        keys["layout"] = {1: "NCW", 2: m.choice(["NCHW", "NHWC"]), 3: "NCDHW"}[rank]
    whole = (kernel,) * rank if isinstance(kernel, int) else kernel
    keys.update(m.weight((filters, channels // groups, *whole), value.dtype))
    return mx.sym.Convolution(value.symbol, **keys)


@operator(2)
def deconvolution(m):
    value = m.value(m.choice([(4,), (4,), (3,), (5,)]))
    rank, channels = len(value.shape) - 2, value.shape[1]
    groups = m.choice([1, 1, 1, channels])
    keys: dict[str, Any] = {"kernel": sizes(m, rank, 1, 4), "num_filter": groups * m.integer(1, 3)}
    if groups > 1:
        keys["num_group"] = groups
    for name, low, high, share in (
        ("stride", 1, 3, 0.6),
        ("dilate", 1, 2, 0.1),
        ("pad", 0, 1, 0.5),
        ("adj", 0, 1, 0.2),
        ("target_shape", 4, 9, 0.15),
    ):
        if m.chance(share):
            keys[name] = sizes(m, rank, low, high)
    if m.chance(0.4):
        keys["no_bias"] = m.choice([False, True])
    return mx.sym.Deconvolution(value.symbol, **keys)


@operator(3)
def dense(m):
    value = m.value((1, 2, 3, 4))
    hidden = m.integer(1, 6)
    keys: dict[str, Any] = {"num_hidden": hidden}
    if m.chance(0.4):
        keys["no_bias"] = m.choice([True, False])
    flatten = not m.chance(0.3)
    if not flatten:
        keys["flatten"] = False
    inputs = 1
    for size in value.shape[1:] if flatten else value.shape[-1:]:
        inputs *= size
    keys.update(m.weight((hidden, inputs), value.dtype))
    return mx.sym.FullyConnected(value.symbol, **keys)


@operator(4)
def batch_norm(m):
    value = m.value((2, 3, 4, 5))
    rank = len(value.shape)
    axis = m.choice([1, 1, 1, m.integer(-rank, rank - 1)])
    keys: dict[str, Any] = {} if axis == 1 and m.chance(0.5) else {"axis": axis}
    if m.train and math.prod(value.shape) < 3 * value.shape[axis]:
        return None  # what the norm of one number leaves is rounding
    fixed = m.chance(0.5)
    if not fixed or m.chance(0.5):
        keys["fix_gamma"] = fixed
    for name, options in (("eps", [1e-5, 2e-3]), ("momentum", [0.5, 0.99]), ("use_global_stats", [True])):
        if m.chance(0.3):
            keys[name] = m.choice(options)
    if m.chance(0.1):
        keys["output_mean_var"] = True
    size = (value.shape[axis],)
    if fixed:
        keys["gamma"] = m.variable(size, value.dtype, fresh=True, ones=True)
    elif m.chance(0.4):
        keys.update(gamma=m.variable(size, value.dtype), beta=m.variable(size, value.dtype))
    return mx.sym.BatchNorm(value.symbol, **keys)


@operator(2)
def norm(m):
    value = m.value((2, 3, 4, 5))
    if min(value.shape[1:]) < 2:
        return None  # what the norm of one number leaves is rounding
    rank, channels = len(value.shape), value.shape[1]
    eps = {"eps": m.choice([1e-3, 1e-2])} if m.chance(0.5) else {}
    return m.choice(
        [
            lambda: mx.sym.LayerNorm(value.symbol, **eps, **({} if m.chance(0.5) else {"axis": m.integer(-rank, -1)})),
            lambda: mx.sym.LayerNorm(value.symbol, output_mean_var=True, **eps)[0],  # alone the others are not written
            lambda: mx.sym.InstanceNorm(value.symbol, eps=1e-2),
            lambda: mx.sym.GroupNorm(value.symbol, num_groups=m.choice([1, channels]), **eps),
            lambda: mx.sym.L2Normalization(value.symbol, mode=m.choice(["instance", "channel", "spatial"]), **eps),
            lambda: mx.sym.LRN(value.symbol, nsize=m.choice([1, 3, 5]), alpha=m.choice([1e-4, 0.1])),
        ]
    )()


@operator(3)
def pooling(m):
    value = m.value(m.choice([(4,), (4,), (3,), (5,)]))
    rank = len(value.shape) - 2
    keys: dict[str, Any] = {"pool_type": m.choice(["max", "max", "avg", "avg", "sum", "lp"])}
    if keys["pool_type"] == "lp":
        keys["p_value"] = m.choice([1, 2, 3])
    if m.chance(0.25):
        keys["global_pool"] = True
    if not keys.get("global_pool") or m.chance(0.3):
        keys["kernel"] = sizes(m, rank, 1, 3)
    for name, low, high, share in (("stride", 1, 3, 0.6), ("pad", 0, 1, 0.4)):
        if m.chance(share):
            keys[name] = sizes(m, rank, low, high)
    if m.chance(0.3):
        keys["pooling_convention"] = m.choice(["full", "valid", "same"])
    if m.chance(0.2):
        keys["count_include_pad"] = False
    if m.chance(0.1):
        keys["layout"] = {1: "NWC", 2: "NHWC", 3: "NCDHW"}[rank]
    symbol = value.symbol if keys["pool_type"] != "lp" else positive(value.symbol)
    return mx.sym.Pooling(symbol, **keys)


@operator()
def dropout(m):
    keys: dict[str, Any] = {"p": 0.0 if m.train else m.choice([0.0, 0.5])}
    if m.chance(0.2):
        keys["axes"] = (0,)
    return mx.sym.Dropout(m.value().symbol, **keys)


@operator(2)
def resize(m):
    value = m.value((4,))
    h, w = value.shape[2:]
    other = m.variable((value.shape[0], m.integer(1, 3), 2 * h, 2 * w), value.dtype)
    scale = m.integer(1, 3)
    return m.choice(
        [
            lambda: mx.sym.UpSampling(value.symbol, scale=scale, sample_type="nearest", num_args=1),
            lambda: mx.sym.UpSampling(other, value.symbol, scale=1, sample_type="nearest", num_args=2),
            lambda: mx.sym.UpSampling(
                value.symbol, scale=scale + 1, sample_type="bilinear", num_args=2, num_filter=value.shape[1]
            ),
            lambda: mx.sym.contrib.BilinearResize2D(value.symbol, height=m.integer(1, 12), width=m.integer(1, 12)),
            lambda: mx.sym.contrib.BilinearResize2D(value.symbol, scale_height=0.6, scale_width=2.0, mode="odd_scale"),
            lambda: mx.sym.contrib.BilinearResize2D(value.symbol, other, mode="like", align_corners=m.chance(0.5)),
            lambda: mx.sym.contrib.AdaptiveAvgPooling2D(value.symbol, output_size=m.choice([1, (1, 1), 2])),
        ]
    )()


@operator()
def sequence(m):
    value = m.value((3,))
    kind = m.choice(["float32", value.dtype])
    lengths = m.variable(value.shape[1:2], kind, fresh=True, whole=value.shape[0] + 1)
    keys = {"use_sequence_length": True, "sequence_length": mx.sym.maximum(lengths, 1)} if m.chance(0.5) else {}
    name = m.choice(["SequenceMask", "SequenceLast", "SequenceReverse", "RNN"])
    if name != "RNN":
        return getattr(mx.sym, name)(value.symbol, **keys)
    hidden, mode = m.integer(1, 4), m.choice(["lstm", "gru", "rnn_tanh"])
    state = m.variable((1, value.shape[1], hidden), value.dtype)
    cell = {"state_cell": m.variable((1, value.shape[1], hidden), value.dtype)} if mode == "lstm" else {}
    cell.update(state=state, state_size=hidden, num_layers=1, mode=mode, state_outputs=m.chance(0.5))
    return mx.sym.RNN(value.symbol, **cell)


@operator()
def sampled(m):
    value = m.value((4,))
    n, _, h, w = value.shape
    affine = m.variable((n, 6), value.dtype)
    grid = mx.sym.GridGenerator(affine, transform_type="affine", target_shape=(h, w))
    return mx.sym.BilinearSampler(value.symbol, grid)
