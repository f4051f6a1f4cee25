"""`clgraft swap` on MXNet's symbol files."""

from __future__ import annotations

import json
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

from clgraft.plugins.command_line.main import main
from clgraft.plugins.mxnet import symbols


@pytest.fixture
def symbol(tmp_path, monkeypatch):
    """A small symbol's file in the working directory."""
    monkeypatch.chdir(tmp_path)
    x = mx.sym.Variable("data")
    y = mx.sym.Convolution(x, num_filter=3, kernel=(3, 3), name="conv")
    y = mx.sym.Activation(y, act_type="relu", name="relu1")
    y = mx.sym.Activation(y, act_type="tanh", name="tanh1")
    y = mx.sym.Pooling(y, kernel=(2, 2), pool_type="max", name="pool")
    y.save("net-symbol.json")
    return y


def outputs(symbol):
    rng = np.random.default_rng(0)
    shapes, _, _ = symbol.infer_shape(data=(2, 2, 7, 7))
    values = {name: mx.nd.array(rng.normal(size=shape)) for name, shape in zip(symbol.list_arguments(), shapes)}
    return symbol.bind(mx.cpu(), values).forward()[0].asnumpy()


def test_the_swapped_file_computes_the_same(symbol, capfd):
    assert main(["swap", "net-symbol.json", "-o", "ocl-symbol.json", "--exclude", "Pooling"]) == 0
    assert "3 replaced" in capfd.readouterr().out
    swapped = mx.sym.load("ocl-symbol.json")
    assert swapped.list_arguments() == symbol.list_arguments()
    assert "ocl_conv" in Path("ocl-symbol.json").read_text()
    np.testing.assert_allclose(outputs(swapped), outputs(symbol), rtol=1e-4, atol=1e-5)


def test_frozen_parameters(symbol, capfd):
    assert main(["swap", "net-symbol.json", "-o", "ocl-symbol.json", "--regions", "--frozen"]) == 0
    assert "frozen: pool (2 arrays)" in capfd.readouterr().out
    np.testing.assert_allclose(outputs(mx.sym.load("ocl-symbol.json")), outputs(symbol), rtol=1e-4, atol=1e-5)
    assert main(["swap", "net-symbol.json", "--frozen"]) == 1
    assert "[swap] got --frozen without --regions" in capfd.readouterr().err


def test_files_of_others_are_not_overwritten(symbol, capfd):
    """The same rule as for prototxts: what clgraft wrote may be written again, anything else with --force only."""
    other = Path("other-symbol.json")
    symbol.save(str(other))
    before = other.read_bytes()
    assert main(["swap", "net-symbol.json", "-o", str(other)]) == 2
    assert "was not written by clgraft" in capfd.readouterr().err and other.read_bytes() == before
    assert main(["swap", "net-symbol.json", "-o", str(other), "--force"]) == 0
    assert main(["swap", "net-symbol.json", "-o", str(other), "--types", "Pooling"]) == 0  # our own
    assert "ocl_pooling" in other.read_text() and "ocl_conv" not in other.read_text()
    assert main(["swap", "net-symbol.json", "-o", "net-symbol.json", "--force"]) == 2


def test_choice(symbol, capfd):
    command = ["swap", "net-symbol.json", "--types", "activation", "--exclude", "relu*,nothing"]
    assert main(command) == 0
    out, err = capfd.readouterr()
    assert "1 replaced" in err
    assert "note: no operator matches nothing" in err
    assert mx.sym.load_json(out).list_arguments() == symbol.list_arguments()
    assert main([*command, "--names", "conv"]) == 0
    assert "0 replaced" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["swap", "net-symbol.json", "--back"], "keep the native symbol"),
        (["swap", "broken.json"], "broken.json, which is no JSON: Expecting property name"),
        (["swap", "other.json"], "expected an MXNet symbol"),
        (["swap", "strange.json"], "which MXNet cannot load"),
    ],
)
def test_refusals(symbol, capfd, arguments, words):
    Path("broken.json").write_text("{")
    Path("other.json").write_text('{"layers": []}')
    Path("strange.json").write_text(Path("net-symbol.json").read_text().replace('"Pooling"', '"Puddling"'))
    assert main(arguments) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["check", "profile"])
def test_what_is_no_symbol_is_neither_checked_nor_profiled(symbol, command, capfd):
    Path("other.json").write_text('{"layers": []}')
    assert main([command, "other.json", "--shape", "data=2,2,7,7"]) == 1
    err = capfd.readouterr().err
    assert "got other.json, expected an MXNet symbol" in err and "Traceback" not in err


def test_errors_of_mxnet_are_one_line():
    trace = 'Traceback (most recent call last):\n  File "../src/c_api.cc", line 539\n'
    wrong = "Error in operator c: [07:01:40] ../src/nn/conv.cc:151: Check failed: ndim == 4U (2 vs. 4) : 4D"
    for text, words in (
        (f"{trace}MXNetError: InferShapeKeyword argument name x not found.\nCandidates:\n\t[0]data", "InferShape"),
        (f"MXNetError: {wrong}", "c: Check failed: ndim == 4U (2 vs. 4) : 4D"),
        (f"{trace}JSONReader: Unknown field a, candidates are: \n", "JSONReader: Unknown field a"),
    ):
        assert symbols.reason(ValueError(text)).startswith(words), text


def test_check_of_a_symbol(symbol, capfd):
    assert main(["check", "net-symbol.json", "--shape", "data=2,2,7,7", "--json", "--repeats", "1"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert {row["tensor"] for row in found["rows"]} == {
        "output pool_output",
        "gradient of data",
        "gradient of conv_weight",
        "gradient of conv_bias",
    }
    assert all(row["native_error"] < 1e-5 for row in found["rows"])


@pytest.mark.parametrize(
    ("shapes", "words"),
    [([], "expected --shape data=N"), (["--shape", "data=2,2"], "do not fit"), (["--shape", "date=2,2,7,7"], "date")],
)
def test_check_says_which_shape_is_missing(symbol, capfd, shapes, words):
    assert main(["check", "net-symbol.json", *shapes]) == 1
    assert words in capfd.readouterr().err
