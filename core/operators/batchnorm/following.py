"""The activations that a batch norm computes in its own loops, without memory traffic of their own.

`core.nn.element_functions` says what they mean, and has them from here: this package is below it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Following:
    """An activation of the norm's value.

    Attributes
    ----------
    value : str
        Of ``x`` and the scalars.
    slope : str
        The gradient's factor on dy, of ``x``, the value ``y`` and the scalars.
    scalars : tuple of str
    """

    value: str
    slope: str
    scalars: tuple[str, ...] = ()


ACTIVATIONS = {
    "relu": Following("x > 0 ? x : 0", "y > 0 ? 1 : 0"),
    "relu_keep_nan": Following("x < 0 ? 0 : x", "isnan(y) ? y : y > 0 ? 1 : 0"),
    "leaky_relu": Following("x > 0 ? x : slope * x", "x <= 0 ? slope : 1", ("slope",)),
    # Caffe's, whose gradient at NaN is 0
    "leaky_relu_stop_nan": Following("x > 0 ? x : slope * x", "x > 0 ? 1 : x <= 0 ? slope : 0", ("slope",)),
    "clip": Following("x < low ? low : x > high ? high : x", "x < low || x > high ? 0 : 1", ("low", "high")),
}
