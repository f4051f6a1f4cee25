"""Which of MXNet's operators become grafted ones, and how their attributes read there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Callable, Optional, Union

from clgraft.core import ProblemError
from clgraft.mxnet_ops.attributes import TRUE
from clgraft.mxnet_ops.operator import find_operator

Translated = tuple[str, dict[str, str]]  # op_type and attributes of Custom


class Kept(Exception):
    """An operator is left alone; the text is the reason."""


@dataclass(frozen=True)
class Node:
    """An operator of a model, as `select` sees it."""

    name: str
    operator: str
    attributes: Mapping[str, str]


Select = Optional[Union[Callable[[Node], bool], Iterable[str]]]


def is_selected(select: Select, node: Node) -> bool:
    """Whether a node is to be replaced: by a function, or by patterns (``*`` and ``?``) of names or operators."""
    if select is None:
        return True
    if callable(select):
        return bool(select(node))
    patterns = (select,) if isinstance(select, str) else tuple(select)
    return any(fnmatchcase(node.name, p) or fnmatchcase(node.operator, p) for p in patterns)


def _pick(attributes: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: attributes[name] for name in names if name in attributes}


def _convolution(attributes: Mapping[str, str], weight: tuple[int, ...] | None) -> Translated:
    groups, filters = int(attributes.get("num_group", "1")), int(attributes["num_filter"])
    # without the weight's shape a group per filter is the sign; ocl_depthwise_conv computes any groups
    depthwise = groups > 1 and filters % groups == 0 and (weight[1] == 1 if weight else groups == filters)
    return "ocl_depthwise_conv" if depthwise else "ocl_conv", dict(attributes)


def _plain(attributes: Mapping[str, str], name: str, **more: str) -> Translated:
    return "ocl_activation", {"act_type": name, **more}


def _leaky(attributes: Mapping[str, str]) -> Translated:
    act_type = attributes.get("act_type", "leaky")
    if act_type == "rrelu":
        return _plain(attributes, act_type, **_pick(attributes, "lower_bound", "upper_bound"))
    if act_type == "selu":
        raise Kept("MXNet's gradient of selu is not its derivative, ocl_activation's is")
    return _plain(attributes, act_type, **_pick(attributes, "slope"))


# operators whose attributes read the same in the grafted one
SAME = {
    "BatchNorm": "ocl_batchnorm",
    "Deconvolution": "ocl_deconv",
    "Dropout": "ocl_dropout",
    "FullyConnected": "ocl_fully_connected",
    "Pooling": "ocl_pooling",
}
# operators whose attributes read otherwise
READERS: dict[str, Callable[[Mapping[str, str]], Translated]] = {
    "Activation": lambda given: _plain(given, given["act_type"]),
    "LeakyReLU": _leaky,
    "add_n": lambda given: (
        "ocl_eltwise",
        {"operation": "add", "num_args": given["num_args"], "broadcast": "False"},
    ),
    "clip": lambda given: _plain(given, "clip", **_pick(given, "a_min", "a_max")),
    "hard_sigmoid": lambda given: _plain(given, "hard_sigmoid", **_pick(given, "alpha", "beta")),
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
}
# attributes that may be given by position, after the arrays
POSITIONAL = {
    "clip": ("a_min", "a_max"),
    "hard_sigmoid": ("alpha", "beta"),
    "Activation": ("act_type",),
    "LeakyReLU": ("act_type", "slope"),
    "Pooling": ("kernel", "pool_type", "global_pool"),
    "Dropout": ("p", "mode", "axes", "cudnn_off"),
}


def translate(node: Node, weight: tuple[int, ...] | None = None) -> Translated:
    """Give ``op_type`` and attributes of the grafted operator that computes the same.

    Parameters
    ----------
    node : Node
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
    elif name in READERS:
        found = READERS[name](attributes)
    elif name in UNARY:
        found = _plain(attributes, UNARY[name])
    elif name in BINARY:
        found = "ocl_eltwise", {"operation": BINARY[name], "broadcast": str(name.startswith("broadcast"))}
    else:
        raise Kept("no grafted operator computes it")
    try:
        find_operator(*found)
    except ProblemError as error:
        raise Kept(str(error)) from None
    return found


def is_translatable(operator: str) -> bool:
    """Whether some grafted operator computes what an operator of MXNet does, for suitable attributes."""
    name = ALIASES.get(operator, operator)
    return name == "Convolution" or any(name in table for table in (SAME, READERS, UNARY, BINARY))


def is_true(text: Any) -> bool:
    """Whether an attribute says yes."""
    return str(text) in TRUE
