"""Norms over some axes as pointwise problems: by mean and variance (layer, instance), and by Euclidean length."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from clgraft.core.operators.pointwise import PointwiseProblem, Reduction

# the inputs are x2 = difference and x3 = square
DEVIATION = "real variance = x3 - x2 * x2; real deviation = sqrt((variance > 0 ? variance : 0) + eps);"


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
    Scalars: ``share``, 1 / the elements of a mean, and ``eps``. Sums come first and are multiplied by share as a whole.
    The mean is kept as shift + difference: the shift is the mean as it can be stored, and the difference is the mean of
    x - shift. So no digits are lost where the mean is large (the shifted method, as in `batchnorm.generated`). The
    variance is biased: square - difference^2, square being the mean of (x - shift)^2.
    """

    shape: tuple[int, ...]
    folded: tuple[int, ...]
    gamma: tuple[int, ...]
    dtype: str = "float32"

    @property
    def kept(self) -> tuple[int, ...]:
        """Shape of shift, difference and square."""
        return kept_shape(self.shape, self.folded)

    def _problem(
        self, shapes: Sequence[Sequence[int]], text: str, folds: Sequence, scalars: str, alpha: str = ""
    ) -> PointwiseProblem:
        reductions = tuple(None if fold is None else Reduction("sum", shape=tuple(fold)) for fold in folds)
        inputs = tuple(tuple(shape) for shape in shapes)
        return PointwiseProblem(inputs, text, reductions, tuple(scalars.split()), alpha, dtype=self.dtype)

    def shift(self) -> PointwiseProblem:
        """Return x -> shift; scalar share."""
        return self._problem((self.shape,), "y0 = x0;", (self.kept,), "share", "share")

    def moments(self) -> PointwiseProblem:
        """Return x shift -> difference square; scalar share."""
        text = "real d = x0 - x1; y0 = d; y1 = d * d;"
        return self._problem((self.shape, self.kept), text, (self.kept, self.kept), "share", "share")

    def forward(self) -> PointwiseProblem:
        """Return x shift difference square gamma beta -> y; scalar eps."""
        shapes = (self.shape, self.kept, self.kept, self.kept, self.gamma, self.gamma)
        return self._problem(shapes, f"{DEVIATION} y0 = (x0 - x1 - x2) * (x4 / deviation) + x5;", (), "eps")

    def sums(self) -> PointwiseProblem:
        """Return the problem of the two means that `backward` needs.

        x shift difference square gamma dy -> the means of dy gamma and of dy gamma times the norm; scalars share, eps.
        """
        shapes = (self.shape, self.kept, self.kept, self.kept, self.gamma, self.shape)
        text = f"{DEVIATION} real g = x5 * x4; y0 = g; y1 = g * ((x0 - x1 - x2) / deviation);"
        return self._problem(shapes, text, (self.kept, self.kept), "share eps", "share")

    def parameters(self) -> PointwiseProblem:
        """Return x shift difference square dy -> dgamma dbeta; scalar eps."""
        shapes = (self.shape, self.kept, self.kept, self.kept, self.shape)
        text = f"{DEVIATION} y0 = x4 * ((x0 - x1 - x2) / deviation); y1 = x4;"
        return self._problem(shapes, text, (self.gamma, self.gamma), "eps")

    def backward(self) -> PointwiseProblem:
        """Return x shift difference square gamma dy and the two sums -> dx; scalar eps."""
        shapes = (self.shape, self.kept, self.kept, self.kept, self.gamma, self.shape, self.kept, self.kept)
        text = f"{DEVIATION} y0 = (x5 * x4 - x6 - (x0 - x1 - x2) / deviation * x7) / deviation;"
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


def mean_and_inverse_deviation(channels: int, dtype: str = "float32") -> PointwiseProblem:
    """Return the problem x0 = mean, x1 = variance -> y0 = mean, y1 = 1 / sqrt(variance + the scalar ``eps``)."""
    shape = (channels,)
    return PointwiseProblem((shape, shape), "y0 = x0; y1 = 1 / sqrt(x1 + eps);", (), ("eps",), dtype=dtype)
