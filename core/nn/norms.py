"""Norms: by statistics of channels, by moments over some axes, by lengths, and by windows of channels or pixels."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple, TypedDict

import numpy as np

from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.reductions import kept_shape
from clgraft.core.operators.batchnorm.problem import BatchNormProblem
from clgraft.core.operators.lrn import LRNProblem
from clgraft.core.operators.pointwise import Reduction
from clgraft.core.operators.pooling import PoolProblem
from clgraft.core.problem import SMALL

# of x2 = difference and x3 = square: a variance is never negative
DEVIATION = "real variance = x3 - x2 * x2; real deviation = sqrt((variance > 0 ? variance : 0) + eps);"


GROUP_AXES = (2, 3)  # of what `in_groups` returns, over which each group is normed


# by statistics of channels


class Normed(NamedTuple):
    """A batch norm: its result, and the mean and biased variance of each channel."""

    y: Tensor
    mean: Tensor
    variance: Tensor


def batch_norm(
    build: Build,
    x: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    statistics: tuple[Tensor, Tensor] | None = None,
    *,
    eps: float,
    axis: int = 1,
    activation: str = "",
    activation_scalars: Sequence[float] = (),
) -> Normed:
    """Return a batch norm (Ioffe and Szegedy 2015) by given means and variances, or by those of the batch.

    Parameters
    ----------
    x : Tensor
    gamma, beta : Tensor or None
        One number for each channel; None for 1 and 0. If x has 16 bits and one of these or of the statistics is
        float32, all of them are, and so are the statistics of the batch.
    statistics : pair of Tensor, optional
        Mean and variance of each channel, which have no gradient then.
    eps : float
        Added to the variance.
    axis : int
        Of the channels.
    activation : str
        One of `FOLLOWING` that is taken of the result, with its scalars.
    """
    channels = x.shape[axis] if x.ndim > axis else 1
    dtype = type_of_parameters(x, gamma, beta, *(statistics or ()))
    gamma = build.filled((channels,), 1.0, dtype) if gamma is None else build.cast(gamma, dtype)
    beta = build.filled((channels,), 0.0, dtype) if beta is None else build.cast(beta, dtype)
    statistics = statistics and (build.cast(statistics[0], dtype), build.cast(statistics[1], dtype))
    problem = _statistics("training" if statistics is None else "inference", x, dtype, axis, activation)
    scalars = dict(zip(problem.scalars(), (eps, *activation_scalars)))
    first = build.here
    if statistics is None:
        y, *found = build.add(problem, x, gamma, beta, scalars=scalars)
        return Normed(build.reshape(y, x.shape), found[0], found[1])
    (y,) = build.add(problem, x, gamma, beta, *statistics, scalars=scalars)
    y = build.reshape(y, x.shape)
    if not activation:

        def backward(
            build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]
        ) -> tuple[Tensor | None, ...]:
            (dy,) = dys
            assert dy is not None and gamma is not None and statistics is not None
            return batch_norm_gradients(build, x, dy, gamma, statistics, wanted, eps=eps, axis=axis, through=False)

        build.state_gradient(first, (x, gamma, beta), (y,), backward)
    return Normed(y, *statistics)


def batch_norm_gradients(
    build: Build,
    x: Tensor,
    dy: Tensor,
    gamma: Tensor,
    statistics: tuple[Tensor, Tensor],
    wanted: Sequence[bool],
    *,
    eps: float,
    axis: int = 1,
    through: bool,
) -> tuple[Tensor | None, ...]:
    """Return the wanted gradients of x, gamma and beta; `through` says whether the statistics are those of x."""
    problem = _statistics("training" if through else "inference", x, gamma.dtype, axis).with_direction(
        f"backward_{'training' if through else 'inference'}"
    )
    names = ("dx", "dgamma", "dbeta")
    unwanted = [name for name, asked in zip(names, wanted) if not asked]
    if not (through or wanted[1] or wanted[2]):
        x = dy  # x is not read, so nobody has to keep it
    found = build.add(problem, x, dy, gamma, *statistics, scalars={"eps": eps}, unwanted=unwanted)
    return tuple(
        (build.reshape(one, dy.shape) if name == "dx" else one) if asked else None
        for name, one, asked in zip(names, found, wanted)
    )


def type_of_parameters(x: Tensor, *others: Tensor | None) -> str:
    """Return the type of what a batch norm has for each channel: x's, or float32 if x has 16 bits and some has not."""
    wide = x.dtype in SMALL and any(other is not None and other.dtype == "float32" for other in others)
    return "float32" if wide else x.dtype


