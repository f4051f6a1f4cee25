"""Translates attributes of MXNet's operators to those of the clgraft's that compute the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Callable

from clgraft.core.nn import element_functions
from clgraft.mxnet_ops.engine.attributes import TRUE, Attributes
from clgraft.mxnet_ops.operators.activation import FUNCTIONS

Given = Mapping[str, str]
Translated = tuple[str, dict[str, str]]  # op_type and attributes of Custom


class Kept(Exception):
    """An operator is left alone; the text is the reason."""


def pick(given: Given, *names: str) -> dict[str, str]:
    """Return the attributes of these names, where there are any."""
    return {name: given[name] for name in names if name in given}


def plain(given: Given, name: str, **more: str) -> Translated:
    """Return an activation."""
    return "ocl_activation", {"act_type": name, **more}


def _leaky(given: Given) -> Translated:
    act_type = given.get("act_type", "leaky")
    if act_type == "rrelu":
        return plain(given, act_type, **pick(given, "lower_bound", "upper_bound"))
    return plain(given, act_type, **pick(given, "slope"))


def _scalar(given: Given) -> float:
    return float(given.get("scalar", "1"))


def _with_number(operation: str) -> Callable[[Given], Translated]:
    def translated(given: Given) -> Translated:
        scalars = element_functions.with_number(operation, _scalar(given)).scalars
        return plain(given, "linear", **{name: repr(value) for name, value in scalars.items()})

    return translated


def _power(given: Given) -> Translated:
    exponent = _scalar(given)
    exact = element_functions.exact_power_name(exponent)  # faster
    return plain(given, exact) if exact in FUNCTIONS else plain(given, "power", power=repr(exponent))


def _power_of_scalar(given: Given) -> Translated:
    base = _scalar(given)
    if base <= 0:
        raise Kept(f"it raises {base}, which has no logarithm, to powers")
    return plain(given, "exp", scale=repr(element_functions.exponential(base, 1.0, 0.0).scalars["scale"]))


def _divided(given: Given) -> Translated:
    if _scalar(given) == 0:
        raise Kept("it divides by 0")
    return _with_number("divide")(given)


def _smooth_l1(given: Given) -> Translated:
    (squared,) = element_functions.smooth_l1(_scalar(given)).scalars.values()
    return plain(given, "smooth_l1", sigma_squared=repr(squared))


def _joined(given: Given) -> Translated:
    return "ocl_concat", {"num_args": given["num_args"], **pick(given, "dim")}


def _stacked(given: Given) -> Translated:
    return "ocl_concat", {"num_args": given["num_args"], "dim": given.get("axis", "0"), "new_axis": "True"}


def _split(given: Given) -> Translated:
    if given["num_outputs"] == "1":
        raise Kept("its one output has the name of one of several")
    return "ocl_split", pick(given, "num_outputs", "axis", "squeeze_axis")


def _upsampled(given: Given) -> Translated:
    if given.get("sample_type") != "nearest" or given.get("num_args", "1") != "1":
        raise Kept("it is not nearest upsampling of one input")
    return "ocl_repeat", {"scale": given["scale"]}


def _repeated(given: Given) -> Translated:
    if given.get("axis", "None") == "None":
        raise Kept("it flattens its input")
    return "ocl_repeat", {"times": given["repeats"], "axis": given["axis"]}


def _reduced(name: str) -> Callable[[Given], Translated]:
    return lambda given: ("ocl_reduce", {"operation": name, **pick(given, "axis", "exclude", "keepdims")})


def _pooled(given: Given) -> Translated:
    attributes = Attributes("ocl_pooling", given)
    kernel, pad = attributes.sizes("kernel", ()), attributes.sizes("pad", ())
    if given.get("global_pool", "False") not in TRUE and any(p >= k for p, k in zip(pad, kernel)):
        raise Kept(f"its padding {pad} is not less than its kernel {kernel}")
    return "ocl_pooling", dict(given)


def _averaged(given: Given) -> Translated:
    size = Attributes("ocl_adaptive_average_pooling", given).sizes("output_size", (1,), low=1)
    if any(count != 1 for count in size):
        return "ocl_adaptive_average_pooling", {"output_size": str(size * 2 if len(size) == 1 else size)}
    return "ocl_pooling", {"global_pool": "True", "pool_type": "avg"}


def _synchronous(given: Given) -> Translated:
    if given.get("ndev", "1") != "1":
        raise Kept("its statistics are those of several devices")
    names = ("eps", "momentum", "fix_gamma", "use_global_stats", "output_mean_var")
    return "ocl_batchnorm", pick(given, *names)


def _logarithm(base: float) -> Callable[[Given], Translated]:
    factor = element_functions.logarithm(base, 1.0, 0.0).scalars["factor"]
    return lambda given: plain(given, "log", factor=repr(factor))


def _softmax(name: str) -> Callable[[Given], Translated]:
    return lambda given: ("ocl_softmax", {"function": name, **given})


def _softmax_activation(given: Given) -> Translated:
    return "ocl_softmax", {"axis": "1" if given.get("mode") == "channel" else "-1"}


def _softmax_output(given: Given) -> Translated:
    if given.get("out_grad", "False") in TRUE:
        raise Kept("MXNet multiplies its gradient by the output itself, not by the output's gradient")
    return "ocl_softmax_output", dict(given)


def _regression(name: str) -> Callable[[Given], Translated]:
    return lambda given: ("ocl_regression_output", {"loss": name, **given})


# what MXNet computes with real numbers alone
READERS: dict[str, Callable[[Given], Translated]] = {
    "Activation": lambda given: plain(given, given["act_type"]),
    "LeakyReLU": _leaky,
    "hard_sigmoid": lambda given: plain(given, "hard_sigmoid", **pick(given, "alpha", "beta")),
    "Pooling": _pooled,
    "_contrib_AdaptiveAvgPooling2D": _averaged,
    "_contrib_SyncBatchNorm": _synchronous,
    "softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"),
    "softmin": _softmax("softmin"),
    "SoftmaxActivation": _softmax_activation,
    "SoftmaxOutput": _softmax_output,
    "LinearRegressionOutput": _regression("linear"),
    "LogisticRegressionOutput": _regression("logistic"),
    "MAERegressionOutput": _regression("mae"),
    "Crop": lambda given: ("ocl_crop", dict(given)),
    "Pad": lambda given: ("ocl_pad", pick(given, "mode", "pad_width", "constant_value")),
    "UpSampling": _upsampled,
}
# what MXNet computes with elements of any type, whole numbers too
TYPELESS: dict[str, Callable[[Given], Translated]] = {
    "add_n": lambda given: ("ocl_eltwise", {"operation": "add", "num_args": given["num_args"], "broadcast": "False"}),
    "clip": lambda given: plain(given, "clip", **pick(given, "a_min", "a_max")),
    "smooth_l1": _smooth_l1,
    "log2": _logarithm(2),
    "log10": _logarithm(10),
    "Concat": _joined,
    "stack": _stacked,
    "_plus_scalar": _with_number("add"),
    "_minus_scalar": _with_number("subtract"),
    "_rminus_scalar": _with_number("subtract_from"),
    "_mul_scalar": _with_number("multiply"),
    "_div_scalar": _divided,
    "_rdiv_scalar": lambda given: plain(given, "quotient", factor=repr(_scalar(given))),
    "_maximum_scalar": lambda given: plain(given, "at_least", level=repr(_scalar(given))),
    "_minimum_scalar": lambda given: plain(given, "at_most", level=repr(_scalar(given))),
    "_power_scalar": _power,
    "_rpower_scalar": _power_of_scalar,
    "SliceChannel": _split,
    "slice_axis": lambda given: ("ocl_slice", pick(given, "axis", "begin", "end")),
    "slice": lambda given: ("ocl_slice", pick(given, "begin", "end", "step")),
    "transpose": lambda given: ("ocl_transpose", pick(given, "axes")),
    "SwapAxis": lambda given: ("ocl_transpose", {"swap": f"({given.get('dim1', '0')}, {given.get('dim2', '0')})"}),
    "depth_to_space": lambda given: ("ocl_depth_to_space", pick(given, "block_size")),
    "space_to_depth": lambda given: ("ocl_depth_to_space", {**pick(given, "block_size"), "inverse": "True"}),
    "tile": lambda given: ("ocl_repeat", {"times": given["reps"], "whole": "True"}),
    "repeat": _repeated,
    **{name: _reduced(name) for name in ("sum", "mean", "max", "min")},
}
