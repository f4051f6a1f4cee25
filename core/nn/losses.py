"""Losses at the end of a net: of a softmax, and of regressions; with the gradients that frameworks give them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from clgraft.core.nn import shapes
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.softmax import softmax
from clgraft.core.operators.crossentropy import CrossEntropyProblem
from clgraft.core.operators.pointwise import Reduction

# the gradients of x0 and x1 in half of (x0 - x1)^2
OPPOSITE = ("y0 = (x0 - x1) * scale;", "y0 = -((x0 - x1) * scale);")
# the output of x0, and the gradient at the output x0 and the label x1
REGRESSIONS = {
    "linear": ("x0", "x0 - x1"),
    "logistic": ("1 / (1 + exp(-x0))", "x0 - x1"),
    "mae": ("x0", "x0 > x1 ? 1 : -1"),
}


def softmax_cross_entropy(build: Build, x: Tensor, label: Tensor, sizes: Sequence[int], *, lowest: float) -> Tensor:
    """Return the sum of -log(softmax at the label), of one element; probabilities below `lowest` count as that.

    The gradient does not know that bound. A label that names no class adds nothing.
    """
    return cross_entropy(build, softmax(build, x, sizes), label, sizes, lowest=lowest)


def cross_entropy(build: Build, y: Tensor, label: Tensor, sizes: Sequence[int], *, lowest: float) -> Tensor:
    """Return the sum of -log(y at the label), of one element, where y is the result of a softmax.

    Probabilities below `lowest` count as that; the gradient, which is that of the softmax's input, does not know it.
    """
    entropy = CrossEntropyProblem("forward", *sizes, dtype=y.dtype)
    return build.add(entropy, y, label, scalars={"lowest": lowest})[0]


def mean_cross_entropy(
    build: Build, y: Tensor, label: Tensor, sizes: Sequence[int], *, ignored: float | None = None
) -> Tensor:
    """Return the mean of -log(y at the label) over the labels that count, without a gradient.

    Parameters
    ----------
    y : Tensor
        Probabilities.
    label : Tensor
        Classes, or where it has the size of y probabilities.
    sizes : sequence of int
        Elements before, of and after the axis of the classes.
    ignored : float, optional
        Labels of this value do not count.
    """
    places = sizes[0] * sizes[2]
    if label.size == y.size:
        total = summed(build, "y0 = -x1 * log(fmax(x0, 1e-38));", y, label)
        return build.without_gradient(build.pointwise("y0 = x0 * share;", [total], {"share": 1 / max(1, places)})[0])
    if label.size > places:
        label = shapes.cut(build, build.reshape(label, (label.size,)), (places,), (0,))
    problem = CrossEntropyProblem("forward", *sizes, ignored is not None, dtype=y.dtype)
    more = {} if ignored is None else {"ignored": ignored}
    total, counts = build.add(problem, y, label, scalars={"lowest": 1e-38, **more})
    return build.without_gradient(divided(build, total, counts))


def normalizer(kind: str, outer: int, inner: int = 1, valid: int = 1) -> float:
    """Return what the sum of a loss is divided by: how many ``places``, ``valid`` ones, ``examples``, or ``none``: 1.

    Parameters
    ----------
    outer, inner : int
        How many examples there are, and places in each.
    valid : int
        How many places count.
    """
    return float(max(1, {"places": outer * inner, "valid": valid, "examples": outer, "none": 1}[kind]))


def share(value: float, number: float) -> float:
    """Return the mean of a sum of so many terms on the host, or what weight each has; see `shared` for graphs."""
    return value / number


def halved(number: float) -> float:
    """Return what the sum of `squared_distance` is divided by where its loss is the mean of so many terms."""
    return 2.0 * number


def divided(build: Build, total: Tensor, counts: Tensor) -> Tensor:
    """Return a sum divided by the first of two counts, or by 1 if that is 0."""
    counted = build.cast(counts, total.dtype)
    first = shapes.cut(build, counted, (1,), (0,))
    return build.pointwise("y0 = x0 / fmax(x1, 1);", [total, first])[0]


def shared(build: Build, total: Tensor, number: float) -> Tensor:
    """Return a sum divided by a number."""
    return build.pointwise("y0 = x0 / number;", [total], {"number": number})[0]


def weighted_sum(build: Build, x: Tensor, weight: float) -> Tensor:
    """Return the sum of all elements times a weight."""
    flat = build.reshape(x, (x.size,))
    return build.pointwise("y0 = x0 * weight;", [flat], {"weight": weight}, (Reduction("sum", shape=(1,)),))[0]


def mean_of_regression(build: Build, x: Tensor, label: Tensor, loss: str) -> Tensor:
    """Return the mean of the loss of one of `REGRESSIONS` at its output, without a gradient."""
    text = {
        "linear": "y0 = 0.5 * (x0 - x1) * (x0 - x1);",
        "logistic": "y0 = -x1 * log(fmax(x0, 1e-38)) - (1 - x1) * log(fmax(1 - x0, 1e-38));",
        "mae": "y0 = fabs(x0 - x1);",
    }[loss]
    total = summed(build, text, x, label)
    return build.without_gradient(build.pointwise("y0 = x0 * share;", [total], {"share": 1 / max(1, x.size)})[0])


def summed(build: Build, text: str, a: Tensor, b: Tensor) -> Tensor:
    """Return the sum over all elements of an expression of x0 and x1, elements of two values of one size."""
    given = [build.reshape(one, (a.size,)) for one in (a, b)]
    return build.pointwise(text, given, reduce=(Reduction("sum", shape=(1,)),))[0]


def softmax_with_labels(
    build: Build,
    x: Tensor,
    label: Tensor,
    sizes: Sequence[int],
    *,
    scale: float,
    normalization: str = "none",
    smooth: float = 0.0,
    ignored: float | None = None,
    counted: float | None = None,
    weighted: bool = False,
    shown: Sequence[int] = (),
) -> Tensor:
    """Return a softmax whose gradient is stated: that of the cross entropy with labels, whatever comes in.

    Parameters
    ----------
    x, label : Tensor
        Of more labels than places the first are read.
    sizes : sequence of int
        Elements before, of and after the axis of the softmax.
    scale : float
        Of the gradient.
    normalization : str
        What the scale is divided by: 1 (``none``), the ``places`` of an example, or the number of ``labels``.
    smooth : float
        Share of the target that is spread over the other classes.
    ignored : float, optional
        Labels of this value have no gradient.
    counted : float, optional
        The gradient is divided by the number of labels other than this one.
    weighted : bool
        Whether the gradient is multiplied by the one that comes in.
    shown : sequence of int, optional
        Other sizes for the result alone.
    """
    first = build.here
    y = softmax(build, x, shown or sizes)
    share = scale / max(1, {"none": 1, "places": sizes[2], "labels": label.size}[normalization])

    def backward(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        places = sizes[0] * sizes[2]
        read = label
        if label.size > places:
            read = shapes.cut(build, build.reshape(label, (label.size,)), (places,), (0,))
        reads = [y, read]
        if weighted and dys[0] is not None:
            reads.append(dys[0])
        if counted is not None:
            count = CrossEntropyProblem("count", label.size, sizes[1], ignoring=True, dtype=label.dtype)
            reads += build.add(count, label, scalars={"ignored": counted})
        problem = CrossEntropyProblem(
            "backward", *sizes, ignored is not None, weighted, counted is not None, dtype=x.dtype
        )
        scalars = {"scale": share, "smooth": smooth, **({} if ignored is None else {"ignored": ignored})}
        dx = build.add(problem, *reads, scalars=scalars)[0]
        return (dx if weighted else with_loss_scale(build, dx), None)

    build.state_gradient(first, (x, label), (y,), backward)
    return y


def with_loss_scale(build: Build, dx: Tensor) -> Tensor:
    """Return a gradient that ignores what comes in, times the scale of losses if there is one."""
    if not build.loss_scale:
        return dx
    return build.pointwise("y0 = x0 * factor;", [dx], {"factor": build.loss_scale})[0]


def softmax_with_targets(
    build: Build,
    x: Tensor,
    target: Tensor,
    sizes: Sequence[int],
    *,
    scale: float,
    weighted: bool,
    shown: Sequence[int] = (),
) -> Tensor:
    """Return a softmax whose gradient is stated: scale (y - target), with `weighted` times the one that comes in."""
    first = build.here
    y = softmax(build, x, shown or sizes)

    def backward(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        reads = [y, target]
        if weighted and dys[0] is not None:
            reads.append(dys[0])
        text = "y0 = (x0 - x1) * scale * x2;" if weighted else "y0 = (x0 - x1) * scale;"
        dx = build.pointwise(text, reads, {"scale": scale})[0]
        return (dx if weighted else with_loss_scale(build, dx), None)

    build.state_gradient(first, (x, target), (y,), backward)
    return y


def summed_cross_entropy(
    build: Build,
    x: Tensor,
    label: Tensor,
    sizes: Sequence[int],
    *,
    lowest: float,
    ignored: float | None = None,
    scale: float | str,
    by_count: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sum of -log(softmax at the label), how many labels count and how many name no class, and the softmax.

    Parameters
    ----------
    x, label : Tensor
    sizes : sequence of int
        Elements before, of and after the axis of the softmax.
    lowest : float
        Probabilities below it count as that.
    ignored : float, optional
        Labels of this value count nowhere.
    scale : float or str
        The stated gradient is that of the loss times this number, whatever comes in.
    by_count : bool
        Whether it is divided by the number of labels that count.
    """
    first = build.here
    y = softmax(build, x, sizes)
    problem = CrossEntropyProblem("forward", *sizes, ignored is not None, dtype=x.dtype)
    more = {} if ignored is None else {"ignored": ignored}
    loss, counts = build.add(problem, y, label, scalars={"lowest": lowest, **more})

    def backward(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        scalars = {"scale": scale, "smooth": 0.0, **more}
        reads = (y, label, counts) if by_count else (y, label)
        back = replace(problem, direction="backward", by_count=by_count)
        return (with_loss_scale(build, build.add(back, *reads, scalars=scalars)[0]), None)

    build.state_gradient(first, (x, label), (loss,), backward)
    return loss, build.without_gradient(counts), build.without_gradient(y)


def summed_sigmoid_cross_entropy(
    build: Build, x: Tensor, target: Tensor, *, ignored: float, scale: float | str
) -> tuple[Tensor, Tensor]:
    """Return the sum of -t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x)) without overflow, and how many elements count.

    Elements whose target is `ignored` do not, which may be NaN for none. The stated gradient is that of the loss times
    `scale`, whatever comes in.
    """
    first, flat = build.here, (x.size,)
    given = [build.reshape(x, flat), build.reshape(target, flat)]
    text = (
        "real keep = trunc(x1) == ignored ? 0 : 1; y1 = keep; "
        "y0 = keep > 0 ? fmax(x0, 0) - x0 * x1 + log1p(exp(-fabs(x0))) : 0;"
    )
    fold = Reduction("sum", shape=(1,))
    loss, valid = build.pointwise(text, given, {"ignored": ignored}, (fold, fold))

    def backward(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        slope = "y0 = trunc(x1) == ignored ? 0 : (1 / (1 + exp(-x0)) - x1) * scale;"
        return (with_loss_scale(build, build.pointwise(slope, given, {"ignored": ignored, "scale": scale})[0]), None)

    build.state_gradient(first, (x, target), (loss,), backward)
    return loss, build.without_gradient(valid)


def squared_distance(build: Build, a: Tensor, b: Tensor, *, scale: float | str) -> Tensor:
    """Return the sum of (a - b)^2; the stated gradient of a is (a - b) times a number, whatever comes in, b's is -a's.

    That is the gradient of half the sum, which is the loss: see `halved`.
    """
    first, flat = build.here, (a.size,)
    given = [build.reshape(a, flat), build.reshape(b, flat)]
    fold = Reduction("sum", shape=(1,))
    (loss,) = build.pointwise("y0 = (x0 - x1) * (x0 - x1);", given, reduce=(fold,))

    def backward(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        return tuple(
            with_loss_scale(build, build.pointwise(text, given, {"scale": scale})[0]) if asked else None
            for text, asked in zip(OPPOSITE, wanted)
        )

    build.state_gradient(first, (a, b), (loss,), backward)
    return loss


def regression(build: Build, x: Tensor, label: Tensor, loss: str, *, scale: float, by_elements: bool = False) -> Tensor:
    """Return the output of one of `REGRESSIONS`, whose gradient is stated: ``scale`` times that of the loss.

    With `by_elements` the scale is divided by the number of the label's elements in an example.
    """
    scale = scale / max(1, math.prod(label.shape[1:])) if by_elements else scale
    first, flat = build.here, (math.prod(x.shape),)
    forward, slope = REGRESSIONS[loss]
    (y,) = build.pointwise(f"y0 = {forward};", [build.reshape(x, flat)])

    def backward(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        given = [y, build.reshape(label, flat)]
        return (with_loss_scale(build, build.pointwise(f"y0 = ({slope}) * scale;", given, {"scale": scale})[0]), None)

    build.state_gradient(first, (x, label), (y,), backward)
    return build.reshape(y, x.shape)
