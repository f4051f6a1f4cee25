"""The files of a swap: what is written through, what is left alone, and what cannot be a prototxt."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from clgraft.caffe_layers.prototxt import schema
from clgraft.caffe_layers.swap import SwapError, restore_file, swap_file

NET = "layer { name: 'r' type: 'ReLU' bottom: 'a' top: 'b' }\n"


@pytest.fixture
def net(tmp_path, monkeypatch):
    """A net in the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "net.prototxt"
    path.write_text(NET)
    return path


def command(*arguments, **options):
    """Run `clgraft swap` in a process of its own."""
    line = [sys.executable, "-m", "clgraft.plugins.command_line", "swap", *arguments]
    return subprocess.run(line, capture_output=True, timeout=120, **options)


def test_a_symbolic_link_stays_and_its_target_is_written(net):
    Path("real").mkdir()
    Path("real/o.prototxt").write_text("")
    Path("link.prototxt").symlink_to("real/o.prototxt")
    Path("dangling.prototxt").symlink_to("real/new.prototxt")
    for link in ("link.prototxt", "dangling.prototxt"):
        swap_file(net, link)
        assert Path(link).is_symlink()
        assert "OclReLU" in Path(os.readlink(link)).read_text()
    assert sorted(path.name for path in Path("real").iterdir()) == ["new.prototxt", "o.prototxt"]
    Path("own.prototxt").symlink_to("net.prototxt")
    with pytest.raises(SwapError, match="other than those read"):
        swap_file(net, "own.prototxt", force=True)
    assert net.read_text() == NET


def test_a_pipe_is_written_through(net):
    os.mkfifo("pipe")
    got = []
    reader = threading.Thread(target=lambda: got.append(Path("pipe").read_text()))
    reader.start()
    swap_file(net, "pipe")
    reader.join(60)
    assert Path("pipe").is_fifo()
    assert "OclReLU" in got[0]


def test_a_device_is_written_through(net):
    """A link to the device: were it replaced after all, only the link of this test would be lost."""
    Path("null").symlink_to("/dev/null")
    swap_file(net, "null")
    assert Path("null").is_symlink()
    assert Path("null").is_char_device()


def test_permissions_are_kept(net):
    swap_file(net, "o.prototxt")
    umask = os.umask(0)
    os.umask(umask)
    assert Path("o.prototxt").stat().st_mode & 0o777 == 0o666 & ~umask
    Path("o.prototxt").chmod(0o640)
    swap_file(net, "o.prototxt")
    assert Path("o.prototxt").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("output", [[], ["-o", "-"], ["-o", "/dev/stdout"]])
@pytest.mark.parametrize("source", ["-", "/dev/stdin"])
def test_from_and_to_standard_streams(net, source, output):
    done = command(source, *output, input=NET.encode())
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"layer {") and b"OclReLU" in done.stdout
    assert b"1 of 1 layers changed" in done.stderr
    assert b"changed" not in done.stdout


def test_a_redirected_standard_output_is_appended_to(net):
    with open("log.prototxt", "ab") as file:
        file.write(b"# first\n")
        file.flush()
        line = [sys.executable, "-m", "clgraft.plugins.command_line", "swap", str(net), "-o", "/dev/stdout", "-q"]
        assert subprocess.run(line, stdout=file, timeout=120).returncode == 0
    text = Path("log.prototxt").read_text()
    assert text.startswith("# first\nlayer {") and "OclReLU" in text
    with open("log.prototxt", "ab") as file:
        swap_file(net, f"/dev/fd/{file.fileno()}")
    assert Path("log.prototxt").read_text().startswith(text)


def test_a_solver_needs_a_file(net):
    Path("s.prototxt").write_text('net: "net.prototxt" base_lr: 1')
    os.mkfifo("pipe")
    for target in ("/dev/stdout", "pipe"):
        with pytest.raises(SwapError, match="expected a file: its nets are written"):
            swap_file("s.prototxt", target)


def test_a_file_of_somebody_else_is_not_overwritten(net):
    Path("thesis.txt").write_text("my thesis\n")
    with pytest.raises(SwapError, match=r"thesis.txt, which exists and was not written by clgraft.*--force"):
        swap_file(net, "thesis.txt")
    assert Path("thesis.txt").read_text() == "my thesis\n"
    swap_file(net, "ours.prototxt")
    with pytest.raises(SwapError, match="not written by clgraft"):
        restore_file("ours.prototxt", "thesis.txt")
    restore_file("ours.prototxt", "back.prototxt")
    restore_file("ours.prototxt", "back.prototxt")  # it holds the same already
    done = command(str(net), "-o", "thesis.txt")
    assert done.returncode == 2
    assert b"not written by clgraft" in done.stderr
    assert Path("thesis.txt").read_text() == "my thesis\n"
    assert command(str(net), "-o", "thesis.txt", "--force", "-q").returncode == 0
    assert "OclReLU" in Path("thesis.txt").read_text()
    swap_file(net, "thesis.txt")  # now it is clgraft's
    restore_file("ours.prototxt", "thesis.txt", force=True)
    assert Path("thesis.txt").read_text() == NET


def test_force_overwrites_the_nets_of_a_solver_too(net):
    Path("s.prototxt").write_text('net: "net.prototxt" base_lr: 1')
    Path("net_ocl.prototxt").write_text("somebody's work")
    with pytest.raises(SwapError, match="not written by clgraft"):
        swap_file("s.prototxt", "o.prototxt")
    swap_file("s.prototxt", "o.prototxt", force=True)
    assert "OclReLU" in Path("net_ocl.prototxt").read_text()
    Path("o.prototxt").write_text("# mine\n")
    with pytest.raises(SwapError, match=r"o.prototxt, which exists and was not written by clgraft"):
        swap_file("s.prototxt", "o.prototxt")


def binary_net():
    """A caffemodel without a single zero byte."""
    message = schema.message_class("NetParameter")(name="net")
    message.layer.add(name="r", type="ReLU", bottom=["a"], top=["b"])
    return message.SerializeToString()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "which is empty, expected a net or a solver"),
        (b" \r\n\t\n", "which is empty"),
        (b"\xef\xbb\xbf" + NET.encode(), "starts with a byte-order mark, expected none: Caffe cannot read it"),
        (NET.encode("utf-16"), "which is UTF-16 text, expected UTF-8"),
        (NET.encode("utf-16-be"), "which is binary"),
        (binary_net(), "which is binary, expected a prototxt: caffemodels fit without a swap"),
        (b"\x89HDF\r\n\x1a\n\0\0", "which is binary"),
    ],
)
def test_what_is_no_text_is_told_by_its_name(tmp_path, data, words):
    (tmp_path / "a.prototxt").write_bytes(data)
    for work in (swap_file, restore_file):
        with pytest.raises(SwapError, match=words):
            work(tmp_path / "a.prototxt", tmp_path / "o.prototxt")
    assert not (tmp_path / "o.prototxt").exists()
