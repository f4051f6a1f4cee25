"""The command `clgraft`.

What the commands need is imported when one runs, where Ctrl-C is handled already.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import TYPE_CHECKING, NoReturn, TextIO

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

# modules of this package with a function `add_command`, in the order of the help
_COMMANDS = (
    "swap",
    "check.command",
    "bench.command",
    "tune.command",
    "profile.command",
    "warm.command",
    "device_list",
    "report.command",
    "settings_list",
    "cache",
    "completion",
)
WRONG_USAGE = 2  # exit status, as that of argparse
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
    "clgraft settings",
    "clgraft cache --clear",
    "clgraft completion bash > ~/.local/share/bash-completion/completions/clgraft",
)
INTERRUPTED, NO_READER = 130, 141  # exit status, as shells have it for the signals SIGINT and SIGPIPE
_STATUS = (
    f"exit status: 0 done, 1 not done, 2 wrong usage, {INTERRUPTED} interrupted, {NO_READER} nobody reads the output"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns
    -------
    int
        Exit status: 0 done, 1 could not be done (the reason is on stderr), 2 wrong usage, files, settings or
        devices, `INTERRUPTED`, or `NO_READER` if what reads the output has gone.
    """
    try:
        try:
            with _messages():
                words = sys.argv[1:] if arguments is None else list(arguments)
                return _run(_parser_for(words).parse_args(words))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        for stream in (sys.stdout, sys.stderr):
            _leave(stream)
        return NO_READER
    except KeyboardInterrupt:
        print("clgraft: interrupted", file=sys.stderr)
        return INTERRUPTED


def command() -> NoReturn:
    """Run the command line as a process, and end it.

    What drivers and Python take down at the end of a process takes a tenth of a second: a command that is started for
    its result leaves that to the system.
    """
    import atexit

    from clgraft.plugins import alone

    status = main()
    if sys.argv[1:2] and sys.argv[1] in alone.COMMANDS:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _leave(stream: TextIO) -> None:
    """Connect a stream that nobody reads to nothing, so that the interpreter does not complain about it at exit."""
    try:
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def _messages() -> Iterator[None]:
    """Show the library's messages on stderr, each after the command's name."""
    import logging

    logger, handler = logging.getLogger("clgraft"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("clgraft: %(message)s"))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _run(options: argparse.Namespace) -> int:
    from clgraft.core import settings
    from clgraft.core.errors import SelectorError, SettingError
    from clgraft.core.files import FileError
    from clgraft.plugins.command_line import settings_list
    from clgraft.plugins.plugin import REPORTED

    try:
        if options.run is not settings_list.run:  # which lists what is wrong
            settings.check()
        status: int = options.run(options)
        return status
    except BrokenPipeError:
        raise
    except (FileError, SelectorError, SettingError) as error:
        print(f"clgraft: {error}", file=sys.stderr)
        return WRONG_USAGE
    except REPORTED as error:
        print(f"clgraft: {error}", file=sys.stderr)
        return 1


def _parser_for(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser that knows at least the command that is called."""
    import importlib

    from clgraft.plugins import alone

    module = alone.COMMANDS.get(words[0]) if words else None
    if module is None or {"-h", "--help"} & set(words):
        return build_parser()
    parser, commands = _empty_parser("")
    importlib.import_module(module).add_command(commands)
    return parser


def _empty_parser(epilog: str) -> tuple[argparse.ArgumentParser, Any]:
    """Return a parser without commands, and what they are added to."""
    import argparse

    from clgraft import __version__

    parser = argparse.ArgumentParser(
        prog="clgraft",
        description="OpenCL operators inside the models of other frameworks.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"clgraft {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    parser.set_defaults(parser=parser)
    return parser, commands


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line, the plugins' commands included."""
    import importlib

    from clgraft.plugins import registry

    examples = _EXAMPLES + _plugin_examples()
    parser, commands = _empty_parser(f"{_listed(examples)}\n\n{_STATUS}")
    for name in _COMMANDS:
        importlib.import_module(f"clgraft.plugins.command_line.{name}").add_command(commands)
    for plugin in registry.plugins():
        plugin.add_commands(commands)
    for name, command in commands.choices.items():
        own = [line for line in examples if re.search(rf"\bclgraft {name}\b", line)]
        if own and not command.epilog:
            command.epilog, command.formatter_class = _listed(own), _help_with_examples()
    return parser


def _help_with_examples() -> type[argparse.HelpFormatter]:
    """Return what fills the description of a command, and leaves the lines of its examples as they are."""
    import argparse

    class HelpWithExamples(argparse.HelpFormatter):
        def _fill_text(self, text: str, width: int, indent: str) -> str:
            return text if text.startswith(_HEADING) else super()._fill_text(text, width, indent)

    return HelpWithExamples


def _listed(examples: Iterable[str]) -> str:
    return "\n".join([_HEADING, *(f"  {line}" for line in examples)])


def _plugin_examples() -> tuple[str, ...]:
    from clgraft.plugins import registry

    return tuple(example for plugin in registry.plugins() for example in plugin.examples)


if __name__ == "__main__":
    command()
