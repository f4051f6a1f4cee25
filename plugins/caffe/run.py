"""`clgraft caffe`: Caffe's own command with clgraft's layers in it.

The library of C++ layers is loaded into it, and serves Caffe's own types; its Python finds clgraft.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shutil
import site
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clgraft.core import settings
from clgraft.core.errors import BuildError, ClgraftError
from clgraft.core.runtime import devices
from clgraft.plugins.caffe import embedded, files, train

# the first protobuf that refuses message classes as old as Caffe's, unless it runs in pure Python
_STRICT_PROTOBUF = 4
REPLACED = settings.CAFFE_REPLACE.name
REGIONS = settings.CAFFE_REGIONS.name

_DESCRIPTION = """Run Caffe's own command, such as caffe train, with clgraft's layers. Nets need no change: a library
of C++ layers, which is made on first use, serves the types that clgraft has. Nets of clgraft swap load as well, because
the Python that caffe embeds gets the packages of this installation. Everything after the first word goes to caffe as it
is."""
_EXAMPLES = """
what caffe can do:
  train          train or fine-tune     -solver FILE [-weights FILE | -snapshot FILE]
  test           score a model          -model FILE -weights FILE [-iterations N]
  time           time each layer        -model FILE [-iterations N]
  device_query   describe CUDA's GPUs   -gpu N

examples:
  clgraft caffe train -solver solver.prototxt -weights start.caffemodel
  clgraft caffe test -model train_val.prototxt -weights trained.caffemodel
  clgraft caffe time -model deploy.prototxt -iterations 10
  clgraft caffe --replace Convolution,Pooling train -solver solver.prototxt
  clgraft caffe --replace none train -solver solver_ocl.prototxt
  clgraft caffe --binary ~/caffe/build/tools/caffe train -solver solver_ocl.prototxt
