"""The command `clgraft`."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence

from clgraft import __version__
from clgraft.plugins import registry
from clgraft.plugins.command_line import cache, completion, device_list, swap
from clgraft.plugins.command_line.bench import command as bench
from clgraft.plugins.command_line.check import command as check
from clgraft.plugins.command_line.profile import command as profile
from clgraft.plugins.command_line.report import command as report
from clgraft.plugins.command_line.tune import command as tune
from clgraft.plugins.command_line.warm import command as warm
from clgraft.plugins.plugin import REPORTED

_COMMANDS = (swap, check, bench, tune, profile, warm, device_list, report, cache, completion)
_HEADING = "examples:"
_EXAMPLES = (
    "clgraft devices",
    "clgraft check",
    "clgraft bench classic --json figures.json --plots figures",
    "clgraft bench --nets resnet18,mobilenet",
    "clgraft tune resnet50 --budget 600",
    "CLGRAFT_VERBOSE=plan python train.py 2> lines.txt; clgraft tune lines.txt",
    "clgraft tune --import report.json",
    "clgraft warm model-symbol.json --shape data=1,3,224,224",
    "clgraft profile 'conv forward n8 ic64 ih56 iw56 oc64 kh3 kw3 ph1 pw1'",
    "clgraft report -o my-device",
    "clgraft cache --clear",
    "clgraft completion bash > ~/.local/share/bash-completion/completions/clgraft",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns
    -------
    int
        Exit status: 0 done, 1 could not be done (the reason is on stderr), 2 wrong usage.
    """
    with _messages():
        return _run(build_parser().parse_args(arguments))


@contextlib.contextmanager
def _messages() -> Iterator[None]:
    """Show the library's messages on stderr, each after the command's name."""
    logger, handler = logging.getLogger("clgraft"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("clgraft: %(message)s"))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _run(options: argparse.Namespace) -> int:
    try:
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # the reader has gone; keep the interpreter from complaining about it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("clgraft: interrupted", file=sys.stderr)
        return 130
    except REPORTED as error:
        print(f"clgraft: {error}", file=sys.stderr)
        return 1


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line, the plugins' commands included."""
    examples = _EXAMPLES + _plugin_examples()
    parser = argparse.ArgumentParser(
        prog="clgraft",
        description="OpenCL operators inside the models of other frameworks.",
        epilog=_listed(examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"clgraft {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in _COMMANDS:
        module.add_command(commands)
    for plugin in registry.plugins():
        plugin.add_commands(commands)
    for name, command in commands.choices.items():
        own = [line for line in examples if re.search(rf"\bclgraft {name}\b", line)]
        if own and not command.epilog:
            command.epilog, command.formatter_class = _listed(own), _HelpWithExamples
    parser.set_defaults(parser=parser)
    return parser


class _HelpWithExamples(argparse.HelpFormatter):
    """Fills the description, and leaves the lines of examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(_HEADING) else super()._fill_text(text, width, indent)


def _listed(examples: Iterable[str]) -> str:
    return "\n".join([_HEADING, *(f"  {line}" for line in examples)])


def _plugin_examples() -> tuple[str, ...]:
    return tuple(example for plugin in registry.plugins() for example in plugin.examples)


if __name__ == "__main__":
    sys.exit(main())
