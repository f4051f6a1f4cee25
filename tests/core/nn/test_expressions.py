"""Expressions over named values, combinations that broadcast, and layers that overwrite what they read."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft.core.errors import ProblemError
from clgraft.core.graph import Node, Value
from clgraft.core.graph.identity import copied_along, identity, is_copy
from clgraft.core.graph.reference import evaluate
from clgraft.core.nn import activations, elementwise
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.element_functions import LEFT, SLOPE_GRADIENTS, find
from clgraft.core.nn.expressions import evaluated, with_own_gradient
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.operators.softmax import SoftmaxProblem
from tests.core.nn.functions import built, expect_like

TEXT = "dx = a * dy * g; dg = dy * x;"


def arrays(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def problem_of(text: str, outputs: dict, **shapes: tuple[int, ...]) -> PointwiseProblem:
    build = Build()
    made = evaluated(build, text, {name: build.input(name, shape) for name, shape in shapes.items()}, outputs, {"a": 2})
    return build.graph.graph(*(y.name for y in made)).nodes[-1].problem


def test_only_what_is_read_and_wanted_is_there():
    shapes = {"x": (2, 3, 4), "dy": (2, 3, 4), "g": (1, 3, 1), "b": (1, 3, 1)}
    both = problem_of(TEXT, {"dg": (1, 3, 1), "dx": None}, **shapes)
    assert str(both) == (
        "pointwise x0[2,3,4] x1[2,3,4] x2[1,3,1] y0[1,3,1]=sum[0,2] scalars{a} : y1 = a * x1 * x2; y0 = x1 * x0;"
    )
    one = problem_of("dg = dy * x;", {"dg": (1, 3, 1)}, **shapes)
    assert len(one.inputs) == 2 and one.parameters == ()


def test_a_local_name_is_declared_and_an_unread_input_says_the_shape():
    problem = problem_of("top = g; y = top + 1;", {"y": None}, x=(2, 3), g=(3,))
    assert problem.expression == "real top = x1; y0 = top + 1;"
    assert problem.inputs == ((2, 3), (3,)) and problem.common_shape == (2, 3)
    with pytest.raises(ProblemError, match="the name 'z'"):
        problem_of("y = z;", {"y": None}, x=(2, 3))


OWN = ("y0 = x0 * x1; y1 = a * x1;", "dx0 = dy0 * x1; dx1 = dy0 * y0 / x1 + a * dy1;")


def test_a_gradient_of_its_own():
    def function(build: Build, x: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        return with_own_gradient(build, *OWN, [x, z], 2, {"a": 0.5})

    given = arrays(x=(2, 3), z=(3,), dy0=(2, 3), dy1=(2, 3))
    found = built(function, given)
    values = evaluate(found.graph, found.given(given))
    x, z, dy0, dy1 = (array.astype(np.float64) for array in given.values())
    np.testing.assert_allclose(values[found.outputs[1]], np.broadcast_to(0.5 * z, (2, 3)))
    np.testing.assert_allclose(values[found.passes.found["x"]], dy0 * z)
    np.testing.assert_allclose(values[found.passes.found["z"]], (dy0 * x + 0.5 * dy1).sum(0), rtol=1e-6)


def test_a_gradient_that_is_not_stated_is_none():
    build = Build()
    x, z = build.input("x", (3,)), build.input("z", (3,))
    (y,) = with_own_gradient(build, "y0 = x0 + x1;", "dx1 = dy0;", [x, z], 1, {})
    passes = build.passes([y], ["x", "z"])
    assert not passes.found["x"] and passes.found["z"]


def test_a_gradient_that_one_of_two_results_has():
    def function(build: Build, x: Tensor) -> Tensor:
        return with_own_gradient(build, "y0 = 2 * x0; y1 = x0;", "dx0 = 2 * dy0 + dy1;", [x], 2, {})[0]

    expect_like(function, lambda x: 2 * x, arrays(x=(3, 5)))


@pytest.mark.parametrize("axis, vector", [(0, ()), (1, (3,)), (1, (3, 4)), (0, (2, 3, 4)), (2, (4,))])
@pytest.mark.parametrize("parts", ["g", "b", "gb"])
def test_a_factor_and_a_term_along_axes(axis: int, vector: tuple[int, ...], parts: str):
    def function(build: Build, x: Tensor, *vectors: Tensor) -> Tensor:
        known = dict(zip(parts, vectors))
        return elementwise.scaled(build, x, known.get("g"), known.get("b"), axis)

    def definition(x: np.ndarray, *vectors: np.ndarray) -> np.ndarray:
        known = {n: v.reshape(v.shape + (1,) * (3 - axis - v.ndim)) for n, v in zip(parts, vectors)}
        return x * known.get("g", 1) + known.get("b", 0)

    expect_like(function, definition, arrays(x=(2, 3, 4), **dict.fromkeys(parts, vector)))


def test_combinations_of_values_of_one_shape():
    values = arrays(a=(2, 3), b=(2, 3), c=(2, 3))
    cases = [
        (elementwise.total([1.0, -2.5, 0.5]), lambda a, b, c: a - 2.5 * b + 0.5 * c),
        (elementwise.product(3), lambda a, b, c: a * b * c),
        (elementwise.maximum(3, elementwise.SECOND), lambda a, b, c: np.maximum(np.maximum(a, b), c)),
    ]
    for combination, definition in cases:
        expect_like(lambda build, *x, c=combination: elementwise.combined_alike(build, c, x), definition, values)


@pytest.mark.parametrize("slopes", [1, 3])
def test_a_rectifier_with_slopes_along_an_axis(slopes: int):
    expect_like(
        lambda build, x, slope: activations.prelu_along(build, x, slope, 1, LEFT),
        lambda x, slope: np.where(x > 0, x, slope.reshape(-1, 1) * x),
        arrays(x=(2, 3, 4), slope=(slopes,)),
    )
    assert LEFT in SLOPE_GRADIENTS


@pytest.mark.parametrize("name", ["tanh", "leaky_relu", "bnll", "scaled_exp"])
def test_functions_of_every_element(name: str):
    exact = {
        "tanh": np.tanh,
        "leaky_relu": lambda x: np.where(x > 0, x, 0.25 * x),
        "bnll": lambda x: np.log1p(np.exp(x)),
        "scaled_exp": np.exp,
    }
    expect_like(lambda build, x: activations.applied(build, x, find(name), LEFT), exact[name], arrays(x=(3, 7)))


@pytest.mark.parametrize(
    "name, reads", [("leaky_relu", "y"), ("elu", "y"), ("tanh", "y"), ("bnll", "x"), ("clip", "x")]
)
def test_a_result_stands_for_the_input_that_it_overwrites(name: str, reads: str):
    build = Build(overwritten="x")
    y = activations.applied(build, build.input("x", (2, 3)), find(name), LEFT)
    passes = build.passes([y], ["x"])
    read = {value for node in passes.backward for value in node.reads} - {passes.incoming[y.name].name}
    assert read == {"x" if reads == "x" else y.name}


def test_the_gradient_of_a_sum_in_place_is_there():
    for overwritten, kinds in (("", 1), ("x", 1)):
        build = Build(overwritten=overwritten)
        x, b = build.input("x", (2, 3)), build.input("b", (3,))
        y = elementwise.scaled(build, x, None, b, 1)
        passes = build.passes([y], ["x"])
        assert len(passes.backward) == kinds and is_copy(passes.backward[0].problem)
        both = build.passes([y], ["x", "b"]).backward
        assert [is_copy(node.problem) for node in both] == ([False] if not overwritten else [False, True])


def test_copies_are_known():
    assert is_copy(identity(Value("x", (2, 3)))) and is_copy(identity(Value("x", (2,), "int32")))
    for text in ("y0 = 2 * x0;", "y0 = x0; y1 = x0;"):
        assert not is_copy(PointwiseProblem(((3,),), text))
    assert not is_copy(PointwiseProblem(((3,), (3,)), "y0 = x0;"))
    assert not is_copy(SoftmaxProblem("forward", 1, 3, 1))


def test_a_value_that_a_node_copies_along():
    softmax = Node(SoftmaxProblem("forward", 2, 3, 1), ("x", "s"), (1.0,))
    scaled = Node(PointwiseProblem(((3,), (2, 3)), "y0 = x0 * x1"), ("g", "x", "y"))
    assert copied_along([softmax], "x", "kept") is None
    assert copied_along([softmax, scaled], "g", "kept") is None  # it is smaller than what is computed
    first, second = copied_along([softmax, scaled], "x", "kept") or ()
    assert first is softmax and second.arguments == ("g", "x", "y", "kept")
    assert second.problem.expression == "y0 = x0 * x1; y1 = x1;"
