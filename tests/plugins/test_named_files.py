"""Files that a user names: path, reason and remedy, on stderr alone, with exit status 2."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clgraft.core.files import FileError, expect_file, read_file
from clgraft.plugins.command_line.main import main

NET = Path(__file__).resolve().parent.parent / "caffe_layers" / "nets" / "lenet.prototxt"
NO_PEER = ("--peers", "numpy")  # others would be imported first


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A working directory with a net, and with files and folders of other kinds."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(NET.read_text())
    (tmp_path / "empty.txt").touch()
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "net.weights").write_bytes(b"\0\1\2")
    (tmp_path / "x.onnx").write_bytes(b"no model")
    np.save(tmp_path / "x.npy", np.zeros(3))
    np.savez(tmp_path / "x.npz", np.zeros(3))
    return tmp_path


def refusal(capfd, *arguments: str) -> str:
    """Return what a refused command prints."""
    assert main(arguments) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("clgraft: [") and "Traceback" not in err and "Errno" not in err
    return err


@pytest.mark.parametrize("command", ["swap", "check", "tune", "profile", "warm", "run", "bench"])
@pytest.mark.parametrize("word", ["nat.prototxt", "folder/net.prototxt", "nowhere/net.json"])
def test_a_missing_file_is_no_list_of_forty_names(command, word, capfd):
    said = refusal(capfd, command, word, *(NO_PEER if command == "bench" else ()))
    assert f"[{command}] got {word}, which does not exist" in said and len(said) < 300
    if word == "nat.prototxt":
        assert "nearest: net.prototxt" in said
    if word.startswith("nowhere"):
        assert "nor does the folder nowhere" in said


@pytest.mark.parametrize("command", ["swap", "check", "tune", "profile", "warm", "run", "bench"])
@pytest.mark.parametrize("word", ["folder", "folder.json"])
def test_a_folder_is_called_one(command, word, capfd):
    said = refusal(capfd, command, word, *(NO_PEER if command == "bench" else ()))
    assert f"[{command}] got {word}, which is a folder; expected" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["swap", "x.onnx"], "[swap] got x.onnx, which is not swapped: a whole ONNX model runs as one graph: use"),
        (["swap", "net.prototxt", "-o", "net.prototxt"], "got net.prototxt to write to, expected a file other than"),
        (["swap", "net.weights"], "[swap] got net.weights, expected a model of one of the plugins (caffe: a net's"),
        (["check", "net.weights"], "[check] got net.weights, expected a model of one of the plugins"),
        (["run", "net.weights"], "[load] got net.weights, expected a model: an ONNX model's .onnx"),
        *(([c, "net.weights"], f"[{c}] got net.weights, which is binary") for c in ("profile", "warm", "tune")),
        *(([c, "empty.txt"], f"[{c}] got no problem in empty.txt") for c in ("profile", "warm", "tune")),
        (["bench", "empty.txt", *NO_PEER], "[bench] got no problem in empty.txt"),
        (["bench", "--from", "empty.txt"], "got empty.txt, expected results of `clgraft bench --json`"),
        (["bench", "--from", "out"], "got out, which does not exist in "),
        (["bench", "--from", "folder"], "got folder, which is a folder; expected results of"),
        (
            ["run", "net.prototxt", "--weights", "net.weight"],
            "got net.weight, which does not exist; expected the parame",
        ),
        (["tune", "--import", "out"], "[tune] got out, which does not exist in "),
        (["run", "x.onnx", "--input", "x=x.np"], "got x.np, which does not exist; expected one array, from a file of"),
        (["run", "x.onnx", "--input", "x=x.onnx"], "got x.onnx, which is an ONNX model; expected one array"),
        (["run", "x.onnx", "--input", "x=x.npz"], "got x.npz, which is an archive, as numpy.savez makes; expected one"),
        (["run", "x.onnx", "--input", "x=empty.txt"], "got empty.txt, which is empty; expected one array"),
        (["run", "x.onnx", "--input", "x=folder"], "got folder, which is a folder; expected one array"),
    ],
)
def test_another_kind_of_file_is_named(arguments, words, capfd):
    assert words in refusal(capfd, *arguments)


def test_what_is_swapped_leaves_out_what_is_not(capfd):
    assert "onnx" not in refusal(capfd, "swap", "net.weights")


def test_what_cannot_be_read_says_why(monkeypatch, capfd):
    own = Path.open

    def refused(path: Path, *words: object, **more: object) -> object:
        if path.name == "net.prototxt":
            raise PermissionError(13, "Permission denied")
        return own(path, *words, **more)

    monkeypatch.setattr(Path, "open", refused)
    said = refusal(capfd, "swap", "net.prototxt")
    assert "got net.prototxt, which cannot be read: Permission denied; expected" in said


def test_the_helper_alone(here):
    assert expect_file(Path("net.prototxt"), "test", "a net") == Path("net.prototxt")
    with pytest.raises(FileError, match=r"^\[test\] got /dev/null, which is a stream; expected a net, which is read"):
        expect_file(Path("/dev/null"), "test", "a net")
    assert expect_file(Path("/dev/null"), "test", "a net", streams=True) == Path("/dev/null")
    with pytest.raises(FileError, match=rf"^\[test\] got a, which does not exist in {here}; expected a net$"):
        read_file(Path("a"), "test", "a net")


@pytest.mark.parametrize(
    ("word", "near"),
    [("resnet51", "resnet50"), ("cnov", "conv"), ("cnov forward n1 ic1 iw9 oc1 kw3", "conv"), ("Pool_", "pool")],
)
def test_words_have_the_nearest_names(word, near, capfd):
    assert main(["tune", word]) == 1
    assert f"nearest: {near}" in capfd.readouterr().err
