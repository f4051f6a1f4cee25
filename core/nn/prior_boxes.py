"""Boxes around every pixel, what a net says of them, and which are detections.

The method is that of Liu et al. 2016, "SSD: Single Shot MultiBox Detector".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clgraft.core.nn import ordering, shapes
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.detection import GONE, decoded
from clgraft.core.operators.detection import OrderedSuppressionProblem

ROW = 7  # numbers of a detection
ALIKE = 1e-6  # ratios that are no further apart are the same


@dataclass(frozen=True)
class Priors:
    """Boxes of several shapes around every pixel of a layer.

    Attributes
    ----------
    smallest, largest : tuple of float
        Sides of squares in pixels of the image. For each of the largest, of which there are as many or none, there is a
        square with the geometric mean of both sides.
    ratios : tuple of float
        Width / height of further boxes, with the areas of the smallest squares.
    variances : tuple of float
        Four numbers that go with every box.
    step : tuple of float or None
        Height and width in pixels of the image that a pixel of the layer stands for; by default the quotient of both
        sizes.
    offset : float
        Where in its pixel a box has its middle.
    inside : bool
        Whether corners are moved into the image.
    """

    smallest: tuple[float, ...]
    largest: tuple[float, ...] = ()
    ratios: tuple[float, ...] = ()
    variances: tuple[float, ...] = (0.1, 0.1, 0.1, 0.1)
    step: tuple[float, float] | None = None
    offset: float = 0.5
    inside: bool = False

    def shapes(self) -> list[tuple[float, float]]:
        """Return width and height of the boxes around a pixel."""
        found = []
        for number, side in enumerate(self.smallest):
            found.append((side, side))
            if self.largest:
                found.append((math.sqrt(side * self.largest[number]),) * 2)
            found += [(side * math.sqrt(ratio), side / math.sqrt(ratio)) for ratio in self.ratios]
        return found

    def array(self, size: Sequence[int], image: Sequence[int]) -> np.ndarray:
        """Return (2, 4 boxes): corners as shares of the image (left, top, right, bottom), and the variances.

        Parameters
        ----------
        size, image : sequence of int
            Height and width of the layer, and of the image.
        """
        half = np.array(self.shapes()) / 2
        steps = self.step or tuple(of / own for of, own in zip(image, size))
        down, across = ((np.arange(count) + self.offset) * step for count, step in zip(size, steps))
        middle = np.stack(np.broadcast_arrays(across[None, :, None], down[:, None, None]), -1)
        corners = np.concatenate([middle - half, middle + half], -1) / np.array([*image[::-1], *image[::-1]])
        if self.inside:
            corners = np.clip(corners, 0, 1)
        spread = np.broadcast_to(np.array(self.variances), corners.shape)
        return np.stack([corners.reshape(-1), spread.reshape(-1)])


def further_ratios(given: Sequence[float], *, both: bool) -> tuple[float, ...]:
    """Return ratios without 1 and without those that are there already, with `both` each with its inverse."""
    found = [1.0]
    for ratio in given:
        if all(abs(ratio - other) >= ALIKE for other in found):
            found += [ratio, 1 / ratio] if both else [ratio]
    return tuple(ratio for ratio in found if abs(ratio - 1) >= ALIKE)


CODES = ("corner", "center_size", "corner_size")
# of a box in x0 to x3 for a prior box in x4 to x7
BY_SIZE = "real w = x6 - x4; real h = x7 - x5; y0 = x4 + x0 * w; y1 = x5 + x1 * h; y2 = x6 + x2 * w; y3 = x7 + x3 * h;"


def boxes_of_priors(build: Build, x: Tensor, priors: Tensor, variances: Tensor | None, code: str) -> Tensor:
    """Return the corners of boxes (batch, boxes, 4) from what a net says of prior boxes (1, boxes, 4).

    Parameters
    ----------
    variances : Tensor or None
        Factors of x (1, boxes, 4), if there are any.
    code : str
        What x is: ``corner``: moves of the corners; ``corner_size``: these as shares of width and height;
        ``center_size``: moves of the middle as shares, and logarithms of shares of both.
    """
    first, given = build.here, x
    if variances is not None:
        (x,) = build.pointwise("y0 = x0 * x1;", [x, variances])
    if code == "center_size":
        y = decoded(build, x, priors, (1.0,) * 4, limit=0, source="corner")
    elif code == "corner":
        (y,) = build.pointwise("y0 = x0 + x1;", [x, priors])
    else:
        columns = [shapes.cut(build, one, (*one.shape[:2], 1), (0, 0, i)) for one in (x, priors) for i in range(4)]
        y = shapes.joined(build, build.pointwise(BY_SIZE, columns), 2)
    build.state_gradient(first, (given, priors), (y,), lambda build, dys, wanted: (None, None))
    return y


@dataclass(frozen=True)
class Choice:
    """Which boxes of which classes are detections.

    Attributes
    ----------
    background : int
        The class that is none; negative: all are.
    least : float
        Only larger scores count.
    overlap : float
        The largest allowed intersection over union of boxes of one class.
    most : int
        How many of the best boxes of a class are looked at; negative: all.
    kept : int
        How many detections of an image are kept; negative: all.
    """

    background: int
    least: float
    overlap: float
    most: int
    kept: int


def detections(build: Build, boxes: Tensor, scores: Tensor, choice: Choice) -> Tensor:
    """Return rows (batch, rows, 7) of detections: image, class, score, left, top, right, bottom.

    They come by classes, and in a class by scores. The rows after them hold `GONE`.

    Parameters
    ----------
    boxes : Tensor
        (batch, 1 or classes, boxes, 4).
    scores : Tensor
        (batch, boxes, classes).
    """
    first, (batch, count, classes) = build.here, scores.shape
    labels = [label for label in range(classes) if label != choice.background]
    lines = _without(build, shapes.transposed(build, scores, (0, 2, 1)), choice.background)
    most = min(choice.most, count) if choice.most >= 0 else count
    (key,) = build.pointwise("y0 = x0 > least ? x0 : -INFINITY;", [lines], {"least": choice.least})
    best, places = ordering.first_elements(build, key, 2, most)
    (valid,) = build.pointwise("y0 = x0 > (-INFINITY) ? 1 : 0;", [best])
    four = _boxes_at(build, boxes, places, choice.background)
    problem = OrderedSuppressionProblem(batch * len(labels), most, dtype=scores.dtype)
    (stays,) = build.add(problem, four, valid, scalars={"overlap": choice.overlap})
    total = len(labels) * most
    stays, found = build.reshape(stays, (batch, total)), build.reshape(best, (batch, total))
    kept = min(choice.kept, total) if choice.kept >= 0 else total
    if kept < total:
        (score,) = build.pointwise("y0 = x0 != 0 ? x1 : -INFINITY;", [stays, found])
        chosen = ordering.first_elements(build, score, 1, kept)[1]
        (stays,) = build.pointwise("y0 = x0 * x1;", [stays, ordering.marked(build, stays, chosen, 1)])
    flags, order = ordering.first_elements(build, stays, 1, kept)
    of_class = build.constant(np.repeat(np.array(labels, scores.dtype), most).reshape(1, total, 1))
    of_image = build.constant(np.arange(batch, dtype=scores.dtype).reshape(batch, 1, 1))
    columns = [
        shapes.broadcast(build, of_class, (batch, total, 1)),
        build.reshape(found, (batch, total, 1)),
        build.reshape(four, (batch, total, 4)),
    ]
    rows = ordering.rows_at(build, shapes.joined(build, columns, 2), order)
    whole = shapes.joined(build, [shapes.broadcast(build, of_image, (batch, kept, 1)), rows], 2)
    flags = build.reshape(flags, (batch, kept, 1))
    (y,) = build.pointwise("y0 = x0 != 0 ? x1 : gone;", [flags, whole], {"gone": GONE})
    build.state_gradient(first, (boxes, scores), (y,), lambda build, dys, wanted: (None, None))
    return y


def detection_output(
    build: Build,
    location: Tensor,
    confidence: Tensor,
    priors: Tensor,
    choice: Choice,
    *,
    classes: int,
    shared: bool,
    encoded: bool,
    code: str,
) -> Tensor:
    """Return rows (1, 1, rows, 7) of detections from what the layers of a net say, see `detections`.

    Parameters
    ----------
    location, confidence : Tensor
        For each image the numbers of each box, of each class unless they are `shared`, and the scores of its classes.
    priors : Tensor
        (1, 2, numbers): prior boxes, and their variances.
    encoded : bool
        Whether locations have been multiplied by the variances.
    code : str
        As of `boxes_of_priors`.
    """
    batch, boxes, apart = location.shape[0], priors.size // 8, 1 if shared else classes
    location = build.reshape(location, (batch, boxes, apart, 4))
    if apart > 1:
        location = shapes.transposed(build, location, (0, 2, 1, 3))
    location = build.reshape(location, (batch * apart, boxes, 4))
    scores = build.reshape(confidence, (batch, boxes, classes))
    both = build.reshape(priors, (2, boxes, 4))
    middles, variances = (shapes.cut(build, both, (1, boxes, 4), (place, 0, 0)) for place in (0, 1))
    corners = boxes_of_priors(build, location, middles, None if encoded else variances, code)
    rows = detections(build, build.reshape(corners, (batch, apart, boxes, 4)), scores, choice)
    return build.reshape(rows, (1, 1, rows.shape[0] * rows.shape[1], ROW))


def sizes_of_output(priors: int, classes: int, *, shared: bool) -> tuple[int, int, int]:
    """Return how many boxes so many numbers of prior boxes are, and how many locations and scores an image has then."""
    boxes = priors // 8
    return boxes, boxes * (1 if shared else classes) * 4, boxes * classes


def is_row(build: Build, rows: Tensor) -> Tensor:
    """Return 1 for the rows of `detections` (rows, 7) that hold one, and 0 for others."""
    label = shapes.cut(build, rows, (rows.shape[0], 1), (0, 1))
    (flags,) = build.pointwise("y0 = x0 >= 0 ? 1 : 0;", [label])
    return build.without_gradient(flags)


def no_rows(batch: int) -> np.ndarray:
    """Return what the SSD fork has where there are no detections: for each image a row that begins with its number."""
    rows = np.full((batch, ROW), GONE, np.float32)
    rows[:, 0] = np.arange(batch)
    return rows


def _without(build: Build, x: Tensor, place: int) -> Tensor:
    """Return a value without one element of axis 1."""
    if not 0 <= place < x.shape[1]:
        return x
    sizes = (place, x.shape[1] - place - 1)
    parts = [
        shapes.cut(build, x, (x.shape[0], size, *x.shape[2:]), (0, begin, *(0,) * (x.ndim - 2)))
        for size, begin in zip(sizes, (0, place + 1))
        if size
    ]
    return parts[0] if len(parts) == 1 else shapes.joined(build, parts, 1)


def _boxes_at(build: Build, boxes: Tensor, places: Tensor, background: int) -> Tensor:
    """Return the boxes (batch classes, count, 4) at the places (batch, classes, count) of their classes."""
    batch, apart, count, _ = boxes.shape
    _, classes, most = places.shape
    if apart == 1:
        shared = build.reshape(boxes, (batch, count, 4))
        found = ordering.rows_at(build, shared, build.reshape(places, (batch, classes * most)))
    else:
        own = build.reshape(_without(build, boxes, background), (batch * classes, count, 4))
        found = ordering.rows_at(build, own, build.reshape(places, (batch * classes, most)))
    return build.reshape(found, (batch * classes, most, 4))
