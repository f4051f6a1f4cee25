"""Graphs: text, checks, compiled runs and gradients, against float64 and against the operators one by one."""

from __future__ import annotations

import time

import numpy as np
import pytest

from clgraft import core
from clgraft.core.graph import Graph, GraphBuilder, Node, Value, parse_graph
from clgraft.core.graph.passes import NAMES, drop_duplicates
from clgraft.core.graph.reference import evaluate
from tests.core.graphs import sample, small_net

TOLERANCE = 2e-5  # relative to the largest element: float32 through six layers


def close(found: np.ndarray, expected: np.ndarray) -> bool:
    scale = np.abs(expected).max() or 1.0
    return bool(np.abs(found - expected.reshape(found.shape)).max() <= TOLERANCE * scale)


@pytest.mark.parametrize("training", [False, True])
def test_text_is_read_back(training):
    graph = small_net(training)
    assert parse_graph(str(graph)) == graph
    differentiated = graph.gradients([value.name for value in graph.inputs if value.name != "x"])
    assert parse_graph(str(differentiated)) == differentiated


def test_whole_numbers_are_values(context, rng):
    problem = "dropout forward x[4,5]"
    text = f"input x[4,5] key:i32[4]\nv1 = x key {{keep=0.5, scale=2}} | {problem}\noutput v1\n"
    graph = parse_graph(text)
    assert graph.values["key"].dtype == "int32" and parse_graph(str(graph)) == graph
    found = context.compile(graph).run({"x": np.ones((4, 5), "float32"), "key": np.arange(4, dtype="int32")})["v1"]
    assert set(np.unique(found)) <= {0.0, 2.0}


@pytest.mark.parametrize(
    "line, message",
    [
        ("y = x | pool forward max n1 c1 ih4 iw4 kh2 kw2", "expected (1, 1, 4, 4)"),
        ("y = z | pointwise x0[2,3] : y0 = x0;", "got 'z' for x0"),
        ("y = x | pointwise f64 x0[2,3] : y0 = x0;", "float64"),
        ("x = x | pointwise x0[2,3] : y0 = x0;", "a second definition of 'x'"),
        ("y = x x | pointwise x0[2,3] : y0 = x0;", "2 read, expected 1 and 1"),
        ("y = x {a=1} | pointwise x0[2,3] : y0 = x0;", "got scalars ['a']"),
        ("y = x {a=lr} | pointwise x0[2,3] scalars{a} : y0 = a * x0;", "got scalar 'lr'"),
        ("y = _ | pointwise x0[2,3] : y0 = x0;", "it is read"),
        ("y - x | pointwise x0[2,3] : y0 = x0;", "expected 'written = read"),
        ("y = x | colour n1", "got kind 'colour'"),
        ("m v = x x x x {keep=0.9, add_mean=0.1, add_var=0.1} | batchnorm update_statistics n1 c6 s1", "same state"),
    ],
)
def test_bad_lines_are_refused(line, message):
    with pytest.raises(core.ProblemError) as caught:
        parse_graph(f"input x[2,3]\n{line}\noutput x\n")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text, message",
    [
        ("output y", "output 'y'"),
        ("input x[2\noutput x", "line 1"),
        ("input scalars[2]\ny = scalars | pointwise x0[2] : y0 = x0;\noutput y", "the name 'scalars'"),
    ],
)
def test_bad_heads_are_refused(text, message):
    with pytest.raises(core.ProblemError) as caught:
        parse_graph(text)
    assert message in str(caught.value)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("passes", ["-all", *(f"-all,{name}" for name in NAMES), ""])
def test_results_equal_float64(context, rng, training, passes):
    graph = small_net(training)
    arrays = sample(graph, rng)
    expected = evaluate(graph, arrays)
    given = {name: array.copy() for name, array in arrays.items()}
    for name in graph.outputs:
        given[name] = np.full(graph.values[name].shape, np.nan, np.float32)
    found = context.compile(graph, passes).run(given)
    for name in graph.outputs:
        assert found[name] is given[name] and close(found[name], expected[name])
    for state in graph.states:
        assert close(given[state.name], expected[state.name])
        assert not np.array_equal(given[state.name], arrays[state.name])


