"""`clgraft check`: what passes, what fails, and what happens when the process that checks dies."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import textwrap
from pathlib import Path

import pytest

from clgraft.plugins.command_line.check import runner as check
from clgraft.plugins.command_line.check.report import CheckReport
from clgraft.plugins.command_line.main import main
from tests.folders import python_path

NETS = Path(__file__).resolve().parent.parent / "caffe_layers" / "nets"


@pytest.fixture
def checker(tmp_path, monkeypatch):
    """Make a checker out of a function's body."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(body):
        (tmp_path / "faulty.py").write_text(
            "import os, sys\nfrom clgraft.plugins.command_line.check.runner import CheckError, CheckRow\n"
            "def rows(**arguments):\n" + textwrap.indent(textwrap.dedent(body), "    ")
        )
        return check.run("faulty", {"word": "hello"})

    return make


def test_every_operator_passes(capfd):
    assert main(["check", "--json", "--repeats", "1"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["passed"] is True
    names = {row["name"].split()[0] + " " + row["name"].split()[1] for row in found["rows"]}
    for wanted in ("conv forward", "conv backward_data", "conv backward_filter", "conv backward_bias"):
        assert wanted in names
    assert "batchnorm backward_training" in names
    assert any(row["name"].startswith("pointwise") for row in found["rows"])
    for operator in ("max", "average", "sum", "lp2"):
        for direction in ("forward", "backward"):
            assert any(row["name"].startswith(f"pool {direction} {operator}") for row in found["rows"])
    assert all(row["error"] <= row["limit"] for row in found["rows"])
    assert max(row["error"] for row in found["rows"]) > 0


def test_rows_arrive_while_frameworks_print(checker):
    rows = list(
        checker("""
            print("noise on stdout")
            os.write(1, b"more noise")
            yield CheckRow(arguments["word"], "y", 0.5, 1.0)
            yield CheckRow("a", "y", float("nan"), 1.0)
            yield CheckRow("b", "y", 2.0, 1.0, seconds=0.001, native_seconds=0.002)
            yield CheckRow("c", "y", 0.0, 1.0, note="nothing to compare")
        """)
    )
    assert [row.passed for row in rows] == [True, False, False, True]
    assert str(rows[0]).startswith("pass")
    assert str(rows[1]).startswith("FAIL")
    assert str(rows[2]).split()[-4:] == ["2.000", "1.000", "b:", "y"]
    assert "nothing to compare" in str(rows[3])
    listed = json.loads(CheckReport("a device", rows).to_json())
    assert listed["passed"] is False
    assert listed["rows"][1]["error"] is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("yield CheckRow('a', 'y', 0.0, 1.0)\nprint('last words', flush=True)\nos.abort()", "last words"),
        ("raise CheckError('no such net')\nyield", "no such net"),
        ("raise KeyError('of a layer')\nyield", "of a layer"),
    ],
)
def test_a_process_that_dies_is_an_error(checker, body, words):
    with pytest.raises(check.CheckError, match=words):
        list(checker(body))


def test_a_check_given_up_leaves_no_process(checker):
    rows = checker("while True:\n    yield CheckRow('a', 'y', 0.0, 1.0)")
    assert next(rows).passed
    rows.close()


def test_a_failing_row_gives_status_1(monkeypatch, capfd):
    row = check.CheckRow("conv", "y", 1.0, 1e-4)
    monkeypatch.setattr(check, "run", lambda *_: iter([row]))
    assert main(["check"]) == 1
    assert "0 of 1 rows pass" in capfd.readouterr().out


def test_a_wrong_kernel_is_reported(tmp_path, monkeypatch, capfd):
    (tmp_path / "planted.py").write_text(
        "import shutil\nfrom tests import mutant\nfrom clgraft.plugins.command_line.check import core as check_core\n"
        "examples = check_core.examples\n"
        "def few(dtype): return (each for each in examples(dtype) if each.kind in ('pool', 'softmax'))\n"
        "check_core.examples = few\n"
        "def rows(**arguments):\n"
        "    folder = mutant.plant('pooling/operators.cl', '((b) > (a) ? (b) : (a))', '((b) < (a) ? (b) : (a))')\n"
        "    try:\n        yield from check_core.rows(**arguments)\n"
        "    finally:\n        shutil.rmtree(folder)\n"
    )
    monkeypatch.setenv("PYTHONPATH", python_path(tmp_path))
    run = check.run
    monkeypatch.setattr(check, "run", lambda module, *rest: run("planted", *rest))
    assert main(["check", "--json", "--repeats", "1"]) == 1
    found = json.loads(capfd.readouterr().out)
    assert found["passed"] is False
    failed = [row["name"] for row in found["rows"] if not row["passed"]]
    assert failed and all(name.startswith(("pool forward max", "pool forward_argmax max")) for name in failed)
    assert {row["name"].split()[0] for row in found["rows"]} == {"pool", "softmax"}


