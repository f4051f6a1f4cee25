"""Updates of several arrays that one problem computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clgraft import core
from clgraft.core.graph import parse_graph
from clgraft.core.graph.passes import join_updates, most_joined, update_early
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


def test_a_cpu_joins_what_a_launch_takes_longer_than():
    gpu = replace(core.context().device, is_cpu=False)
    cpu = replace(gpu, is_cpu=True, compute_units=2, launch_seconds=0.0, launch_seconds_of_a_unit=5e-6)
    more = replace(cpu, launch_seconds_of_a_unit=1e-5)
    assert 10 < most_joined(cpu) < most_joined(more) < most_joined(gpu)
    joined = join_updates(parse_graph(UPDATES), 15)
    assert [node.problem.sizes for node in joined.nodes if node.problem.kind == "updates"] == [(15, 4), (1, 1)]


EARLY = """
input a[37] b[37]
state wa[37] wb[37] h[37] count[1]
scalar lr
p = a wa | pointwise x0[37] x1[37] : y0 = x0 * x1
q = p wb h | pointwise x0[37] x1[37] x2[37] : y0 = x0 + x1 * x2
r = q wa | pointwise x0[37] x1[37] : y0 = x0 - x1
s = r | pointwise x0[37] : y0 = exp(x0)
wb = p wb {lr=lr} | update x0[37] x1[37] scalars{lr} : y0 = x1 - lr * x0
h = s h {lr=lr} | update x0[37] x1[37] scalars{lr} : y0 = x1 - lr * x0
wa = wb b wa {lr=lr} | update x0[37] x1[37] x2[37] scalars{lr} : y0 = x2 - lr * x0 * x1
t = wa s | pointwise x0[37] x1[37] : y0 = x0 - x1
wb = a wb {lr=lr} | update x0[37] x1[37] scalars{lr} : y0 = x1 - lr * x0
count = count {keep=0.5} | update x0[1] scalars{keep} : y0 = keep * x0
output t
"""


def test_updates_run_right_after_what_they_need(context, rng):
    """After the last reader of what they change, and after what they read: `wa` reads `wb` between its two changes."""
    graph = parse_graph(EARLY)
    early = update_early(graph)
    assert [node.writes[0] for node in early.nodes] == "count p q wb r wa wb s h t".split()
    arrays = {name: array.astype(np.float32) for name, array in sample(graph, rng).items()}
    found = []
    for switches in ("-all", "-all,early"):
        given = {name: array.copy() for name, array in arrays.items()}
        results = context.compile(graph, switches).run(given, {"lr": 0.25})
        found.append([results["t"], *(given[state.name] for state in graph.states)])
    for one, two in zip(*found):
        np.testing.assert_array_equal(one, two)
    np.testing.assert_allclose(found[1][0], evaluate(graph, arrays, {"lr": 0.25})["t"], rtol=1e-5, atol=1e-5)


def test_gradients_that_were_used_need_no_memory(context):
    """Two gradients of a mebibyte each, and their updates at the end: together, or one after the other."""
    size, lines = 2**18, []
    for name in "ab":
        lines.append(f"g{name} = {name} | pointwise x0[{size}] : y0 = exp(x0)")
    for name in "ab":
        lines.append(f"w{name} = g{name} w{name} | update x0[{size}] x1[{size}] : y0 = x1 - x0")
    graph = parse_graph("\n".join([f"input a[{size}] b[{size}]", f"state wa[{size}] wb[{size}]", *lines]))
    late, early = (context.compile(graph, switches).report() for switches in ("-early,-chains", "-chains"))
    assert (late.arena_bytes, early.arena_bytes) == (8 * size, 4 * size)


def test_texts_are_read():
    text = "updates sizes[37,5] own{rate} x0[37] x1[37] scalars{rate} : y0 = x1 - rate * x0"
    assert str(core.parse(text)).rstrip(";") == text
