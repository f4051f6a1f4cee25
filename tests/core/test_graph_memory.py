"""The memory plan of graphs: copies as views, values that are computed again, limits, and what reports say."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from clgraft.core.graph import Graph, parse_graph
from clgraft.core.graph.homes import Homes
from clgraft.core.graph.passes import recompute
from clgraft.core.graph.reference import evaluate
from tests.core.graphs import sample, small_net

HEAD = """input a[1,3,5] b[1,4,5] c[1,12,5]
x = a | pointwise x0[15] : y0 = exp(x0);
y = b | pointwise x0[20] : y0 = x0 * x0;
z = c | pointwise x0[60] : y0 = x0 + 1;
"""


def places(graph: Graph) -> Homes:
    outside = {value.name for value in graph.inputs} | set(graph.outputs)
    return Homes.of(graph, outside, ())


def check(context, graph, rng, views):
    """Compare a graph's run with float64 and, to the bit, with a run without views."""
    arrays = sample(graph, rng)
    expected = evaluate(graph, arrays)
    found, copied = (context.compile(graph, passes) for passes in ("-all,views", "-all"))
    one, two = found.run(arrays), copied.run(arrays)
    for name in graph.outputs:
        assert np.array_equal(one[name], two[name])
        assert np.abs(one[name].ravel() - expected[name].ravel()).max() <= 1e-5 * np.abs(expected[name]).max()
    assert (found.report().views, copied.report().views) == (views, 0)
    assert (found.report().launches < copied.report().launches) == (views > 0)
    return found.report().arena_bytes, copied.report().arena_bytes


def test_parts_are_written_into_the_whole(context, rng):
    graph = parse_graph(
        HEAD + "j = x y | concat forward outer[1] extents[3,4] inner[5]\n"
        "k = j z | concat forward outer[1] extents[7,12] inner[5]\n"
        "w = k | pointwise x0[95] : y0 = 2 * x0;\nv = x | pointwise x0[15] : y0 = -x0;\noutput w v"
    )
    homes = places(graph).places
    assert [(homes[name].name, homes[name].offset) for name in "xyzjk"] == [
        ("k", 0),
        ("k", 60),
        ("k", 140),
        ("k", 0),
        ("k", 0),
    ]
    with_views, without = check(context, graph, rng, 2)
    assert with_views < without


