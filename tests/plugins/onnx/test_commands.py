"""ONNX models on the command line: run, check and tune."""

from __future__ import annotations

import importlib
import json

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="needs onnx")
from clgraft.core import settings  # noqa: E402
from clgraft.plugins import registry  # noqa: E402
from clgraft.plugins.command_line.main import main  # noqa: E402
from clgraft.plugins.onnx import Session, bench_operators, tune  # noqa: E402
from clgraft.plugins.plugin import PluginError  # noqa: E402
from tests.plugins.onnx.models import small_net  # noqa: E402


@pytest.fixture
def net(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(small_net(), path)
    return path


def test_run_reads_and_writes_arrays(net, tmp_path, capsys) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    arguments = [
        "run",
        str(net),
        "--input",
        f"x={tmp_path / 'x.npy'}",
        "--output",
        str(tmp_path / "y.npz"),
        "--profile",
    ]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "y: float32 [2, 5]" in printed and "the median of 5 runs" in printed and "conv forward" in printed
    with np.load(tmp_path / "y.npz") as results:
        np.testing.assert_array_equal(results["y"], Session(net).run({"x": x})["y"])


def test_run_makes_up_what_is_missing(net, capsys) -> None:
    assert main(["run", str(net), "--shape", "x=3,3,16,16"]) == 0
    assert "y: float32 [3, 5]" in capsys.readouterr().out


def test_a_profile_knows_the_whole_graph_and_takes_the_options_of_models(net, capfd) -> None:
    command = ["profile", str(net), "--shape", "x=2,3,16,16", "--passes", "2", "--json"]
    found = []
    for more in ([], ["--regions", "--forward"]):
        assert main([*command, *more]) == 0
        record = json.loads(capfd.readouterr().out)
        found.append({row["problem"]: row["calls"] for row in record["rows"]})
        assert record["region_calls"] == 1 and record["region_seconds"] > 0
    assert found[0] == found[1] and set(found[0].values()) == {1}
    assert any("conv forward n2" in text for text in found[0])


def test_profile_and_run_agree_about_the_time_of_a_run(tmp_path, capfd) -> None:
    nodes, weights, rng = [], [], np.random.default_rng(2)
    for i in range(24):
        weight = 0.1 * rng.standard_normal((24, 24, 3, 3)).astype(np.float32)
        weights.append(onnx.numpy_helper.from_array(weight, f"w{i}"))
        nodes.append(onnx.helper.make_node("Conv", [f"x{i}", f"w{i}"], [f"c{i}"], pads=[1, 1, 1, 1]))
        nodes.append(onnx.helper.make_node("MaxPool", [f"c{i}"], [f"x{i + 1}"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 24, 32, 32]) for name in ("x0", "x24")]
    graph = onnx.helper.make_graph(nodes, "net", ends[:1], ends[1:], weights)
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "net.onnx")

    def times() -> tuple[float, float]:
        assert main(["profile", str(tmp_path / "net.onnx"), "--json"]) == 0
        record = json.loads(capfd.readouterr().out)
        assert record["region_calls"] == 1 and record["pass_seconds"] == record["region_seconds"]
        assert main(["run", str(tmp_path / "net.onnx"), "--profile"]) == 0
        (line,) = [line for line in capfd.readouterr().out.splitlines() if line.startswith("one run: ")]
        return 1e3 * record["pass_seconds"], float(line.split()[2])

    # the machine may be busy in one of both
    for _ in range(4):
        ours, theirs = times()
        if 0.5 < ours / theirs < 2:
            return
    pytest.fail(f"profile says {ours} ms, run {theirs} ms")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ([], "got no shape for input 'x' of shape ('n', 3, 16, 16), expected one, for example --shape x=1,3,16,16"),
        (["--shape", "z=1,2"], "[run] got --shape z, expected one of the model's inputs ['x']"),
        (["--input", "z=x.npy"], "[run] got --input z, expected one of the model's inputs ['x']"),
        (
            ["--input", "x=x.npy", "--shape", "x=1,3,16,16"],
            "got --shape x=1,3,16,16 and an --input x of shape (2, 3, 16, 16), expected one of the two",
        ),
        (["--shape", "x=1,3,17,16"], "got shape (1, 3, 17, 16) for input 'x', expected ('n', 3, 16, 16)"),
    ],
)
def test_run_refuses_in_words(net, more, words, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.zeros((2, 3, 16, 16), np.float32))
    assert main(["run", str(net), *more]) == 1
    assert words in capsys.readouterr().err


def test_a_shape_next_to_an_array_of_that_shape_is_no_contradiction(net, tmp_path, capsys) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 3, 16, 16), np.float32))
    assert main(["run", str(net), "--input", f"x={tmp_path / 'x.npy'}", "--shape", "x=2,3,16,16"]) == 0
    assert "y: float32 [2, 5]" in capsys.readouterr().out


def test_check_compares_with_another_runtime(net, capfd) -> None:
    assert main(["check", str(net), "--shape", "x=2,3,16,16", "--json", "--repeats", "1"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["passed"] is True and len(found["rows"]) == 1


def test_problems_of_a_model(net) -> None:
    assert registry.find(net).name == "onnx"
    texts = (str(problem) for problem in tune.problems(str(net), {"x": [2, 3, 16, 16]}))
    found = {text.removeprefix("fused ").split()[0] for text in texts}
    assert {"conv", "pool", "dense", "softmax"} <= found


@pytest.mark.parametrize("peer", ["onnxruntime", "openvino"])
def test_peers_compute_the_same(peer: str) -> None:
    pytest.importorskip(peer, reason=f"needs {peer}")
    from clgraft import core
    from clgraft.plugins.command_line.bench.cases import Case, Element

    texts = (
        "conv forward n2 ic4 ih9 iw8 oc6 kh3 kw3 ph1 pw1 b1",
        "pool forward max n2 c3 ih9 iw8 kh2 kw2 sh2 sw2 ceil",
    )
    for work in (*map(core.parse, texts), Element("relu", (3, 4, 5)), Element("sum", (3, 4, 5))):
        both = bench_operators.sides(Case("set", "name", str(work), work), peer)
        both["clgraft"].forward()
        (native,), (ours,) = both["native"].results(), both["clgraft"].results()[:1]
        np.testing.assert_allclose(ours, native, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("peer", ["onnxruntime", "openvino"])
def test_bench_measures_a_net(peer: str, monkeypatch) -> None:
    pytest.importorskip(peer, reason=f"needs {peer}")
    from clgraft.plugins.command_line.bench import peers
    from clgraft.plugins.onnx import bench_nets

    monkeypatch.setattr(bench_nets, "net", lambda name, batch: small_net(batch))
    module = importlib.import_module(peers.known()[peer].nets_module)
    assert set(peers.known()[peer].nets) == set(bench_nets.NETS)
    (row,) = module.measure(["squeezenet"], [2], 0.01, 2)
    assert (row.name, row.peer, row.direction) == ("squeezenet batch 2", peer, "inference")
    assert row.native > 0 and row.ours > 0
    assert row.floor > 0 and row.share == pytest.approx(row.floor / row.ours)
    with pytest.raises(PluginError, match="got net 'none', expected one of"):
        next(module.measure(["none"], [2]))
    assert row.ways == {}
    for precision in settings.MIXED:
        monkeypatch.setenv("CLGRAFT_PRECISION", precision)
        (row,) = module.measure(["squeezenet"], [2], 0.01, 2)
        assert [*row.ways] == (["float32", precision] if peer == "openvino" else [])
        assert row.native == min(row.ways.values(), default=row.native)
