"""Write the commands of docs/command-line.md from their parsers: `python docs/commands.py`.

What stands between the marks `<!-- commands -->` and `<!-- end -->` of the page is written anew: a list of the commands
and a section for each with its usage, its arguments and its examples, all as `clgraft COMMAND --help` has them.
`--check` writes nothing and ends with 1 if the page differs. `tests/test_command_line_page.py` runs it.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from clgraft.plugins.command_line.main import build_parser

PAGE = Path(__file__).resolve().parent / "command-line.md"
MARK = re.compile(r"(<!-- commands -->\n)(.*?)(<!-- end -->)", re.S)
WIDTH = 120
EXAMPLES = "examples:"


def page(text: str) -> str:
    """Return the page with the commands of today."""
    parser = build_parser()
    (choices,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    helps = {action.dest: action.help or "" for action in choices._choices_actions}
    lines = []
    for name in choices.choices:
        lines += wrapped(f"* [`{name}`](#clgraft-{name}): {plain(helps[name])}")
    for name, command in choices.choices.items():
        lines += ["", f"### `clgraft {name}`", "", *section(command)]
    return MARK.sub(lambda match: match[1] + "\n".join([*lines, ""]) + match[3], text)


def section(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the lines of a command's section."""
    yield from textwrap.wrap(plain(" ".join((parser.description or "").split())), WIDTH, break_long_words=False)
    yield from ["", f"    {usage(parser)}", ""]
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action.dest != "help"]
        if actions and group.title and group.title.startswith("for "):
            yield from ["", f"{group.title[:1].upper()}{group.title[1:]}:", ""]
        for action in actions:
            yield from wrapped(f"* `{named(action)}`: {plain(meaning(action, parser))}")
    epilog = (parser.epilog or "").strip("\n").splitlines()
    if epilog:
        shown = [line.strip() for line in epilog[1:]] if epilog[0] == EXAMPLES else epilog
        yield from ["", *(f"    {line}".rstrip() for line in shown)]


def usage(parser: argparse.ArgumentParser) -> str:
    """Return a command's usage: its options have a list of their own."""
    words = [parser.prog]
    if any(action.option_strings and action.dest != "help" for action in parser._actions):
        words.append("[options]")
    for action in parser._actions:
        if not action.option_strings:
            name = named(action)
            words.append({"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} [{name} ...]"}.get(action.nargs, name))
    return " ".join(words)


def named(action: argparse.Action) -> str:
    """Return an argument as it is written on the command line."""
    value = action.metavar or ("{" + ",".join(action.choices) + "}" if action.choices else action.dest.upper())
    if not action.option_strings:
        return str(action.metavar or ("|".join(action.choices) if action.choices else action.dest))
    text = ", ".join(action.option_strings)
    if action.nargs == 0:
        return text
    return f"{text} {value}{' ...' if action.nargs in ('+', '*') else ''}"


def meaning(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    """Return the help of an argument, with what argparse fills in."""
    if not action.help:
        return "one of these words" if action.choices else action.dest
    return action.help % {**vars(action), "prog": parser.prog}


def plain(text: str) -> str:
    """Return text of a terminal as Markdown that shows the same."""
    return re.sub(r"([\\`*<>|\[\]])", r"\\\1", text)


def wrapped(text: str) -> list[str]:
    """Return an entry of a list as lines."""
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if the page differs")
    options = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    new = page(text)
    if not options.check:
        PAGE.write_text(new, encoding="utf-8")
    return int(options.check and new != text)


if __name__ == "__main__":
    sys.exit(main())
