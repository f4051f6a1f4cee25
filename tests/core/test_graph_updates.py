"""Updates of several arrays that one problem computes."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from clgraft.core.graph import parse_graph
from clgraft.core.graph.passes import MOST_ON_CPUS, join_casts, join_totals, join_updates
from clgraft.core.graph.reference import evaluate
from tests.core.graphs import sample, small_net

SGD = "scalars{lr,lr_mult} : y0 = x1 - lr * lr_mult * x0"
UPDATES = f"""
input a[37] b[5,3] c[1] d[4] e[9] skip[1]
state wa[37] wb[5,3] wc[1] wd[4] we[9] count[1] more[1]
scalar lr
ga = a | pointwise x0[37] : y0 = 2 * x0
wa = ga wa {{lr=lr, lr_mult=1}} | update x0[37] x1[37] {SGD}
wb = b wb {{lr=lr, lr_mult=2}} | update x0[5,3] x1[5,3] {SGD}
count = count {{keep=0.5, share=1}} | update x0[1] scalars{{keep,share}} : y0 = keep * x0 + share
read = wd | pointwise x0[4] : y0 = x0
wd = d wd {{lr=lr, lr_mult=3}} | update x0[4] x1[4] {SGD}
after = wb | pointwise x0[5,3] : y0 = x0
wc = c wc {{lr=lr, lr_mult=1}} | update x0[1] x1[1] {SGD}
we = e skip we {{lr=lr, lr_mult=1}} | update x0[9] x1[1] x2[9] scalars{{lr,lr_mult}} : y0 = x2 - lr * lr_mult * x0 * x1
more = more {{keep=0.5, share=1}} | update x0[1] scalars{{keep,share}} : y0 = keep * x0 + share
output read after
"""


def test_updates_of_several_arrays_run_together(context, rng):
    """Where nothing between reads what changes: `wb` is read before `wc` changes; other steps are apart."""
    graph = parse_graph(UPDATES)
    joined = join_updates(graph)
    found = [node for node in joined.nodes if node.problem.kind == "updates"]
    assert [(node.problem.sizes, node.problem.own) for node in found] == [
        ((37, 15, 4), ("lr_mult",)),
        ((1, 1), ()),
    ]
    arrays = {name: array.astype(np.float32) for name, array in sample(graph, rng).items()}
    for one in (graph, joined):
        given = {name: array.copy() for name, array in arrays.items()}
        results = context.compile(one, "-all").run(given, {"lr": 0.25})
        for name, expected in (
            ("wa", arrays["wa"] - 0.5 * arrays["a"]),
            ("wb", arrays["wb"] - 0.5 * arrays["b"]),
            ("wc", arrays["wc"] - 0.25 * arrays["c"]),
            ("wd", arrays["wd"] - 0.75 * arrays["d"]),
            ("we", arrays["we"] - 0.25 * arrays["e"] * arrays["skip"]),
            ("count", 0.5 * arrays["count"] + 1),
        ):
            np.testing.assert_allclose(given[name], expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(results["read"], arrays["wd"])
        np.testing.assert_array_equal(results["after"].ravel(), given["wb"].ravel())


def test_moving_averages_are_updates(context, rng):
    graph = small_net(training=True)
    joined = join_updates(graph)
    (node,) = (node for node in joined.nodes if node.problem.kind == "updates")
    assert node.problem.sizes == (8, 8) and not any("update_statistics" in str(one.problem) for one in joined.nodes)
    arrays = {name: array.astype(np.float32) for name, array in sample(graph, rng).items()}
    states = []
    for one in (graph, joined):
        given = {name: array.copy() for name, array in arrays.items()}
        context.compile(one, "-all").run(given)
        states.append([given[state.name] for state in graph.states])
    for one, two in zip(*states):
        np.testing.assert_allclose(one, two, rtol=2e-6, atol=1e-6)
    assert evaluate(joined, arrays).keys() == evaluate(graph, arrays).keys()


def test_large_arrays_stay_alone():
    big = parse_graph(UPDATES.replace("37", str(2**20 + 1)))
    assert next(n.problem.sizes for n in join_updates(big).nodes if n.problem.kind == "updates") == (15, 4)


def test_processors_join_small_arrays(context):
    """There a launch costs less, and a large array is updated while its gradient is in a cache."""
    graph = parse_graph(UPDATES.replace("37", str(MOST_ON_CPUS)).replace("[5,3]", f"[1,{MOST_ON_CPUS + 1}]"))
    found = [node for node in join_updates(graph, MOST_ON_CPUS).nodes if node.problem.kind == "updates"]
    assert [node.problem.sizes for node in found] == [(MOST_ON_CPUS, 4, 1), (1, 1)]
    assert dict(context.compile(graph).report().passes)["updates"] == 3


def test_texts_are_read():
    text = "updates sizes[37,5] own{rate} x0[37] x1[37] scalars{rate} : y0 = x1 - rate * x0"
    assert str(core.parse(text)).rstrip(";") == text


SUMS = """
input a[37] b[9001] c[1] d[4] e[20000]
scalar most
sa = a {most=most} | pointwise x0[37] y0[1]=sum[0] scalars{most} : y0 = x0 > most ? 1 : 0
sb = b {most=most} | pointwise x0[9001] y0[1]=sum[0] scalars{most} : y0 = x0 > most ? 1 : 0
sc = c {most=most} | pointwise x0[1] y0[1]=sum[0] scalars{most} : y0 = x0 > most ? 1 : 0
first = sa sb sc | pointwise x0[1] x1[1] x2[1] : y0 = x0 + x1 + x2
sd = d {most=most} | pointwise x0[4] y0[1]=sum[0] scalars{most} : y0 = x0 > most ? 1 : 0
se = e {most=most} | pointwise x0[20000] y0[1]=sum[0] scalars{most} : y0 = x0 > most ? 1 : 0
second = sd se | pointwise x0[1] x1[1] : y0 = x0 + x1
all = first second | pointwise x0[1] x1[1] : y0 = x0 + x1
output all
"""


def test_sums_of_sums_are_one_problem(context, rng):
    """Sums of sums become one problem, and sums of these, too; counts are exact in any order."""
    graph = parse_graph(SUMS)
    joined = join_totals(graph)
    totals = [node.problem for node in joined.nodes if node.problem.kind == "totals"]
    assert [problem.sizes for problem in totals] == [(37, 9001, 1, 4, 20000)] and len(joined.nodes) == 1
    arrays = {name: array.astype(np.float32) for name, array in sample(graph, rng).items() if name in "abcde"}
    expected = sum(int((array > 0.25).sum()) for array in arrays.values())
    for one in (graph, joined):
        assert context.compile(one, "-all").run(arrays, {"most": 0.25})["all"].tolist() == [expected]
    arrays["e"][-1] = np.inf
    both = [context.compile(one, "-all").run(arrays, {"most": 3e38})["all"].tolist() for one in (graph, joined)]
    assert both == [[1], [1]]


def test_sums_over_arrays_of_two_types(context, rng):
    """Gradients of products are in 16 bits, others in float32; sums are float32."""
    text = SUMS
    for name, size in (("b", 9001), ("e", 20000)):
        text = text.replace(f"{name}[{size}]", f"{name}:f16[{size}]", 1)
        text = text.replace(f"pointwise x0[{size}] y0[1]=sum[0]", f"pointwise f16 x0[{size}] y0[1]=sum[0] f32{{y0}}")
    graph = parse_graph(text)
    joined = join_totals(graph)
    assert [node.problem.wide for node in joined.nodes if node.problem.kind == "totals"] == [(0, 2, 3)]
    types = {"b": np.float16, "e": np.float16}
    arrays = {name: sample(graph, rng)[name].astype(types.get(name, np.float32)) for name in "abcde"}
    expected = sum(int((array > 0.25).sum()) for array in arrays.values())
    for one in (graph, joined):
        assert context.compile(one, "-all").run(arrays, {"most": 0.25})["all"].tolist() == [expected]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("output all", "output all sa"),  # somebody else needs a sum
        ("x0[1] scalars{most} : y0 = x0 > most", "x0[1] scalars{most} : y0 = x0 < most"),  # another expression
        ("sc = c {most=most}", "sc = c {most=2}"),  # another number
    ],
)
def test_sums_that_are_not_alike_stay(old, new):
    text = SUMS.replace(old, new) if old in SUMS else SUMS.replace("x0[1] y0[1]=sum[0]", "x0[1] y0[1]=max[0]")
    joined = join_totals(parse_graph(text))
    assert [node.problem.sizes for node in joined.nodes if node.problem.kind == "totals"] == [(4, 20000)]


def test_updates_of_two_types_run_together(context, rng):
    """Gradients of 16 bits and parameters in float32; updates by gradients in float32 are apart from them."""
    line = "update f16 x0[{0}] x1[{0}] f32{{x1}} scalars{{lr}} : y0 = x1 - lr * x0"
    graph = parse_graph(f"""