def test_progress_goes_to_stderr(monkeypatch, capfd):
    rows = [check.CheckRow("conv", "y", 0.0, 1e-4), check.CheckRow("pool", "y", 1.0, 1e-4)]
    monkeypatch.setattr(check, "run", lambda *_: iter(rows))
    assert main(["check", "--progress"]) == 1
    captured = capfd.readouterr()
    assert captured.err.splitlines() == ["1 row, 0 failed: conv", "2 rows, 1 failed: pool"]
    assert "rows, " not in captured.out
    assert main(["check"]) == 1
    assert not capfd.readouterr().err


def test_a_device_that_is_not_there_is_named(capfd):
    assert main(["check", "--device", "abacus"]) == 2
    assert "got 'abacus'" in capfd.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("caffe") is None, reason="Caffe is not installed for this Python")
@pytest.mark.parametrize("phase", ["train", "test"])
@pytest.mark.parametrize("net", ["lenet", "mobilenet_deploy", "squeezenet_deploy"])
def test_nets_in_caffe_pass(net, phase, capfd):
    assert main(["check", str(NETS / f"{net}.prototxt"), "--phase", phase, "--repeats", "1"]) == 0
    out = capfd.readouterr().out
    assert "conv1 (Convolution): gradient of parameter 0" in out
    assert "FAIL" not in out


@pytest.mark.skipif(importlib.util.find_spec("caffe") is None, reason="Caffe is not installed for this Python")
@pytest.mark.parametrize("net, phase", [("lenet", "train"), ("mobilenet_deploy", "test")])
def test_regions_in_caffe_pass(net, phase, capfd):
    assert main(["check", str(NETS / f"{net}.prototxt"), "--regions", "--phase", phase, "--repeats", "1"]) == 0
    out = capfd.readouterr().out
    assert ": blob " in out
    assert ": gradient of parameter 0 of conv1" in out
    assert "FAIL" not in out


SMALL = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 4 bias_term: false } }
layer { name: "more" type: "TanH" bottom: "ip" top: "more" include { stage: "more" } }
layer { name: "relu" type: "ReLU" bottom: "ip" top: "relu" %s }
layer { name: "tanh" type: "TanH" bottom: "relu" top: "tanh" }
"""


@pytest.fixture
def solver(tmp_path, monkeypatch):
    """Write a solver, and in the folder below it nets that only their layers' types tell apart."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "net.prototxt").write_text(SMALL % "include { phase: TRAIN }")
    (tmp_path / "nets" / "other.prototxt").write_text(SMALL.replace("ReLU", "ELU") % "")

    def write(text: str) -> Path:
        (tmp_path / "nets" / "solver.prototxt").write_text(f"{text}\nbase_lr: 0.1\n")
        return Path("nets/solver.prototxt")

    return write


@pytest.mark.parametrize(
    "text, trained, tested",
    [
        ('net: "nets/net.prototxt"', "ReLU", "ReLU"),
        ('train_net: "nets/net.prototxt" test_net: "nets/other.prototxt"', "ReLU", "ELU"),
        ('train_net: "nets/other.prototxt" test_net: "nets/net.prototxt"', "ELU", "ReLU"),
        (f"net_param {{ {SMALL % ''} }}", "ReLU", "ReLU"),
        (f"train_net_param < {SMALL % ''} > test_net: 'nets/other.prototxt'", "ReLU", "ELU"),
        ('net: "nets/net.prototxt" train_state { stage: "more" }', 'stage: "more" }', "ReLU"),
    ],
)
def test_the_net_of_a_solver(solver, text, trained, tested):
    from clgraft.caffe_layers.prototxt import schema
    from clgraft.caffe_layers.swap import net_of

    path = solver(text)
    for training, expected in ((True, trained), (False, tested)):
        found, _ = net_of(path, training)
        assert schema.parse("NetParameter", found).layer[1].name == "ip"
        assert expected in found
    assert net_of(Path("nets/net.prototxt")) == (SMALL % "include { phase: TRAIN }", Path("nets/net.prototxt"))


