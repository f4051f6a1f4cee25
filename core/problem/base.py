"""What every problem is: a frozen description of one operator call that prints itself and can be read back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, ClassVar, TypeVar

import numpy as np

from clgraft.core.errors import ProblemError, hint
from clgraft.core.problem.dtypes import DTYPES, expect_in_numpy
from clgraft.core.problem.text import Entry, Reader, write

POSITIVE = ("var", "gamma")  # parts of the names of arguments that are never negative


def in_3d(values: tuple[int, ...], fill: int) -> tuple[int, ...]:
    """Lengthen a 1-D or 2-D size to three axes."""
    return (fill,) * (3 - len(values)) + tuple(values)


@dataclass(frozen=True)
class Argument:
    """One buffer of a problem: its name, role (``in``, ``out``, ``inout``), shape and dtype."""

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.size * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Gradient:
    """One step of a backward pass.

    Symbolic names are the argument names of the forward problem: ``x`` is the value of its argument x, and ``dx`` the
    gradient of the loss with respect to it. A name that begins with ``_`` is a temporary, which an earlier gradient of
    the same problem has written.

    Attributes
    ----------
    problem : Problem
        What computes the gradient.
    arguments : mapping of str to str
        All of its arguments by name, with the symbolic name of each one's value. A value may have another shape with
        the same number of elements. For an inout argument of the forward problem, ``dy`` is the gradient of the new
        value where it is read, and of the old value where it is written.
    scalars : mapping of str to (str or float)
        All of its scalars by name: the forward problem's scalar of that name, or a number.
    through : Problem, optional
        The problem that must have produced the forward problem's first input. Where it is set, ``dx`` is the gradient
        with respect to that problem's input x: the two gradients are computed together.
    """

    problem: Problem
    arguments: Mapping[str, str]
    scalars: Mapping[str, str | float] = field(default_factory=dict)
    through: Problem | None = None

    @classmethod
    def of(
        cls,
        problem: Problem,
        arguments: Mapping[str, str] | None = None,
        scalars: Mapping[str, str | float] | None = None,
        through: Problem | None = None,
    ) -> Gradient:
        """Return a gradient whose arguments and scalars keep their names, except for the given ones."""
        own = arguments or {}
        given = scalars or {}
        names = {argument.name: own.get(argument.name, argument.name) for argument in problem.arguments()}
        return cls(problem, names, {name: given.get(name, name) for name in problem.scalars()}, through)

    @property
    def reads(self) -> tuple[str, ...]:
        """Symbolic names of the values that are read."""
        return tuple(self.arguments[a.name] for a in self.problem.arguments() if a.role != "out")

    @property
    def writes(self) -> tuple[str, ...]:
        """Symbolic names of the values that are computed."""
        return tuple(self.arguments[a.name] for a in self.problem.arguments() if a.role != "in")


Some = TypeVar("Some", bound="Problem")
UNREADABLE = (AttributeError, TypeError, ValueError, OverflowError, RecursionError)  # raised for values of another kind


KNOWN = "_arguments"  # where a problem keeps what `arguments` has found


def _with_problem_errors(check: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a problem's check whose errors are all `ProblemError`."""

    @wraps(check)
    def checked(self: Any) -> None:
        try:
            check(self)
            self.__dict__.pop(KNOWN, None)  # of fields that the check has changed
            expect_in_numpy(self.kind, self.dtype)
        except ProblemError:
            raise
        except UNREADABLE as error:
            raise ProblemError(
                f"[{self.kind}] got values that do not fit ({error}), expected those of {type(self).__name__}"
            ) from None

    return checked


def _known_once(found: Callable[[Any], tuple[Argument, ...]]) -> Callable[[Any], tuple[Argument, ...]]:
    """Return a problem's `arguments` that are found once for each problem: graphs ask for them all the time."""

    @wraps(found)
    def arguments(self: Any) -> tuple[Argument, ...]:
        known = self.__dict__.setdefault(KNOWN, {})
        if found not in known:
            known[found] = found(self)
        return known[found]  # type: ignore[no-any-return]

    return arguments