input a:f16[37] b:f16[5000] c[7] d[3]
state wa[37] wb[5000] wc[7] wd[3]
scalar lr
wa = a wa {{lr=lr}} | {line.format(37)}
wb = b wb {{lr=lr}} | {line.format(5000)}
wc = c wc {{lr=lr}} | update x0[7] x1[7] scalars{{lr}} : y0 = x1 - lr * x0
wd = d wd {{lr=lr}} | update x0[3] x1[3] scalars{{lr}} : y0 = x1 - lr * x0
""")
    joined = join_updates(graph)
    assert [node.problem.sizes for node in joined.nodes] == [(5000, 37), (7, 3)]
    assert [argument.dtype for argument in joined.nodes[0].problem.arguments()] == ["float16", "float32"] * 2
    arrays = sample(graph, rng)
    for one in (graph, joined):
        given = {name: array.copy() for name, array in arrays.items()}
        context.compile(one, "-all").run(given, {"lr": 0.25})
        for name in "abcd":
            exact = arrays[f"w{name}"] - 0.25 * arrays[name].astype(np.float32)
            np.testing.assert_allclose(given[f"w{name}"], exact, rtol=1e-6, atol=1e-6)


def test_many_arrays_share_launches(context, rng):
    """As many as a launch has room for in its arguments, whatever a problem has."""
    count = 45
    sizes = [1 + 97 * i % 50 for i in range(count)]
    lines = [f"input {' '.join(f'a{i}[{n}]' for i, n in enumerate(sizes))}"]
    lines += [f"state {' '.join(f's{i}[{n}]' for i, n in enumerate(sizes))}"]
    lines += [f"c{i} = a{i} | cast n{n} from_f32 to_f16" for i, n in enumerate(sizes)]
    lines += [f"t{i} = a{i} | pointwise x0[{n}] y0[1]=sum[0] : y0 = x0 > 0 ? 1 : 0" for i, n in enumerate(sizes)]
    for level, first in enumerate(range(0, count, 15)):
        words = " ".join(f"t{i}" for i in range(first, first + 15))
        shapes, total = " ".join(f"x{i}[1]" for i in range(15)), " + ".join(f"x{i}" for i in range(15))
        lines.append(f"u{level} = {words} | pointwise {shapes} : y0 = {total}")
    lines.append("all = u0 u1 u2 | pointwise x0[1] x1[1] x2[1] : y0 = x0 + x1 + x2")
    lines += [f"s{i} = a{i} s{i} | update x0[{n}] x1[{n}] : y0 = x1 - x0" for i, n in enumerate(sizes)]
    lines.append(f"output all {' '.join(f'c{i}' for i in range(count))}")
    graph = parse_graph("\n".join(lines))
    joined = join_totals(join_updates(join_casts(graph)))
    found = [(node.problem.kind, len(context.choose(node.problem).launches.launches)) for node in joined.nodes]
    assert sorted(found) == [*[("casts", 1)] * 4, ("totals", 3), ("updates", 3)]
    arrays = {name: array.astype(np.float32) for name, array in sample(graph, rng).items()}
    given = {name: array.copy() for name, array in arrays.items()}
    results = context.compile(joined, "-all").run(given)
    assert results["all"].tolist() == [sum(int((arrays[f"a{i}"] > 0).sum()) for i in range(count))]
    for i in range(count):
        np.testing.assert_array_equal(results[f"c{i}"].ravel(), arrays[f"a{i}"].astype(np.float16))
        np.testing.assert_array_equal(given[f"s{i}"], arrays[f"s{i}"] - arrays[f"a{i}"])
