"""Weights that are constants are packed once: same bits, fewer launches, and memory that no run writes to."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from clgraft.core.graph import Graph, GraphBuilder
from clgraft.core.graph import prepared as prepared_module
from clgraft.core.graph.prepared import Kept, take_out
from clgraft.core.graph.structure import Node
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Scalar, Workspace

LAYERS = (  # a product in place, Winograd's method, a gathered product in groups, a strided one, a dense layer
    ("conv forward n2 ic5 ih9 iw11 oc32 kh1 kw1 b1", (32, 5, 1, 1)),
    ("conv forward n2 ic32 ih9 iw11 oc32 kh3 kw3 ph1 pw1 b1", (32, 32, 3, 3)),
    ("conv forward g4 n2 ic32 ih9 iw11 oc32 kh3 kw3 ph1 pw1 b1", (32, 8, 3, 3)),
    ("conv forward n2 ic32 ih9 iw11 oc7 kh5 kw3 sh2 sw2 ph2 b1", (7, 32, 5, 3)),
)


def net(dtype: str = "") -> tuple:
    on, weights, rng = GraphBuilder(), {}, np.random.default_rng(3)
    numpy_type = {"": "float32", "f16": "float16", "f64": "float64"}[dtype]
    value = on.input("x", (2, 5, 9, 11), numpy_type)
    for i, (text, shape) in enumerate(LAYERS):
        for name, size in ((f"w{i}", shape), (f"b{i}", shape[:1])):
            weights[name] = (rng.standard_normal(size) / 4).astype(numpy_type)
            on.input(name, size, numpy_type)
        kind, direction, rest = text.split(" ", 2)
        (value,) = on.add(f"{kind} {direction} {dtype} {rest}".replace("  ", " "), value, f"w{i}", f"b{i}")
    x = rng.standard_normal((2, 5, 9, 11)).astype(numpy_type)
    return on.graph(value), value, weights, x


@pytest.mark.parametrize("dtype", ["", "f16", "f64"])
def test_same_bits_with_fewer_launches(context, dtype):
    if dtype == "f64" and not context.device.has_fp64:
        pytest.skip("the device has no float64")
    graph, name, weights, x = net(dtype)
    plain = context.compile(graph, "-prepare", constants=weights)
    prepared = context.compile(graph, constants=weights)
    expected = plain.run({"x": x})[name]
    given = {"x": x, name: np.full_like(expected, np.nan)}
    for _ in range(2):
        given[name][...] = np.nan
        assert prepared.run(given)[name].tobytes() == expected.tobytes()
    launches = [launch for node in graph.nodes for launch in context.choose(node.problem).launches.launches]
    preparing = sum(bool(launch.prepares) for launch in launches)
    assert plain.report().launches - prepared.report().launches >= preparing
    # on CPU devices products read weights in place: only Winograd's method prepares them, unless vectors are so short
    # that each work-item transforms its own, and what reads halves
    short = dtype != "f64" and context.device.vector_width < 16
    assert preparing >= ({"": 1, "f16": 3, "f64": 0}[dtype] - short if context.device.is_cpu else 1)
    assert prepared.report().arena_bytes <= plain.report().arena_bytes


def test_weights_that_come_with_each_run_are_packed_each_time(context):
    graph, name, weights, x = net("f16")
    packs = [any(launch.prepares for launch in context.choose(n.problem).launches.launches) for n in graph.nodes]
    given_name = f"w{packs.index(True)}"
    some = {n: array for n, array in weights.items() if n != given_name}
    compiled = context.compile(graph, constants=some)
    for factor in (1, 2):
        given = {"x": x, given_name: factor * weights[given_name]}
        expected = context.compile(graph, "-prepare").run({**weights, **given})[name]
        np.testing.assert_array_equal(compiled.run(given)[name], expected)
    every = context.compile(graph, constants=weights).report()
    assert compiled.report().launches > every.launches


def test_constants_that_nothing_reads_any_more_are_not_kept(context):
    graph, _, weights, x = net("f16")
    compiled = context.compile(graph, constants=weights)
    compiled.run({"x": x})
    names = {argument.name for argument in compiled.plan().arguments}
    _, constants = compiled.prepared(graph.outputs)
    assert set(constants) | {"x", *graph.outputs} == names
    if context.device.is_cpu:
        assert "w0" not in names and {"b0", "b3"} <= names
        kept = [array for n, array in constants.items() if n.startswith("kept")]
        assert kept and all(array.ctypes.data % 64 == 0 for array in kept)


OWN = "conv forward n8 ic512 ih7 iw7 oc512 kh3 kw3 ph1 pw1 b1"  # work-items transform weights that may change


@pytest.mark.parametrize("activation", ["", "relu"])
def test_constants_are_transformed_once_where_work_items_would(context, activation):
    device = context.device
    if not device.is_cpu or device.vector_width < 16 or device.compute_units > 8:
        pytest.skip("the device's work-items do not transform these weights themselves")
    assert not any(launch.prepares for launch in context.choose(core.parse(OWN)).launches.launches)
    on, rng = GraphBuilder(), np.random.default_rng(5)
    shapes = {"x": (8, 512, 7, 7), "w": (512, 512, 3, 3), "b": (512,)}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) / 8 for name, shape in shapes.items()}
    (value,) = on.add(OWN, *(on.input(name, shape) for name, shape in shapes.items()))
    if activation:
        (value,) = on.add("pointwise x0[8,512,7,7] : y0 = max(x0, 0);", value)
    graph = on.graph(value)
    x = arrays.pop("x")
    plain = context.compile(graph, "-prepare", constants=arrays)
    compiled = context.compile(graph, constants=arrays)
    _, constants = compiled.prepared(graph.outputs)
    assert sum(array.nbytes for name, array in constants.items() if name.startswith("kept")) > 36 * 512 * 512 * 4
    assert compiled.report().launches == plain.report().launches == 1
    assert compiled.run({"x": x})[value].tobytes() == plain.run({"x": x})[value].tobytes()


EQUAL = ("conv forward n3 ic16 ih17 iw15 oc16 kh1 kw1 b1", "conv forward n3 ic16 ih17 iw15 oc16 kh3 kw3 ph1 pw1 b1")


def equal_layers() -> tuple[Graph, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return a training graph of equal convolutions, their weights, and its other inputs."""
    on, weights, rng = GraphBuilder(), {}, np.random.default_rng(4)
    value = on.input("x", (3, 16, 17, 15))
    for i, text in enumerate(EQUAL * 3):
        kernel = (1, 1) if "kh1" in text else (3, 3)
        for name, shape in ((f"w{i}", (16, 16, *kernel)), (f"b{i}", (16,))):
            weights[name] = (rng.standard_normal(shape) / 4).astype(np.float32)
            on.input(name, shape)
        (value,) = on.add(text, value, f"w{i}", f"b{i}")
        (value,) = on.add("pointwise x0[3,16,17,15] : y0 = tanh(x0);", value)
    graph = on.graph(value).gradients(["x", *weights])
    others = (v for v in graph.inputs if v.name not in weights)
    return graph, weights, {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in others}


