"""Images of another size."""

from __future__ import annotations

from collections.abc import Sequence

from clgraft.core.nn import resizing
from clgraft.plugins.torch import operators
from clgraft.plugins.torch.lowering.builder import Builder, lowers
from clgraft.plugins.torch.lowering.values import NotLowered, Operand

KINDS = {  # mode -> method, coordinates, rounding
    "nearest": ("nearest", "asymmetric", "floor"),
    "nearest-exact": ("nearest", "half_pixel", "prefer_ceil"),
    "linear": ("linear", "half_pixel", "prefer_floor"),
}


def _words(pixels: Sequence[int], size: Sequence[int], mode: str, align: bool) -> tuple[str, str, str]:
    """Return the method, the coordinates and the rounding of a mode."""
    if min(*pixels, *size) < 1:
        raise NotLowered(f"[torch] got images of {list(pixels)} pixels to resize to {list(size)}, expected pixels")
    method, coordinates, rounding = KINDS[mode]
    return method, "align_corners" if align and mode == "linear" else coordinates, rounding


@lowers(operators.resize)
def resize(build: Builder, x: Operand, size: Sequence[int], mode: str, align: bool) -> Operand:
    """Return images of a size."""
    words = _words(x.shape[2:], size, mode, align)
    return build.taken(resizing.resized(build.nn, build.given(x), size, *words))  # type: ignore[no-any-return]


@lowers(operators.resize_backward)
def resize_backward(build: Builder, dy: Operand, shape: Sequence[int], mode: str, align: bool) -> Operand:
    """Return the gradient of `resize`."""
    words = _words(shape[2:], dy.shape[2:], mode, align)
    found = resizing.resized_gradient(build.nn, build.given(dy), shape, *words)
    return build.taken(found)  # type: ignore[no-any-return]