def _statistics(kind: str, x: Tensor, dtype: str, axis: int, activation: str = "") -> BatchNormProblem:
    """Return the problem of a norm by statistics; `dtype` is that of the parameters."""
    outer = math.prod(x.shape[:axis]) if x.ndim > axis else math.prod(x.shape[:1])
    channels = x.shape[axis] if x.ndim > axis else 1
    pixels, wide = math.prod(x.shape[axis + 1 :]), dtype != x.dtype
    return BatchNormProblem(f"forward_{kind}", outer, channels, pixels, x.dtype, activation, wide)


def update_averages(
    build: Build,
    x: Tensor,
    normed: Normed,
    moving: tuple[Tensor, Tensor],
    *,
    keep: float,
    add: tuple[float, float],
    axis: int = 1,
) -> None:
    """Change moving averages of means and variances in place: each is multiplied by `keep`, and a share is added.

    Parameters
    ----------
    x : Tensor
        Of which the statistics are.
    normed : Normed
    moving : pair of Tensor
        States.
    keep : float
    add : pair of float
        Share of the mean, and of the biased variance.
    axis : int
        Of the channels.
    """
    problem = _statistics("training", x, normed.mean.dtype, axis).with_direction("update_statistics")
    scalars = {"keep": keep, "add_mean": add[0], "add_var": add[1]}
    build.add(problem, normed.mean, normed.variance, *moving, scalars=scalars)


def update_count(build: Build, count: Tensor, *, keep: float, add: float) -> None:
    """Change the number of values in a moving sum in place: it is multiplied by `keep`, and `add` is added."""
    build.update("y0 = keep * x0 + share;", [], [count], {"keep": keep, "share": add})


def take_share(build: Build, average: Tensor, share: Tensor, *, keep: float) -> None:
    """Change a moving average in place: it is multiplied by `keep`, and what is in `share` moves to it.

    A share is what `update_averages` makes of zeros in the place of the average.
    """
    build.update("y0 = keep * x0 + x1; y1 = 0;", [], [average, share], {"keep": keep})


def counted_average(build: Build, total: Tensor, count: Tensor) -> Tensor:
    """Return a moving sum divided by the number of values in it, zeros for none."""
    return build.pointwise("y0 = x1 == 0 ? 0 : x0 * (1 / x1);", [total, count])[0]


def unbiased(count: int, single: float = math.nan) -> float:
    """Return what makes the biased variance of so many values an unbiased one; `single` for a single value."""
    return count / (count - 1) if count > 1 else single


class Shares(TypedDict):
    """What moving statistics keep, and what is added of a mean and of a biased variance."""

    keep: float
    add: tuple[float, float]


def shares(
    *,
    keep: float | None = None,
    add: float | None = None,
    count: int | None = None,
    single: float = math.nan,
    in_single: bool = False,
) -> Shares:
    """Return the shares of moving statistics.

    Parameters
    ----------
    keep, add : float, optional
        The share that stays, and that of a new value; one that is not given is what the other one leaves of 1.
    count : int, optional
        Of values, where the variance that is added is the unbiased one; `single` is its factor for a single value.
    in_single : bool
        Whether shares are numbers of single precision, as MXNet has them, whatever the type of the data.
    """
    if keep is None:
        assert add is not None
        keep = 1 - add
    elif in_single:
        single_keep = np.float32(keep)
        keep, add = float(single_keep), float(np.float32(1) - single_keep)
    elif add is None:
        add = 1 - keep
    assert add is not None
    return {"keep": keep, "add": (add, add if count is None else add * unbiased(count, single))}


