"""Chains of functions of one element as one program, and its gradients, from the formulas of the parts.

The gradients of a chain are those that its parts state, joined by the chain rule: a part's gradient may read its own
output, as that of `sigmoid` does. `derivative` needs nothing but a program, and reads inputs alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Union

from clgraft.core.operators.pointwise.expression import IDENTIFIER


@dataclass(frozen=True)
class Formula:
    """What a part of a chain computes.

    Attributes
    ----------
    names : tuple of str
        How the texts call the inputs; ``y`` is the value, ``dy`` its gradient.
    value : str
    gradients : tuple of str
        Of the inputs.
    scalars : mapping of str to float
    """

    names: tuple[str, ...]
    value: str
    gradients: tuple[str, ...]
    scalars: Mapping[str, float]


@dataclass(frozen=True)
class Outer:
    """An input of a chain, by its number."""

    number: int


Source = Union[int, Outer]  # a part before, by its place, or an input of the chain


@dataclass(frozen=True)
class Chain:
    """Several formulas as one.

    Attributes
    ----------
    expression : str
        The assignment to y0, from x0, x1, ...
    gradient : str
        Those to dx0, dx1, ..., from x0, x1, ... and dy0. Values in between are computed again.
    scalars : dict of str to float
    """

    expression: str
    gradient: str
    scalars: dict[str, float]


def join(formulas: Sequence[Formula], sources: Sequence[Sequence[Source]], inputs: int) -> Chain:
    """Return formulas as one; the last is the value.

    Parameters
    ----------
    formulas : sequence of Formula
        In an order in which each follows those that it reads.
    sources : sequence of sequences of int or Outer
        What each of them reads.
    inputs : int
        The number of the chain's inputs.
    """
    scalars: dict[str, float] = {}
    values: list[str] = []
    words: list[dict[str, str]] = []
    last = len(formulas) - 1
    for place, (formula, own) in enumerate(zip(formulas, sources)):
        names = [f"x{source.number}" if isinstance(source, Outer) else f"v{source}" for source in own]
        word = {**dict(zip(formula.names, names)), "y": "y0" if place == last else f"v{place}", "dy": f"g{place}"}
        for name, value in formula.scalars.items():
            word[name] = f"s{place}_{name}"
            scalars[word[name]] = value
        words.append(word)
        values.append(f"{'y0' if place == last else f'real v{place}'} = {_put(formula.value, word)};")
    back = _gradients(formulas, sources, words, inputs)
    return Chain(" ".join(values), " ".join([*values[:-1], *back]), scalars)


def _gradients(
    formulas: Sequence[Formula], sources: Sequence[Sequence[Source]], words: Sequence[Mapping[str, str]], inputs: int
) -> list[str]:
    """Return the assignments of the gradients; each value's is the sum of what its readers pass back."""
    passed: dict[Source, list[str]] = defaultdict(list)
    passed[len(formulas) - 1] = ["dy0"]
    back = []
    for place in reversed(range(len(formulas))):
        back.append(f"real g{place} = {' + '.join(passed[place])};")
        for source, text in zip(sources[place], formulas[place].gradients):
            passed[source].append(f"({_put(text, words[place])})")
    return [*back, *(f"dx{i} = {' + '.join(passed[Outer(i)])};" for i in range(inputs))]


def _put(text: str, words: Mapping[str, str]) -> str:
    return IDENTIFIER.sub(lambda found: words.get(found[0], found[0]), text)