def test_copies_are_not_computed(context, rng):
    """Results that equal an input or an earlier result, unless they are outputs or a state's value of that time."""
    graph = parse_graph(
        """
        input a[6] b[2,3]
        state s[6]
        c d e = a b | pointwise x0[6] x1[6] : real t = x0; y0 = t; y1 = x0 * x1; y2 = x0 * x1
        f g = s a | pointwise x0[6] x1[6] : y0 = x0; y1 = x0
        s = b s | pointwise x0[6] beta{1} : y0 = x0
        h k = c e | pointwise x0[6] x1[6] : y0 = x0 + x1; y1 = x0 + x1
        m = f g s d | pointwise x0[6] x1[6] x2[6] x3[6] : y0 = x0 + 2 * x1 + 4 * x2 + 8 * x3
        output h k m
        """
    )
    fewer = drop_duplicates(graph)
    assert [len(node.writes) for node in fewer.nodes] == [1, 1, 1, 2, 1]
    arrays = sample(graph, rng)
    found, expected = ({**evaluate(one, arrays)} for one in (fewer, graph))
    assert all(np.array_equal(found[name], expected[name]) for name in ("h", "k", "m"))
    results = [context.compile(one, "-all").run({n: a.copy() for n, a in arrays.items()}) for one in (fewer, graph)]
    assert all(np.array_equal(results[0][name], results[1][name]) for name in ("h", "k", "m"))


def test_gradients_equal_finite_differences(rng):
    """The graph of the gradients is right; what a device computes of it is the next test's subject."""
    graph = small_net(training=True)
    wrt = [value.name for value in graph.inputs]
    whole = graph.gradients(wrt)
    arrays = {name: array.astype(np.float64) for name, array in sample(whole, rng).items()}
    found = evaluate(whole, arrays)
    (output,) = graph.outputs
    own = {name: array for name, array in arrays.items() if name in graph.values}
    for name, result in zip(wrt, whole.outputs[1:]):
        direction = rng.standard_normal(own[name].shape)
        step = 1e-7
        ends = [evaluate(graph, {**own, name: own[name] + sign * step * direction})[output] for sign in (1, -1)]
        slope = float(((ends[0] - ends[1]) * arrays[f"d.{output}"]).sum() / (2 * step))
        got = float((found[result] * direction.reshape(found[result].shape)).sum())
        size = float(np.linalg.norm(found[result]) * np.linalg.norm(direction))
        assert abs(got - slope) <= 1e-6 * size, name


@pytest.mark.parametrize("passes", ["-all", ""])
def test_gradients_equal_the_references_of_their_problems(context, rng, passes):
    whole = small_net(training=True).gradients(["w0", "w1", "w2", "b2", "x"])
    arrays = sample(whole, rng)
    expected = evaluate(whole, arrays)
    found = context.compile(whole, passes).run(arrays)
    for name in whole.outputs:
        assert close(found[name], expected[name]), name


def test_equal_runs_give_equal_bits(context, rng):
    whole = small_net(training=True).gradients(["w0", "w1", "w2"])
    arrays = sample(whole, rng)
    compiled = context.compile(whole)
    first, second = (compiled.run({name: array.copy() for name, array in arrays.items()}) for _ in range(2))
    again = context.compile(whole).run(arrays)
    for name in whole.outputs:
        assert np.array_equal(first[name], second[name]) and np.array_equal(first[name], again[name])


def test_without_passes_the_bits_are_those_of_single_operators(context, rng):
    graph = small_net()
    arrays = sample(graph, rng)
    values = dict(arrays)
    for node in graph.nodes:
        plan = context.plan(node.problem)
        given = {}
        for argument, name in zip(plan.arguments, node.arguments):
            if argument.role == "out":
                values[name] = np.full(argument.shape, np.nan, argument.dtype)
            given[argument.name] = values[name].reshape(argument.shape)
        plan.run(scalars=dict(zip(node.problem.scalars(), node.scalars)), **given)
    found = context.compile(graph, "-all").run(arrays)
    for name in graph.outputs:
        assert np.array_equal(found[name], values[name])