def values_of_channel(shape: Sequence[int]) -> int:
    """Return how many values (n, c, ...), or (n), has of each channel."""
    return shape[0] * math.prod(shape[2:])


def share_of_count(count: float) -> float:
    """Return the factor that makes an average of a moving sum of so many values, 0 for none."""
    return 0 if count == 0 else 1 / count


def moved_average(build: Build, moving: Tensor, value: Tensor, *, keep: float, add: float) -> Tensor:
    """Return ``keep`` of a moving average and ``add`` of a new value."""
    return build.pointwise("y0 = keep * x0 + share * x1;", [moving, value], {"keep": keep, "share": add})[0]


def inverse_and_moved_averages(
    build: Build,
    normed: Normed,
    moving: Sequence[Tensor] = (),
    *,
    eps: float,
    keep: float = 1.0,
    add: tuple[float, float] = (0.0, 0.0),
) -> tuple[Tensor, ...]:
    """Return 1 / sqrt(variance + eps), and moving averages of mean and variance as new values, in one problem."""
    if not moving:
        return build.pointwise("y0 = rsqrt(x0 + eps);", [normed.variance], {"eps": eps})
    text = "y0 = rsqrt(x1 + eps); y1 = keep * x2 + first * x0; y2 = keep * x3 + second * x1;"
    scalars = {"eps": eps, "keep": keep, "first": add[0], "second": add[1]}
    return build.pointwise(text, [normed.mean, normed.variance, *moving], scalars)


def mean_and_inverse(build: Build, normed: Normed, *, eps: float) -> tuple[Tensor, ...]:
    """Return the mean as a value of its own, and 1 / sqrt(variance + eps)."""
    return build.pointwise("y0 = x0; y1 = 1 / sqrt(x1 + eps);", [normed.mean, normed.variance], {"eps": eps})


def variance_of(build: Build, inverse: Tensor, *, eps: float) -> Tensor:
    """Return the variance whose 1 / sqrt(variance + eps) is given."""
    return build.pointwise("y0 = 1 / (x0 * x0) - eps;", [inverse], {"eps": eps})[0]


# by moments over some axes


def in_rows(shape: Sequence[int], groups: int) -> tuple[int, int, int]:
    """Return (n, c, ...) as a group norm with one scale for each group sees it: examples, groups, their elements."""
    return shape[0], groups, math.prod(shape[1:]) // groups


def in_groups(shape: Sequence[int], groups: int) -> tuple[int, int, int, int]:
    """Return (n, c, ...) as a group norm sees it: examples, groups, channels of each group, pixels."""
    n, c = shape[:2]
    return n, groups, c // groups, math.prod(shape[2:])


class Moments(NamedTuple):
    """Mean and variance over some axes, which stay as 1: the mean is shift + difference. They are float32 for 16 bits.

    The shift is the mean as it can be stored, and the difference is the mean of x - shift. So no digits are lost where
    the mean is large. The variance is biased: square - difference^2, square being the mean of (x - shift)^2.
    """

    shift: Tensor
    difference: Tensor
    square: Tensor


def moments(build: Build, x: Tensor, axes: Collection[int]) -> Moments:
    """Return mean and variance over some axes; sums come first and are divided as a whole."""
    count = math.prod(x.shape[axis] for axis in axes)
    share, fold = {"share": 1 / max(1, count)}, Reduction("sum", shape=kept_shape(x.shape, axes))
    (shift,) = build.pointwise("y0 = x0;", [x], share, (fold,), "share", single=("y0",))
    text = "real d = x0 - x1; y0 = d; y1 = d * d;"
    return Moments(shift, *build.pointwise(text, [x, shift], share, (fold, fold), "share", single=("y0", "y1")))