@pytest.mark.parametrize(
    "text, words",
    [
        ('net: "net.prototxt"', 'line 1, column 6: got "net.prototxt", which is not in'),
        ("max_iter: 3", "solver.prototxt with 0 of train_net_param, train_net, net_param, net, expected one"),
        ('net: "nets/net.prototxt" train_net: "nets/other.prototxt"', "solver.prototxt with 2 of"),
        ('net: "nets/solver.prototxt"', "nets/solver.prototxt: got a solver, expected a net"),
    ],
)
def test_a_solver_without_a_net_is_refused(solver, text, words):
    from clgraft.caffe_layers.swap import net_of
    from clgraft.core.errors import ClgraftError

    with pytest.raises(ClgraftError, match=re.escape(words)):
        net_of(solver(text))


@pytest.mark.skipif(importlib.util.find_spec("caffe") is None, reason="Caffe is not installed for this Python")
@pytest.mark.parametrize(
    "command, shown",
    [
        (["check", "--repeats", "1"], "relu (ELU): gradient"),
        (["check", "--repeats", "1", "--regions"], "gradient of parameter 0 of ip"),
        (["profile", "--passes", "1"], "pointwise"),
        (["warm", "--train"], "problems on"),
        (["tune", "--budget", "20"], "problems"),
    ],
)
def test_commands_take_a_solver(solver, command, shown, capfd, monkeypatch, tmp_path):
    monkeypatch.setenv("CLGRAFT_CACHE", str(tmp_path / "cache"))
    path = solver('net: "nets/other.prototxt"')
    assert main([command[0], str(path), *command[1:]]) in (0, 3)
    out = capfd.readouterr().out
    assert shown in out, out
    assert "FAIL" not in out


@pytest.mark.skipif(importlib.util.find_spec("caffe") is None, reason="Caffe is not installed for this Python")
def test_a_fault_in_regions_is_noticed(monkeypatch):
    from clgraft.caffe_layers.regions import program
    from clgraft.plugins.caffe import check_regions

    monkeypatch.setattr(program.RegionProgram, "active", lambda self, wanted: frozenset())
    run = program.RegionProgram.backward
    monkeypatch.setattr(
        program.RegionProgram, "backward", lambda self, wanted: run(self, program.Wanted(wanted.flags[:0]))
    )
    rows = list(check_regions.rows(str(NETS / "lenet.prototxt"), repeats=0))
    failed = {row.tensor for row in rows if not row.passed}
    assert "gradient of parameter 0 of conv1" in failed and not any(name.startswith("blob") for name in failed)


@pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="MXNet is not installed for this Python")
def test_regions_in_mxnet_pass(tmp_path, capfd):
    import mxnet

    net = mxnet.sym.Convolution(mxnet.sym.var("data"), kernel=(3, 3), num_filter=4, name="c")
    net = mxnet.sym.Activation(mxnet.sym.BatchNorm(net, name="b"), act_type="relu", name="r")
    net.save(str(tmp_path / "net-symbol.json"))
    command = ["check", str(tmp_path / "net-symbol.json"), "--shape", "data=2,3,7,9", "--regions", "--repeats", "1"]
    assert main(command) == 0
    assert "gradient of c_weight" in capfd.readouterr().out


@pytest.mark.skipif(importlib.util.find_spec("caffe") is None, reason="Caffe is not installed for this Python")
def test_a_net_that_caffe_refuses_is_no_crash(capfd):
    assert main(["check", str(NETS / "ssd.prototxt")]) == 1
    assert "resize_param" in capfd.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("caffe") is not None, reason="Caffe is installed for this Python")
def test_without_caffe_a_net_cannot_be_checked(capfd):
    assert main(["check", str(NETS / "lenet.prototxt")]) == 1
    assert "Caffe is needed" in capfd.readouterr().err


def test_a_checker_that_knows_its_number_of_rows_says_it_first(tmp_path, monkeypatch):
    (tmp_path / "counting.py").write_text(
        "from clgraft.plugins.command_line.check.runner import CheckRow\n"
        "def count(names):\n    return len(names)\n"
        "def rows(names):\n    yield from (CheckRow(name, 'y', 0.0, 1.0) for name in names)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))
    said: list = []
    for row in check.run("counting", {"names": ["a", "b"]}, None, said.append):
        said.append(row.name)
    assert said == [2, "a", "b"]


def test_what_cannot_be_checked_is_said_without_the_head_of_a_table(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text("layer {\n")
    assert main(["check", "net.prototxt"]) == 1
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("clgraft: ")


def test_a_table_begins_with_its_device_and_its_head(checker, monkeypatch, capfd):
    row = check.CheckRow("a", "y", 0.5, 1.0)
    monkeypatch.setattr(check, "run", lambda *_: iter([row, row]))
    assert main(["check"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].startswith("on ") and lines[1:] == [check.HEADER, str(row), str(row), "2 of 2 rows pass"]
