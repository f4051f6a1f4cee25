"""Makers of random operators of MXNet, with random attributes, rare ones too; some ask for what MXNet refuses."""

from __future__ import annotations

import math
from typing import Any, Callable

import mxnet as mx

Make = Callable[[Any], Any]
OPERATORS: dict[str, Make] = {}
WEIGHTS: dict[str, float] = {}
POSITIVE = "sqrt rsqrt log log2 log10 log1p reciprocal cbrt rcbrt gammaln".split()
UNARY = """relu sigmoid tanh softsign abs sign negative square sin cos erf expm1 exp arctan floor ceil round rint trunc
fix logical_not degrees radians sinh cosh arcsinh identity BlockGrad make_loss ones_like zeros_like Flatten
shape_array size_array hard_sigmoid""".split()
COMPARISONS = "equal not_equal greater greater_equal lesser lesser_equal".split()
BINARY = "add sub mul div maximum minimum hypot power mod".split()


def operator(weight: float = 1) -> Callable[[Make], Make]:
    """Register a maker: a function of a `random_symbols.Maker` that returns a symbol."""

    def register(make: Make) -> Make:
        OPERATORS[make.__name__] = make
        WEIGHTS[make.__name__] = weight
        return make

    return register


def positive(symbol: Any) -> Any:
    return mx.sym.abs(symbol) + 0.5


def sizes(m: Any, rank: int, low: int, high: int) -> Any:
    found = tuple(m.integer(low, high) for _ in range(rank))
    return found[0] if rank == 1 and m.chance(0.3) else found


@operator(4)
def unary(m):
    value, name = m.value(), m.choice(UNARY + POSITIVE)
    return getattr(mx.sym, name)(positive(value.symbol) if name in POSITIVE else value.symbol)


@operator(3)
def activation(m):
    act = m.choice(["relu", "sigmoid", "tanh", "softrelu", "softsign"])
    return mx.sym.Activation(m.value().symbol, act_type=act)


@operator(2)
def leaky(m):
    value = m.value((1, 2, 3, 4))
    act = m.choice(["leaky", "elu", "selu", "gelu", "prelu"])  # of rrelu MXNet does not write all in inference
    keys = {"slope": m.choice([0.1, 0.25, -0.3, 0.0])} if m.chance(0.5) else {}
    if act == "prelu" and m.chance(0.5):
        shape = m.choice([value.shape, value.shape[1:2] or value.shape, (1,)])
        keys["gamma"] = m.variable(shape, value.dtype, word="slope_gamma", fresh=True)
    return mx.sym.LeakyReLU(value.symbol, act_type=act, **keys)


@operator(2)
def scalar(m):
    symbol, number = m.value().symbol, m.number()
    return m.choice(
        [
            lambda: symbol + number,
            lambda: symbol - number,
            lambda: number - symbol,
            lambda: symbol * number,
            lambda: symbol / number,
            lambda: number / positive(symbol),
            lambda: positive(symbol) ** number,
            lambda: abs(number) ** symbol,
            lambda: symbol % (abs(number) + 1),
            lambda: symbol > number,
            lambda: symbol == number,
            lambda: mx.sym.maximum(symbol, number),
            lambda: mx.sym.minimum(symbol, number),
            lambda: mx.sym.smooth_l1(symbol, scalar=abs(number) + 0.5),
            lambda: mx.sym.clip(symbol, a_min=-abs(number), a_max=m.choice([abs(number), 6])),
            lambda: mx.sym.hypot(symbol, number),
        ]
    )()


@operator(4)
def elementwise(m):
    value, name = m.value(), m.choice(BINARY[:8])
    a, b = value.symbol, m.partner(value.shape, value.dtype)
    if m.chance(0.3):
        a, b = b, a
    if name == "power":
        a = positive(a)
    table = {"maximum": "_maximum", "minimum": "_minimum", "hypot": "_hypot", "power": "_power"}
    found = table.get(name, f"elemwise_{name}")
    function = getattr(mx.sym, found, None) or getattr(mx.sym._internal, found)
    return function(a, positive(b) if name == "div" else b)


@operator(3)
def broadcast(m):
    value, name = m.value(), m.choice(BINARY + COMPARISONS)
    shape = tuple(m.choice([size, size, 1]) for size in value.shape)
    a, b = value.symbol, m.partner(shape, value.dtype)
    if name in ("power", "div", "mod"):
        a, b = positive(a), positive(b)
    return getattr(mx.sym, f"broadcast_{name}")(*((b, a) if m.chance(0.3) else (a, b)))


