"""The table of MXNet's operators that become clgraft's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clgraft.core import ProblemError
from clgraft.mxnet_ops.engine.operator import find_operator
from clgraft.mxnet_ops.operators.inner import INNER, Inner
from clgraft.mxnet_ops.swap.attributes import READERS, TYPELESS, Kept, Translated, plain


@dataclass(frozen=True)
class ModelOperator:
    """An operator of a model, as `select` sees it."""

    name: str
    operator: str
    attributes: Mapping[str, str]


def _convolution(attributes: Mapping[str, str], weight: tuple[int, ...] | None) -> Translated:
    groups, filters = int(attributes.get("num_group", "1")), int(attributes["num_filter"])
    # without the weight's shape a group per filter is the sign; ocl_depthwise_conv computes any groups
    inner = -1 if attributes.get("layout", "NCHW").endswith("C") else 1
    depthwise = groups > 1 and filters % groups == 0 and (weight[inner] == 1 if weight else groups == filters)
    return "ocl_depthwise_conv" if depthwise else "ocl_conv", dict(attributes)


# operators whose attributes read the same in clgraft's
SAME = {
    "BatchNorm": "ocl_batchnorm",
    "Deconvolution": "ocl_deconv",
    "Dropout": "ocl_dropout",
    "FullyConnected": "ocl_fully_connected",
    "GroupNorm": "ocl_group_norm",
    "InstanceNorm": "ocl_instance_norm",
    "L2Normalization": "ocl_l2_normalization",
    "LRN": "ocl_lrn",
    "LayerNorm": "ocl_layer_norm",
    "_contrib_BilinearResize2D": "ocl_bilinear_resize",
    "softmax_cross_entropy": "ocl_softmax_cross_entropy",
}
ELEMENTWISE = "sigmoid tanh softsign abs sign negative square sqrt rsqrt reciprocal sin cos erf expm1 log1p exp log"
UNARY = {
    "relu": "relu_keep_nan",
    **{name: name for name in ELEMENTWISE.split()},
}
BINARY = {
    "elemwise_add": "add",
    "elemwise_sub": "subtract",
    "elemwise_mul": "multiply",
    "elemwise_div": "divide",
    "_maximum": "maximum",
    "_minimum": "minimum",
    "_power": "power",
    "_hypot": "hypot",
    "broadcast_add": "add",
    "broadcast_sub": "subtract",
    "broadcast_mul": "multiply",
    "broadcast_div": "divide",
    "broadcast_maximum": "maximum",
    "broadcast_minimum": "minimum",
    "broadcast_power": "power",
    "broadcast_hypot": "hypot",
}
# other names of the same operators, as user code calls them
ALIASES = {
    "_plus": "elemwise_add",
    "_Plus": "elemwise_add",
    "_add": "elemwise_add",
    "_minus": "elemwise_sub",
    "_Minus": "elemwise_sub",
    "_sub": "elemwise_sub",
    "_mul": "elemwise_mul",
    "_Mul": "elemwise_mul",
    "_div": "elemwise_div",
    "_Div": "elemwise_div",
    "_Maximum": "_maximum",
    "_Minimum": "_minimum",
    "_Power": "_power",
    "_Hypot": "_hypot",
    "broadcast_plus": "broadcast_add",
    "broadcast_minus": "broadcast_sub",
    "ElementWiseSum": "add_n",
    "_sum": "add_n",
    "concat": "Concat",
    "split": "SliceChannel",
    "pad": "Pad",
    "crop": "slice",
    "SwapAxes": "SwapAxis",
    "swapaxes": "SwapAxis",
    "Softmax": "SoftmaxOutput",
    "sum_axis": "sum",
    "max_axis": "max",
    "min_axis": "min",
    "_rnn_param_concat": "Concat",
    "identity": "_copy",
    "stop_gradient": "BlockGrad",
    "flatten": "Flatten",
    "reshape": "Reshape",
    "cast": "Cast",
    "flip": "reverse",
    "broadcast_axes": "broadcast_axis",
    "_zeros_without_dtype": "_zeros",
}
# operators that MXNet has for real numbers alone; none of the others says what its inputs are
REAL_ONLY = {"Convolution", *SAME, *READERS}
# attributes that may be given by position, after the arrays
POSITIONAL = {
    "clip": ("a_min", "a_max"),
    "hard_sigmoid": ("alpha", "beta"),
    "Activation": ("act_type",),
    "LeakyReLU": ("act_type", "slope"),
    "Pooling": ("kernel", "pool_type", "global_pool"),
    "Dropout": ("p", "mode", "axes", "cudnn_off"),
    "SliceChannel": ("num_outputs", "axis", "squeeze_axis"),
    "split": ("num_outputs", "axis", "squeeze_axis"),
    "slice_axis": ("axis", "begin", "end"),
    "transpose": ("axes",),
    "tile": ("reps",),
    **{name: ("axis", "temperature") for name in ("softmax", "log_softmax", "softmin")},
    "repeat": ("repeats", "axis"),
    **{name: ("axis", "keepdims", "exclude") for name in ("sum", "mean", "max", "min")},
}


def translate(node: ModelOperator, weight: tuple[int, ...] | None = None) -> Translated:
    """Return ``op_type`` and attributes of the clgraft operator that computes the same.

    Parameters
    ----------
    node : ModelOperator
    weight : tuple of int, optional
        A convolution's weight's shape, where it is known.

    Raises
    ------
    Kept
        With the reason, if there is none.
    """
    name, attributes = ALIASES.get(node.operator, node.operator), node.attributes
    if name == "Convolution":
        found = _convolution(attributes, weight)
    elif name in SAME:
        found = SAME[name], dict(attributes)
    elif name in READERS or name in TYPELESS:
        found = {**READERS, **TYPELESS}[name](attributes)
    elif name in UNARY:
        found = plain(attributes, UNARY[name])
    elif name in BINARY:
        found = "ocl_eltwise", {"operation": BINARY[name], "broadcast": str(name.startswith("broadcast"))}
    else:
        raise Kept("no grafted operator computes it")
    try:
        find_operator(*found)
    except ProblemError as error:
        raise Kept(str(error)) from None
    return found


def translate_inner(node: ModelOperator) -> Translated:
    """Return ``op_type`` and attributes of the operator of regions that computes the same.

    Raises
    ------
    Kept
        With the reason, if its attributes are others than it takes.
    """
    name = plain_name(node.operator)
    if name not in INNER:
        raise Kept("no operator of clgraft computes it")
    given = {key: text for key, text in node.attributes.items() if not key.startswith("__")}
    found = Inner.op_type, {"function": name, **given}
    try:
        find_operator(*found)
    except ProblemError as error:
        raise Kept(str(error)) from None
    return found


def is_translatable(operator: str) -> bool:
    """Return whether some clgraft operator computes what an operator of MXNet does, for suitable attributes."""
    name = ALIASES.get(operator, operator)
    return name in REAL_ONLY or is_typeless(name)


def is_real(operator: str) -> bool:
    """Return whether MXNet computes an operator of real numbers alone."""
    name = plain_name(operator)
    return name in REAL_ONLY or (name in INNER and INNER[name].real)


def plain_name(operator: str) -> str:
    """Return the one name of an operator of MXNet that has several."""
    return ALIASES.get(operator, operator)


def is_typeless(operator: str) -> bool:
    """Return whether an operator of MXNet may as well stand for whole numbers, such as indices and shapes."""
    name = plain_name(operator)
    return name in TYPELESS or name in UNARY or name in BINARY
