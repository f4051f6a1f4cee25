"""Images of another size."""

from __future__ import annotations

from collections.abc import Sequence

from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.operators.interpolation import InterpolationProblem


def resized(
    build: Build,
    x: Tensor,
    size: Sequence[int],
    method: str,
    coordinates: str,
    rounding: str = "prefer_floor",
) -> Tensor:
    """Return images (n, c, ...) of a size; the words are those of `InterpolationProblem`."""
    return build.add(interpolation(x.shape, size, method, coordinates, rounding, x.dtype), x)[0]


def resized_gradient(
    build: Build, dy: Tensor, shape: Sequence[int], method: str, coordinates: str, rounding: str = "prefer_floor"
) -> Tensor:
    """Return the gradient of images of a shape that were resized."""
    problem = interpolation(shape, dy.shape[2:], method, coordinates, rounding, dy.dtype)
    return build.add(problem.with_direction("backward"), dy)[0]


def interpolation(
    shape: Sequence[int], size: Sequence[int], method: str, coordinates: str, rounding: str, dtype: str
) -> InterpolationProblem:
    """Return the problem that resizes images of a shape."""
    batch, channels, *pixels = shape
    return InterpolationProblem(
        "forward", method, batch, channels, tuple(pixels), tuple(size), coordinates, rounding, dtype
    )


def zoomed(size: int, shrink: int, zoom: int) -> int:
    """Return the number of pixels when every `shrink`-th is kept, and then `zoom - 1` are put between two of them."""
    return (size - 1) // shrink * zoom + 1
