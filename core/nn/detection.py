"""Parts of detection heads: boxes from what a net says of anchors, their choice, and regions of images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clgraft.core.errors import ProblemError
from clgraft.core.nn import ordering, shapes
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.operators.cast import CastProblem
from clgraft.core.operators.detection import NonMaxSuppressionProblem, OrderedSuppressionProblem, RoiAlignProblem

FORMATS = ("corner", "center")
GONE = -1.0  # what rows of boxes that are removed hold


@dataclass(frozen=True)
class Boxes:
    """Where the columns of rows of boxes are, and which boxes count.

    Attributes
    ----------
    coordinates, score : int
        The first of four columns, and one column.
    label : int
        A column; -1 for none.
    background : int
        The label of boxes that do not count; -1 for none.
    apart : bool
        Whether only boxes with the same label remove each other.
    source, result : str
        ``corner`` (left, top, right, bottom) or ``center`` (x, y, width, height), before and after.
    """

    coordinates: int
    score: int
    label: int = -1
    background: int = -1
    apart: bool = False
    source: str = "corner"
    result: str = "corner"


def falling(count: int) -> np.ndarray:
    """Return numbers from `count` down to 1: scores of boxes that are in their order."""
    return np.arange(count, 0, -1)


def earlier(count: int) -> np.ndarray:
    """Return 1 where the column of an element comes before its row, and 0 elsewhere."""
    return np.tri(count, k=-1)


def suppressed(build: Build, x: Tensor, boxes: Boxes, *, overlap: float, least: float, most: int) -> Tensor:
    """Return rows of boxes (batch, boxes, columns) by their scores, without those that overlap a better one.

    What is left in the end is filled with `GONE`. The gradient goes to the rows that stay.

    Parameters
    ----------
    overlap : float
        The largest allowed intersection over union.
    least : float
        Only larger scores count.
    most : int
        How many of the best boxes count; not positive: all.
    """
    first, (batch, count, columns) = build.here, x.shape
    most = min(most, count) if most > 0 else count
    places = _best(build, x, boxes, least, most)
    rows = ordering.rows_at(build, x, places)
    label = _column(build, rows, boxes.label) if boxes.label >= 0 else None
    valid = _valid(build, _column(build, rows, boxes.score), label, boxes, least)
    four = shapes.cut(build, rows, (batch, most, 4), (0, 0, boxes.coordinates))
    apart = boxes.apart and label is not None
    problem = OrderedSuppressionProblem(batch, most, apart, boxes.source == "center", x.dtype)
    reads = (four, valid, *((label,) if apart and label is not None else ()))
    (stays,) = build.add(problem, *reads, scalars={"overlap": overlap})
    stays, order = ordering.first_elements(build, build.reshape(stays, (batch, most)), 1, most)
    flags = build.reshape(stays, (batch, most, 1))
    (y,) = build.pointwise("y0 = x0 != 0 ? x1 : gone;", [flags, ordering.rows_at(build, rows, order)], {"gone": GONE})
    if boxes.source != boxes.result:
        y = _reformed(build, y, flags, boxes)
    y = shapes.in_constant(build, y, x.shape, (0, 0, 0), GONE) if most < count else y

    def gradient(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        (dy,) = dys
        assert dy is not None
        own = shapes.cut(build, build.reshape(dy, x.shape), (batch, most, columns), (0, 0, 0))
        (kept,) = build.pointwise("y0 = x0 != 0 ? x1 : 0;", [flags, own])
        return (ordering.rows_to(build, ordering.rows_to(build, kept, order, most), places, count),)

    build.state_gradient(first, (x,), (y,), gradient)
    return y


def _column(build: Build, rows: Tensor, number: int) -> Tensor:
    """Return a column (batch, rows)."""
    if not 0 <= number < rows.shape[2]:
        raise ProblemError(f"[boxes] got column {number}, expected one of rows of {rows.shape[2]}")
    return build.reshape(shapes.cut(build, rows, (*rows.shape[:2], 1), (0, 0, number)), rows.shape[:2])


def _valid(build: Build, score: Tensor, label: Tensor | None, boxes: Boxes, least: float) -> Tensor:
    """Return 1 for boxes that count, and 0 for others."""
    if label is None or boxes.background < 0:
        return build.pointwise("y0 = x0 > least ? 1 : 0;", [score], {"least": least})[0]
    scalars = {"least": least, "background": float(boxes.background)}
    return build.pointwise("y0 = x0 > least && x1 != background ? 1 : 0;", [score, label], scalars)[0]


def _best(build: Build, x: Tensor, boxes: Boxes, least: float, most: int) -> Tensor:
    """Return the places (batch, most) of the best boxes that count; others come after them."""
    score = _column(build, x, boxes.score)
    label = _column(build, x, boxes.label) if boxes.label >= 0 and boxes.background >= 0 else None
    valid = _valid(build, score, label, boxes, least)
    (key,) = build.pointwise("y0 = x0 != 0 ? x1 : -INFINITY;", [valid, score])
    return ordering.first_elements(build, key, 1, most)[1]


def _reformed(build: Build, rows: Tensor, flags: Tensor, boxes: Boxes) -> Tensor:
    """Return rows with their coordinates in the other format, but for those that are gone."""
    at, (batch, count, columns) = boxes.coordinates, rows.shape
    four = [shapes.cut(build, rows, (batch, count, 1), (0, 0, at + i)) for i in range(4)]
    found = build.pointwise(TO_CENTER if boxes.result == "center" else TO_CORNER, [*four, flags])
    before = [shapes.cut(build, rows, (batch, count, at), (0, 0, 0))] if at else []
    rest = columns - at - 4
    after = [shapes.cut(build, rows, (batch, count, rest), (0, 0, at + 4))] if rest else []
    return shapes.joined(build, [*before, *found, *after], 2)


# x0 to x3 are coordinates, and 0 in x4 says that they stay
TO_CENTER = (
    "y0 = x4 != 0 ? (x0 + x2) / 2 : x0; y1 = x4 != 0 ? (x1 + x3) / 2 : x1; "
    "y2 = x4 != 0 ? x2 - x0 : x2; y3 = x4 != 0 ? x3 - x1 : x3;"
)
TO_CORNER = (
    "y0 = x4 != 0 ? x0 - x2 / 2 : x0; y1 = x4 != 0 ? x1 - x3 / 2 : x1; "
    "y2 = x4 != 0 ? x0 + x2 / 2 : x2; y3 = x4 != 0 ? x1 + x3 / 2 : x3;"
)


def decoded(
    build: Build, x: Tensor, anchors: Tensor, scales: tuple[float, ...], *, limit: float, source: str
) -> Tensor:
    """Return the corners of boxes (batch, boxes, 4) from what a net says of anchors (1 or batch, boxes, 4).

    Parameters
    ----------
    x : Tensor
        Moves of the middle as shares of the anchor's width and height, and logarithms of shares of both.
    scales : tuple of float
        Of the four numbers.
    limit : float
        The largest logarithm; not positive: none.
    source : str
        The format of the anchors.

    Notes
    -----
    No gradient passes.
    """
    first = build.here
    numbers, others = (
        [shapes.cut(build, one, (*one.shape[:2], 1), (0, 0, i)) for i in range(4)] for one in (x, anchors)
    )
    corner = "real w = x6 - x4; real h = x7 - x5; real u = x4 + w / 2; real v = x5 + h / 2; "
    middle = "real u = x4; real v = x5; real w = x6; real h = x7; "
    grown = ["fmin({}, limit)" if limit > 0 else "{}"] * 2
    log_w, log_h = (text.format(f"x{2 + i} * s{2 + i}") for i, text in enumerate(grown))
    text = (
        f"{corner if source == 'corner' else middle}real a = x0 * s0 * w + u; real b = x1 * s1 * h + v; "
        f"real c = exp({log_w}) * w / 2; real d = exp({log_h}) * h / 2; y0 = a - c; y1 = b - d; y2 = a + c; y3 = b + d;"
    )
    scalars = {**{f"s{i}": scale for i, scale in enumerate(scales)}, **({"limit": limit} if limit > 0 else {})}
    y = shapes.joined(build, build.pointwise(text, [*numbers, *others], scalars), 2)
    build.state_gradient(first, (x, anchors), (y,), lambda build, dys, wanted: (None, None))
    return y


def regions(
    build: Build, x: Tensor, rois: Tensor, size: tuple[int, int], *, scale: float, samples: int, half_pixel: bool
) -> Tensor:
    """Return regions of images as images of one size, averages of samples (see `RoiAlignProblem`).

    Parameters
    ----------
    rois : Tensor
        (regions, 5): the number of the image, left, top, right, bottom.
    samples : int
        In each direction of a pixel; as many as it has pixels of x if there are none, or less.
    """
    return _pooled(build, x, rois, "average", size, scale, max(samples, 0), half_pixel)


def pooled_regions(build: Build, x: Tensor, rois: Tensor, size: tuple[int, int], *, scale: float) -> Tensor:
    """Return regions of images as images of one size, of which each pixel is the largest one in its part of a region.

    Parameters
    ----------
    rois : Tensor
        As of `regions`; corners are rounded to pixels, the last ones included.
    """
    return _pooled(build, x, rois, "pixels", size, scale)


def _pooled(
    build: Build,
    x: Tensor,
    rois: Tensor,
    operator: str,
    size: tuple[int, int],
    scale: float,
    samples: int = 0,
    half_pixel: bool = False,
) -> Tensor:
    count = rois.shape[0]
    number = build.reshape(shapes.cut(build, rois, (count, 1), (0, 0)), (count,))
    (image,) = build.add(CastProblem(count, rois.dtype, "int32"), number)
    corners = shapes.cut(build, rois, (count, 4), (0, 1))
    return regions_at(build, x, corners, image, operator, size, scale=scale, samples=samples, half_pixel=half_pixel)


def regions_at(
    build: Build,
    x: Tensor,
    corners: Tensor,
    image: Tensor,
    operator: str,
    size: tuple[int, int],
    *,
    scale: float,
    samples: int = 0,
    half_pixel: bool = False,
) -> Tensor:
    """Return regions of images as images of one size; the words are those of `RoiAlignProblem`.

    Parameters
    ----------
    corners : Tensor
        (regions, 4): left, top, right, bottom.
    image : Tensor
        (regions), int32: the numbers of the images.
    """
    count, (batch, channels, *planes) = corners.shape[0], x.shape
    problem = RoiAlignProblem(operator, batch, channels, tuple(planes), count, size, samples, half_pixel, dtype=x.dtype)
    return build.add(problem, x, corners, image, scalars={"scale": scale})[0]


def most_chosen(most: int, scores: Tensor) -> int:
    """Return how many boxes of a class of an image can stay if at most so many are wanted."""
    return min(max(most, 0), scores.shape[2])


def chosen(
    build: Build, boxes: Tensor, scores: Tensor, *, most: int, overlap: float, least: float, centers: bool
) -> tuple[Tensor, Tensor]:
    """Return (image, class, box) of the boxes that stay, best first in each class, as int32 rows, and their number.

    Parameters
    ----------
    boxes, scores : Tensor
        (images, boxes, 4) and (images, classes, boxes).
    most : int
        How many boxes of a class of an image stay at most, as `most_chosen` returns it.
    overlap : float
        The largest allowed intersection over union.
    least : float
        Only larger scores count.
    centers : bool
        Whether boxes are (x, y, width, height), or corners.
    """
    problem = NonMaxSuppressionProblem(*scores.shape, most, centers, boxes.dtype)
    rows, count = build.add(problem, boxes, scores, scalars={"overlap": overlap, "score": least})
    return build.reshape(rows, (problem.rows, 3)), build.reshape(count, (1,))
