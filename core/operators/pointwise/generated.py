"""The implementation of every pointwise problem: generated kernels, one launch or two per set of folded axes."""

from __future__ import annotations

from clgraft.core.operators.pointwise.generate import generate
from clgraft.core.operators.pointwise.loop import Loop, Operand, Result, broadcast_strides
from clgraft.core.operators.pointwise.problem import PointwiseProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Buffer, Launch, Launches

NAME = "generated"


def plan(problem: PointwiseProblem, planner: Planner) -> Launches:
    """Plan outputs with the same folded axes together; folds come first, so that outputs may take the inputs' place."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, reduction in enumerate(problem.reductions):
        axes = () if reduction is None else reduction.axes
        if any(argument.size for argument in problem.arguments() if argument.name == f"y{number}"):
            groups.setdefault(axes, []).append(number)
    common = problem.common_shape
    inputs = {
        i: Operand(Buffer(f"x{i}"), broadcast_strides(shape, common), _kind(problem, f"x{i}"))
        for i, shape in enumerate(problem.inputs)
    }
    launches: list[Launch] = []
    workspace = 0
    for axes in sorted(groups, key=lambda axes: (not axes, axes)):
        outputs = {
            n: Result(Buffer(f"y{n}"), f"y{n}", problem.fold(n) if axes else None, _kind(problem, f"y{n}"))
            for n in groups[axes]
        }
        loop = Loop(
            shape=common,
            assignments=problem.assignments,
            inputs=inputs,
            outputs=outputs,
            folded=axes,
            scalars=problem.scalars(),
            alpha=problem.factor("alpha"),
            beta=problem.factor("beta"),
            dtype=problem.dtype,
        )
        part = generate(planner, loop)
        launches += part.items
        workspace = max(workspace, part.workspace_bytes)
    return Launches(tuple(launches), workspace)


def _kind(problem: PointwiseProblem, name: str) -> str:
    """Return how an argument lies in memory: as all do, or as the numbers that are computed with."""
    return "stored" if problem.type_of(name) == problem.dtype else "real"
