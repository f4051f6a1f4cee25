"""The builder: values, passes, gradients that are stated, and what runs after the backward pass."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft.core.errors import ProblemError
from clgraft.core.graph import Graph, Value
from clgraft.core.graph.reference import evaluate
from clgraft.core.nn.builder import Build, Tensor
from tests.core.nn.functions import built, expect_like


def test_equal_constants_are_one_input():
    build = Build()
    first, second = build.filled((4,), 1.0), build.filled((2, 2), 1.0)
    assert first.name == second.name and second.shape == (2, 2)
    assert build.filled((4,), 0.0).name != first.name
    assert build.filled((4,), 1.0, "float64").name != first.name


def test_gradients_are_derived():
    def function(build: Build, x: Tensor, w: Tensor) -> Tensor:
        (product,) = build.pointwise("y0 = x0 * x1;", [x, w])
        return build.pointwise("y0 = x0 * x0 * a;", [build.reshape(product, (6,))], {"a": 0.5})[0]

    rng = np.random.default_rng(1)
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in (("x", (2, 3)), ("w", (3,)))}
    expect_like(function, lambda x, w: (0.5 * (x * w) ** 2).reshape(6), arrays)


def twice(build: Build, x: Tensor) -> Tensor:
    """Return 2 x with the gradient 3 dy, by two nodes."""
    first = build.here
    (half,) = build.pointwise("y0 = 0.5 * x0;", [x])
    (y,) = build.pointwise("y0 = 4 * x0;", [half])
    build.state_gradient(first, (x,), (y,), lambda on, dys, wanted: on.pointwise("y0 = 3 * x0;", [dys[0]]))
    return y


def test_a_stated_gradient_takes_the_place_of_the_derived_one():
    def function(build: Build, x: Tensor) -> Tensor:
        (before,) = build.pointwise("y0 = 5 * x0;", [x])
        return build.pointwise("y0 = 7 * x0;", [twice(build, before)])[0]

    given = {"x": np.ones(3, np.float32), "dy0": np.ones(3, np.float32)}
    found = built(function, given)
    values = evaluate(found.graph, found.given(given))
    np.testing.assert_array_equal(values[found.outputs[0]], np.full(3, 70.0))
    np.testing.assert_array_equal(values[found.passes.found["x"]], np.full(3, 105.0))


def test_the_outer_of_two_stated_gradients_counts():
    def function(build: Build, x: Tensor) -> Tensor:
        first = build.here
        y = twice(build, x)
        build.state_gradient(first, (x,), (y,), lambda on, dys, wanted: on.pointwise("y0 = 11 * x0;", [dys[0]]))
        return y

    given = {"x": np.ones(3, np.float32), "dy0": np.ones(3, np.float32)}
    found = built(function, given)
    assert evaluate(found.graph, found.given(given))[found.passes.found["x"]].tolist() == [11.0] * 3


def test_a_stated_gradient_may_hand_one_value_to_two_inputs():
    def function(build: Build, a: Tensor, b: Tensor) -> Tensor:
        first = build.here
        (y,) = build.pointwise("y0 = x0 + x1;", [a, b])
        build.state_gradient(first, (a, b), (y,), lambda on, dys, wanted: (dys[0], dys[0]))
        return y

    given = {name: np.ones(3, np.float32) for name in ("a", "b", "dy0")}
    found = built(function, given)
    values = evaluate(found.graph, found.given(given))
    assert len(set(found.passes.found.values())) == 2
    for name in ("a", "b"):
        np.testing.assert_array_equal(values[found.passes.found[name]], np.ones(3))


def test_an_output_without_gradient_gets_none():
    def function(build: Build, x: Tensor) -> tuple[Tensor, ...]:
        first, second = build.pointwise("y0 = 2 * x0; y1 = 3 * x0;", [x])
        return first, build.without_gradient(second)

    build = Build()
    x = build.input("x", (3,))
    passes = build.passes(function(build, x), ["x"])
    assert list(passes.incoming) == [passes.outputs[0].name]


def test_no_gradient_flows_through_a_value_without_one():
    build = Build()
    x, w = build.input("x", (3,)), build.input("w", (3,))
    first, second = build.pointwise("y0 = 2 * x0; y1 = 3 * x0;", [x])
    y = build.pointwise("y0 = x0 * x1 * x2;", [first, build.without_gradient(second), w])
    passes = build.passes(y, ["x", "w"])
    dy = list(passes.incoming.values())
    graph = Graph(
        (*passes.forward, *passes.backward),
        (Value("x", (3,)), Value("w", (3,)), *dy),
        (passes.found["x"], passes.found["w"]),
    )
    values = evaluate(graph, dict.fromkeys(("x", "w", dy[0].name), np.ones(3, np.float32)))
    assert values[passes.found["x"]].tolist() == [6.0] * 3  # not 12: d(2x * 3x) by the first factor alone
    assert values[passes.found["w"]].tolist() == [6.0] * 3


def test_a_stated_gradient_leads_past_a_value_without_one():
    build = Build()
    x = build.input("x", (3,))
    first = build.here
    (inner,) = build.pointwise("y0 = 2 * x0;", [x])
    (y,) = build.pointwise("y0 = x0 * x0;", [build.without_gradient(inner)])
    build.state_gradient(first, (x,), (y,), lambda on, dys, wanted: on.pointwise("y0 = 5 * x0;", [dys[0]]))
    passes = build.passes(build.pointwise("y0 = 7 * x0;", [y]), ["x"])
    assert passes.found["x"] and [node.problem.kind for node in passes.backward] == ["pointwise"] * 2


def test_inputs_without_gradient_are_told():
    build = Build()
    x, unused = build.input("x", (3,)), build.input("unused", (3,))
    passes = build.passes(build.pointwise("y0 = 2 * x0;", [x]), ["x", "unused"])
    assert passes.found["unused"] == "" and passes.found["x"]
    assert unused.size == 3
    zeros = build.passes([Tensor(passes.outputs[0].name, (3,))], ["x", "unused"], zeros=True)
    assert zeros.found["unused"]


def test_what_comes_after_the_backward_pass():
    build = Build(training=True)
    x, moving = build.input("x", (2, 3, 4)), (build.state("mean", (3,)), build.state("var", (3,)))
    build.input("other", (3,))
    from clgraft.core.nn import norms

    with build.after_backward():
        pass
    normed = norms.batch_norm(build, x, None, None, eps=1e-3)
    with build.after_backward(x):
        norms.update_averages(build, x, normed, moving, keep=0.9, add=(0.1, 0.1))
    y = norms.length_norm(build, normed.y, (1,), eps=1e-3)
    passes = build.passes([y], ["x", "other"])
    assert [node.problem.kind for node in passes.forward] == ["batchnorm", "pointwise", "pointwise"]
    assert [getattr(node.problem, "direction", "") for node in passes.backward][-1] == "update_statistics"
    assert [getattr(node.problem, "direction", "") for node in passes.backward][-2] == "backward_training"
    assert passes.leading_to(["x"]) == passes.backward
    assert passes.leading_to(["other"]) == passes.backward[:-1]


def test_counts_that_do_not_fit_are_refused():
    from clgraft.core.operators.lrn import LRNProblem

    build = Build()
    with pytest.raises(ProblemError, match=r"0 values to read"):
        build.add(LRNProblem("forward", 1, 2), scalars={"alpha": 1.0, "k": 1.0})
    with pytest.raises(ProblemError, match=r"scalars \['alpha'\]"):
        build.add(LRNProblem("forward", 1, 2), build.input("x", (1, 2)), scalars={"alpha": 1.0})
