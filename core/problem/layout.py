"""Layouts of tensors with channels: channels first, (batch, channels, spatial...), and channels last.

Channels last is (batch, spatial..., channels) for tensors and (first, kernel..., second) for weights whose shape is
(first, second, kernel...) channels first: MXNet calls that OHWI, and it is the memory of PyTorch's channels-last
weights. The words are those of two spatial axes and serve one and three, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from clgraft.core.problem.text import Choice

FIRST, LAST = "nchw", "nhwc"
LAYOUTS = (FIRST, LAST)
# the word of a problem's text
LAYOUT = Choice("layout", {f"layout={layout}": layout for layout in LAYOUTS}, FIRST)


def laid_out(layout: str, outer: int, channels: int, spatial: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a tensor or of weights with their axis of channels where a layout has it."""
    return (outer, *spatial, channels) if layout == LAST else (outer, channels, *spatial)


def channels_first(array: np.ndarray) -> np.ndarray:
    """Return an array in channels last as a view with channels first; vectors stay."""
    return array if array.ndim < 3 else np.moveaxis(array, -1, 1)


def channels_last(array: np.ndarray) -> np.ndarray:
    """Return an array with channels first as a contiguous one in channels last; vectors stay."""
    return array if array.ndim < 3 else np.ascontiguousarray(np.moveaxis(array, 1, -1))


def with_channels_first(
    problem: Any, arrays: Mapping[str, np.ndarray], compute: Callable[[Any, Mapping[str, np.ndarray]], np.ndarray]
) -> np.ndarray:
    """Return the result of a function that knows channels first only, in the layout of a problem.

    Parameters
    ----------
    problem : Problem
        With a `layout`.
    arrays : mapping of str to numpy.ndarray
        The inputs by name, in the problem's layout.
    compute : callable
        From a problem with channels first and its inputs to its result.
    """
    if problem.layout == FIRST:
        return compute(problem, arrays)
    turned = {name: channels_first(array) for name, array in arrays.items()}
    return channels_last(compute(replace(problem, layout=FIRST), turned))
