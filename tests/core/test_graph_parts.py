"""Segments of graphs in parts of the batch: what can be cut, what is chosen, the same results, prepared weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.graph import Graph, GraphBuilder, parse_graph
from clgraft.core.graph import compiled as compiled_module
from clgraft.core.graph.passes import parts
from clgraft.core.graph.passes.parts import Costs, Segment, chosen, cut, in_parts, split_batch
from clgraft.core.graph.reference import evaluate
from clgraft.core.runtime.toolchains.intel import Intel
from clgraft.core.runtime.toolchains.pocl import PoCL
from tests.core.graphs import sample, small_net

NET = """input x[6,3,8,10] w0[8,3,3,3] b0[8] w1[8,8,1,1] w2[8,1,3,3] g[8]
a = x w0 b0 | conv forward n6 ic3 ih8 iw10 oc8 kh3 kw3 ph1 pw1 b1
t = g | pointwise x0[8,1,1] : y0 = 2 * x0;
c = a t | pointwise x0[6,8,8,10] x1[8,1,1] : y0 = x0 * x1 > 0 ? x0 * x1 : 0;
d = c w1 a | fused conv forward n6 ic8 ih8 iw10 oc8 kh1 kw1 with whole : y0 = x0 + x1;
e = d w2 | conv forward n6 g8 ic8 ih8 iw10 oc8 kh3 kw3 ph1 pw1
s = e | pointwise x0[6,8,8,10] y0[6,8,1,1]=sum[2,3] : y0 = x0;
j = d e | concat forward outer[6] extents[640,640] inner[1]
p = j | pool forward max n6 c16 ih8 iw10 kh2 kw2 sh2 sw2
y = p | pointwise x0[6,320] y0=sum[0] : y0 = x0;
z = s | pointwise x0[48] : y0 = tanh(x0);
output y z
"""


def segment(graph: Graph, first: str, last: str, count: int) -> Segment:
    """Return the nodes from one value's to another's, without the one that comes before all layers."""
    numbers = range(graph.writers[first], graph.writers[last] + 1)
    return Segment(tuple(i for i in numbers if graph.nodes[i].writes != ("t",)), count)


def expect_near(found: dict, expected: dict) -> None:
    for name, array in found.items():
        own = expected[name].ravel()
        assert np.abs(array.ravel() - own).max() <= 1e-5 * np.abs(own).max(), name


@pytest.mark.parametrize(
    "text, pieces",
    [
        ("conv forward n6 ic4 ih5 iw5 oc6 kh3 kw3 b1", "x y"),
        ("conv forward n6 ic4 ih5 iw5 oc6 kh3 kw3 b1 layout=nhwc", "x y"),
        ("conv forward n6 g4 ic4 ih5 iw5 oc4 kh3 kw3", "x y"),
        ("deconv forward n6 ic4 ih5 iw5 oc6 kh3 kw3", "x y"),
        ("fused conv forward n6 ic4 ih5 iw5 oc6 kh1 kw1 with channel whole : y0 = x0 * x1 + x2", "x x2 y"),
        (
            "separable conv forward n6 g4 ic4 ih5 iw5 oc4 kh3 kw3 b1 then"
            " fused conv forward n6 ic4 ih3 iw3 oc6 kh1 kw1 with channel whole : y0 = x0 * x1 + x2",
            "x x2 y",
        ),
        ("dense forward n6 i4 o6 b1", "x y"),
        ("fused dense forward n6 i4 o6 with channel : y0 = x0 * x1", "x y"),
        ("pool forward average n6 c6 ih5 iw5 kh2 kw2", "x y"),
        ("batchnorm forward_inference n6 c6 s5", "x y"),
        ("lrn forward n6 c6 s5 size3 beta0.75", "x y"),
        ("concat forward outer[6] extents[2,6] inner[6]", "x0 x1 y"),
        ("concat backward outer[6] extents[2,6] inner[6]", "dy dx0 dx1"),
        ("pointwise x0[6,6,5] x1[6,1] x2[1,6,5] x3[6,1,1] : y0 = x0 * x1 + x2 * x3;", "x0 x3 y0"),
        ("pointwise x0[6,6,5] y0[6,6,1]=sum[2] y1=max[1] : y0 = x0; y1 = x0;", "x0 y0 y1"),
    ],
)
def test_parts_compute_pieces_of_the_whole(rng, text, pieces):
    """One after the other the parts' results are the whole's, for as many parts as divide the batch."""
    problem = core.parse(text)
    arrays = problem.sample(rng)
    expected = problem.reference(arrays)
    for count in (2, 3, 6):
        part = problem.part(count)
        names = [a.name for a, piece in zip(problem.arguments(), cut(problem, part)) if piece]
        assert names == pieces.split() and core.parse(str(part)) == part
        for number in range(count):
            given = {}
            for whole, own in zip(problem.arguments(), part.arguments()):
                if whole.role == "in":
                    rows = arrays[whole.name].reshape(count, -1)[number] if whole.name in names else arrays[whole.name]
                    given[own.name] = rows.reshape(own.shape)
            for name, array in part.reference(given).items():
                np.testing.assert_allclose(array.ravel(), expected[name].reshape(count, -1)[number], rtol=1e-12)
    assert problem.part(4) is None and problem.part(12) is None


@pytest.mark.parametrize(
    "text",
    [
        "conv backward_filter n6 ic4 ih5 iw5 oc6 kh3 kw3",
        "batchnorm forward_training n6 c6 s5",
        "batchnorm update_statistics n6 c6 s5",
        "pool backward average n6 c6 ih5 iw5 kh2 kw2",
        "pointwise x0[6,6] y0=sum[0] : y0 = x0;",
        "pointwise x0[6,6] y0[1,6]=sum : y0 = x0;",
        "pointwise x0[6,6] y0=sum[0,1] : y0 = x0;",
        "pointwise x0[6,6] y0[3,2]=sum[1] : y0 = x0;",
        "pointwise x0[6] x1[6] beta{0.5} : y0 = x0 + x1;",
        "softmax forward n1 c6 s5",
        "transpose x[6,6] axes[1,0]",
        "concat forward outer[1] extents[6,6] inner[6]",
        "repeat x[6,6] times[2,1]",
    ],
)
def test_what_mixes_images_has_no_parts(text):
    assert core.parse(text).part(2) is None


@pytest.mark.parametrize("first, last, count", [("a", "e", 2), ("a", "p", 6), ("d", "j", 3), ("c", "s", 2)])
def test_parts_run_one_after_the_other(rng, first, last, count):
    """What the segment needs and what comes between its nodes runs in front of it."""
    graph = parse_graph(NET)
    found = in_parts(graph, [segment(graph, first, last, count)])
    arrays = sample(graph, rng)
    values = evaluate(found, arrays)
    expect_near({name: values[name] for name in graph.outputs}, evaluate(graph, arrays))
    numbers = [int(name.rsplit(".", 1)[1]) for node in found.nodes for name in node.writes if "." in name]
    assert numbers == sorted(numbers) and set(numbers) == set(range(count))
    assert found.writers["t"] < found.writers[f"{'c' if first in 'ac' else 'd'}.0"]


@pytest.mark.parametrize("constant", [False, True], ids=["weights as inputs", "weights as constants"])
@pytest.mark.parametrize(
    "segments", [[("a", "e", 6)], [("a", "c", 2), ("d", "p", 3)]], ids=["one segment", "two segments"]
)
def test_results_equal_those_of_the_whole_batch(context, rng, monkeypatch, segments, constant):
    """What enters and leaves parts are views; weights are packed once; the arena is smaller."""
    graph = parse_graph(NET)
    arrays = sample(graph, rng)
    weights = {name: array for name, array in arrays.items() if constant and name != "x"}
    given = {name: array for name, array in arrays.items() if name not in weights}
    passes = "-all,parts,views,prepare"

    def split(graph, *_):
        return in_parts(graph, [segment(graph, *words) for words in segments])

    whole = context.compile(graph, passes.replace("parts", "-parts"), weights)
    whole.report()
    monkeypatch.setattr(compiled_module, "split_batch", split)
    compiled = context.compile(graph, passes, weights)
    expected = evaluate(graph, arrays)
    outputs = {name: np.empty(graph.values[name].shape, np.float32) for name in graph.outputs}
    bits = []
    for _ in range(2):
        for array in outputs.values():
            array[...] = np.nan
        expect_near(compiled.run({**given, **outputs}), expected)
        bits.append([array.tobytes() for array in outputs.values()])
    assert bits[0] == bits[1]
    algorithms = compiled.report().algorithms
    copies = [algorithm for text, algorithm in algorithms if text.startswith("slice") or "outer[1] extents" in text]
    assert len(copies) > sum(count for *_, count in segments) and set(copies) == {"view"}
    assert compiled.report().arena_bytes <= whole.report().arena_bytes
    kept = [name for name in compiled.prepared(graph.outputs)[1] if name.startswith("kept")]
    assert len(kept) == len([n for n in whole.prepared(graph.outputs)[1] if n.startswith("kept")])


def large(batch: int, channels: int = 16, size: int = 8, outputs: str = "c") -> Graph:
    """Return three pointwise problems after a convolution."""
    shape = f"[{batch},{channels},{size},{size}]"
    plain = f"pointwise x0{shape} : y0 = x0 + 1;"
    return parse_graph(
        f"input x{shape} w[{channels},1,1,1]\n"
        f"a = x w | conv forward n{batch} g{channels} ic{channels} ih{size} iw{size} oc{channels} kh1 kw1\n"
        f"b = a | {plain}\nc = b | {plain}\nd = c | {plain}\ne = d | {plain}\noutput {outputs}\n"
    )


def device(context, **changes):
    """Return a CPU of two cores with a large cache on PoCL, whatever the device under test is."""
    usual = {"is_cpu": True, "is_gpu": False, "host_access": "raw_pointer", "cache_bytes": 2**25, "compute_units": 2}
    return replace(context.device, **{**usual, **launches_of(PoCL), **changes})


def launches_of(toolchain) -> dict[str, float]:
    """Return what launches cost on a driver."""
    return dict(zip(("launch_seconds", "launch_seconds_of_a_unit"), toolchain.LAUNCH))


def segments_of(graph: Graph, own) -> list[tuple[int, int, int]]:
    return [(s.nodes[0], s.nodes[-1], s.count) for s in chosen(Costs(graph, own, ("w",)))]


def test_what_leaves_the_caches_runs_in_parts(context, monkeypatch):
    """Fewer images as values grow; nothing where they fit, and nothing that is an output."""
    own = device(context)
    assert segments_of(large(8, 64, 56, "e"), own) == []
    counts = [segments_of(large(8, 64, size, "e"), own) for size in (112, 160, 224)]
    assert [(first, last) for ((first, last, _),) in counts] == [(0, 3)] * 3
    assert [count for ((*_, count),) in counts] == sorted(count for ((*_, count),) in counts)
    assert counts[0] != counts[-1]
    assert segments_of(large(8, 64, 224, "a b c e"), own) == []
    assert segments_of(large(7, 64, 224, "e"), own) == [(0, 3, 7)]
    assert segments_of(large(1, 64, 640, "e"), own) == []
    monkeypatch.setattr(type(own), "kept_in_caches", 2**29)
    assert segments_of(large(8, 64, 224, "e"), own) == []


def test_many_cores_run_fewer_parts(context):
    """A launch wakes all cores, and more of them wait less for memory; Intel's runtime needs less for a launch."""
    graph = large(8, 64, 112, "e")
    pocl, intel = launches_of(PoCL), launches_of(Intel)
    assert [count for *_, count in segments_of(graph, device(context))] == [4]
    assert [count for *_, count in segments_of(graph, device(context, **intel))] == [8]
    for launches in (pocl, intel):
        assert segments_of(graph, device(context, compute_units=16, **launches)) == []
    many = device(context, compute_units=16, cache_bytes=2**27)
    assert segments_of(large(8, 64, 448, "e"), many) == [(0, 3, 8)]


