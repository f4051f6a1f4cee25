"""Small files that ask for much: nodes, memory, operations and turns are bounded for a model as a whole."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from clgraft.plugins.onnx import OnnxError, Session  # noqa: E402
from tests.plugins.onnx.models import model, node  # noqa: E402

helper = onnx.helper
X = {"x": (np.float32, [2, 3])}
Y = {"y": (np.float32, None)}
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]


def refused(source: object) -> str:
    with pytest.raises(OnnxError) as caught:
        Session(source)
    assert str(caught.value).startswith("[onnx] got ")
    return str(caught.value)


def exceeds(source: object, what: str) -> None:
    """Check that a model is refused, with the setting that allows more."""
    message = refused(source)
    assert "expected at most" in message and f"CLGRAFT_ONNX_LIMITS={what}=" in message


def function(name: str, nodes: list[onnx.NodeProto], attributes: list[str] | None = None) -> onnx.FunctionProto:
    return helper.make_function("own", name, ["a"], ["b"], nodes, OPSETS, attributes)


def chain(names: list[str]) -> list[onnx.NodeProto]:
    """Return calls of functions, one after the other, from a to b."""
    values = ["a", *(f"t{i}" for i in range(1, len(names))), "b"]
    return [
        helper.make_node(name, [values[i]], [values[i + 1]], domain="" if name == "Relu" else "own")
        for i, name in enumerate(names)
    ]


def calling(functions: list[onnx.FunctionProto]) -> onnx.ModelProto:
    proto = model([helper.make_node(functions[0].name, ["x"], ["y"], domain="own")], X, Y)
    proto.opset_import.append(OPSETS[1])
    proto.functions.extend(functions)
    return proto


def levels(count: int, calls: int) -> onnx.ModelProto:
    """Return a model whose functions call each other, in so many levels."""
    called = [f"f{level + 1}" if level + 1 < count else "Relu" for level in range(count)]
    return calling([function(f"f{level}", chain([name] * calls)) for level, name in enumerate(called)])


def test_functions_that_call_each_other_are_counted_before_they_are_expanded() -> None:
    exceeds(levels(9, 10), "nodes")
    x = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
    np.testing.assert_array_equal(Session(levels(3, 4)).run({"x": x})["y"], np.maximum(x, 0))


def test_the_sizes_of_functions_are_those_that_the_inliner_makes(monkeypatch) -> None:
    monkeypatch.setenv("CLGRAFT_ONNX_LIMITS", f"nodes={4**3}")
    Session(levels(3, 4))
    monkeypatch.setenv("CLGRAFT_ONNX_LIMITS", f"nodes={4**3 - 1}")
    exceeds(levels(3, 4), "nodes")


def test_long_chains_of_functions() -> None:
    assert "levels" in refused(levels(150, 1)) and Session(levels(50, 1)).outputs


def test_attributes_that_functions_copy() -> None:
    """Each level hands one tensor of 40 kB to ten calls."""
    tensor = onnx.numpy_helper.from_array(np.ones(10_000, np.float32), "value")
    functions = []
    for level in range(5):
        nodes = chain([f"f{level + 1}"] * 10) if level < 4 else []
        for inner in nodes:
            inner.attribute.add(name="table", ref_attr_name="table", type=onnx.AttributeProto.TENSOR)
        if not nodes:
            nodes = [helper.make_node("Constant", [], ["c"]), helper.make_node("Identity", ["a"], ["b"])]
            nodes[0].attribute.add(name="value", ref_attr_name="table", type=onnx.AttributeProto.TENSOR)
        functions.append(function(f"f{level}", nodes, ["table"]))
    proto = calling(functions)
    proto.graph.node[0].attribute.append(helper.make_attribute("table", tensor))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLGRAFT_ONNX_LIMITS", "bytes=1e8")
        exceeds(proto, "bytes")


def test_the_bytes_of_all_values_count_together(monkeypatch) -> None:
    def filled(count: int) -> onnx.ModelProto:
        nodes = [node("ConstantOfShape", "size", f"c{i}") for i in range(count)]
        names = " ".join(f"c{i}" for i in range(count))
        return model([*nodes, node("Sum", f"x {names}", "y")], {"x": (np.float32, [1])}, Y, {"size": size})

    size = np.array([10**5], np.int64)
    monkeypatch.setenv("CLGRAFT_ONNX_LIMITS", "bytes=1e6")
    Session(filled(2))
    exceeds(filled(5), "bytes")


@pytest.mark.parametrize("operator", ["Range", "Tile", "OneHot", "Expand", "Gather", "Pad", "Equal", "MatMul", "DFT"])
def test_values_are_measured_before_they_are_made(operator: str) -> None:
    """Each would have ten gigabytes or more, of a file of less than a megabyte."""
    whole = {
        **{"zero": np.array(0), "one": np.array(1), "many": np.array(2**40), "sizes": np.array([2**20, 2**20])},
        **{"row": np.zeros((1, 40_000), np.int64), "column": np.zeros((40_000, 1), np.int64)},
        **{"ends": np.array([0, 1]), "matrix": np.zeros((1, 1), np.int64), "pads": np.array([0, 0, 2**20, 2**20])},
        **{"wide": np.zeros((1, 50_000), np.int64), "zeros": np.zeros(50_000, np.int64)},
        **{"signal": np.ones((1, 8, 1), np.float32), "length": np.array(2**20)},
    }
    reads = {
        **{"Range": "zero many one", "Tile": "matrix sizes", "OneHot": "one many ends", "Expand": "matrix sizes"},
        **{"Gather": "wide zeros", "Pad": "matrix pads", "Equal": "row column", "MatMul": "column row"},
        **{"DFT": "signal length"},
    }[operator]
    weights = {name: whole[name] for name in dict.fromkeys(reads.split())}
    nodes = [node(operator, reads, "big"), node("Cast", "big", "real", to=1), node("ReduceMax", "real", "most")]
    proto = model([*nodes, node("Add", "x most", "y")], X, Y, weights)
    exceeds(proto, "bytes")


def test_operations_on_the_host(monkeypatch) -> None:
    """A product of whole numbers, for which NumPy has no library."""
    ones = np.ones((100, 100), np.int64)
    proto = model([node("MatMul", "a a", "m"), node("Cast", "m", "c", to=1)], X, {"c": Y["y"]}, {"a": ones})
    Session(proto)
    monkeypatch.setenv("CLGRAFT_ONNX_LIMITS", "operations=9e5")
    exceeds(proto, "operations")


@pytest.mark.parametrize("operator", ["RoiAlign", "LpPool", "AveragePool"])
def test_windows_are_the_devices_work(operator: str) -> None:
    """Though their inputs are known: onnx would compute four million windows in Python."""
    size = 2000
    weights = {"image": np.ones((1, 1, 4, 4), np.float32)}
    reads, attributes = "image", {"kernel_shape": [size, size], "pads": [size - 1, size - 1, size - 1, size - 1]}
    if operator == "RoiAlign":
        weights.update(rois=np.array([[0, 0, 4, 4]], np.float32), images=np.zeros(1, np.int64))
        reads, attributes = "image rois images", {"output_height": size, "output_width": size}
    nodes = [node(operator, reads, "w", **attributes), node("ReduceMax", "w", "most"), node("Add", "x most", "y")]
    assert len(Session(model(nodes, X, Y, weights)).graph().nodes) == 3


def loop(depth: int) -> onnx.GraphProto:
    """Return the body of a loop, with other loops of three turns inside."""
    infos = [(f"number{depth}", 7), (f"going{depth}", 9), (f"state{depth}", 1)]
    outputs = [(f"goes{depth}", 9), (f"next{depth}", 1)]
    if depth:
        inner = helper.make_node("Loop", ["three", "", f"state{depth}"], [f"next{depth}"], body=loop(depth - 1))
    else:
        inner = helper.make_node("Neg", ["state0"], ["next0"])
    return helper.make_graph(
        [inner, helper.make_node("Identity", [f"going{depth}"], [f"goes{depth}"])],
        f"body{depth}",
        [helper.make_tensor_value_info(name, kind, []) for name, kind in infos],
        [helper.make_tensor_value_info(name, kind, []) for name, kind in outputs],
    )


def looped(depth: int, turns: int) -> onnx.ModelProto:
    weights = {"three": np.array(3, np.int64), "turns": np.array(turns, np.int64), "one": np.array(1, np.float32)}
    used = {name: weights[name] for name in (("turns", "three", "one") if depth else ("turns", "one"))}
    nodes = [helper.make_node("Loop", ["turns", "", "one"], ["last"], body=loop(depth)), node("Add", "x last", "y")]
    return model(nodes, X, Y, used)


def test_the_turns_of_all_loops_count_together(monkeypatch) -> None:
    monkeypatch.setenv("CLGRAFT_ONNX_LIMITS", "turns=39")
    x = np.zeros((2, 3), np.float32)
    assert (Session(looped(2, 3)).run({"x": x})["y"] == -1).all()  # 3 + 9 + 27 turns
    exceeds(looped(2, 4), "turns")
    exceeds(looped(3, 2), "turns")
    exceeds(looped(0, 2**62), "turns")


def test_the_nodes_of_unrolled_loops_count(monkeypatch) -> None:
    monkeypatch.setenv("CLGRAFT_ONNX_LIMITS", "nodes=50")
    Session(looped(0, 20))
    exceeds(looped(0, 30), "nodes")


def test_time_steps_are_turns(monkeypatch) -> None:
    monkeypatch.setenv("CLGRAFT_ONNX_LIMITS", "turns=10")
    weights = {"w": np.ones((1, 2, 3), np.float32), "r": np.ones((1, 2, 2), np.float32)}
    for steps in (10, 11):
        proto = model([node("RNN", "x w r", "y", hidden_size=2)], {"x": (np.float32, [steps, 1, 3])}, Y, weights)
        if steps == 10:
            Session(proto)
        else:
            exceeds(proto, "turns")


def test_initializers_of_a_loops_body_are_read_once(monkeypatch) -> None:
    proto = looped(0, 20)
    body = proto.graph.node[0].attribute[0].g
    body.initializer.append(onnx.numpy_helper.from_array(np.ones(1000, np.float32), "table"))
    body.node.append(node("ReduceMax", "table", "most"))
    monkeypatch.setenv("CLGRAFT_ONNX_LIMITS", "bytes=5e4")
    Session(proto)


def test_wrong_limits(monkeypatch) -> None:
    for text in ("nodes", "nodes=", "nodes=x", "nods=4", "nodes=-1", "nodes=1;turns=2", "nodes=1e99"):
        monkeypatch.setenv("CLGRAFT_ONNX_LIMITS", text)
        assert "CLGRAFT_ONNX_LIMITS" in refused(levels(1, 1))
    monkeypatch.setenv("CLGRAFT_ONNX_LIMITS", " nodes = 1e3 ,turns=5")
    Session(levels(1, 1))