def test_outputs_are_added_to_and_skipped(context, rng):
    graph = small_net()
    hidden = graph.nodes[2].writes[0]
    graph = graph.with_outputs((*graph.outputs, hidden))  # later nodes read this one
    arrays = sample(graph, rng)
    compiled = context.compile(graph)
    plain = compiled.run(arrays)
    added = {name: core.accumulate(np.ones_like(array)) for name, array in plain.items()}
    compiled.run({**arrays, **added})
    for name, array in plain.items():
        assert np.allclose(added[name].array - 1, array, atol=1e-6 * np.abs(array).max() + 1e-6)
    only = compiled.run({**arrays, graph.outputs[0]: None})
    assert list(only) == [hidden] and np.array_equal(only[hidden], plain[hidden])
    assert compiled.report((hidden,)).nodes < compiled.report().nodes


def test_scalars_of_the_graph_are_given_at_each_run(context, rng):
    on = GraphBuilder()
    x, rate = on.input("x", (5, 7)), on.scalar("rate")
    (y,) = on.add("pointwise x0[5,7] scalars{a} : y0 = a * x0;", x, scalars={"a": rate})
    (z,) = on.add("pointwise x0[5,7] scalars{a} : y0 = x0 + a;", y, scalars={"a": 2.0})
    compiled = context.compile(on.graph(z))
    array = rng.standard_normal((5, 7)).astype(np.float32)
    for value in (0.5, -3.0):
        found = compiled.run({"x": array}, scalars={"rate": value})[z]
        assert np.allclose(found, np.float32(value) * array + 2, atol=1e-6)
    with pytest.raises(core.ArgumentError, match="rate"):
        compiled.run({"x": array})


