"""Plans of the pointwise problem from expressions over named values (x, dy, dx)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from clgraft import core
from clgraft.core.operators.pointwise import PointwiseProblem, Reduction, broadcast_shape

NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
ASSIGNMENT = re.compile(r"(^|;)\s*([A-Za-z_]\w*)\s*=(?!=)")
DECLARED = re.compile(r"\b(?:real|float|double)\s+([A-Za-z_]\w*)")


@dataclass(frozen=True)
class ExpressionPlan:
    """An expression's plan with the names of its buffers in order."""

    plan: core.Plan
    names: tuple

    def run(self, buffers: Mapping[str, core.Buffer], scalars: Sequence[float] = ()) -> None:
        """Run on the buffers with these names; others are left alone."""
        self.plan.execute([buffers[name] for name in self.names], scalars)


def names_in(text: str) -> set:
    """Return the names that an expression uses."""
    return set(NAME.findall(text))


def declare_locals(text: str, outputs: Collection[str]) -> str:
    """Declare what is assigned without being an output: a gradient that is not wanted becomes a local name."""
    seen = {*outputs, *DECLARED.findall(text)}

    def declared(found: re.Match) -> str:
        if found[2] in seen:
            return found[0]
        seen.add(found[2])
        return f"{found[1]} real {found[2]} ="

    return ASSIGNMENT.sub(declared, text)


def make(
    context: core.Context,
    text: str,
    inputs: Mapping[str, tuple],
    outputs: Mapping[str, Sequence[int] | None],
    scalars: Sequence[str] = (),
) -> ExpressionPlan:
    """Plan an expression.

    Parameters
    ----------
    context : core.Context
    text : str
        Assignments such as ``dx = dy * g; dg = dy * x;``. What is assigned to other names than `outputs` is computed
        only as far as an output needs it.
    inputs : mapping of str to shape
        What may be read; shapes broadcast. Names that the text does not use usually take no buffer.
    outputs : mapping of str to shape
        What is wanted, summed over the axes along which its shape is broadcast; None for the common shape.
    scalars : sequence of str
        Names of the scalars of each run.

    Raises
    ------
    ProblemError
        If the text cannot be read or the shapes do not broadcast.
    """
    text = declare_locals(text, outputs)
    used = names_in(text)
    read = [name for name in inputs if name in used]
    common = broadcast_shape(tuple(inputs.values()))
    if not read or broadcast_shape(tuple(inputs[name] for name in read)) != common:
        read = list(inputs)  # what is not read still says how often the plan runs
    renamed = {name: f"x{i}" for i, name in enumerate(read)}
    renamed.update({name: f"y{i}" for i, name in enumerate(outputs)})
    problem = PointwiseProblem(
        inputs=tuple(inputs[name] for name in read),
        expression=NAME.sub(lambda found: renamed.get(found[0], found[0]), text),
        reductions=tuple(None if shape is None else Reduction("sum", shape=tuple(shape)) for shape in outputs.values()),
        parameters=tuple(scalars),
    )
    return ExpressionPlan(context.plan(problem), (*read, *outputs))
