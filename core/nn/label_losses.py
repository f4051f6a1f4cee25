"""Losses of labels and of pairs that Caffe has besides those of `losses`; the gradient of each is stated.

`scale` is what the gradient of the loss is multiplied by, whatever comes in: a number, or a scalar of the graph. Labels
are numbers whose fraction is cut off.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clgraft.core.nn import shapes
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.losses import with_loss_scale
from clgraft.core.nn.softmax import softmax
from clgraft.core.operators.pointwise import Reduction

Gradients = Sequence["Tensor | None"]
MARGIN = "real side = trunc(x1) == x2 ? -1 : 1; real margin = fmax(1 + side * x0, 0);"
DISTANCE_OFFSET = 1e-4  # Caffe's, added to a distance that divides


def _by_class(build: Build, x: Tensor, label: Tensor, classes: int) -> list[Tensor]:
    """Return x as rows of classes, a label for each row, and the number of each class."""
    rows = x.size // classes
    numbers = build.reshape(build.constant(np.arange(classes, dtype=np.float32)), (1, classes))
    return [build.reshape(x, (rows, classes)), build.reshape(label, (rows, 1)), numbers]


def summed_hinge(build: Build, x: Tensor, label: Tensor, classes: int, *, squared: bool, scale: float | str) -> Tensor:
    """Return the sum of max(0, 1 + x) over all classes, of max(0, 1 - x) at the label; with `squared` of squares."""
    first, given = build.here, _by_class(build, x, label, classes)
    value, slope = ("margin * margin", "2 * margin * side") if squared else ("margin", "(margin > 0 ? side : 0)")
    (loss,) = build.pointwise(f"{MARGIN} y0 = {value};", given, reduce=(Reduction("sum", shape=(1, 1)),))

    def backward(build: Build, dys: Gradients, wanted: Sequence[bool]) -> Gradients:
        (dx,) = build.pointwise(f"{MARGIN} y0 = {slope} * scale;", given, {"scale": scale})
        return with_loss_scale(build, dx), None

    build.state_gradient(first, (x, label), (loss,), backward)
    return build.reshape(loss, (1,))


def summed_log(build: Build, y: Tensor, label: Tensor, classes: int, *, lowest: float, scale: float | str) -> Tensor:
    """Return the sum of -log(y at the label) of probabilities y, of which those below `lowest` count as that."""
    first, given = build.here, _by_class(build, y, label, classes)
    fold, number = (Reduction("sum", shape=(1, 1)),), {"lowest": lowest}
    (loss,) = build.pointwise("y0 = trunc(x1) == x2 ? -log(fmax(x0, lowest)) : 0;", given, number, fold)

    def backward(build: Build, dys: Gradients, wanted: Sequence[bool]) -> Gradients:
        text = "y0 = trunc(x1) == x2 ? -scale / fmax(x0, lowest) : 0;"
        (dy,) = build.pointwise(text, given, {**number, "scale": scale})
        return with_loss_scale(build, dy), None

    build.state_gradient(first, (y, label), (loss,), backward)
    return build.reshape(loss, (1,))


def summed_infogain(
    build: Build,
    x: Tensor,
    label: Tensor,
    gains: Tensor,
    sizes: Sequence[int],
    *,
    lowest: float,
    ignored: float | None,
    scale: float | str,
    by_count: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sum of -gain log(softmax), how many labels count, and the softmax.

    Parameters
    ----------
    x, label : Tensor
    gains : Tensor
        (classes, classes): a row for each label, with the gain of each class.
    sizes : sequence of int
        Elements before, of and after the axis of the softmax.
    lowest : float
        Probabilities below it count as that.
    ignored : float, optional
        Labels of this value do not count.
    by_count : bool
        Whether the gradient is divided by the number of labels that count.
    """
    outer, classes, inner = sizes
    first, places = build.here, (outer, 1, inner)
    y = softmax(build, x, sizes)
    rows = shapes.taken(build, build.reshape(gains, (classes, classes)), build.reshape(label, (outer * inner,)), 0)
    rows = build.reshape(rows, (outer, inner, classes))
    if inner > 1:
        rows = shapes.transposed(build, rows, (0, 2, 1))
    given = [build.reshape(y, sizes), build.reshape(rows, sizes), build.reshape(label, places)]
    keep = "1" if ignored is None else f"(trunc(x2) == ({float(ignored)!r}) ? 0 : 1)"
    fold = (Reduction("sum", shape=(1, 1, 1)),)
    text = f"y0 = {keep} > 0 ? -x1 * log(fmax(x0, lowest)) : 0;"
    (loss,) = build.pointwise(text, given, {"lowest": lowest}, fold)
    (counts,) = build.pointwise(f"y0 = {keep.replace('x2', 'x0')};", given[2:], reduce=fold)

    def backward(build: Build, dys: Gradients, wanted: Sequence[bool]) -> Gradients:
        (total,) = build.pointwise("y0 = x0;", given[1:2], reduce=(Reduction("sum", shape=places),))
        divisor = " / fmax(x4, 1)" if by_count else ""
        reads = [*given, total, *([counts] if by_count else ())]
        (dx,) = build.pointwise(f"y0 = {keep} * (x0 * x3 - x1) * scale{divisor};", reads, {"scale": scale})
        return with_loss_scale(build, dx), None, None

    build.state_gradient(first, (x, label, gains), (loss,), backward)
    counted = build.without_gradient(build.reshape(counts, (1,)))
    return build.reshape(loss, (1,)), counted, build.without_gradient(y)