@operator()
def several(m):
    value = m.value()
    count = m.choice([1, 2, 2, 3, 4])
    others = [m.partner(value.shape, value.dtype) for _ in range(count - 1)]
    rank = len(value.shape)
    return m.choice(
        [
            lambda: mx.sym.add_n(value.symbol, *others),
            lambda: mx.sym.stack(value.symbol, *others, axis=m.integer(-rank - 1, rank)),
            lambda: mx.sym.Concat(value.symbol, *others, dim=m.integer(-rank, rank - 1)),
        ]
    )()


@operator(2)
def concat(m):
    value = m.value((2, 3, 4))
    axis = m.integer(0, len(value.shape) - 1)
    parts = [value.symbol]
    for _ in range(m.integer(1, 3)):
        shape = list(value.shape)
        shape[axis] = m.integer(1, 4)
        parts.append(m.partner(tuple(shape), value.dtype))
    return mx.sym.Concat(*parts, dim=axis if m.chance(0.7) else axis - len(value.shape))


@operator(2)
def split(m):
    value = m.value((1, 2, 3, 4))
    axis = m.integer(0, len(value.shape) - 1)
    size = value.shape[axis]
    parts = m.choice([n for n in range(1, size + 1) if not size % n])
    squeezes = parts == size and len(value.shape) > 1 and m.chance(0.5)
    made = mx.sym.SliceChannel(value.symbol, num_outputs=parts, axis=axis, squeeze_axis=squeezes)
    return made if m.chance(0.7) else made[m.integer(0, parts - 1)]


