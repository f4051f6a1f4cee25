"""Norms over some axes as pointwise problems: by mean and variance (layer, instance), and by Euclidean length."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from clgraft.core.operators.pointwise import PointwiseProblem, Reduction


def kept_shape(shape: Sequence[int], folded: Collection[int]) -> tuple[int, ...]:
    """Return a shape with the folded axes as 1."""
    return tuple(1 if axis in folded else size for axis, size in enumerate(shape))


@dataclass(frozen=True)
class MomentNorm:
    """(x - mean) / sqrt(variance + eps) * gamma + beta, mean and variance over some axes.

    Layer norm is Ba et al. 2016, instance norm Ulyanov et al. 2016.

    Parameters
    ----------
    shape : tuple of int
        Of x.
    folded : tuple of int
        Axes of mean and variance.
    gamma : tuple of int
        Shape of gamma and beta; it broadcasts to that of x.
    dtype : str

    Notes
    -----
    Scalars: ``share``, 1 / the elements of a mean, and ``eps``. The variance is biased, and taken from differences to
    the mean in a pass of its own.
    """

    shape: tuple[int, ...]
    folded: tuple[int, ...]
    gamma: tuple[int, ...]
    dtype: str = "float32"

    @property
    def kept(self) -> tuple[int, ...]:
        """Shape of mean and variance."""
        return kept_shape(self.shape, self.folded)

    def _problem(self, shapes: Sequence[Sequence[int]], text: str, folds: Sequence, scalars: str) -> PointwiseProblem:
        reductions = tuple(None if fold is None else Reduction("sum", shape=tuple(fold)) for fold in folds)
        inputs = tuple(tuple(shape) for shape in shapes)
        return PointwiseProblem(inputs, text, reductions, tuple(scalars.split()), dtype=self.dtype)

    def mean(self) -> PointwiseProblem:
        """Return x -> mean; scalar share."""
        return self._problem((self.shape,), "y0 = x0 * share;", (self.kept,), "share")

    def variance(self) -> PointwiseProblem:
        """Return x mean -> variance; scalar share."""
        text = "real d = x0 - x1; y0 = d * d * share;"
        return self._problem((self.shape, self.kept), text, (self.kept,), "share")

    def forward(self) -> PointwiseProblem:
        """Return x mean variance gamma beta -> y; scalar eps."""
        shapes = (self.shape, self.kept, self.kept, self.gamma, self.gamma)
        return self._problem(shapes, "y0 = (x0 - x1) * (x3 / sqrt(x2 + eps)) + x4;", (), "eps")

    def sums(self) -> PointwiseProblem:
        """Return x dy mean variance gamma -> the means of dy gamma and of dy gamma times the norm; scalars share, eps."""
        shapes = (self.shape, self.shape, self.kept, self.kept, self.gamma)
        text = "real g = x1 * x4 * share; y0 = g; y1 = g * ((x0 - x2) / sqrt(x3 + eps));"
        return self._problem(shapes, text, (self.kept, self.kept), "share eps")

    def parameters(self) -> PointwiseProblem:
        """Return x dy mean variance -> dgamma dbeta; scalar eps."""
        shapes = (self.shape, self.shape, self.kept, self.kept)
        text = "y0 = x1 * ((x0 - x2) / sqrt(x3 + eps)); y1 = x1;"
        return self._problem(shapes, text, (self.gamma, self.gamma), "eps")

    def backward(self) -> PointwiseProblem:
        """Return x dy mean variance gamma and the two sums -> dx; scalar eps."""
        shapes = (self.shape, self.shape, self.kept, self.kept, self.gamma, self.kept, self.kept)
        text = "real s = 1 / sqrt(x3 + eps); y0 = (x1 * x4 - x5 - (x0 - x2) * s * x6) * s;"
        return self._problem(shapes, text, (), "eps")


@dataclass(frozen=True)
class LengthNorm:
    """x / sqrt(sum of x^2 over some axes + eps).

    Parameters
    ----------
    shape : tuple of int
        Of x.
    folded : tuple of int
        Axes of the sum.
    dtype : str
    """

    shape: tuple[int, ...]
    folded: tuple[int, ...]
    dtype: str = "float32"

    @property
    def kept(self) -> tuple[int, ...]:
        """Shape of the sums."""
        return kept_shape(self.shape, self.folded)

    def squares(self) -> PointwiseProblem:
        """Return x -> the sum of squares."""
        return PointwiseProblem((self.shape,), "y0 = x0 * x0;", (Reduction("sum", shape=self.kept),), dtype=self.dtype)

    def forward(self) -> PointwiseProblem:
        """Return x squares -> y; scalar eps."""
        text = "y0 = x0 / sqrt(x1 + eps);"
        return PointwiseProblem((self.shape, self.kept), text, (), ("eps",), dtype=self.dtype)

    def sums(self) -> PointwiseProblem:
        """Return y dy -> the sum of their products."""
        shapes, fold = (self.shape, self.shape), Reduction("sum", shape=self.kept)
        return PointwiseProblem(shapes, "y0 = x0 * x1;", (fold,), dtype=self.dtype)

    def backward(self) -> PointwiseProblem:
        """Return y dy squares sums -> dx; scalar eps."""
        shapes = (self.shape, self.shape, self.kept, self.kept)
        return PointwiseProblem(shapes, "y0 = (x1 - x0 * x3) / sqrt(x2 + eps);", (), ("eps",), dtype=self.dtype)