"""


class CaffeError(ClgraftError, RuntimeError):
    """A caffe command that cannot be run."""


def add_command(commands: Any) -> None:
    """Add `caffe` to the subparsers of the command line."""
    parser = commands.add_parser(
        "caffe",
        help="run Caffe's own command with clgraft's layers",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--binary", type=Path, metavar="FILE", help="the caffe command (default: the one on PATH)")
    parser.add_argument(
        "--replace",
        metavar="T,T",
        help=f"Caffe's types that C++ layers serve: all, some, or none (default: {REPLACED}, else all)",
    )
    parser.add_argument("action", metavar="train|test|time|...", help="what caffe is to do, see below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of caffe's own")
    parser.set_defaults(run=run)

    def error(message: str) -> None:
        parser.print_help(sys.stderr)
        parser.exit(2, f"\n{parser.prog}: error: {message}\n")

    parser.error = error  # type: ignore[method-assign]  # a usage alone would not say what caffe can do


def run(options: argparse.Namespace) -> int:
    """Replace this process by caffe, so that signals, output and the exit status are its own.

    Raises
    ------
    CaffeError
        When there is no caffe command, or it has no GPU and is asked for one.
    FileError
        If a file that it is called with cannot be read.
    SelectorError
        If `CLGRAFT_DEVICE` names no device.
    """
    if options.action == "train" and options.binary is None and options.replace is None and not found_binary():
        print("clgraft: there is no caffe command: this is clgraft train, without Caffe", file=sys.stderr)
        return train.run_words(options.arguments)
    binary = find_binary(options.binary)
    files.expect_files(options.arguments)
    if settings.DEVICE.given:
        devices.select()  # a wrong one is said before Caffe starts
    fault = "" if options.action == "device_query" else files.why_no_gpu(binary, options.arguments)
    if fault:
        raise CaffeError(f"[caffe] {fault}")
    loading = cpp_layers(binary, options.replace, os.environ)
    arguments, notes = options.arguments, []
    if options.action == "train":
        arguments, note = files.for_cpu(binary, arguments)
        notes.append(note)
    if not loading:
        notes.append(files.types_of_ours(arguments))
    if options.action == "time":
        notes += files.notes_on_times(arguments, bool(loading.get(REPLACED)) and bool(os.environ.get(REGIONS)))
    for note in filter(None, notes):
        print(f"clgraft: {note}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(binary, [binary, options.action, *arguments], {**environment(os.environ), **loading})


def cpp_layers(binary: str, replace: str | None, base: Mapping[str, str]) -> dict[str, str]:
    """Return what in the environment loads the C++ layers into caffe; nothing, with the reason on stderr, if it cannot.

    Parameters
    ----------
    binary : str
        The caffe command.
    replace : str or None
        Caffe's types that they serve; None for what the environment says, else all.
    base : mapping of str to str
        The environment to start from.

    Raises
    ------
    ArgumentError
        If clgraft has no layer for a type.
    CaffeError
        If types are asked for and C++ layers cannot be loaded.
    """
    from clgraft.caffe_layers.library import build, process

    wanted = base.get(REPLACED, "all") if replace is None else replace
    process.check_types(wanted)
    try:
        if not any(name.startswith("libcaffe.so") for name in build.linked(Path(binary))):
            raise BuildError(f"[native] got {binary}, which holds Caffe itself, expected one that links to libcaffe.so")
        library = process.find()
    except (BuildError, OSError) as error:
        if replace not in (None, "none"):
            raise CaffeError(str(error)) from None
        if wanted != "none":
            print(f"clgraft: Caffe's own layers run where the net names no others: {error}", file=sys.stderr)
        return {}
    preloaded = " ".join([str(library), *_filled(base.get("LD_PRELOAD", "").replace(" ", os.pathsep))])
    return {"LD_PRELOAD": preloaded, REPLACED: "" if wanted == "none" else wanted}


def find_binary(given: Path | None = None) -> str:
    """Return the path of the caffe command: the given one, else that of PATH, else that of `$CAFFE_ROOT`.

    Raises
    ------
    CaffeError
        When there is none.
    """
    if given is not None:
        found = shutil.which(str(given.expanduser().absolute()))
        if found is None:
            raise CaffeError(f"[caffe] got {given}, expected a caffe command that can be run")
        return found
    found = found_binary()
    if found is None:
        raise CaffeError(
            "[caffe] got no caffe command on PATH, expected one (Debian 11: apt install caffe), or --binary FILE; "
            "Python wheels of Caffe come without it: train with caffe.SGDSolver there"
        )
    return found


def found_binary() -> str | None:
    """Return the path of the caffe command of PATH, else that of `$CAFFE_ROOT`; None if there is none."""
    root = settings.CAFFE_ROOT.text()
    return shutil.which("caffe") or (shutil.which(os.path.join(root, "build", "tools", "caffe")) if root else None)


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for caffe.

    Parameters
    ----------
    base : mapping of str to str
        The environment to start from. What it says of PYTHONPATH and of protobuf is kept.
    """
    result = dict(base)
    paths = [str(Path(embedded.__file__).resolve().parent), *_filled(base.get("PYTHONPATH", ""))]
    result["PYTHONPATH"] = os.pathsep.join(paths)
    result[settings.CAFFE_SITES.name] = os.pathsep.join(package_folders())
    result[settings.CAFFE_PYTHON.name] = ".".join(map(str, sys.version_info[:2]))
    if sys.prefix != sys.base_prefix:
        # Python in a binary takes the first python3 on PATH for its home. In a virtual environment it would lose the
        # system's packages, among them Caffe's own.
        own = os.path.realpath(os.path.join(sys.prefix, "bin"))
        result["PATH"] = os.pathsep.join(
            folder for folder in _filled(base.get("PATH", "")) if os.path.realpath(folder) != own
        )
        result.pop("VIRTUAL_ENV", None)
    if _protobuf() >= _STRICT_PROTOBUF:
        result.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")
    return result


def package_folders() -> list[str]:
    """Return this Python's folders of packages, in their order."""
    folders = site.getsitepackages()
    if site.ENABLE_USER_SITE:
        folders.insert(0, site.getusersitepackages())
    if sys.prefix != sys.base_prefix:
        # C++ layers start this environment's Python, which may not see the system's packages, among them Caffe's own
        folders += site.getsitepackages([sys.base_prefix])
    return [folder for folder in dict.fromkeys(folders) if os.path.isdir(folder)]


def _filled(text: str) -> list[str]:
    return [folder for folder in text.split(os.pathsep) if folder]


def _protobuf() -> int:
    return int(importlib.metadata.version("protobuf").split(".")[0])
