"""The transcripts of a newcomer's commands, right and wrong, and what stays of their output on every machine.

A file `*.txt` here has a block for each command: a line `$ COMMAND` for the shell, what it prints on stdout, the lines
of stderr with `! ` in front, and `[exit STATUS]` where the status is not 0. Lines `# ...` above a command are comments,
of which `# needs PACKAGE` and `# needs no PACKAGE` say where it can run. `python -m tests.newcomer --write` writes what
the commands print today.
"""

from __future__ import annotations

import functools
import importlib.util
import multiprocessing
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.folders import ROOT, python_path

HERE = Path(__file__).resolve().parent
NEEDS = re.compile(r"^# needs (no )?(\w+)$", re.M)
LIMIT = 120  # seconds of a command
KEPT = ("CLGRAFT_DEVICE", "CLGRAFT_BUILD_PROCESSES")  # settings of the environment that commands see
SHELL = re.compile(r"[|;&<>]|^\w+=")  # what only a shell understands
NET = """name: "net"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 4 kernel_size: 3 } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "fc2" type: "InnerProduct" bottom: "conv1" top: "fc2" inner_product_param { num_output: 2 } }
"""
SYMBOL = '{"nodes": [{"op": "null", "name": "data", "inputs": []}], "arg_nodes": [0], "heads": [[0, 0, 0]]}'
ROWS = "device: gpu abacus\nconv forward n2 ic3 ih9 iw11 oc4 kh3 kw3 ph1 pw1 -> direct\n"


@dataclass(frozen=True)
class Block:
    """A command and its output.

    Attributes
    ----------
    file : str
        The transcript's name.
    comments : str
        The lines above the command, each with its end.
    command : str
    output : str
        What it is expected to print.
    """

    file: str
    comments: str
    command: str
    output: str

    @property
    def lacking(self) -> str:
        """Return why the command cannot run in this Python; empty if it can."""
        for unwanted, package in NEEDS.findall(self.comments):
            if (importlib.util.find_spec(package) is None) != bool(unwanted):
                return f"needs {unwanted}{package}"
        return ""

    def __str__(self) -> str:
        return f"{self.comments}$ {self.command}\n{self.output}"


def files() -> list[Path]:
    """Return the transcripts."""
    return sorted(HERE.glob("*.txt"))


def read(path: Path) -> list[Block]:
    """Return the blocks of a transcript, between which there are empty lines."""
    blocks = []
    comments, command, output = "", "", ""
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.startswith(("$ ", "# ")) and command:
            blocks.append(Block(path.stem, comments, command, output.rstrip("\n") + "\n" * bool(output.strip())))
            comments, command, output = "", "", ""
        if line.startswith("$ "):
            command = line[2:].rstrip("\n")
        elif command:
            output += line
        else:
            comments += line
    return [*blocks, Block(path.stem, comments, command, output.rstrip("\n") + "\n" * bool(output.strip()))]


def text(blocks: list[Block]) -> str:
    """Return a transcript as text."""
    return "\n".join(map(str, blocks))


def folder(parent: Path) -> Path:
    """Make the folder in which the commands run: models, files of other kinds, and an empty cache."""
    place = parent / "home"
    for name in ("folder", "bin"):
        (place / name).mkdir(parents=True)
    (place / "cache").mkdir(mode=0o700)
    command = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m clgraft.plugins.command_line "$@"\n'
    (place / "bin" / "clgraft").write_text(command)
    (place / "bin" / "clgraft").chmod(0o755)
    for name, content in {
        **{"net.prototxt": NET, "broken.prototxt": "layer {\n", "net-symbol.json": SYMBOL, "empty.txt": ""},
        **{"notes.txt": "to do: read the manual\n", "problems.txt": "softmax forward n2 c10 s4\n", "rows.txt": ROWS},
        **{"model.onnx": "no model", "figures.json": "{}", "x.npy": "no array", "model.pth": "no model"},
    }.items():
        (place / name).write_text(content)
    return place


