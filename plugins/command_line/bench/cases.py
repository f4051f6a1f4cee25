"""What is measured: problems of named sets, sorted into the groups of the performance table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from clgraft.core import BatchNormProblem, ConvProblem, PoolProblem, Problem, parse
from clgraft.core.problem import Gradient, layout
from clgraft.core.problem.spatial import SpatialProblem
from clgraft.core.tuning import problem_sets
from clgraft.plugins.plugin import PluginError

GROUPS = {
    "3x3": "3x3 stride 1 convolution",
    "1x1": "1x1 convolution",
    "strided": "strided and large kernels",
    "depthwise": "depthwise convolution",
    "other": "dilated and grouped convolution",
    "norm": "batch norm, training",
    "pooling": "max and average pooling",
    "element": "activations and eltwise",
    "more": "other operators",
}
ELEMENTS = "elements"  # the one set whose lines are no problems: `relu n8 c64 s3136`
DIRECTIONS = ("forward", "backward")

_FLOAT = 4  # bytes; everything is measured in float32
_ELEMENT = re.compile(r"(\w+) n(\d+) c(\d+) s(\d+)")
_ELEMENT_LINES = {
    "relu-64-56": "relu n8 c64 s3136",
    "relu-256-56": "relu n8 c256 s3136",
    "relu-64-112": "relu n8 c64 s12544",
    "sigmoid-64-56": "sigmoid n8 c64 s3136",
    "tanh-64-56": "tanh n8 c64 s3136",
    "softrelu-64-56": "softrelu n8 c64 s3136",
    "sum-64-56": "sum n8 c64 s3136",
    "sum-256-56": "sum n8 c256 s3136",
}


@dataclass(frozen=True)
class Element:
    """A function per element: an activation, or `sum` of two tensors."""

    function: str
    shape: tuple[int, int, int]

    @property
    def inputs(self) -> int:
        """Number of tensors that are read forward."""
        return 2 if self.function == "sum" else 1


@dataclass(frozen=True)
class Case:
    """One row of the results, in both directions.

    Attributes
    ----------
    set, name, text : str
        Where it comes from, and the problem's line.
    work : Problem or Element
        The forward problem.
    """

    set: str
    name: str
    text: str
    work: Any

    @property
    def group(self) -> str:
        """The key in `GROUPS`."""
        return group_of(self.work)

    def flops(self, direction: str) -> int:
        """Count operations of the direct method, backward of all gradients together; a function is one per element."""
        if isinstance(self.work, Element):
            return prod(self.work.shape)
        return sum(problem.operations for problem in self.problems(direction))

    def nbytes(self, direction: str) -> int:
        """Count the bytes that have to move at least: every argument once."""
        work = self.work
        if isinstance(work, Element):
            size = _FLOAT * prod(work.shape)
            if work.function == "sum":
                return 3 * size
            return (2 if direction == "forward" else 3) * size
        return sum(problem.nbytes for problem in self.problems(direction))

    def problems(self, direction: str) -> list[Problem]:
        """Return the problems of a direction: the forward one, or its gradients."""
        return [self.work] if direction == "forward" else [gradient.problem for gradient in gradients_of(self.work)]


def gradients_of(work: Problem) -> tuple[Gradient, ...]:
    """Return a problem's gradients as graphs have them.

    Both gradients of a depthwise convolution are one problem, and those of maxima read the argmax that forward keeps.
    """
    if isinstance(work, PoolProblem) and work.keeps_argmax:
        return work.with_direction("forward_argmax").gradients()
    if isinstance(work, ConvProblem) and work.depthwise and work.layout == layout.FIRST:
        return (Gradient.of(parse(f"gradients {replace(work, bias=False)}")), *work.gradients()[2:])
    return work.gradients()


def group_of(work: Any) -> str:
    """Return the group that a problem belongs to."""
    if isinstance(work, Element):
        return "element"
    if isinstance(work, BatchNormProblem):
        return "norm"
    if isinstance(work, PoolProblem):
        return "pooling"
    if not isinstance(work, SpatialProblem):
        return "more"
    if work.groups == work.in_channels > 1:
        return "depthwise"
    if work.groups > 1 or max(work.dilate) > 1:
        return "other"
    if set(work.kernel) == {1}:
        return "1x1"
    if set(work.kernel) == {3} and set(work.stride) == {1}:
        return "3x3"
    return "strided"


def set_names() -> list[str]:
    """Return the names of all sets."""
    return [*problem_sets.names(), ELEMENTS]


def cases(names: Sequence[str], batch: int | None = None, only: str = "") -> Iterator[Case]:
    """Return the cases of sets, each problem once.

    Parameters
    ----------
    names : sequence of str
        Of `set_names`.
    batch : int, optional
        Instead of the sets' own batch size.
    only : str
        Part of the names of the wanted cases.

    Raises
    ------
    PluginError
        If there is no such set.
    """
    seen = set()
    for name in names:
        if name not in set_names():
            raise PluginError(f"[bench] got set {name!r}, expected one of {set_names()}")
        lines = _ELEMENT_LINES if name == ELEMENTS else problem_sets.lines(name)
        for label, line in lines.items():
            text = line if batch is None else re.sub(r"\bn\d+\b", f"n{batch}", line)
            if only in label and text not in seen:
                seen.add(text)
                yield case(name, label, text)


def case(set_name: str, name: str, text: str) -> Case:
    """Return the case of a problem's line, which says the forward problem."""
    return Case(set_name, name, text, _element(text) if set_name == ELEMENTS else parse(text))


def _element(text: str) -> Element:
    found = _ELEMENT.fullmatch(text)
    assert found
    return Element(found[1], (int(found[2]), int(found[3]), int(found[4])))
