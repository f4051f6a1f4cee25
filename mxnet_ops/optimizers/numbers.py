"""How MXNet reads the numbers that its operators get as text."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

MOST_DIGITS = 19  # after the point; MXNet ignores others
_ONE, _TEN, _TEN_TO_8 = np.float32(1), np.float32(10), np.float32(1e8)


@lru_cache(maxsize=4096)
def _read(text: str) -> float:
    mantissa, _, exponent = text.partition("e")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    if not (whole + fraction).isdecimal() or not (exponent.lstrip("+-") or "0").isdecimal():
        return float(np.float32(text))  # nan and inf
    value, fraction = np.float32(0), fraction[:MOST_DIGITS]
    for digit in whole:
        value = value * _TEN + np.float32(int(digit))
    if fraction:
        value = value + np.float32(float(int(fraction)) / float(10 ** len(fraction)))
    power, scale = abs(int(exponent or 0)), _ONE
    for factor in (_TEN_TO_8,) * (power // 8) + (_TEN,) * (power % 8):
        scale = scale * factor
    value = value / scale if exponent.startswith("-") else value * scale
    return float(-value if mantissa.startswith("-") else value)


def as_mxnet_reads(value: Any) -> float:
    """Return the number in single precision that an operator of MXNet gets for a scalar attribute.

    MXNet passes attributes as text and computes their value in single precision, digit by digit: the last bit of every
    fiftieth number, and of half of the numbers below 1e-4, is not that of the nearest one. Numbers in tuples, such as
    the learning rates of MXNet's `sgd`, are read by the C++ library and rounded correctly.

    Parameters
    ----------
    value : float
    """
    with np.errstate(over="ignore"):
        return _read(str(value))