def run(block: Block, place: Path) -> str:
    """Run a command in the folder of `folder` and return its output as transcripts have it."""
    path = os.pathsep.join([str(place / "bin"), os.environ.get("PATH", "")])
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("POCL_CACHE_DIR", "PYOPENCL_CTX") and (name in KEPT or not name.startswith("CLGRAFT_"))
    }
    environment = {**kept, "PATH": path, "PYTHONPATH": python_path(), "CLGRAFT_CACHE": str(place / "cache")}
    environment["COLUMNS"] = "100"
    names = [place / "out", place / "err"]
    if SHELL.search(block.command):
        with names[0].open("wb") as out, names[1].open("wb") as err:
            command = ["/bin/sh", "-c", block.command]
            given = {"cwd": place, "env": environment, "stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            code = subprocess.run(command, timeout=LIMIT, **given).returncode
    else:
        words = shlex.split(block.command)[1:]
        child = _children().Process(target=_child, args=(words, place, environment, names))
        child.start()
        child.join(LIMIT)
        code = child.exitcode if child.exitcode is not None else -signal.SIGKILL
        child.kill()
        code = code if code >= 0 else 128 - code
    out, err = (name.read_text(encoding="utf-8", errors="replace") for name in names)
    printed = re.sub(r"^(?=[#$] )", " ", same_everywhere(out, place), flags=re.M)  # no line of a transcript's
    errors = same_everywhere(err, place)
    status = f"[exit {code}]" if code else ""
    lines = [*printed.splitlines(), *(f"! {line}".rstrip() for line in errors.splitlines()), status]
    return "".join(f"{line}\n" for line in "\n".join(lines).rstrip().splitlines())


@functools.lru_cache(maxsize=1)
def _children() -> Any:
    """Return what starts processes that have imported the command, as it takes most of a command's time."""
    children = multiprocessing.get_context("forkserver")
    children.set_forkserver_preload(["clgraft.plugins.command_line.main"])
    return children


def _child(words: list[str], place: Path, environment: dict[str, str], names: list[Path]) -> None:
    """Run the command in a process of its own."""
    os.chdir(place)
    os.environ.clear()
    os.environ.update(environment)
    for number, name in enumerate(names, 1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    sys.argv = ["clgraft", *words]
    from clgraft.plugins.command_line.main import main

    sys.exit(main(words))


@functools.lru_cache(maxsize=1)
def _names() -> list[tuple[str, str]]:
    """Return what the machine's devices are called, the longest names first, each with what stands for it."""
    from clgraft.core.runtime import devices
    from clgraft.plugins.command_line.bench import machine

    found: dict[str, str] = {}
    for info in devices.available():
        found[str(info)] = "DEVICE"
        found[f"{info.platform} / {info.name}"] = "DEVICE"
        found.update({info.name: "NAME", info.platform: "PLATFORM"})
    found[machine.processor()] = "NAME"
    return sorted(found.items(), key=lambda item: -len(item[0]))


def same_everywhere(printed: str, place: Path) -> str:
    """Return an output without what differs between machines and Pythons: names of devices, figures, usages."""
    text = printed.replace(str(place), "HOME").replace(str(ROOT), "CHECKOUT").replace("\r", "")
    for name, stands_for in _names():
        text = text.replace(name, stands_for)
    for pattern, new in _RULES:
        text = pattern.sub(new, text)
    lines = [re.sub(r" {2,}", "  ", line).rstrip() for line in text.splitlines()]
    kept = [line for i, line in enumerate(lines) if not ("DEVICE" in line and lines[i - 1 : i] == [line])]
    return "".join(f"{line}\n" for line in kept if line or len(lines) > 1)


_RULES = [
    (re.compile(pattern, re.M), new)
    for pattern, new in (
        (r"^usage: (?:.*\n)+?(?=clgraft.*: error:)", "usage: ...\n"),  # Pythons wrap it in their own ways
        (r"\(choose from .*\)$", "(choose from ...)"),
        (r"(?:^\d+:\d+  .*\n(?: {5}.*\n)+)+", "N:N  DEVICE ...\n"),  # of `clgraft devices`
        (r"^not usable: .*\n", ""),
        (r"^  not usable: .*\n", ""),
        (r"installed are \[.*?\]", "installed are [...]"),
        (r"\d+(?:\.\d+)? (?:bytes|KiB|MiB|GiB)\b", "N bytes"),
        (r"clgraft \d+\.\d+\S*", "clgraft VERSION"),
        (r"(?<![\w:.])-?\d+\.\d+(?:e[+-]?\d+)?", "N"),
        (r"\b\d+ ?%", "N%"),
        (r"\b\d+ (program|core)s?\b", r"N \1s"),
        (r"\b\d+ GFLOPS\b", "N GFLOPS"),
        (r"^(own .*? -) .*$", r"\1 ..."),  # a row of figures
        (r"; peaks changed by .*? rough|  disturbed: .*$", ""),
        (
            r"^building kernels for .*\n|^\d+ warnings? generated\.\n|^\[\d\d:\d\d:\d\d\] .*\n",
            "",
        ),
        (r"(which does not exist; expected .*; nearest): .*$", r"\1: ..."),  # other commands write files
        (r"(is no ONNX model): .*$", r"\1: ..."),  # as the packages say it
        (r"\b[cg]pu \w+ \w+ units\d+[\w ]*", "WORDS"),
        (r"0x[0-9a-f]+", "0xN"),
        (r"/\S+/site-packages", "SITE-PACKAGES"),
    )
]


def written(path: Path, place: Path) -> str:
    """Return a transcript with what its commands print now; what cannot run here stays."""
    return text([each if each.lacking else replace(each, output=run(each, place)) for each in read(path)])
