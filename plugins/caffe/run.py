"""`clgraft caffe`: Caffe's own command, in an environment in which its embedded Python finds clgraft."""

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

from clgraft.core.errors import ClgraftError
from clgraft.plugins.caffe import embedded

# the first protobuf that refuses message classes as old as Caffe's, unless it runs in pure Python
_STRICT_PROTOBUF = 4

_DESCRIPTION = """Run Caffe's own command, such as caffe train, so that nets with clgraft's layers load: the Python that
it embeds gets the packages of this installation. Everything after the first word goes to caffe as it is."""
_EXAMPLES = """
examples:
  clgraft caffe train -solver solver_ocl.prototxt -weights native.caffemodel
  clgraft caffe test -model train_val_ocl.prototxt -weights native.caffemodel
  clgraft caffe time -model deploy_ocl.prototxt -iterations 10
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
    parser.add_argument("action", metavar="train|test|time|...", help="what caffe is to do")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of caffe's own")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Replace this process by caffe, so that signals, output and the exit status are its own.

    Raises
    ------
    CaffeError
        When there is no caffe command.
    """
    binary = find_binary(options.binary)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(binary, [binary, options.action, *options.arguments], environment(os.environ))


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
    root = os.environ.get("CAFFE_ROOT", "")
    found = shutil.which("caffe") or (shutil.which(os.path.join(root, "build", "tools", "caffe")) if root else None)
    if found is None:
        raise CaffeError(
            "[caffe] got no caffe command on PATH, expected one (Debian 11: apt install caffe), or --binary FILE; "
            "Python wheels of Caffe come without it: train with caffe.SGDSolver there"
        )
    return found


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
    result["CLGRAFT_CAFFE_SITES"] = os.pathsep.join(package_folders())
    result["CLGRAFT_CAFFE_PYTHON"] = ".".join(map(str, sys.version_info[:2]))
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
    return [folder for folder in dict.fromkeys(folders) if os.path.isdir(folder)]


def _filled(text: str) -> list[str]:
    return [folder for folder in text.split(os.pathsep) if folder]


def _protobuf() -> int:
    return int(importlib.metadata.version("protobuf").split(".")[0])
