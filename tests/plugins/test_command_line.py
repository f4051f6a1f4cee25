"""The command line as a user meets it: files, exit status, what goes to stdout and what to stderr."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clgraft.plugins.command_line.main import main

NETS = Path(__file__).resolve().parent.parent / "caffe_layers" / "nets"


@pytest.fixture
def net(tmp_path, monkeypatch):
    """A net in the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "net.prototxt"
    path.write_text((NETS / "lenet.prototxt").read_text())
    return path


def test_swap_and_back(net, capfd):
    assert main(["swap", "net.prototxt", "-o", "out.prototxt", "--types", "Convolution, ReLU"]) == 0
    out, err = capfd.readouterr()
    assert "net.prototxt -> out.prototxt" in out
    assert "3 of 10 layers changed" in out
    assert err == ""
    assert main(["swap", "out.prototxt", "--back", "-o", "back.prototxt", "--quiet"]) == 0
    assert capfd.readouterr() == ("", "")
    assert Path("back.prototxt").read_bytes() == net.read_bytes()


def test_without_a_target_the_net_goes_to_stdout_and_the_report_to_stderr(net, capfd):
    assert main(["swap", "net.prototxt", "--types", "ReLU"]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("# In the style of LeNet")
    assert out.count("OclReLU") == 1
    assert "OclConvolution" not in out
    assert "1 of 10 layers changed: 1 ReLU" in err


def test_choice(net, capfd):
    assert main(["swap", "net.prototxt", "-o", "o.prototxt", "--names", "conv*, ip1", "--exclude", "conv2"]) == 0
    assert "2 of 10 layers changed: 1 Convolution, 1 InnerProduct" in capfd.readouterr().out
    assert main(["swap", "net.prototxt", "-o", "p.prototxt", "--names", "convv1"]) == 1
    assert "[swap] got names convv1, expected names of the model's layers, such as conv1" in capfd.readouterr().err


def test_regions(net, capfd):
    assert main(["swap", "net.prototxt", "-o", "out.prototxt", "--regions", "--keep", "ip1,nothing"]) == 0
    out = capfd.readouterr().out
    assert "region conv1 to relu1: 5 layers; not on the host: conv1, pool1, conv2; ends there because ip1" in out
    assert "note: no blob matches nothing" in out
    assert "# clgraft region TRAIN TEST" in Path("out.prototxt").read_text()
    assert main(["swap", "out.prototxt", "--back", "-o", "back.prototxt", "--quiet"]) == 0
    assert Path("back.prototxt").read_bytes() == net.read_bytes()
    assert main(["swap", "net.prototxt", "--keep", "ip1"]) == 1
    assert "[swap] got --keep without --regions" in capfd.readouterr().err
    assert main(["swap", "out.prototxt", "--back", "--regions"]) == 1
    assert main(["swap", "net.prototxt", "--regions", "--frozen"]) == 1
    assert "[swap] got --frozen for a prototxt" in capfd.readouterr().err


def test_solver(net, capfd):
    Path("solver.prototxt").write_text('net: "net.prototxt"\nbase_lr: 0.1\n')
    assert main(["swap", "solver.prototxt"]) == 1
    assert "expected -o" in capfd.readouterr().err
    assert main(["swap", "solver.prototxt", "-o", "solver_ocl.prototxt"]) == 0
    assert "net_ocl.prototxt" in Path("solver_ocl.prototxt").read_text()
    assert "OclConvolution" in Path("net_ocl.prototxt").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["swap", "net.prototxt", "--types", "Pool"], "got type Pool, expected one of"),
        (["swap", "net.prototxt", "--back", "--types", "ReLU"], "with --back"),
        (["swap", "broken.prototxt"], "broken.prototxt: line 2, column 1"),
    ],
)
def test_what_cannot_be_done_says_why_without_a_traceback(net, capfd, arguments, words):
    Path("broken.prototxt").write_text("layer {\n")
    assert main(arguments) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("clgraft: ")
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize("arguments", [[], ["graft"], ["swap"], ["swap", "a", "--types", ","], ["devices", "x"]])
def test_wrong_usage_exits_with_2(arguments, capfd):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: clgraft" in capfd.readouterr().err