def test_gradients_of_batch_norms_lie_over_what_came_in(context, rng):
    """`f` lies over `g`, but not over `h`, which is read again."""
    graph = parse_graph(
        "input x[4,3,5] dy[4,3,5] gamma[3] mean[3] var[3]\n"
        "g = dy | pointwise x0[60] : y0 = exp(x0);\n"
        "f _ _ = x g gamma mean var {eps=0.1} | batchnorm backward_training n4 c3 s5\n"
        "h = f | pointwise x0[60] : y0 = 2 * x0;\n"
        "d _ _ = x h gamma mean var {eps=0.1} | batchnorm backward_training n4 c3 s5\n"
        "y = h d | pointwise x0[60] x1[60] : y0 = x0 + x1;\n"
        "output y"
    )
    homes = places(graph).places
    assert homes["f"] == homes["g"] == homes["h"] and homes["d"].name == "d"
    arrays = {**sample(graph, rng), "var": np.ones(3, np.float32)}
    found = context.compile(graph, "-all").run(arrays)["y"]
    np.testing.assert_allclose(found.ravel(), evaluate(graph, arrays)["y"].ravel(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "copy, views",
    [
        ("j = z | slice forward x[12,5] y[4,5] at[3,0]", 1),
        ("j = z | slice forward x[1,12,5] y[1,4,5] at[0,8,0]", 1),
        ("j = z | slice forward x[12,5] y[10,2] at[1,2]", 0),
        ("j = z | slice forward x[12,5] y[4,5] at[3,0] step[2,1]", 0),
        ("j i = z | concat backward outer[1] extents[4,8] inner[5]", 1),
        ("j i = z | concat backward outer[3] extents[1,3] inner[5]", 0),
        ("j = z | transpose x[1,12,5] axes[1,0,2]", 1),
        ("j = z | transpose x[12,5] axes[1,0]", 0),
        ("j = z z | concat forward outer[1] extents[12,12] inner[5]", 0),
        ("j = x y | concat forward outer[1] extents[3,4] inner[5]", 1),
        ("j = a y | concat forward outer[1] extents[3,4] inner[5]", 0),
        ("j = x y | concat forward outer[5] extents[3,4] inner[1]", 0),
    ],
)
def test_only_copies_of_whole_pieces_are_views(context, rng, copy, views):
    values = {name: value for name, value in parse_graph(HEAD + copy + "\noutput a").values.items() if name in "ij"}
    last = "".join(f"{n}{n} = {n} | pointwise x0[{v.size}] : y0 = x0 - 3;\n" for n, v in values.items())
    last += "u = z | pointwise x0[60] : y0 = x0 * x0;\n"
    check(context, parse_graph(f"{HEAD}{copy}\n{last}output u " + " ".join(n + n for n in values)), rng, views)


def test_outputs_of_the_graph_are_copied(context, rng):
    check(context, parse_graph(HEAD + "j = x y | concat forward outer[1] extents[3,4] inner[5]\noutput j"), rng, 0)
    graph = parse_graph(HEAD + "j = x y | concat forward outer[1] extents[3,4] inner[5]\n"
                        "w = j | pointwise x0[35] : y0 = x0 + 1;\noutput x w")  # fmt: skip
    check(context, graph, rng, 0)


@pytest.mark.parametrize("late", [False, True], ids=["read before outputs", "read after an output"])
def test_slices_of_inputs_are_read_in_place(context, rng, late):
    """Unless an output is written before they are read: it may lie in the input's memory."""
    copy = "s = x | slice forward x[4,6] y[2,6] at[1,0]\nt = s | slice forward x[2,6] y[1,6] at[1,0]\n"
    outputs = ["v = x | pointwise x0[4,6] : y0 = -x0;\n", "w = k | pointwise x0[6] : y0 = x0 + 1;\n"]
    middle = "u = s | pointwise x0[12] : y0 = 2 * x0;\nk = t | pointwise x0[6] : y0 = 3 * x0;\n"
    rest = copy + outputs[0] + middle + outputs[1] if late else copy + middle + outputs[1] + outputs[0]
    graph = parse_graph("input x[4,6]\n" + rest + "z = u | pointwise x0[12] : y0 = x0 - 1;\noutput v w z\n")
    homes = places(graph).places
    assert (homes["t"].name == "x") != late
    x = rng.standard_normal((4, 6)).astype(np.float32)
    expected = evaluate(graph, {"x": x})
    found = context.compile(graph, "-all,views")
    assert found.report().views == (1 if late else 2)
    given = {"x": x.copy()}
    results = found.run({**given, "v": given["x"]} if context.device.is_cpu else given)
    for name in "vwz":
        np.testing.assert_allclose(results[name], expected[name].reshape(results[name].shape), rtol=1e-6)


def test_a_whole_that_is_still_read_is_not_written_over(context, rng):
    """Pointwise problems write over inputs that nobody reads later, but not where these are a part of something."""
    graph = parse_graph(
        HEAD + "j = x y | concat forward outer[1] extents[3,4] inner[5]\n"
        "v = x | pointwise x0[15] : y0 = -3 * x0;\n"
        "s = z | slice forward x[12,5] y[4,5] at[3,0]\n"
        "t = s | pointwise x0[20] : y0 = x0 - 1;\n"
        "p = j | pointwise x0[35] y0=sum[0] : y0 = x0;\n"
        "q = v t p z | concat forward outer[1] extents[15,20,1,60] inner[1]\n"
        "r = q | pointwise x0[96] : y0 = x0;\noutput r"
    )
    check(context, graph, rng, 3)


def training() -> Graph:
    graph = small_net(training=True, batch=8, size=17)
    return graph.gradients([value.name for value in graph.inputs if value.name != "x"])


def test_what_is_computed_again_is_the_same(rng):
    graph = training()
    again = recompute(graph)
    assert len(again.nodes) > len(graph.nodes)
    arrays = sample(graph, rng)
    one, two = evaluate(graph, arrays), evaluate(again, arrays)
    for name in (*graph.outputs, *(state.name for state in graph.states)):
        assert np.allclose(one[name], two[name], rtol=1e-9, atol=1e-9 * np.abs(one[name]).max())


def test_a_limit_of_memory_is_kept_by_computing_again(context, rng):
    graph = training()
    free = context.compile(graph)
    least = context.compile(graph, memory=0)
    with pytest.raises(core.ProblemError, match="got memory for 0 bytes") as caught:
        least.report()
    smallest = int(str(caught.value).split()[-1])
    largest = free.report().arena_bytes
    if smallest == largest and not context.device.is_cpu:
        pytest.skip("workspaces make this device's peak, where nothing lives that could be computed again")
    assert smallest < largest
    tight = context.compile(graph, memory=smallest)
    report = tight.report()
    assert 0 < report.arena_bytes <= smallest and report.recomputed > 0 and free.report().recomputed == 0
    assert f"{report.recomputed} recomputed" in str(report)
    arrays = sample(graph, rng)
    one, two = (compiled.run({k: v.copy() for k, v in arrays.items()}) for compiled in (free, tight))
    for name in graph.outputs:
        scale = max(float(np.abs(one[name]).max()), 1e-3)
        assert np.abs(one[name] - two[name]).max() <= 2e-5 * scale, name
    with pytest.raises(core.ProblemError, match="expected at least"):
        context.compile(graph, "-recompute", memory=smallest).report()


@pytest.mark.parametrize("enough", [True, False])
def test_an_arena_that_the_device_has_no_room_for_is_made_smaller(context, rng, monkeypatch, enough):
    """The device reports more memory than it gives, as one does that other processes use."""
    graph, lib = training(), context.lib
    free = context.compile(graph)
    largest = free.report().arena_bytes
    with pytest.raises(core.ProblemError, match="got memory for 0 bytes") as caught:
        context.compile(graph, memory=0).report()
    room = int(str(caught.value).split()[-1]) if enough else 0
    hand_over, asked = type(context).hand_over, []

    def with_less(self, problem, launches, name):
        asked.append(launches.workspace_bytes)
        if launches.workspace_bytes > room:
            raise core.ExecutionError("no room", lib.CLG_OUT_OF_MEMORY)
        return hand_over(self, problem, launches, name)

    monkeypatch.setattr(type(context), "hand_over", with_less)
    tight = context.compile(graph)
    if not enough:
        with pytest.raises(core.ExecutionError) as caught:
            tight.report()
        assert f"for an arena of {min(asked)} bytes" in str(caught.value)
        assert asked[0] == largest and asked == sorted(set(asked), reverse=True)
        return
    if not context.device.is_cpu:
        pytest.skip("workspaces make this device's peak, where nothing lives that could be computed again")
    report = tight.report()
    assert asked[0] == largest and asked == sorted(set(asked), reverse=True) and len(asked) > 1
    assert report.arena_bytes == asked[-1] <= room < largest and report.recomputed > 0
    arrays = sample(graph, rng)
    one, two = (compiled.run({k: v.copy() for k, v in arrays.items()}) for compiled in (free, tight))
    for name in graph.outputs:
        scale = max(float(np.abs(one[name]).max()), 1e-3)
        assert np.abs(one[name] - two[name]).max() <= 2e-5 * scale, name
    with pytest.raises(core.ExecutionError, match="no memory on"):
        context.compile(graph, "-recompute").report()


def test_values_that_a_changing_state_made_are_kept(rng):
    text = "input m[9] v[9] d[9]\nstate sm[9] sv[9]\na = sm | pointwise x0[9] : y0 = exp(x0);\n"
    text += "sm sv = m v sm sv {keep=0.9, add_mean=0.1, add_var=0.1} | batchnorm update_statistics n1 c9 s1\n"
    text += "b = d | pointwise x0[9] : y0 = 2 * x0;\nb1 = b | pointwise x0[9] : y0 = 2 * x0;\n"
    text += "c = a b1 b | pointwise x0[9] x1[9] x2[9] : y0 = x0 + x1 + x2;\noutput c"
    graph = parse_graph(text)
    assert "a.again" not in recompute(graph).values


def test_reports_count_what_passes_did(context):
    graph = small_net()
    report = context.compile(graph).report()
    counts = dict(report.passes)
    assert counts["fold"] == 2 and counts["chains"] == 3 and counts["epilogues"] == 2  # norms became parts of chains
    assert report.fused == 7 and "7 fused" in str(report)
    none = context.compile(graph, "-all").report()
    assert none.fused == 0 and none.nodes == none.nodes_before
    staged = context.device.host_access == "staged"
    sizes = (report.bytes_to_device, report.bytes_to_host)
    outputs = sum(graph.values[name].nbytes for name in graph.outputs)
    assert sizes == ((sum(v.nbytes for v in graph.inputs), outputs) if staged else (0, 0))
