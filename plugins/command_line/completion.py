"""The command `clgraft completion`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from clgraft.core.errors import ClgraftError
from clgraft.plugins.command_line import arguments

# where each shell looks for the script
SHELLS = {
    "bash": "~/.local/share/bash-completion/completions/clgraft",
    "zsh": "a folder of $fpath, such as ~/.zfunc/_clgraft",
    "fish": "~/.config/fish/completions/clgraft.fish",
}


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    completion = commands.add_parser(
        "completion",
        help="print a script that completes clgraft's words in a shell",
        description="Print a completion script, for a file that the shell reads: "
        + "; ".join(f"{shell}: {place}" for shell, place in SHELLS.items()),
    )
    completion.add_argument("shell", choices=tuple(SHELLS))
    completion.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the script for `options.parser`, the parser of the whole command line."""
    try:
        import shtab
    except ImportError:
        raise ClgraftError("[completion] got no package shtab, expected it: pip install shtab") from None
    if options.shell not in shtab.SUPPORTED_SHELLS:
        raise ClgraftError(
            f"[completion] got shtab {shtab.__version__}, expected one that knows {options.shell}: "
            "pip install --upgrade shtab"
        )
    _complete_files(options.parser, shtab)
    print(shtab.complete(options.parser, shell=options.shell))
    return 0


def _complete_files(parser: argparse.ArgumentParser, shtab: Any) -> None:
    """Let arguments that are paths complete to files or folders."""
    paths: dict[Any, Any] = {Path: shtab.FILE, arguments.new_file: shtab.FILE, arguments.new_folder: shtab.DIRECTORY}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in set(action.choices.values()):
                _complete_files(command, shtab)
        elif action.type in paths:
            action.complete = paths[action.type]  # type: ignore[attr-defined]
