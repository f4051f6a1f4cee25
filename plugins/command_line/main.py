"""The command `clgraft`."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence

from clgraft import __version__
from clgraft.core import settings
from clgraft.core.errors import SettingError
from clgraft.core.files import FileError
from clgraft.plugins import registry
from clgraft.plugins.command_line import cache, completion, device_list, settings_list, swap
from clgraft.plugins.command_line.bench import command as bench
from clgraft.plugins.command_line.check import command as check
from clgraft.plugins.command_line.profile import command as profile
from clgraft.plugins.command_line.tune import command as tune
from clgraft.plugins.command_line.warm import command as warm
from clgraft.plugins.plugin import REPORTED

_COMMANDS = (swap, check, bench, tune, profile, warm, device_list, settings_list, cache, completion)
WRONG_USAGE = 2  # exit status, as that of argparse
_EXAMPLES = (
    "clgraft devices",
    "clgraft check",
    "clgraft bench classic --json figures.json --plots figures",
    "clgraft bench --nets resnet18,mobilenet",
    "clgraft tune resnet50 --budget 600",
    "CLGRAFT_VERBOSE=plan python train.py 2> lines.txt; clgraft tune lines.txt",
    "clgraft warm model-symbol.json --shape data=1,3,224,224",
    "clgraft profile 'conv forward n8 ic64 ih56 iw56 oc64 kh3 kw3 ph1 pw1'",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns
    -------
    int
        Exit status: 0 done, 1 could not be done (the reason is on stderr), 2 wrong usage, files or settings.
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
        if options.run is not settings_list.run:  # which lists what is wrong
            settings.check()
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
    except (FileError, SettingError) as error:
        print(f"clgraft: {error}", file=sys.stderr)
        return WRONG_USAGE
    except REPORTED as error:
        print(f"clgraft: {error}", file=sys.stderr)
        return 1


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line, the plugins' commands included."""
    parser = argparse.ArgumentParser(
        prog="clgraft",
        description="OpenCL operators inside the models of other frameworks.",
        epilog="\n".join(["examples:", *(f"  {line}" for line in _EXAMPLES + _plugin_examples())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"clgraft {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in _COMMANDS:
        module.add_command(commands)
    for plugin in registry.plugins():
        plugin.add_commands(commands)
    parser.set_defaults(parser=parser)
    return parser


def _plugin_examples() -> tuple[str, ...]:
    return tuple(example for plugin in registry.plugins() for example in plugin.examples)


if __name__ == "__main__":
    sys.exit(main())
