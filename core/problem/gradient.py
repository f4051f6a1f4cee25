"""Gradient problems: which problem computes the gradient of what, and how its arguments map to the forward problem's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from clgraft.core.problem.base import Problem


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
    scalars: Mapping[str, Union[str, float]] = field(default_factory=dict)
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
