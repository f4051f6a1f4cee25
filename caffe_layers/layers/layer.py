"""What all layers share: parameters, blobs, reshaping, work in place, and errors that are printed.

Caffe calls `setup` once, `reshape` and `forward` for every batch, and `backward` when it learns. Here these four only
check and prepare; a layer implements `configure` and `prepare`, and `built.BuiltLayer` `compute` and `differentiate`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ClassVar

import numpy as np

from clgraft import core
from clgraft.caffe_layers.layers import fillers
from clgraft.caffe_layers.prototxt import schema
from clgraft.caffe_layers.regions.member import Member, join
from clgraft.caffe_layers.regions.memory import buffer
from clgraft.core.errors import ClgraftError, ProblemError
from clgraft.core.log import log
from clgraft.core.nn.norms import share_of_count

TRAIN, TEST = 0, 1  # values of a layer's `phase`
MANY = 1 << 30  # no limit on the number of blobs
SHOWN = 120  # letters of param_str that an error shows


def told(step: Callable[..., Any]) -> Callable[..., Any]:
    """Log an error before it reaches Caffe, whose command ends without printing a Python exception."""

    @wraps(step)
    def guarded(self: Any, *arguments: Any) -> Any:
        try:
            return step(self, *arguments)
        except Exception as error:
            reason = str(error) if isinstance(error, ClgraftError) else traceback.format_exc()
            if self.tells:
                log.error("clgraft: %s failed in %s: %s", self.title(), step.__name__, reason)
            if isinstance(error, ClgraftError) and self.name():
                error.args = (f"{error} (in layer {self.name()!r})", *error.args[1:])
            raise

    return guarded


class OclLayer:
    """Base class of the layers.

    It knows Caffe's blobs only by what pycaffe's have: `framework.bind` makes Python layers of Caffe's of the classes,
    and in `clgraft.caffe_layers.hosted` they describe to a layer in C++ what it has to run.

    Attributes
    ----------
    word : str
        The word in brackets of the layer's errors.
    bottoms, tops : (int, int)
        Fewest and most.
    may_be_in_place : bool
        Whether a top may be its bottom.
    parameters : LayerParameter
        The original layer's parameters, from `param_str`.
    shapes : list of tuple of int
        The bottoms' shapes.
    in_place : bool
        Whether the first top is the first bottom; False in a region, where each top is a value of its own.
    member : Member or None
        Its side of the region that it is in.
    given, results : tuple of str
        Attributes that hold arrays which the host fills before a forward pass, and reads after it.
    learned : bool
        Whether the solver may change the blobs.
    tells : bool
        Whether errors are logged before they are raised.
    real : numpy type
        Of the arrays that are made like blobs.
    blobs, phase, param_str
        What Caffe gives a layer.
    """

    word: ClassVar[str]
    bottoms: ClassVar[tuple] = (1, 1)
    tops: ClassVar[tuple] = (1, 1)
    may_be_in_place: ClassVar[bool] = True
    given: ClassVar[tuple] = ()
    results: ClassVar[tuple] = ()
    learned: ClassVar[bool] = True
    tells: ClassVar[bool] = True
    real: Any = np.float32
    blobs: Any
    phase: int
    param_str: str

    # Methods that a layer implements.

    def configure(self, shapes: list) -> None:
        """Read the parameters and make the blobs; runs once, with the bottoms' first shapes."""

    def prepare(self, shapes: list) -> list:
        """Take new bottom shapes; return the tops' shapes."""
        return shapes

    def begin(self) -> None:
        """Do what the host has to do before a forward pass."""
        for array, index, divisor in self.quotients():
            number = self.blobs[divisor].data[0]
            np.multiply(self.blobs[index].data, self.real(share_of_count(number)), out=array)

    def quotients(self) -> Sequence[tuple[np.ndarray, int, int]]:
        """Return arrays that each forward pass begins with: a blob divided by another one's number, 0 if that is 0."""
        return ()

    def compute(self, bottom: Any, top: Any) -> None:
        """Write the tops."""
        raise NotImplementedError

    def end(self, bottom: Any, top: Any) -> None:
        """Do what the host has to do after a forward pass."""
        for index, factor, term in self.counted():
            number = self.blobs[index].data
            number *= self.real(factor)
            number += self.real(term)

    def counted(self) -> Sequence[tuple[int, float, float]]:
        """Return blobs of one number that each forward pass multiplies and adds to: index, factor and term."""
        return ()

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        """Write the bottoms' gradients where wanted and add to the blobs'."""
        raise NotImplementedError

    def expect_gradients(self, propagate_down: Any) -> None:
        """Raise `ProblemError` if a gradient is wanted that the layer does not have."""

    # Methods that Caffe calls.

    @told
    def setup(self, bottom: Any, top: Any) -> None:
        self.read(self.param_str)
        self.member: Member | None = join(self, bottom, top)
        if self.member is not None:
            self.show_hidden()
        self.context: Any = None if self.member else self.runner()
        self.shapes: list = []
        self.prepared = 0
        self.in_place = False
        for name, blobs, limits in (("bottom", bottom, self.bottoms), ("top", top, self.tops)):
            low, high = limits
            expected = low if low == high else f"{low} or more" if high == MANY else f"{low} to {high}"
            self.expect(low <= len(blobs) <= high, f"{len(blobs)} {name} blobs", expected)
        self.bottom_count, self.top_count = len(bottom), len(top)
        self.configure(self.shapes_of(bottom))

    @told
    def reshape(self, bottom: Any, top: Any) -> None:
        shapes = self.shapes_of(bottom)
        if shapes == self.shapes and self.prepared:  # a layer without bottoms is prepared once
            return
        self.shapes = []  # no shape is valid if one of the next lines fails
        self.prepared += 1
        for i, shape in enumerate(self.prepare(shapes)):
            top[i].reshape(*shape)
        in_place = self.member.in_place if self.member else self.shares_memory(bottom, top)
        self.expect(self.may_be_in_place or not in_place, "a top that is its own bottom", "different blobs")
        self.in_place = in_place and self.member is None
        self.shapes = shapes

    @told
    def forward(self, bottom: Any, top: Any) -> None:
        if self.member is not None:
            self.member.forward(bottom, top)
            return
        self.begin()
        self.compute(bottom, top)
        self.end(bottom, top)

    @told
    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if self.member is not None:
            self.member.backward(top, propagate_down, bottom)
            return
        self.expect_gradients(propagate_down)
        self.differentiate(top, propagate_down, bottom)

    # Methods that depend on what holds the blobs.

    def runner(self) -> Any:
        """Return the context that plans and runs its problems."""
        return core.context()

    def drawn(self, shape: tuple, filler: Any) -> np.ndarray:
        """Return an array filled as Caffe's own layer would fill its blob."""
        raise NotImplementedError

    def show_hidden(self) -> None:
        """Let nets show which of their blobs are not on the host."""

    def array(self, shape: tuple, dtype: Any = None) -> Any:
        """Return memory of the layer's own that plans alone use, of numbers as in blobs unless it says otherwise."""
        return np.empty(shape, dtype or self.real)

    def constant(self, size: int, value: float) -> np.ndarray:
        """Return an array of one number, which lives as long as the layer."""
        known: dict = self.__dict__.setdefault("filled", {})
        if (size, value) not in known:
            known[size, value] = np.full(size, value, self.real)
        return known[size, value]  # type: ignore[no-any-return]

    def copy(self, target: Any, source: Any) -> None:
        """Copy an array to another one."""
        np.copyto(target, source)

    # Methods that layers use.

    def shapes_of(self, bottom: Any) -> list:
        """Return the bottoms' shapes; in a region their data may not exist and must not be touched."""
        if self.member is not None:
            return [tuple(bottom[i].shape) for i in range(self.bottom_count)]
        return [bottom[i].data.shape for i in range(self.bottom_count)]

    def shares_memory(self, bottom: Any, top: Any) -> bool:
        """Return whether a top is a bottom."""
        return any(
            buffer(bottom[i].data).address == buffer(top[j].data).address
            for i in range(self.bottom_count)
            for j in range(self.top_count)
        )

    def deferred_scalar(self, number: Callable[[Any], float], top: Any) -> Any:
        """Return a scalar that is computed from the tops when a pass runs."""
        return number(top)

    def read(self, text: str) -> None:
        """Take the text of `param_str`."""
        self.take(schema.parse("LayerParameter", text, forks=False))

    def take(self, parameters: Any) -> None:
        """Take the original layer's parameters."""
        self.parameters = parameters
        kind = self.parameters.type
        self.expect(kind in ("", *self.kinds()), f"type {kind!r}", f"one of {self.kinds()} in a {type(self).__name__}")

    def kinds(self) -> tuple:
        """Return the Caffe types that this layer replaces."""
        return (type(self).__name__[len("Ocl") :],)

    def name(self) -> str:
        """Return the layer's name if its text holds it: Caffe does not show it to a Python layer."""
        return str(getattr(getattr(self, "parameters", None), "name", ""))

    def title(self) -> str:
        """Return the layer's class and name, or its text if that does not hold the name."""
        name = self.name()
        text = " ".join(self.param_str.split())
        shown = text if len(text) <= SHOWN else text[:SHOWN] + "..."
        return f"{type(self).__name__} {name!r}" if name else f"{type(self).__name__} ({shown})"

    def expect(self, good: bool, got: object, expected: object) -> None:
        """Raise `ProblemError` unless `good`."""
        if not good:
            raise ProblemError(f"[{self.word}] got {got}, expected {expected}")

    def make_blobs(self, *wanted: tuple) -> None:
        """Make and fill the learnable blobs, given as (shape, FillerParameter), or check those that are there."""
        if len(self.blobs) == 0:
            for i, (shape, filler) in enumerate(wanted):
                self.blobs.add_blob(*shape)
                self.blobs[i].data[...] = fillers.fill(shape, filler, self.drawn)
        there = [self.blobs[i].data.shape for i in range(len(self.blobs))]
        self.expect(there == [tuple(shape) for shape, _ in wanted], f"blobs of shapes {there}", [s for s, _ in wanted])

    def learns(self, index: int) -> bool:
        """Return whether a blob's gradient is wanted.

        Caffe does not tell a Python layer; the swap copies ``lr_mult: 0`` into `param_str`.
        """
        specs = self.parameters.param
        return index >= len(specs) or specs[index].lr_mult != 0

    def canonical_axis(self, axis: int, ndim: int, name: str = "axis") -> int:
        """Return an axis that is not negative; a negative one counts from the end."""
        self.expect(-ndim <= axis < ndim, f"{name} {axis}", f"an axis of {ndim} dimensions")
        return axis % ndim


def same_shapes(layer: OclLayer, shapes: Sequence) -> None:
    """Raise `ProblemError` unless all bottoms have one shape."""
    for i, shape in enumerate(shapes):
        layer.expect(shape == shapes[0], f"shape {shape} of bottom {i}", f"{shapes[0]}, the shape of bottom 0")