def test_arrays_on_the_device_are_used_in_place(context, rng):
    import pyopencl.array as device_array

    graph = small_net()
    arrays = sample(graph, rng)
    compiled = context.compile(graph)
    expected = compiled.run(arrays)
    on_device = {name: device_array.to_device(context.queue, array) for name, array in arrays.items()}
    for name in graph.outputs:
        on_device[name] = device_array.to_device(context.queue, np.full(graph.values[name].shape, np.nan, np.float32))
    before = context.counters()
    compiled.run(on_device)
    context.finish()
    after = context.counters()
    assert after["bytes_to_device"] == before["bytes_to_device"] and after["bytes_to_host"] == before["bytes_to_host"]
    for name in graph.outputs:
        assert np.array_equal(on_device[name].get(), expected[name])


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda a: a.pop("w0"), "w0"),
        (lambda a: a.update(w0=a["w0"][:4]), "got shape"),
        (lambda a: a.update(w0=a["w0"].astype(np.float64)), "got dtype float64"),
        (lambda a: a.update(w0=[1.0]), "got list for w0"),
        (lambda a: a.update(colour=a["w0"]), "got array 'colour'"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(context, rng, change, message):
    graph = small_net()
    arrays = sample(graph, rng)
    change(arrays)
    with pytest.raises(core.ArgumentError, match=message):
        context.compile(graph).run(arrays)


def test_what_follows_from_constants_is_computed_once(context, rng):
    graph = small_net()
    arrays = sample(graph, rng)
    constants = {name: arrays.pop(name) for name in list(arrays) if name != "x"}
    expected = context.compile(graph, "-fold").run({**arrays, **constants})
    compiled = context.compile(graph, "-fold", constants=constants)
    found = compiled.run(arrays)
    for name in graph.outputs:
        assert np.array_equal(found[name], expected[name])
    # weights that never change take the scale of a norm; otherwise their results do
    compiled = context.compile(graph, constants=constants)
    found, reference = compiled.run(arrays), evaluate(graph, {**arrays, **constants})
    for other in (found, context.compile(graph).run({**arrays, **constants})):
        for name in graph.outputs:
            assert np.abs(other[name] - reference[name]).max() <= 1e-5 * np.abs(reference[name]).max()
    assert compiled.report().launches < context.compile(graph).report().launches  # the weights are folded already
    assert compiled.report().argument_bytes == arrays["x"].nbytes + sum(found[name].nbytes for name in graph.outputs)
    with pytest.raises(core.ArgumentError, match="w0"):
        compiled.run({**arrays, "w0": constants["w0"]})
    with pytest.raises(core.ArgumentError, match="colour"):
        context.compile(graph, constants={"colour": arrays["x"]})


def test_memory_is_shared(context):
    whole = small_net(training=True, batch=8, size=33).gradients(["w0", "w1", "w2"])
    report = context.compile(whole).report()
    assert 0 < report.arena_bytes < report.value_bytes
    assert str(report.nodes) in str(report) and report.launches >= report.nodes


@pytest.mark.parametrize("passes", ["-all", None])
def test_outputs_keep_their_shapes_where_problems_see_others(context, rng, passes):
    on = GraphBuilder()
    x = on.input("x", (108,))
    (first,) = on.add("pointwise x0[108] : y0 = x0 + 1;", x)
    (second,) = on.add("pointwise x0[3,6,6] x1[6] : y0 = x0 * x1;", first, on.input("w", (6,)))
    (third,) = on.add("pointwise x0[12,9] : y0 = x0 - 2;", second)
    compiled = context.compile(on.graph(second, third), passes)
    x, w = rng.standard_normal(108).astype(np.float32), rng.standard_normal(6).astype(np.float32)
    given = np.full((12, 9), np.nan, np.float32)
    found = compiled.run({"x": x, "w": w, third: given})
    expected = (x + 1).reshape(3, 6, 6) * w
    np.testing.assert_array_equal(found[second], expected)
    np.testing.assert_array_equal(given, (expected - 2).reshape(12, 9))


def test_more_than_64_arrays(context, rng):
    on = GraphBuilder()
    names = [on.input(f"x{i}", (3, 5)) for i in range(150)]
    total = names[0]
    for name in names[1:]:
        (total,) = on.add("pointwise x0[3,5] x1[3,5] : y0 = x0 + 2 * x1;", total, name)
    arrays = {name: rng.integers(-9, 9, (3, 5)).astype(np.float32) for name in names}
    found = context.compile(on.graph(total)).run(arrays)[total]
    assert np.array_equal(found, arrays[names[0]] + 2 * sum(arrays[name] for name in names[1:]))


def test_gradient_of_a_value_with_several_readers_and_of_one_without(context, rng):
    graph = parse_graph(
        "input x[4] z[4]\n"
        "a = x x | pointwise x0[4] x1[4] : y0 = x0 * x1;\n"
        "b = a x | pointwise x0[4] x1[4] : y0 = x0 + 3 * x1;\n"
        "output b\n"
    )
    whole = graph.gradients(["x", "z"])
    x, seed = (rng.standard_normal(4).astype(np.float32) for _ in range(2))
    found = context.compile(whole).run({"x": x, "z": x, "d.b": seed})
    assert np.allclose(found[whole.outputs[1]], seed * (2 * x + 3), atol=1e-5)
    assert np.array_equal(found[whole.outputs[2]], np.zeros(4))


def test_unknown_names_are_refused():
    graph = small_net()
    with pytest.raises(core.ProblemError, match="colour"):
        graph.gradients(["colour"])
    with pytest.raises(core.ArgumentError, match="colour"):
        core.context().compile(graph, "-colour").report()
    with pytest.raises(core.ProblemError, match="no state"):
        Graph((), (), ("s",), (Value("s", (3,)),))
    with pytest.raises(core.ProblemError, match="3 values for"):
        Graph((Node(core.parse("pointwise x0[3] : y0 = x0;"), ("x", "y", "z")),), (Value("x", (3,)),), ("y",))


@pytest.mark.parametrize(
    "head", ["x[64]", "x[3,5]", "x[]", "x[0]", "x:f16[4,2]", "x:i32[3]", "x:u8[2,3]", "x[5] y[5]"], ids=str
)
@pytest.mark.parametrize("passes", ["-all", ""])
def test_an_input_that_is_an_output_is_copied(context, head, passes):
    graph = parse_graph(f"input {head}\noutput x\n")
    value = graph.values["x"]
    x = np.asarray(np.arange(value.size).reshape(value.shape) + 1, value.dtype)
    given = {v.name: np.zeros(v.shape, v.dtype) for v in graph.inputs if v.name != "x"}
    found = context.compile(graph, passes).run({**given, "x": x})["x"]
    assert not np.shares_memory(found, x) and found.dtype == x.dtype and np.array_equal(found, x)
    # a constant: its name stands for the output then
    fixed = context.compile(graph, passes, constants={"x": x})
    assert np.array_equal(fixed.run(given)["x"], x)
    result = np.zeros_like(x)
    assert fixed.run({**given, "x": result})["x"] is result and np.array_equal(result, x)
    assert fixed.run({**given, "x": core.accumulate(result)})["x"] is result and np.array_equal(result, 2 * x)
    assert fixed.run({**given, "x": None}) == {}


def test_an_input_is_an_output_next_to_what_is_computed_of_it(context, rng):
    text = "input x[6]\ny = x | pointwise x0[2,3] : y0 = 2 * x0;\nx.out = y | pointwise x0[6] : y0 = x0 + 1;\n"
    graph = parse_graph(f"{text}output x.out x y\n")
    x = rng.standard_normal(6).astype("float32")
    compiled = context.compile(graph)
    found = compiled.run({"x": x})
    assert list(found) == ["x.out", "x", "y"] and np.array_equal(found["x"], x)
    assert close(found["x.out"], 2 * x + 1) and found["y"].shape == (2, 3)
    only = compiled.run({"x": x, "y": None, "x.out": None})
    assert list(only) == ["x"] and np.array_equal(only["x"], x)
    assert "-> x.out x y" in str(compiled.plan().problem)


def test_an_output_is_named_once():
    with pytest.raises(core.ProblemError, match="each name once"):
        parse_graph("input x[6]\noutput x x\n")


def test_gradients_have_the_names_that_were_asked_for(context, rng):
    """Also that of a value with several parts, and that of an input which is an output."""
    text = "input x[5] w[5]\ny = x w | pointwise x0[5] x1[5] : y0 = x0 * x1;\n"
    text += "z = x | pointwise x0[5] : y0 = x0 * x0;\noutput x y z\n"
    graph = parse_graph(text).gradients(["x", "w", "y"])
    assert graph.outputs == ("x", "y", "z", "d.x", "d.w", "d.y")
    assert [value.name for value in graph.inputs] == ["x", "w", "d.x.out", "d.y.out", "d.z"]
    assert parse_graph(str(graph)) == graph
    arrays = sample(graph, rng)
    x, w, dx, dy, dz = (arrays[value.name] for value in graph.inputs)
    found = context.compile(graph).run(arrays)
    assert close(found["d.x"], dx + dy * w + 2 * x * dz) and close(found["d.w"], dy * x) and close(found["d.y"], dy)
    with pytest.raises(core.ProblemError, match="each name once"):
        parse_graph(text).gradients(["x", "x"])


@pytest.mark.parametrize("name", ["inf", "nan", "NaN", "Infinity", "infinity", "INF"])
def test_names_of_scalars_are_no_numbers(name):
    node = f"y = x {{a={name}}} | pointwise x0[2] scalars{{a}} : y0 = a * x0;"
    with pytest.raises(core.ProblemError, match=r"the scalar name .*, expected a name that is no number"):
        parse_graph(f"input x[2]\nscalar {name}\n{node}\noutput y\n")
    graph = parse_graph(f"input x[2]\n{node}\noutput y\n")  # a number
    assert str(parse_graph(str(graph))) == str(graph) and not graph.scalars
    with pytest.raises(core.ProblemError, match="the scalar name"):
        core.parse(f"pointwise x0[2] scalars{{{name}}} : y0 = {name} * x0;")


@pytest.mark.parametrize(
    "lines, message",
    [
        ("input x[" + "9" * 5000 + "]\noutput x", "[graph] "),
        ("input x[" + "9" * 4000 + "," + "9" * 4000 + "]\noutput x", "no machine addresses more"),
        ("input x[9999999999999999]\noutput x", "no machine addresses more"),
        ("scalar a a\noutput x", "[graph] got scalars ('a', 'a'), expected each name once"),
        (
            "input x[2]\ny = x {a=1, a=2} | pointwise x0[2] scalars{a} : y0 = a * x0;\noutput y",
            "got scalar 'a' a second",
        ),
        ("input x[2]\ny = x {a=1 | pointwise x0[2] : y0 = x0;\noutput y", "expected 'written = read"),
        ("input x[2]\ny = x {a=1} b | pointwise x0[2] : y0 = x0;\noutput y", "expected 'written = read"),
    ],
    ids=["digits", "product", "size", "scalars", "scalar", "brace", "after"],
)
def test_bad_text_is_a_problem_error(context, lines, message):
    with pytest.raises(core.ProblemError) as caught:
        context.compile(parse_graph(lines))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: "input x[2]\ny = x" + n * " " + "\noutput x",
        lambda n: "input x[2]\ny = x {" + n * " " + "\noutput x",
        lambda n: "input x[2]\ny = x | pointwise x0[2] : y0 = x0 + " + n * "1" + "z;\noutput y",
    ],
    ids=["blanks", "brace", "digits"],
)
def test_reading_takes_no_quadratic_time(make):
    """Twice the text takes about twice the time; four times as much where each character is compared with the rest."""

    def seconds(count: int) -> float:
        times = []
        for _ in range(5):
            began = time.process_time()
            with pytest.raises(core.ProblemError):
                parse_graph(make(count))
            times.append(time.process_time() - began)
        return min(times)

    seconds(2000)
    assert seconds(80_000) < 12 * max(seconds(10_000), 2e-4)


