"""Makers of random operators of MXNet, with random attributes, rare ones too; some ask for what MXNet refuses.

Here are functions of elements and operators that move and fold them; layers are in `random_layers`.
"""

from __future__ import annotations

from typing import Any, Callable

import mxnet as mx

Make = Callable[[Any], Any]
OPERATORS: dict[str, Make] = {}
WEIGHTS: dict[str, float] = {}
POSITIVE = ["sqrt", "rsqrt", "log", "log2", "log10", "log1p", "reciprocal", "cbrt", "rcbrt", "gammaln"]
UNARY = [
    "relu",
    "sigmoid",
    "tanh",
    "softsign",
    "abs",
    "sign",
    "negative",
    "square",
    "sin",
    "cos",
    "erf",
    "expm1",
    "exp",
    "arctan",
    "floor",
    "ceil",
    "round",
    "rint",
    "trunc",
    "fix",
    "logical_not",
    "degrees",
    "radians",
    "sinh",
    "cosh",
    "arcsinh",
    "identity",
    "BlockGrad",
    "make_loss",
    "ones_like",
    "zeros_like",
    "Flatten",
    "shape_array",
    "size_array",
    "hard_sigmoid",
]
COMPARISONS = ["equal", "not_equal", "greater", "greater_equal", "lesser", "lesser_equal"]
BINARY = ["add", "sub", "mul", "div", "maximum", "minimum", "hypot", "power", "mod"]


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
    if act == "elu" and keys.get("slope", 0) < 0:
        keys["slope"] = 0.3  # MXNet's gradient takes the sign of x from the result, which has the other one then
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
            lambda: mx.sym.Reshape(
                value.symbol, shape=m.choice([(-1,), (0, -1), (-2,), (-3, -2), (0, 0, -1), (-1, 1)])
            ),
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
            lambda: mx.sym.where(
                m.variable(shape, value.dtype, fresh=True, whole=2), value.symbol, m.partner(shape, value.dtype)
            ),
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