def moments_with_deviation(build: Build, x: Tensor, axes: Collection[int], inverse: Tensor) -> Moments:
    """Return moments whose deviation is that of a given 1 / deviation, which includes an eps: theirs is 0."""
    shift, difference, _ = moments(build, x, axes)
    inverse = build.reshape(inverse, difference.shape)
    (square,) = build.pointwise("y0 = x0 * x0 + 1 / (x1 * x1);", [difference, inverse], single=("y0",))
    return Moments(shift, difference, square)


def mean(build: Build, found: Moments) -> Tensor:
    """Return the mean."""
    return build.pointwise("y0 = x0 + x1;", found[:2])[0]


def inverse_deviation(build: Build, found: Moments, *, eps: float) -> Tensor:
    """Return 1 / sqrt(variance + eps)."""
    text = "real variance = x1 - x0 * x0; y0 = 1 / sqrt((variance > 0 ? variance : 0) + eps);"
    return build.pointwise(text, found[1:], {"eps": eps})[0]


def by_moments(
    build: Build, x: Tensor, gamma: Tensor, beta: Tensor, axes: Collection[int], *, eps: float
) -> tuple[Tensor, Moments]:
    """Return (x - mean) / sqrt(variance + eps) * gamma + beta, mean and variance over some axes, and these.

    Layer norm is Ba et al. 2016, instance norm Ulyanov et al. 2016, group norm Wu and He 2018.

    Parameters
    ----------
    x : Tensor
    gamma, beta : Tensor
        They broadcast to x.
    axes : collection of int
    eps : float
    """
    first = build.here
    found = moments(build, x, axes)
    text = f"{DEVIATION} y0 = (x0 - x1 - x2) * (x4 / deviation) + x5;"
    (y,) = build.pointwise(text, [x, *found, gamma, beta], {"eps": eps})

    def backward(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        (dy,) = dys
        assert dy is not None
        return by_moments_gradients(build, x, dy, gamma, found, wanted, eps=eps)

    build.state_gradient(first, (x, gamma, beta), (y,), backward)
    return y, found


def by_moments_gradients(
    build: Build, x: Tensor, dy: Tensor, gamma: Tensor, found: Moments, wanted: Sequence[bool], *, eps: float
) -> tuple[Tensor | None, ...]:
    """Return the wanted gradients of x, gamma and beta of a norm by moments."""
    kept, scalars = found.shift.shape, {"eps": eps}
    share = {"share": math.prod(kept) / x.size if x.size else 1.0}
    dx: Tensor | None = None
    dgamma: Tensor | None = None
    dbeta: Tensor | None = None
    given = [x, *found, gamma, dy]
    if wanted[0]:
        text = f"{DEVIATION} real g = x5 * x4; y0 = g; y1 = g * ((x0 - x1 - x2) / deviation);"
        fold = Reduction("sum", shape=kept)
        given += build.pointwise(text, given, {**share, **scalars}, (fold, fold), "share", single=("y0", "y1"))
    if wanted[1] or wanted[2]:
        text = f"{DEVIATION} y0 = x4 * ((x0 - x1 - x2) / deviation); y1 = x4;"
        fold = Reduction("sum", shape=gamma.shape)
        unwanted = [name for name, asked in zip(("y0", "y1"), wanted[1:]) if not asked]
        found_two = build.pointwise(text, [x, *found, dy], scalars, (fold, fold), unwanted=unwanted)
        dgamma, dbeta = (one if asked else None for one, asked in zip(found_two, wanted[1:]))
    if wanted[0]:
        text = f"{DEVIATION} y0 = (x5 * x4 - x6 - (x0 - x1 - x2) / deviation * x7) / deviation;"
        (dx,) = build.pointwise(text, given, scalars)
    return dx, dgamma, dbeta


def normed_once(
    build: Build, x: Tensor, found: Moments, inverse: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None
) -> Tensor:
    """Return (x - mean) * inverse * gamma + beta, with 1 / deviation as it was computed for each mean."""
    tensors, text = [x, found.shift, found.difference, inverse], "(x0 - x1 - x2) * x3"
    for value, sign in ((gamma, "*"), (beta, "+")):
        if value is not None:
            text = f"({text}) {sign} x{len(tensors)}"
            tensors.append(value)
    return build.pointwise(f"y0 = {text};", tensors)[0]


def centred_norm(build: Build, x: Tensor, axes: Collection[int], *, eps: float | None) -> Tensor:
    """Return x less its mean over some axes, and unless `eps` is None divided by its deviation **plus** eps.

    The variance is taken from differences to the mean in a pass of its own. It is Caffe's norm by mean and variance.
    """
    kept, first = kept_shape(x.shape, axes), build.here
    share = {"share": 1 / max(1, math.prod(x.shape[axis] for axis in axes))}
    fold = (Reduction("sum", shape=kept),)
    (middle,) = build.pointwise("y0 = x0 * share;", [x], share, fold, single=("y0",))
    if eps is None:
        (y,) = build.pointwise("y0 = x0 - x1;", [x, middle])
    else:
        text = "y0 = (x0 - x1) * (x0 - x1) * share;"
        (variance,) = build.pointwise(text, [x, middle], share, fold, single=("y0",))
        (y,) = build.pointwise("y0 = (x0 - x1) / (sqrt(x2) + eps);", [x, middle, variance], {"eps": eps})

    def backward(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        (dy,) = dys
        assert dy is not None
        if eps is None:
            (total,) = build.pointwise("y0 = x0 * share;", [dy], share, fold, single=("y0",))
            return build.pointwise("y0 = x0 - x1;", [dy, total])
        text = "y0 = x1 * share; y1 = x1 * x0 * share;"
        sums = build.pointwise(text, [y, dy], share, fold * 2, single=("y0", "y1"))
        text = "y0 = (x1 - x3 - x0 * x4) / (sqrt(x2) + eps);"
        return build.pointwise(text, [y, dy, variance, *sums], {"eps": eps})

    build.state_gradient(first, (x,), (y,), backward)
    return y


# by lengths


def squared_length(build: Build, x: Tensor, axes: Collection[int], *, absolute: bool = False) -> Tensor:
    """Return the sum of squares over some axes, or with `absolute` of absolute values; float32 for 16 bits."""
    kept, text = kept_shape(x.shape, axes), "y0 = fabs(x0);" if absolute else "y0 = x0 * x0;"
    fold = (Reduction("sum", shape=kept),) if kept != x.shape else ()
    return build.pointwise(text, [x], reduce=fold, single=("y0",))[0]


def length_norm(build: Build, x: Tensor, axes: Collection[int], *, eps: float, scale: Tensor | None = None) -> Tensor:
    """Return x / sqrt(sum of x^2 over some axes + eps), times a scale that broadcasts to x.

    The method: Liu et al. 2015, "ParseNet".
    """
    kept, first = kept_shape(x.shape, axes), build.here
    fold, scalars = Reduction("sum", shape=kept), {"eps": eps}
    (squares,) = build.pointwise("y0 = x0 * x0;", [x], reduce=(fold,), single=("y0",))
    if scale is None:
        (y,) = build.pointwise("y0 = x0 / sqrt(x1 + eps);", [x, squares], scalars)
    else:
        (y,) = build.pointwise("y0 = x2 * x0 / sqrt(x1 + eps);", [x, squares, scale], scalars)

    def backward(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        (dy,) = dys
        assert dy is not None
        if scale is None:
            (inner,) = build.pointwise("y0 = x0 * x1;", [y, dy], reduce=(fold,), single=("y0",))
            text = "y0 = (x1 - x0 * x3) / sqrt(x2 + eps);"
            return build.pointwise(text, [y, dy, squares, inner], scalars)
        (inner,) = build.pointwise("y0 = x2 * x1 * x0;", [x, dy, scale], reduce=(fold,), single=("y0",))
        unwanted = [name for name, asked in zip(("y0", "y1"), wanted) if not asked]
        text = (
            "real factor = 1 / sqrt(x2 + eps); "
            "y0 = factor * (x4 * x1 - x0 * x3 * factor * factor); y1 = x1 * x0 * factor;"
        )
        folds = (None, Reduction("sum", shape=scale.shape))
        found = build.pointwise(text, [x, dy, squares, inner, scale], scalars, folds, unwanted=unwanted)
        return tuple(one if asked else None for one, asked in zip(found, wanted))

    build.state_gradient(first, (x,) if scale is None else (x, scale), (y,), backward)
    return y


def unit_length(build: Build, x: Tensor, axes: Collection[int], *, absolute: bool = False) -> Tensor:
    """Return x divided by its length over some axes, or by its sum of absolute values; zeros stay."""
    length = squared_length(build, x, axes, absolute=absolute)
    root = "x1" if absolute else "sqrt(x1)"
    return build.pointwise(f"y0 = x1 == 0 ? 0 : x0 / {root};", [x, length])[0]


def mean_square_norm(build: Build, x: Tensor, gamma: Tensor, axes: Collection[int], *, eps: float) -> Tensor:
    """Return x / sqrt(mean of x^2 over some axes + eps) * gamma."""
    count = float(math.prod(x.shape[axis] for axis in axes))
    square = squared_length(build, x, axes)
    text = "y0 = x0 / sqrt(x1 / count + eps) * x2;"
    return build.pointwise(text, [x, square, gamma], {"count": count, "eps": eps})[0]


# by windows


def local_response_norm(build: Build, x: Tensor, *, size: int, alpha: float, beta: float, k: float) -> Tensor:
    """Return x (k + alpha / size * sum of x^2 over a window of channels)^-beta (Krizhevsky et al. 2012).

    Parameters
    ----------
    x : Tensor
        (n, c, ...).
    size : int
        Channels of the window, by which alpha is divided. An even one reaches as far as the odd one below it, as in
        MXNet.
    alpha, beta, k : float
    """
    window = size - (size + 1) % 2
    problem = LRNProblem("forward", x.shape[0], x.shape[1], math.prod(x.shape[2:]), window, beta, x.dtype)
    scalars = {"alpha": alpha if window == size else alpha * window / size, "k": k}
    return build.reshape(build.add(problem, x, scalars=scalars)[0], x.shape)


def window_norm(build: Build, x: Tensor, *, size: int, alpha: float, beta: float) -> Tensor:
    """Return x (1 + alpha * mean of x^2 over size by size pixels)^-beta."""
    first = build.here
    pool = PoolProblem(
        direction="forward",
        operator="average",
        batch=x.shape[0],
        channels=x.shape[1],
        in_size=x.shape[2:],
        kernel=(size,) * 2,
        pad_begin=(size // 2,) * 2,
        dtype=x.dtype,
    )
    # a power of 0.75 is taken by roots, which are exact and much faster than powers
    roots = "real root = sqrt(level); real factor = 1 / (root * sqrt(root)); "
    level = "real level = 1 + alpha * {}; " + (roots if beta == 0.75 else "real factor = pow(level, -beta); ")
    scalars = {"alpha": alpha, "beta": beta}
    flat = build.reshape(x, (x.size,))
    (squares,) = build.pointwise("y0 = x0 * x0;", [flat])
    (found,) = build.add(pool, squares)
    average = build.reshape(found, flat.shape)
    (y,) = build.pointwise(level.format("x1") + "y0 = x0 * factor;", [flat, average], scalars)

    def backward(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        (dy,) = dys
        assert dy is not None
        given = [build.reshape(dy, flat.shape), flat, average]
        # what is summed over the windows that hold an element
        (inner,) = build.pointwise(level.format("x2") + "y0 = x0 * x1 * factor / level;", given, scalars)
        (total,) = build.add(pool.with_direction("backward"), inner)
        text = level.format("x2") + "y0 = x0 * factor - 2 * alpha * beta * x1 * x3;"
        return build.pointwise(text, [*given, build.reshape(total, flat.shape)], scalars)

    y = build.reshape(y, x.shape)
    build.state_gradient(first, (x,), (y,), backward)
    return y