class Problem:
    """Base class of problems.

    A subclass is a frozen dataclass with the class variables `kind` and `TEXT`, and defines `arguments`, `reference`
    and, where they apply, the other methods and class attributes: everything that is known about an operator stands on
    its problem. One whose text holds an expression or other problems has no `TEXT` and defines `from_text` and
    `__str__`.

    Attributes
    ----------
    kind : str
        The first word of the text.
    TEXT : tuple of Entry
        The other words, in their order: the fields that they state and their defaults.
    directions : tuple of str
        The words that the field `direction` may hold; empty for kinds without that field.
    examples : tuple of str
        Texts of small problems without the kind, that together exercise the operator. Where they name no direction
        they stand for all of them. `clgraft check` runs them.
    sizes : tuple of str
        Names of the words in the text that are sizes. Problems that differ only in them, and not by much, may share a
        tuned choice; kinds without sizes share none.
    minor : tuple of str
        Names of the words that change no more than the edge of the result, such as padding.
    usual_scalars : mapping of str to float
        Values that scalars have in trials and checks; the others are 0.5.
    per_image : tuple of str
        The directions in which each image of the field `batch` has results of its own.
    apart : bool
        Whether a run refuses an output in the memory of another argument: its implementations write while they read.
    """

    kind: ClassVar[str]
    TEXT: ClassVar[tuple[Entry, ...]] = ()
    directions: ClassVar[tuple[str, ...]] = ()
    examples: ClassVar[tuple[str, ...]] = ()
    sizes: ClassVar[tuple[str, ...]] = ()
    minor: ClassVar[tuple[str, ...]] = ()
    usual_scalars: ClassVar[Mapping[str, float]] = {}
    per_image: ClassVar[tuple[str, ...]] = ()
    apart: ClassVar[bool] = False
    dtype: str
    _kinds: ClassVar[dict[str, type[Problem]]] = {}
    _reader: ClassVar[Reader]

    def __init_subclass__(cls, **kw: Any) -> None:
        super().__init_subclass__(**kw)
        if "__post_init__" in cls.__dict__:
            cls.__post_init__ = _with_problem_errors(cls.__post_init__)  # type: ignore[attr-defined]
        if "arguments" in cls.__dict__:
            cls.arguments = _known_once(cls.arguments)  # type: ignore[assignment]
        if "kind" in cls.__dict__:
            Problem._kinds[cls.kind] = cls
            cls._reader = Reader(cls.kind, cls.TEXT)

    def __str__(self) -> str:
        return write(self, self.TEXT)

    @classmethod
    def from_text(cls: type[Some], text: str) -> Some:
        """Read a problem from its text without the kind."""
        return cls(**cls._reader.read(text))

    def arguments(self) -> tuple[Argument, ...]:
        """Return the buffers in the order in which a run takes them."""
        raise NotImplementedError

    def scalars(self) -> tuple[str, ...]:
        """Return the names of the scalars that every run needs."""
        return ()

    def with_direction(self: Some, direction: str) -> Some:
        """Return the same problem in another direction."""
        return replace(self, direction=direction)  # type: ignore[type-var]

    def part(self, count: int) -> Problem | None:
        """Return the problem that computes one of so many equal parts of the batch; None if there is none.

        An argument is cut into `count` pieces of its memory, one after the other, if the part has as many times fewer
        elements of it; the others every part takes whole.
        """
        return self._part_along("batch", count) if getattr(self, "direction", "") in self.per_image else None

    def _part_along(self: Some, name: str, count: int) -> Some | None:
        """Return the problem with so many times less of a size; None if that does not divide it."""
        size = getattr(self, name)
        return replace(self, **{name: size // count}) if size and size % count == 0 else None  # type: ignore[type-var]

    def replaced(self, output: str) -> tuple[str, ...]:
        """Return the inputs in whose memory an output may lie: an element takes the place of one that was read."""
        return ()

    def gradients(self) -> tuple[Gradient, ...]:
        """Return the problems that compute the gradients of the inputs, in the order in which they have to run.

        An input that none of them writes has no gradient: it is 0, or the input is a label or a random key.

        Raises
        ------
        ProblemError
            If the problem is itself a gradient, or differentiable but without gradient problems.
        """
        raise ProblemError(f"[{self.kind}] got {self}, expected a problem that has gradient problems")

    @property
    def operations(self) -> int:
        """Arithmetic operations of the direct method; by default one for each element of the results."""
        return sum(argument.size for argument in self.arguments() if argument.role != "in")

    @property
    def nbytes(self) -> int:
        """Bytes that have to move at least: every argument once, and twice what is updated."""
        return sum(argument.nbytes * (1 + (argument.role == "inout")) for argument in self.arguments())

    @property
    def terms(self) -> int:
        """How many terms the longest sum for one element of the results has: rounding errors grow with it."""
        return 1

    @property
    def tuned_through(self) -> Problem:
        """The problem whose tuned choice decides for this one."""
        return self

    def trial_scalars(self) -> dict[str, float]:
        """Return the values of the scalars in trials and checks."""
        return {name: self.usual_scalars.get(name, 0.5) for name in self.scalars()}

    def sample(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return random inputs by name (and what inout arguments start from) on which the problem is meaningful.

        Parameters
        ----------
        rng : numpy.random.Generator
            The source of the numbers.
        """
        return {a.name: sample_argument(a, rng) for a in self.arguments() if a.role != "out"}

    def determined(self, results: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return results that can be compared: in place of those that may differ together what they determine."""
        return dict(results)

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        """Compute the results in float64 with NumPy, from the operator's definition and without its kernels.

        Parameters
        ----------
        arrays : mapping of str to numpy.ndarray
            The inputs by name, of the problem's shapes; computed with as float64.
        scalars : mapping of str to float, optional
            By default `trial_scalars`.
        """
        raise NotImplementedError

    def _expect(self, good: bool, name: str, got: object, expected: str) -> None:
        expect(self.kind, good, name, got, expected)

    def _expect_words(self, **known: Sequence[str]) -> None:
        """Refuse a dtype, or another word, that is none of the known ones."""
        for name, words in {**known, "dtype": DTYPES}.items():
            value = getattr(self, name)
            self._expect(value in words, name, repr(value), f"one of {tuple(words)}")

    def _take_numbers(self, *names: str) -> None:
        """Make fields tuples of int: sequences of anything that is a number."""
        for name in names:
            object.__setattr__(self, name, tuple(int(number) for number in getattr(self, name)))

    def _take_counts(self, **least: int) -> None:
        """Make counts whole numbers, and refuse those below the least."""
        for name, low in least.items():
            value = int(getattr(self, name))
            object.__setattr__(self, name, value)
            self._expect(value >= low, name, value, f"at least {low}")

    def _weighted(
        self, w: tuple[int, ...], x: tuple[int, ...], y: tuple[int, ...], outputs: int, bias: bool
    ) -> tuple[Argument, ...]:
        """Return the buffers of a layer with weights w and a bias per output, in the problem's direction."""
        b = (outputs,)
        shapes = {"x": x, "w": w, "b": b, "y": y, "dx": x, "dw": w, "db": b, "dy": y}
        direction: str = self.direction  # type: ignore[attr-defined]
        names = {"forward": "x w b y" if bias else "x w y", "backward_data": "dy w dx", "backward_bias": "dy db"}
        *inputs, output = names.get(direction, "x dy dw").split()
        return (
            *(Argument(name, "in", shapes[name], self.dtype) for name in inputs),
            Argument(output, "out", shapes[output], self.dtype),
        )


def expect(kind: str, good: bool, name: str, got: object, expected: str) -> None:
    """Raise `ProblemError` unless `good`."""
    if not good:
        raise ProblemError(f"[{kind}] got {name} {got}, expected {expected}")


def sample_argument(argument: Argument, rng: np.random.Generator) -> np.ndarray:
    """Return random numbers for an argument: normal ones, or positive ones for a variance or a scale."""
    if any(word in argument.name for word in POSITIVE):
        return rng.uniform(0.5, 1.5, argument.shape).astype(argument.dtype)
    return rng.standard_normal(argument.shape).astype(argument.dtype)


def kinds() -> dict[str, type[Problem]]:
    """Return all classes of problems by their kind."""
    return dict(Problem._kinds)


def parse(text: str) -> Problem:
    """Read a problem from its line of text.

    Parameters
    ----------
    text : str
        Such as ``"conv forward n8 ic64 ih56 iw56 oc64 kh3 kw3 ph1 pw1"``; what ``str(problem)`` returns.

    Raises
    ------
    ProblemError
        If the kind is unknown, a word cannot be read, or the shapes are inconsistent.
    """
    if not isinstance(text, str):
        expected = "the text of a problem, such as 'conv forward n8 ic64 ih56 iw56 oc64 kh3 kw3'"
        raise ProblemError(f"[problem] got {type(text).__name__}, expected {expected}")
    kind, _, rest = text.strip().partition(" ")
    if kind not in Problem._kinds:
        known = sorted(Problem._kinds)
        raise ProblemError(f"[problem] got kind {kind!r}, expected one of {known}{hint(kind, known)}")
    if not text.isascii():
        raise ProblemError(f"[{kind}] got {text!r}, expected only ASCII characters")
    try:
        return Problem._kinds[kind].from_text(rest)
    except ProblemError:
        raise
    except UNREADABLE as error:
        raise ProblemError(f"[{kind}] got {shortened(rest)}, expected a readable text ({error})") from None


def shortened(text: str, most: int = 200) -> str:
    """Return a text for a message, cut where it is long."""
    return repr(text) if len(text) <= most else f"{text[:most]!r}... of {len(text)} characters"
