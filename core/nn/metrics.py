"""What users look at besides losses; nothing here has a gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.operators.pointwise import Reduction


def accuracy(
    build: Build,
    scores: Tensor,
    labels: Tensor,
    sizes: Sequence[int],
    *,
    most: int = 1,
    ignored: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the share of labels among the best scores, and the shares of each class.

    A label is right if at most `most` classes have its score or a higher one, itself among them. Shares of nothing are
    0.

    Parameters
    ----------
    scores, labels : Tensor
    sizes : sequence of int
        Elements before, of and after the axis of the classes.
    most : int
    ignored : float, optional
        Labels of this value do not count.
    """
    outer, classes, inner = sizes
    x = build.reshape(scores, (outer, classes, inner))
    label = build.reshape(labels, (outer, 1, inner))
    number = build.reshape(build.constant(np.arange(classes, dtype=np.float32)), (1, classes, 1))
    along = Reduction("sum", (1,), (outer, 1, inner))
    (own,) = build.pointwise("y0 = x2 == x1 ? x0 : 0;", [x, label, number], reduce=(along,))
    (better,) = build.pointwise("y0 = x0 >= x1 ? 1 : 0;", [x, own], reduce=(along,))
    by_class = Reduction("sum", (0, 2), (1, classes, 1))
    counts = "1" if ignored is None else f"x1 == {float(ignored)} ? 0 : 1"
    text = f"real counts = x0 == x1 ? ({counts}) : 0; y0 = x2 <= {float(most)} ? counts : 0; y1 = counts;"
    right, valid = build.pointwise(text, [number, label, better], reduce=(by_class, by_class))
    (each,) = build.pointwise("y0 = x1 > 0 ? x0 / x1 : 0;", [right, valid])
    total = Reduction("sum", (0, 1, 2), (1,))
    sums = build.pointwise("y0 = x0; y1 = x1;", [right, valid], reduce=(total, total))
    (share,) = build.pointwise("y0 = x1 > 0 ? x0 / x1 : 0;", sums)
    return build.reshape(share, ()), build.reshape(each, (classes,))