def summed_contrast(
    build: Build,
    a: Tensor,
    b: Tensor,
    alike: Tensor,
    *,
    margin: float,
    squares: bool,
    scale: float | str,
) -> Tensor:
    """Return half the sum over rows: of squared distances of those that are alike, of max(0, margin - d)^2 of others.

    Hadsell et al. 2006.

    Parameters
    ----------
    a, b : Tensor
        (rows, ...).
    alike : Tensor
        A number for each row, 0 for those that are not.
    margin : float
    squares : bool
        max(0, margin - d^2) of the others.
    scale : float or str
        The stated gradient is that of the loss times this number, whatever comes in.
    """
    first, rows = build.here, a.shape[0]
    given = [build.reshape(one, (rows, a.size // max(1, rows))) for one in (a, b)]
    each = build.reshape(alike, (rows, 1))
    (far,) = build.pointwise("y0 = (x0 - x1) * (x0 - x1);", given, reduce=(Reduction("sum", shape=(rows, 1)),))
    left, number = ("margin - x0" if squares else "margin - sqrt(x0)"), {"margin": margin}
    text = f"real left = fmax({left}, 0); y0 = 0.5 * (trunc(x1) != 0 ? x0 : {'left' if squares else 'left * left'});"
    (loss,) = build.pointwise(text, [far, each], number, (Reduction("sum", shape=(1, 1)),))

    def backward(build: Build, dys: Gradients, wanted: Sequence[bool]) -> Gradients:
        slope = "-1" if squares else f"-left / (sqrt(x0) + {DISTANCE_OFFSET!r})"
        text = f"real left = {left}; y0 = trunc(x1) != 0 ? 1 : left > 0 ? {slope} : 0;"
        (factor,) = build.pointwise(text, [far, each], number)
        texts = "y0 = (x0 - x1) * x2 * scale;", "y0 = -((x0 - x1) * x2 * scale);", ""
        return tuple(
            with_loss_scale(build, build.pointwise(text, [*given, factor], {"scale": scale})[0])
            if text and asked
            else None
            for text, asked in zip(texts, wanted)
        )

    build.state_gradient(first, (a, b, alike), (loss,), backward)
    return build.reshape(loss, (1,))
