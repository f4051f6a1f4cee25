"""What each kind of problem is in channels last, for the pass that assigns layouts.

An image is a value that holds (batch, channels, pixels), whatever its shape says: channels first it lies in memory in
that order, channels last as (batch, pixels, channels). The weights of convolutions, (first, second, taps), are images
as well. Which values are images follows from the problems whose
arguments have channels, such as convolutions, and from their neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from clgraft.core.operators.batchnorm import BatchNormProblem
from clgraft.core.operators.cast import CastProblem
from clgraft.core.operators.conv import ConvProblem
from clgraft.core.operators.copying import ConcatProblem, PadProblem, RepeatProblem, SliceProblem, TransposeProblem
from clgraft.core.operators.crossentropy import CrossEntropyProblem
from clgraft.core.operators.deconvolution import DeconvProblem
from clgraft.core.operators.dropout import DropoutProblem
from clgraft.core.operators.interpolation import InterpolationProblem
from clgraft.core.operators.lrn import LRNProblem
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.operators.pooling import PoolProblem
from clgraft.core.operators.resampling import ResampleProblem
from clgraft.core.operators.softmax import SoftmaxProblem
from clgraft.core.problem import Problem
from clgraft.core.problem.layout import FIRST, LAST

Shape = Sequence[int]


class Image(NamedTuple):
    """The sizes of an image."""

    batch: int
    channels: int
    pixels: int

    @property
    def lies_alike(self) -> bool:
        """Whether both layouts have the same memory."""
        return self.channels == 1 or self.pixels == 1

    def turning(self, to_last: bool, dtype: str) -> TransposeProblem:
        """Return the problem that changes the layout."""
        batch, channels, pixels = self
        shape = (batch, channels, pixels) if to_last else (batch, pixels, channels)
        return TransposeProblem(shape, (0, 2, 1), dtype)


Images = Mapping[str, Image]


@dataclass(frozen=True)
class Turned:
    """A problem in channels last.

    Attributes
    ----------
    images : mapping of str to Image
        The arguments that are in channels last then.
    build : callable
        Returns the problem; its arguments have the names and the order of the problem in channels first.
    is_view : bool
        Whether nothing is left to do: of a transposition, whose result is its input then.
    """

    images: Images
    build: Callable[[], Problem]
    is_view: bool = False


def turned(problem: Problem, known: Images) -> Turned | None:
    """Return a problem in channels last; None if it has no such form.

    Parameters
    ----------
    problem : Problem
    known : mapping of str to Image
        The arguments of which it is known that they are images.
    """
    rule = RULES.get(type(problem))
    return rule(problem, known) if rule else None


def is_seed(problem: Problem) -> bool:
    """Return whether a problem says by itself which of its arguments are images."""
    return isinstance(problem, (ConvProblem, DeconvProblem, PoolProblem, InterpolationProblem))


def multiplies(problem: Problem) -> bool:
    """Return whether a problem is a product of matrices, with weights."""
    return isinstance(problem, (ConvProblem, DeconvProblem)) and problem.direction != "backward_bias"


def has_layout(problem: Problem) -> bool:
    """Return whether a problem says its layout, and so may be served in channels last by transpositions alone."""
    return isinstance(problem, (ConvProblem, DeconvProblem, PoolProblem))


def split(shape: Shape, image: Image) -> tuple[int, int] | None:
    """Return where the axes of channels begin and end in the shape of an image; None if it has none of its own."""
    begin = _leading(shape, image.batch)
    more = None if begin is None else _leading(shape[begin:], image.channels)
    if begin is None or more is None or math.prod(shape[begin + more :]) != image.pixels:
        return None
    return begin, begin + more


def _leading(shape: Shape, size: int) -> int | None:
    """Return how many axes in front have so many elements together."""
    count, product = 0, 1
    while product != size:
        if count == len(shape) or product > size or not product:
            return None
        product *= shape[count]
        count += 1
    return count


def seen(shape: Shape, at: tuple[int, int]) -> Image:
    """Return the image of a shape whose axes of channels are known."""
    begin, end = at
    return Image(math.prod(shape[:begin]), math.prod(shape[begin:end]), math.prod(shape[end:]))


def order(rank: int, at: tuple[int, int]) -> list[int]:
    """Return the axes in the order of channels last."""
    begin, end = at
    return [*range(begin), *range(end, rank), *range(begin, end)]


def moved(numbers: Shape, at: tuple[int, int]) -> tuple[int, ...]:
    """Return what belongs to the axes of a shape in the order of channels last."""
    return tuple(numbers[axis] for axis in order(len(numbers), at))


def _windows(problem: Any, known: Images) -> Turned | None:
    """Turn a convolution or deconvolution."""
    if problem.layout != FIRST:
        return None
    source = Image(problem.batch, problem.in_channels, math.prod(problem.in_size))
    result = Image(problem.batch, problem.out_channels, math.prod(problem.out_size))
    first, second, *kernel = problem.weight_shape
    weights = Image(first, second, math.prod(kernel))
    table = {"x": source, "dx": source, "y": result, "dy": result, "w": weights, "dw": weights}
    images = {argument.name: table[argument.name] for argument in problem.arguments() if argument.name in table}
    return Turned(images, lambda: replace(problem, layout=LAST))


def _pool(problem: PoolProblem, known: Images) -> Turned | None:
    if problem.layout != FIRST or (problem.direction.endswith("_argmax") and problem.ndim > 2):
        return None
    source = Image(problem.batch, problem.channels, math.prod(problem.in_size))
    result = Image(problem.batch, problem.channels, math.prod(problem.out_size))
    images = {a.name: source if a.name in ("x", "dx") else result for a in problem.arguments()}
    return Turned(images, lambda: replace(problem, layout=LAST))


def _interpolation(problem: InterpolationProblem, known: Images) -> Turned | None:
    """Make the channels one more axis, along which nothing changes."""
    if problem.ndim > 2 or not problem.channels:
        return None
    source = Image(problem.batch, problem.channels, math.prod(problem.in_size))
    result = Image(problem.batch, problem.channels, math.prod(problem.out_size))
    images = {a.name: source if a.name in ("x", "dx") else result for a in problem.arguments()}

    def build() -> Problem:
        sizes = {name: (*getattr(problem, name), problem.channels) for name in ("in_size", "out_size")}
        return replace(problem, channels=1, **sizes)

    return Turned(images, build)


def _norm(problem: BatchNormProblem, known: Images) -> Turned | None:
    images = dict.fromkeys(_named(problem, "x dy y dx"), Image(*problem.shape))
    if not known.keys() & images.keys():
        return None
    return Turned(images, lambda: replace(problem, batch=problem.batch * problem.pixels, pixels=1))


def _lines(problem: Any, known: Images) -> Turned | None:
    """Turn a problem of (images, channels, pixels) along the channels."""
    image = Image(problem.images, problem.channels, problem.pixels)
    images = dict.fromkeys(_named(problem, "x y dx dy"), image)
    if image not in (known.get(name) for name in images):
        return None
    return Turned(images, lambda: replace(problem, images=problem.images * problem.pixels, pixels=1))


def _named(problem: Problem, names: str) -> list[str]:
    return [argument.name for argument in problem.arguments() if argument.name in names.split()]


def _elements(problem: CastProblem, known: Images) -> Turned | None:
    """Turn a problem that treats all elements alike."""
    image = next(iter(known.values()), None)
    return None if image is None else Turned(dict.fromkeys(_named(problem, "x y"), image), lambda: problem)


def _pointwise(problem: PointwiseProblem, known: Images) -> Turned | None:
    common = problem.common_shape
    size, arguments = math.prod(common), problem.arguments()
    image = next((known[a.name] for a in arguments if a.size == size and a.name in known), None)
    if problem.beta or image is None or math.prod(image) != size:
        return None
    at = split(common, image)
    reduced = any(reduction is not None for reduction in problem.reductions)
    if not reduced and all(argument.size == size for argument in arguments):
        images = {argument.name: image for argument in arguments}
        if at is None or any(shape != common for shape in problem.inputs):
            return Turned(images, lambda: problem)  # one element after the other
    if at is None:
        return None
    rank, place = len(common), at
    full = [(1,) * (rank - len(shape)) + shape for shape in problem.inputs]
    images = {f"x{i}": seen(shape, place) for i, shape in enumerate(full)}
    for i, reduction in enumerate(problem.reductions):
        axes = () if reduction is None else reduction.axes
        kept = [1 if axis in axes else length for axis, length in enumerate(common)]
        images[f"y{i}"] = seen(kept, place)

    def build() -> Problem:
        folds = tuple(None if r is None else _fold(r, common, place) for r in problem.reductions)
        return replace(problem, inputs=tuple(moved(shape, place) for shape in full), reductions=folds)

    return Turned(images, build)


def _fold(reduction: Any, common: Shape, at: tuple[int, int]) -> Any:
    """Return a reduction over the axes in the order of channels last."""
    places = order(len(common), at)
    axes = tuple(sorted(places.index(axis) for axis in reduction.axes))
    kept = [1 if axis in reduction.axes else length for axis, length in enumerate(common)]
    if len(reduction.shape) == len(common):
        return replace(reduction, axes=axes, shape=moved(kept, at))
    return replace(reduction, axes=axes, shape=tuple(common[axis] for axis in places if axis not in reduction.axes))


def _concat(problem: ConcatProblem, known: Images) -> Turned | None:
    whole, parts = problem.names
    extents = {whole: sum(problem.extents), **dict(zip(parts, problem.extents))}
    outer, inner = problem.outer, problem.inner
    for name, (batch, channels, pixels) in known.items():
        if (batch, channels, pixels) == (outer, extents[name], inner):
            images = {one: Image(batch, extent, pixels) for one, extent in extents.items()}
            return Turned(images, _with_lines(problem, outer * inner, 1))
        if (outer, inner) == (1, channels * pixels) and batch == extents[name]:
            return Turned({one: Image(extent, channels, pixels) for one, extent in extents.items()}, lambda: problem)
        above = _above(outer, (batch, channels, pixels), extents[name] * inner)
        if above:
            images = {one: Image(batch, channels, above * extent * inner) for one, extent in extents.items()}
            return Turned(images, _with_lines(problem, batch * above, inner * channels))
    return None


def _with_lines(problem: Any, outer: int, inner: int) -> Callable[[], Problem]:
    """Return what builds a problem with other sizes before and after its axis."""
    return lambda: replace(problem, outer=outer, inner=inner)


def _above(outer: int, image: tuple[int, int, int], inside: int) -> int:
    """Return the pixels in front of an axis of pixels, of which `inside` are along it and after it; 0: it is none."""
    batch, channels, pixels = image
    planes = batch * channels
    return outer // planes if planes and outer % planes == 0 and outer // planes * inside == pixels else 0


def _resample(problem: ResampleProblem, known: Images) -> Turned | None:
    for name, extent in (("x", problem.in_extent), ("y", problem.out_extent)):
        image = known.get(name)
        above = _above(problem.outer, image, extent * problem.inner) if image else 0
        if image and above:
            batch, channels, _ = image
            sizes = {"x": problem.in_extent, "y": problem.out_extent}
            images = {one: Image(batch, channels, above * size * problem.inner) for one, size in sizes.items()}
            return Turned(images, _with_lines(problem, batch * above, problem.inner * channels))
    return None


def _boxes(problem: Any, shapes: Mapping[str, Shape], known: Images, fields: str) -> Turned | None:
    """Turn a problem whose fields have a number for each axis; `shapes` are those of its two arguments."""
    image = next(((name, known[name]) for name in shapes if name in known), None)
    at = split(shapes[image[0]], image[1]) if image else None
    if at is None:
        return None
    begin = at
    return Turned(
        {name: seen(shape, begin) for name, shape in shapes.items()},
        lambda: replace(problem, **{name: moved(getattr(problem, name), begin) for name in fields.split()}),
    )


def _slice(problem: SliceProblem, known: Images) -> Turned | None:
    names = ("x", "y") if problem.direction == "forward" else ("dx", "dy")
    shapes = dict(zip(names, (problem.in_shape, problem.out_shape)))
    return _boxes(problem, shapes, known, "in_shape out_shape begin step")


def _pad(problem: PadProblem, known: Images) -> Turned | None:
    names = ("x", "y") if problem.direction == "forward" else ("dx", "dy")
    return _boxes(problem, dict(zip(names, (problem.shape, problem.out_shape))), known, "shape before behind")


def _repeat(problem: RepeatProblem, known: Images) -> Turned | None:
    return _boxes(problem, {"x": problem.shape, "y": problem.out_shape}, known, "shape times")


def _transpose(problem: TransposeProblem, known: Images) -> Turned | None:
    """Turn a transposition: one that changes the layout is a view, one within the channels or pixels stays one."""
    if "y" in known:
        at = split(problem.out_shape, known["y"])
        if at and tuple(problem.axes[axis] for axis in order(len(problem.axes), at)) == _sorted(problem.axes):
            return Turned({"y": known["y"]}, lambda: problem, is_view=True)
    if "x" in known:
        at = split(problem.shape, known["x"])
        if at and problem.axes == tuple(order(len(problem.axes), at)):
            return Turned({"x": known["x"]}, lambda: problem, is_view=True)
        if at is None:
            return None
        begin, end = place = at
        groups = ((0, begin), (begin, end), (end, len(problem.axes)))
        if any({*problem.axes[a:b]} != {*range(a, b)} for a, b in groups):
            return None
        axes = order(len(problem.axes), place)

        def build() -> Problem:
            inside = tuple(axes.index(problem.axes[axis]) for axis in axes)
            return replace(problem, shape=moved(problem.shape, place), axes=inside)

        return Turned({"x": known["x"], "y": seen(problem.out_shape, place)}, build)
    return None


def _sorted(axes: Shape) -> tuple[int, ...]:
    return tuple(range(len(axes)))


def _dropout(problem: DropoutProblem, known: Images) -> Turned | None:
    """Turn a dropout of whole channels, or of whole pixels: others draw an element's number by its place in memory."""
    names = _named(problem, "x y dx dy")
    image = next((known[name] for name in names if name in known), None)
    at = split(problem.shape, image) if image else None
    if image is None or at is None or not seen(problem.mask, at).lies_alike:
        return None
    place = at
    return Turned(
        dict.fromkeys(names, image),
        lambda: replace(problem, shape=moved(problem.shape, place), mask=moved(problem.mask, place)),
    )


RULES: dict[type[Problem], Callable[[Any, Images], Turned | None]] = {
    BatchNormProblem: _norm,
    CastProblem: _elements,
    ConcatProblem: _concat,
    ConvProblem: _windows,
    CrossEntropyProblem: _lines,
    DeconvProblem: _windows,
    DropoutProblem: _dropout,
    InterpolationProblem: _interpolation,
    LRNProblem: _lines,
    PadProblem: _pad,
    PointwiseProblem: _pointwise,
    PoolProblem: _pool,
    RepeatProblem: _repeat,
    ResampleProblem: _resample,
    SliceProblem: _slice,
    SoftmaxProblem: _lines,
    TransposeProblem: _transpose,
}
