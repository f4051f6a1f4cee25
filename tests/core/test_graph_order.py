"""The order of gradients and updates: what runs when, with the same bits and less memory."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft.core.graph import parse_graph
from clgraft.core.graph.passes import order_gradients
from clgraft.core.graph.reference import evaluate
from tests.core.graphs import sample

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
    early = order_gradients(graph)
    assert [node.writes[0] for node in early.nodes] == ["count", "p", "q", "wb", "r", "wa", "wb", "s", "h", "t"]
    arrays = {name: array.astype(np.float32) for name, array in sample(graph, rng).items()}
    found = []
    for switches in ("-all", "-all,order"):
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
    late, early = (context.compile(graph, switches).report() for switches in ("-order,-chains", "-chains"))
    assert (late.arena_bytes, early.arena_bytes) == (8 * size, 4 * size)


CONV = "n2 ic3 ih5 iw5 oc4 kh3 kw3 ph1 pw1"
DENSE = "n2 i75 o100"


@pytest.mark.parametrize(
    "layer, directions, weights, shape",
    [
        ("conv", ("backward_data", "backward_filter"), "w[4,3,3,3]", CONV),
        ("dense", ("backward_data", "backward_weight"), "w[100,75]", DENSE),
    ],
)
def test_gradients_of_weights_run_before_those_of_data(context, rng, layer, directions, weights, shape):
    """Where what they read is there: the second one's x is a gradient of data, and the third one's dy changes."""
    data, filters = directions
    graph = parse_graph(
        f"input x[2,3,5,5] dy[2,4,5,5] {weights}\n"
        "state s[2,4,5,5]\n"
        f"dx = dy w | {layer} {data} {shape}\n"
        "z = dx | pointwise x0[150] : y0 = exp(x0);\n"
        f"dw = x dy | {layer} {filters} {shape}\n"
        f"dv = z dy | {layer} {filters} {shape}\n"
        f"du = s w | {layer} {data} {shape}\n"
        "s = s | update x0[2,4,5,5] : y0 = 2 * x0\n"
        f"dt = x s | {layer} {filters} {shape}\n"
        "output z dw dv du dt"
    )
    ordered = order_gradients(graph)
    assert [node.writes[0] for node in ordered.nodes] == ["dw", "dx", "z", "dv", "du", "s", "dt"]
    arrays = {name: array.astype(np.float32) for name, array in sample(graph, rng).items()}
    found = []
    for switches in ("-all", "-all,order"):
        given = {name: array.copy() for name, array in arrays.items()}
        results = context.compile(graph, switches).run(given)
        found.append([results[name] for name in graph.outputs])
    for one, two in zip(*found):
        np.testing.assert_array_equal(one, two)
