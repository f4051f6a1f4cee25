"""Expressions over values by their names, as nodes: what is read and what is wanted of them, and no more."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.formulas import names_in, renamed
from clgraft.core.operators.pointwise import Reduction
from clgraft.core.operators.pointwise.problem import broadcast_shape

ASSIGNMENT = re.compile(r"(^|;)\s*([A-Za-z_]\w*)\s*=(?!=)")
DECLARED = re.compile(r"\b(?:real|float|double)\s+([A-Za-z_]\w*)")


def evaluated(
    build: Build,
    text: str,
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Sequence[int] | None],
    scalars: Mapping[str, float] | None = None,
) -> tuple[Tensor, ...]:
    """Return what an expression assigns to some names.

    Parameters
    ----------
    text : str
        Assignments such as ``dx = dy * g; dg = dy * x;``. What is assigned to other names than `outputs` is computed
        only as far as an output needs it.
    inputs : mapping of str to Tensor
        What may be read; shapes broadcast. A value that the text does not name is usually not read.
    outputs : mapping of str to shape
        What is wanted, summed over the axes along which its shape is broadcast; None for the common shape.
    scalars : mapping of str to float, optional
        Those that the text does not name are left out.

    Raises
    ------
    ProblemError
        If the text cannot be read or the shapes do not broadcast.
    """
    text = declare_locals(text, outputs)
    used = names_in(text)
    read = [name for name in inputs if name in used]
    common = broadcast_shape(tuple(x.shape for x in inputs.values()))
    if not read or broadcast_shape(tuple(inputs[name].shape for name in read)) != common:
        read = list(inputs)  # what is not read still says how often the expression is computed
    names = {name: f"x{i}" for i, name in enumerate(read)}
    names.update({name: f"y{i}" for i, name in enumerate(outputs)})
    numbers = {name: number for name, number in (scalars or {}).items() if name in used}
    folds = [None if shape is None else Reduction("sum", shape=tuple(shape)) for shape in outputs.values()]
    return build.pointwise(renamed(text, names), [inputs[name] for name in read], numbers, folds)


def declare_locals(text: str, outputs: Collection[str]) -> str:
    """Declare what is assigned without being an output: a gradient that is not wanted becomes a local name."""
    seen = {*outputs, *DECLARED.findall(text)}

    def declared(found: re.Match[str]) -> str:
        if found[2] in seen:
            return found[0]
        seen.add(found[2])
        return f"{found[1]} real {found[2]} ="

    return ASSIGNMENT.sub(declared, text)


def with_own_gradient(
    build: Build, forward: str, backward: str, inputs: Sequence[Tensor], outputs: int, scalars: Mapping[str, float]
) -> tuple[Tensor, ...]:
    """Return y0, y1, ... of an expression of x0, x1, ...; another one states their gradients.

    Parameters
    ----------
    forward : str
        Assigns y0, y1, ...
    backward : str
        Assigns dx0, dx1, ..., of which it may leave some out, from x0, y0, dy0 and so on. A gradient is summed over the
        axes along which its input is broadcast.
    inputs : sequence of Tensor
        They broadcast.
    outputs : int
        How many there are.
    scalars : mapping of str to float
        Of both.
    """
    first, named = build.here, {f"x{i}": x for i, x in enumerate(inputs)}
    ys = evaluated(build, forward, named, dict.fromkeys(f"y{i}" for i in range(outputs)), scalars)
    stated = names_in(backward)

    def gradient(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        names = {f"dx{i}": x.shape for i, x in enumerate(inputs) if wanted[i] and f"dx{i}" in stated}
        if not names:
            return (None,) * len(inputs)
        known = dict(named)
        for i, (y, dy) in enumerate(zip(ys, dys)):
            known[f"y{i}"] = y
            known[f"dy{i}"] = build.zeros(y) if dy is None else dy
        whole = ys[0].shape
        summed = {name: None if shape == whole else shape for name, shape in names.items()}
        found = dict(zip(names, evaluated(build, backward, known, summed, scalars)))
        return tuple(found.get(f"dx{i}") for i in range(len(inputs)))

    build.state_gradient(first, tuple(inputs), ys, gradient)
    return ys
