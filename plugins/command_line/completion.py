"""The command `clgraft completion`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from clgraft.core.errors import ClgraftError

SHELLS = ("bash", "zsh")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    completion = commands.add_parser(
        "completion",
        help="print a script that completes clgraft's words in a shell",
        description="Print a completion script. For bash: clgraft completion bash > "
        "~/.local/share/bash-completion/completions/clgraft",
    )
    completion.add_argument("shell", choices=SHELLS)
    completion.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the script for `options.parser`, the parser of the whole command line."""
    try:
        import shtab
    except ImportError:
        raise ClgraftError("[completion] got no package shtab, expected it: pip install shtab") from None
    _complete_files(options.parser, shtab.FILE)
    print(shtab.complete(options.parser, shell=options.shell))
    return 0


def _complete_files(parser: argparse.ArgumentParser, files: Any) -> None:
    """Let arguments that are paths complete to files."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in set(action.choices.values()):
                _complete_files(command, files)
        elif action.type is Path:
            action.complete = files  # type: ignore[attr-defined]