def operator_by_operator(context, graph: Graph, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compute every value of a graph with a plan of its own."""
    values = dict(arrays)
    for one in graph.nodes:
        arguments = one.problem.arguments()
        for argument, name in zip(arguments, one.arguments):
            if argument.role == "out":
                values[name] = np.full(argument.shape, np.nan, argument.dtype)
        given = {a.name: values[name].reshape(a.shape) for a, name in zip(arguments, one.arguments)}
        context.plan(one.problem).run(**given)
    return values


@pytest.mark.parametrize("refused", [False, True], ids=["room", "smaller arena"])
def test_equal_problems_prepare_their_own_weights(context, monkeypatch, refused):
    """They are planned once; also where the device has no room for the arena, and the graph is planned again."""
    if refused and not context.device.is_cpu:
        pytest.skip("workspaces make this device's peak, where nothing lives that could be computed again")
    graph, weights, others = equal_layers()
    passes = "-all,views,recompute,prepare"  # the others change how sums are rounded
    largest = context.compile(graph, passes, weights).report().arena_bytes
    hand_over, choose, asked = type(context).hand_over, type(context).choose, []

    def counted(self, problem):
        asked.append(problem)
        return choose(self, problem)

    def with_less(self, problem, launches, name):
        if refused and launches.workspace_bytes >= largest:
            raise core.ExecutionError("no room", context.lib.CLG_OUT_OF_MEMORY)
        return hand_over(self, problem, launches, name)

    with monkeypatch.context() as patch:
        patch.setattr(type(context), "hand_over", with_less)
        patch.setattr(type(context), "choose", counted)
        compiled = context.compile(graph, passes, weights)
        report = compiled.report()
    assert (report.recomputed > 0) == refused and (report.arena_bytes < largest) == refused
    assert refused or len(set(asked)) == len(asked) < len(graph.nodes)
    _, constants = compiled.prepared(graph.outputs)
    kept = [name for name in constants if name.startswith("kept")]
    assert len(kept) >= len(EQUAL * 3) or not context.device.is_cpu
    expected = operator_by_operator(context, graph, {**weights, **others})
    given = {name: np.empty_like(expected[name]) for name in graph.outputs}
    for _ in range(2):
        for array in given.values():
            array[...] = np.nan
        found = compiled.run({**others, **given})
        assert [name for name in graph.outputs if found[name].tobytes() != expected[name].tobytes()] == []


def test_weights_are_packed_in_every_run_where_the_device_has_no_room_to_keep_them(context, monkeypatch):
    if not context.device.is_cpu:
        pytest.skip("no kernel of this device keeps what it packs")
    graph, weights, others = equal_layers()
    passes = "-all,views,recompute,prepare"
    asked = []

    def no_room(context, nbytes):
        asked.append(nbytes)
        raise core.ExecutionError("no room", context.lib.CLG_OUT_OF_MEMORY)

    monkeypatch.setattr(prepared_module, "_memory", no_room)
    compiled = context.compile(graph, passes, weights)
    expected = operator_by_operator(context, graph, {**weights, **others})
    found = compiled.run(others)
    assert [name for name in graph.outputs if found[name].tobytes() != expected[name].tobytes()] == []
    assert asked and not any(name.startswith("kept") for name in compiled.prepared(graph.outputs)[1])
    with pytest.raises(core.ExecutionError, match="got no memory on"):
        monkeypatch.setattr(type(context), "hand_over", lambda context, *_: no_room(context, 0))
        context.compile(graph, passes, weights).report()


def node(**names: str) -> Node:
    return Node(core.parse("conv forward n1 ic1 ih3 iw3 oc1 kh3 kw3"), (names["x"], names["w"], "y"))


def launch(*arguments: object, prepares: tuple[int, ...] = ()) -> Launch:
    return Launch(None, (1,), None, arguments, ("y",), prepares)


def test_the_workspace_closes_up():
    """Parts in front of what goes stay where they are, later ones move up; sizes are multiples of 256."""
    before, packed, listed, after = Workspace(0), Workspace(512), Workspace(1024, 16), Workspace(1280)
    pack = launch(Buffer("w"), packed, listed, prepares=(300, 256))
    multiply = launch(Buffer("x"), packed, listed, before, after, Accumulate("y"), Buffer("y"))
    rest, taken, sizes = take_out(7, node(x="x", w="c3"), Launches((pack, multiply), 2048), {"c3"})
    assert sizes == {"kept7.0": 512, "kept7.1": 256}
    assert [one.arguments for one in taken] == [(Buffer("c3"), Buffer("kept7.0"), Buffer("kept7.1"))]
    assert rest.workspace_bytes == 2048 - 768
    kept = Kept("kept7.0"), Kept("kept7.1")
    assert rest.launches[0].arguments == (Buffer("x"), *kept, before, Workspace(512), Accumulate("y"), Buffer("y"))


@pytest.mark.parametrize("constants, more", [(set(), ()), ({"x"}, ()), ({"c3"}, (Scalar("a"),))])
def test_what_may_change_stays(constants, more):
    pack = launch(Buffer("w"), Workspace(0), *more, prepares=(64,))
    planned = Launches((pack, launch(Workspace(0), Buffer("y"))), 256)
    assert take_out(0, node(x="x", w="c3"), planned, constants) == (planned, (), {})