def test_late_layers_with_many_weights_stay_whole(context):
    """Reading the weights again would cost more than the caches save."""
    text = "conv forward n32 ic{} ih14 iw14 oc{} kh3 kw3 ph1 pw1"
    on = GraphBuilder()
    x = on.input("x", (32, 1024, 14, 14))
    for i in range(3):
        (x,) = on.add(text.format(1024, 1024), x, on.input(f"w{i}", (1024, 1024, 3, 3)))
    assert segments_of(on.graph(x), device(context)) == []


def test_only_inference_on_cpus_is_split(context):
    own, graph = device(context), large(8, 64, 224, "e")
    assert split_batch(graph, own, ("w",)) is not graph
    for other in ({"is_cpu": False}, {"host_access": "staged"}, {"cache_bytes": 0}):
        assert split_batch(graph, device(context, **other), ("w",)) is graph
    training = graph.gradients(["w"])
    assert split_batch(training, own) is training
    states = small_net(training=True)
    assert split_batch(states, own) is states


def test_a_layer_whose_part_loses_its_epilogue_stays_whole(context):
    on = GraphBuilder()
    x = on.input("x", (8, 64, 224, 224))
    text = "fused conv forward n8 g64 ic64 ih224 iw224 oc64 kh1 kw1 with : y0 = x0 + {}"
    for i in range(5):
        (x,) = on.add(text.format(i), x, on.input("w", (64, 1, 1, 1)) if i == 0 else "w")
    graph, asked = on.graph(x), []

    def fits(problem):
        asked.append(problem)
        return not problem.expression.endswith("2")

    found = split_batch(graph, device(context), ("w",), fits)
    whole = [node.problem.expression for node in found.nodes if node.problem in [n.problem for n in graph.nodes]]
    assert whole == ["y0 = x0 + 2", "y0 = x0 + 3", "y0 = x0 + 4"] and asked
    assert split_batch(graph, device(context), ("w",), lambda problem: False) is graph


def test_the_switch(context, rng, monkeypatch):
    """The pass runs by default where the device is a CPU, and CLGRAFT_GRAPH=-parts switches it off."""
    monkeypatch.setattr(type(context.device), "launch_cost", 0.0)
    monkeypatch.setattr(parts, "LEAST_GAIN", 0.0)
    monkeypatch.setattr(parts, "LEAST_SHARE", 0.0)
    monkeypatch.setattr(type(context.device), "kept_in_caches", 1000)
    if context.device.host_access == "staged" or not context.device.cache_bytes:
        pytest.skip("the device has memory of its own, or reports no cache")
    graph = parse_graph(NET)
    arrays = sample(graph, rng)
    found = context.compile(graph, constants={name: arrays[name] for name in ("w0", "w1", "w2", "b0", "g")})
    expect_near(found.run({"x": arrays["x"]}), evaluate(graph, arrays))
    assert any(text.startswith("slice") for text, _ in found.report().algorithms)
    assert found.report().in_parts > 0 and "in parts" in str(found.report())
    monkeypatch.setenv("CLGRAFT_GRAPH", "-parts")
    plain = context.compile(graph)
    assert not any(text.startswith("slice") for text, _ in plain.report().algorithms)
    assert plain.report().in_parts == 0
