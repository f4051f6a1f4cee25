"""Builds the C++ layers and this folder's programs for the branch that CAFFE_OPENCL_ROOT names, and runs nets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.folders import python_path

HERE = Path(__file__).resolve().parent
ROOT = os.environ.get("CAFFE_OPENCL_ROOT", "")


def pytest_collection_modifyitems(items) -> None:
    """Say why these tests do not run where there is no build of the branch."""
    if ROOT:
        return
    for item in items:
        if "branch" in getattr(item, "fixturenames", ()) and HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="needs Caffe's OpenCL branch: CAFFE_OPENCL_ROOT names its folder"))


class Branch:
    """A build of Caffe's OpenCL branch, with clgraft's layers for it.

    Parameters
    ----------
    folder : Path
        Where the layers and programs go.
    """

    def __init__(self, folder: Path) -> None:
        from clgraft.caffe_layers.library import build

        self.folder = folder
        self.layers = build.make(folder / "layers", ROOT)
        self.caffe = build.find_caffe(ROOT)
        self.programs: dict = {}

    def program(self, name: str) -> Path:
        """Return a program of this folder's, compiled."""
        if name not in self.programs:
            target = self.folder / name
            command = [
                "g++",
                "-std=c++11",
                "-O1",
                *self.caffe.options,
                f"-I{self.layers.parent}",
                str(HERE / f"{name}.cpp"),
            ]
            command += [
                f"-L{self.layers.parent}",
                str(self.caffe.library),
                "-lclgraft",
                "-lOpenCL",
                "-lglog",
                "-lgflags",
            ]
            command += ["-lprotobuf", "-lboost_system", "-lpthread", "-ldl"]
            command += [f"-Wl,-rpath,{self.layers.parent}:{self.caffe.library.parent}", "-o", str(target)]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr[-4000:]
            self.programs[name] = target
        return self.programs[name]

    def run(self, name: str, *words: str, ours: str = "", timeout: int = 1500) -> str:
        """Run a program and return what it printed on both streams; `ours` are the types that clgraft serves."""
        environment = {**os.environ, "PYTHONPATH": python_path(), "CLGRAFT_PYTHON": sys.executable}
        environment.pop("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", None)  # the layers see to that themselves
        environment["GLOG_minloglevel"] = "1"  # it says what stays the branch's own
        if ours:
            environment.update(LD_PRELOAD=str(self.layers), CLGRAFT_CAFFE_REPLACE=ours)
        done = subprocess.run(
            [str(self.program(name)), *words], capture_output=True, text=True, env=environment, timeout=timeout
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout + done.stderr

    def net(self, text: str, mode: str, ours: str = "", times: int = 0) -> SimpleNamespace:
        """Run a net forward and backward; return its blobs by name, and what was printed."""
        file, output = self.folder / "net.prototxt", self.folder / "output"
        file.write_text(text)
        printed = self.run("net", mode, str(file), str(output), *([str(times)] if times else []), ours=ours)
        return SimpleNamespace(blobs=read(output), printed=printed)


def read(path: Path) -> dict:
    """Return the arrays that net.cpp wrote."""
    data, position, found = path.read_bytes(), 0, {}
    while position < len(data):
        end = data.index(b"\n", position)
        name, count = data[position:end].decode().split()
        position = end + 1 + 4 * int(count)
        found[name] = np.frombuffer(data[end + 1 : position], np.float32)
    return found


@pytest.fixture(scope="session")
def branch(tmp_path_factory) -> Branch:
    """The build that is named."""
    return Branch(tmp_path_factory.mktemp("branch"))
