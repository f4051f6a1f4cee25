"""Updates of several arrays that one problem computes."""

from __future__ import annotations

import numpy as np

from clgraft import core
from clgraft.core.graph import parse_graph
from clgraft.core.graph.passes import join_updates
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


def test_texts_are_read():
    text = "updates sizes[37,5] own{rate} x0[37] x1[37] scalars{rate} : y0 = x1 - rate * x0"
    assert str(core.parse(text)).rstrip(";") == text