LRN = "lrn forward n1 c3 s4 size5 beta0.75"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["profile", LRN, "--regions"], "[profile] got --regions without a model"),
        (["profile", LRN, "--shape", "x=1,2"], "[profile] got --shape without a model"),
        (["profile", LRN, "--forward"], "[profile] got --forward without a model"),
        (["warm", LRN, "--train"], "[warm] got --train without a model"),
        (["warm", LRN, "--shape", "x=1,2"], "[warm] got --shape without a model"),
        (["tune", LRN, "--regions"], "[tune] got --regions without a model"),
        (["tune", "resnet50", "--shape", "x=1,2"], "[tune] got --shape without a model"),
        (["check", "--regions"], "[check] got --regions without a model"),
        (["check", "--shape", "x=1,2"], "[check] got --shape without a model"),
        *(
            ([command, "net.prototxt", "--shape", "data=1,2"], "[caffe] got --shape for net.prototxt")
            for command in ("check", "profile", "warm", "tune")
        ),
        (["bench", "net.prototxt", "--peers", "numpy"], "[bench] got the model net.prototxt"),
        (["bench", "classic", "--only", "abacus", "--peers", "numpy"], "[bench] got --only abacus"),
        (["bench", "--nets", "abacus", "--peers", "numpy"], "[bench] got nets ['abacus']"),
    ],
)
def test_odd_arguments_are_refused_in_words(net, capfd, arguments, words):
    assert main(arguments) == 1
    assert words in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["profile", "x.onnx", "--shape", "x=1,-2"], "got x=1,-2, expected NAME=N,N,..."),
        (["tune", "x.onnx", "--shape", "=1,2"], "got =1,2, expected NAME=N,N,..."),
        (["check", "x.onnx", "--shape", "x="], "got x=, expected NAME=N,N,..."),
        (["check", "--repeats", "0"], "expected a whole number from 1"),
        (["profile", LRN, "--trace", "folder"], "got folder, which is a folder; expected a file"),
        (["tune", LRN, "--export", "nowhere/rows.txt"], "got nowhere/rows.txt, whose folder does not exist"),
        (["bench", "--json", "nowhere/x.json"], "got nowhere/x.json, whose folder does not exist"),
        (["bench", "--plots", "net.prototxt"], "got net.prototxt, expected a folder"),
        (["run", "x.onnx", "--output", "folder"], "got folder, which is a folder; expected a file"),
        (["swap", "net.prototxt", "-o", "nowhere/out.prototxt"], "got nowhere/out.prototxt, whose folder does"),
    ],
)
def test_odd_arguments_are_wrong_usage_before_anything_runs(net, capfd, arguments, words):
    Path("folder").mkdir()
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert words in capfd.readouterr().err


def test_too_little_memory_is_no_traceback(monkeypatch, capfd):
    from clgraft.plugins.command_line import cache

    def refuse(*_):
        raise MemoryError("Unable to allocate 572 GiB")

    monkeypatch.setattr(cache, "gather", refuse)
    assert main(["cache"]) == 1
    assert capfd.readouterr().err == "clgraft: Unable to allocate 572 GiB\n"


@pytest.mark.parametrize("arguments", [["--help"], ["swap", "--help"], ["--version"]])
def test_help_and_version(arguments, capfd):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    assert "clgraft" in capfd.readouterr().out


def test_devices(capfd):
    assert main(["devices", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["devices"]
    assert found["default"] in [device["selector"] for device in found["devices"]]
    assert main(["devices"]) == 0
    text = capfd.readouterr().out
    assert "(used by default)" in text
    for device in found["devices"]:
        assert device["name"] in text


def test_devices_say_why_a_runtime_cannot_be_used(monkeypatch, capfd):
    from clgraft.core.runtime import devices

    monkeypatch.setattr(devices, "unusable", lambda: ["broken.so: no such library"])
    assert main(["devices"]) == 0
    assert "not usable: broken.so: no such library" in capfd.readouterr().out
    monkeypatch.setattr(devices, "available", lambda: [])
    assert main(["devices", "--json"]) == 1
    assert json.loads(capfd.readouterr().out)["not_usable"] == ["broken.so: no such library"]


def test_a_reader_that_goes_away_is_no_traceback(net):
    long = "".join(
        f'layer {{ name: "r{i}" type: "ReLU" bottom: "x" top: "x" }}\n' for i in range(1000)
    )  # more than a pipe holds
    Path("long.prototxt").write_text(long)
    command = f"{sys.executable} -m clgraft.plugins.command_line swap long.prototxt -q | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("layer")
    assert not {"Traceback", "BrokenPipeError"} & set(done.stderr.replace(":", " ").split())


def test_a_process_ends_with_its_status_after_what_it_has_to_do():
    program = (
        "import atexit, sys; from clgraft.plugins.command_line import command;"
        "atexit.register(print, 'done'); sys.argv[1:] = ['run', 'missing.onnx']; command()"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.returncode == 2 and "missing.onnx" in found.stderr
    assert found.stdout == "done\n"