def test_runs_with_arrays_that_stay(context, rng):
    """Bound arrays are seen as they are in each run; others, outputs and scalars are those of the run."""
    on = GraphBuilder()
    on.scalar("rate")
    x, w, kept = on.input("x", (3, 5)), on.input("w", (5,)), on.state("kept", (3, 5))
    (y,) = on.add("pointwise x0[3,5] x1[5] scalars{rate} : y0 = rate * x0 * x1", x, w, scalars={"rate": "rate"})
    on.add("update x0[3,5] x1[3,5] : y0 = x0 + x1", y, kept)
    compiled = context.compile(on.graph(y, x))
    weights, total = rng.standard_normal(5).astype(np.float32), np.zeros((3, 5), np.float32)
    bound, expected = compiled.bind({w: weights, kept: total}), np.zeros((3, 5))
    for rate in (1.0, 2.0):
        given = rng.standard_normal((3, 5)).astype(np.float32)
        found = bound.run({x: given}, {"rate": rate})
        np.testing.assert_allclose(found[y], rate * given * weights, rtol=1e-6)
        assert np.array_equal(found[x], given) and found[x] is not given
        expected += rate * given.astype(np.float64) * weights
        np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-6)
        weights += 1
    with pytest.raises(core.ClgraftError, match="no array for"):
        bound.run({}, {"rate": 1.0})
    with pytest.raises(core.ClgraftError, match="scalars"):
        bound.run({x: given}, {})
    with pytest.raises(core.ClgraftError, match="shape"):
        bound.run({x: given[:2]}, {"rate": 1.0})
    with pytest.raises(core.ClgraftError, match="inputs and states"):
        compiled.bind({y: given})
