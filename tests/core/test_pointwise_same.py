"""Pointwise problems that compute the same as another text does."""

from __future__ import annotations

import pytest

from clgraft.core.graph.passes.norms import activation_of
from clgraft.core.graph.structure import Node
from clgraft.core.nn import activations
from clgraft.core.operators.pointwise import PointwiseProblem

RELU = "y0 = x0 > 0 ? x0 : 0;"


def computes(text: str, other: str, scalars: tuple[str, ...] = (), inputs: int = 2) -> bool:
    return PointwiseProblem(((4,),) * inputs, text, (), scalars).computes(other)


@pytest.mark.parametrize(
    "text",
    [
        RELU,
        "real x = x0; y0 = x > 0 ? x : 0;",
        "real a = x0; real b = a; y0 = b > 0 ? a : 0;",
        "real unread = x1 * 2; const real x = (x0); y0 = x > 0 ? x0 : 0",
    ],
)
def test_names_that_stand_for_an_input_do_not_count(text):
    assert computes(text, RELU)


@pytest.mark.parametrize(
    "text",
    [
        "real x = x1; y0 = x > 0 ? x : 0;",
        "real x = x0; x = x1; y0 = x > 0 ? x : 0;",
        "real x = x0; x += 1; y0 = x > 0 ? x : 0;",
        "real a = x0 + 1; real x = a; y0 = x > 0 ? x : 0;",
        "real a = x1; a = x0; real x = a; a = x1; y0 = x > 0 ? a : 0;",
        "real x = x0; y0 = x >= 0 ? x : 0;",
        "y0 = x0; y0 = x0 > 0 ? y0 : 0;",
    ],
)
def test_other_texts_compute_something_else(text):
    assert not computes(text, RELU)


def test_scalars_are_told_apart():
    text = "real s = slope; y0 = x0 > 0 ? x0 : s * x0;"
    assert computes(text, "y0 = x0 > 0 ? x0 : slope * x0;", ("slope", "other"))
    assert not computes(text, "y0 = x0 > 0 ? x0 : other * x0;", ("slope", "other"))


@pytest.mark.parametrize("name", ["relu", "relu_keep_nan", "leaky_relu", "clip"])
def test_activations_of_adapters_are_those_of_norms(name):
    problem = activations.forward(name, (3, 4))
    assert activation_of(Node(problem, ("x", "y"), tuple(range(len(problem.scalars()))))) == name


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("real a = x0; real b = x1; real sum = a + b; real x = sum; real z = x; y0 = z > 0 ? x : 0;", True),
        ("real sum = x0 + x1; real x = sum; sum = x1; y0 = x > 0 ? x : 0;", True),  # nobody reads the second sum
        ("real sum = x0 + x1; real x = sum; sum = x1; y0 = x > 0 ? sum : 0;", False),
        ("real sum = x0 + x1; sum = sum * 2; real x = sum; y0 = x > 0 ? x : 0;", False),
        ("real sum = x0 + x1; real x = sum; x += 1; y0 = x > 0 ? x : 0;", False),
    ],
)
def test_names_that_stand_for_another_local_name_do_not_count(text, same):
    assert computes(text, "real sum = x0 + x1; y0 = sum > 0 ? sum : 0;") is same