@operator(2)
def cut(m):
    value = m.value((1, 2, 3, 4))
    shape, rank = value.shape, len(value.shape)
    axis = m.integer(-rank, rank - 1)
    begin = tuple(m.choice([None, 0, size // 2, -1]) for size in shape[: m.integer(1, rank)])
    end = tuple(m.choice([None, size, -1]) for size in shape[: len(begin)])
    step = tuple(m.choice([None, 1, 2, -1]) for _ in begin)
    like = tuple(m.integer(1, size) for size in shape)
    return m.choice(
        [
            lambda: mx.sym.slice_axis(value.symbol, axis=axis, begin=m.choice([0, -1]), end=None),
            lambda: mx.sym.slice(value.symbol, begin=begin, end=end, **({"step": step} if m.chance(0.5) else {})),
            lambda: mx.sym.slice_like(value.symbol, m.variable(like, value.dtype)),
            lambda: mx.sym.reverse(value.symbol, axis=axis % rank),
        ]
    )()


@operator()
def crop(m):
    value = m.value((4,))
    h, w = (m.integer(1, size) for size in value.shape[2:])
    keys = {"center_crop": True} if m.chance(0.5) else {"offset": (0, 0)} if m.chance(0.5) else {}
    if m.chance(0.5):
        return mx.sym.Crop(value.symbol, num_args=1, h_w=(h, w), **keys)
    like = m.variable((*value.shape[:2], h, w), value.dtype)
    return mx.sym.Crop(value.symbol, like, num_args=2, **keys)


@operator()
def pad(m):
    value = m.value((4, 5))
    width = (0, 0, 0, 0, *(m.integer(0, min(2, value.shape[2 + i // 2] - 1)) for i in range(2 * len(value.shape) - 4)))
    keys = {"constant_value": m.number()} if m.chance(0.5) else {}
    return mx.sym.Pad(value.symbol, mode=m.choice(["constant", "edge", "reflect"]), pad_width=width, **keys)


@operator(3)
def moved(m):
    value = m.value((1, 2, 3, 4, 5))
    rank = len(value.shape)
    axes = list(range(rank))
    m.rng.shuffle(axes)
    return m.choice(
        [
            lambda: mx.sym.transpose(value.symbol, axes=tuple(axes)),
            lambda: mx.sym.transpose(value.symbol),
            lambda: mx.sym.SwapAxis(value.symbol, dim1=axes[0], dim2=axes[-1]),
            lambda: mx.sym.tile(value.symbol, reps=sizes(m, m.integer(1, rank + 1), 1, 3)),
            lambda: mx.sym.repeat(value.symbol, repeats=m.integer(1, 3), **m.choice([{}, {"axis": axes[0]}])),
            lambda: mx.sym.Reshape(value.symbol, shape=m.choice([(-1,), (0, -1), (-2,), (-3, -2), (0, 0, -1), (-1, 1)])),
            lambda: mx.sym.expand_dims(value.symbol, axis=m.integer(-rank, rank)),
            lambda: mx.sym.squeeze(value.symbol),
            lambda: mx.sym.depth_to_space(value.symbol, block_size=m.integer(1, 2)),
            lambda: mx.sym.space_to_depth(value.symbol, block_size=m.integer(1, 2)),
            lambda: mx.sym.diag(value.symbol),
            lambda: mx.sym.cumsum(value.symbol, axis=axes[0]),
        ]
    )()


@operator(2)
def reduce(m):
    value = m.value((1, 2, 3, 4))
    rank = len(value.shape)
    name = m.choice(["sum", "mean", "max", "min", "prod", "nansum", "norm", "argmax", "sum_axis"])
    axis = m.choice([None, m.integer(-rank, rank - 1), tuple(m.rng.sample(range(rank), m.integer(1, rank)))])
    keys: dict[str, Any] = {} if axis is None else {"axis": axis}
    if m.chance(0.3):
        keys["keepdims"] = True
    if m.chance(0.2) and name not in ("norm", "argmax"):
        keys["exclude"] = True
    return getattr(mx.sym, name)(value.symbol, **keys)


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
def cast(m):
    value = m.value()
    dtype = m.choice(["float32", "float32", "float64", "float16", "int32", "int64"])
    return mx.sym.Cast(value.symbol, dtype=dtype)


@operator()
def constant(m):
    shape = m.random_shape((1, 2, 3, 4))
    return m.choice(
        [
            lambda: mx.sym.zeros(shape=shape, dtype=m.dtype),
            lambda: mx.sym.ones(shape=shape, dtype=m.dtype),
            lambda: mx.sym.arange(0, shape[0]),
            lambda: mx.sym.full(shape, 2.5, dtype=m.dtype),
        ]
    )()


@operator(1.5)
def indexed(m):
    value = m.value((1, 2, 3))
    shape, rank = value.shape, len(value.shape)
    kind = m.choice(["float32", "int32", value.dtype])
    index = m.variable((m.integer(1, 4),), kind, fresh=True, whole=shape[0])
    rows = m.variable(shape[:1], kind, fresh=True, whole=shape[-1])
    return m.choice(
        [
            lambda: mx.sym.take(value.symbol, index),
            lambda: mx.sym.Embedding(index, input_dim=shape[0], output_dim=m.integer(1, 5)),
            lambda: mx.sym.one_hot(index, depth=shape[0] + 1),
            lambda: mx.sym.pick(value.symbol, rows, axis=rank - 1),
            lambda: mx.sym.where(m.variable(shape, value.dtype, fresh=True, whole=2), value.symbol, m.partner(shape, value.dtype)),
            lambda: mx.sym.sort(value.symbol, axis=m.integer(0, rank - 1)),
            lambda: mx.sym.topk(value.symbol, k=1, ret_typ=m.choice(["value", "indices", "both"])),
        ]
    )()


@operator(1.5)
def product(m):
    value = m.value((2, 3))
    shape = value.shape
    other = m.partner((*shape[:-2], shape[-1], m.integer(1, 4)), value.dtype)
    if len(shape) == 2:
        return mx.sym.dot(value.symbol, other)
    return m.choice([mx.sym.batch_dot, mx.sym.linalg_gemm2])(value.symbol, other)


@operator()
def widened(m):
    value = m.value((2, 3, 4))
    axis = m.integer(0, len(value.shape) - 1)
    thin = mx.sym.mean(value.symbol, axis=axis, keepdims=True)
    return m.choice(
        [
            lambda: mx.sym.broadcast_to(thin, shape=value.shape),
            lambda: mx.sym.broadcast_like(thin, value.symbol),
            lambda: mx.sym.broadcast_axis(thin, axis=axis, size=m.integer(1, 4)),
            lambda: mx.sym.reshape_like(value.symbol, value.symbol),
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
    return mx.sym.RNN(value.symbol, state=state, state_size=hidden, num_layers=1, mode=mode, state_outputs=m.chance(0.5), **cell)


@operator()
def sampled(m):
    value = m.value((4,))
    n, _, h, w = value.shape
    affine = m.variable((n, 6), value.dtype)
    grid = mx.sym.GridGenerator(affine, transform_type="affine", target_shape=(h, w))
    return mx.sym.BilinearSampler(value.symbol, grid)
