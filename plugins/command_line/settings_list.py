"""The command `clgraft settings`."""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import Any

from clgraft.core import settings
from clgraft.plugins.command_line import terminal

_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "settings",
        help="list the environment variables, their values and where these come from",
        description="List the environment variables that clgraft reads: the value that holds now, whether it comes "
        "from the environment or is the default, and what it does. Below are those with a wrong value, with what is "
        f"allowed, and names that begin with {settings.OURS} and are no settings. Exit status 1 if a value is wrong.",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--markdown", action="store_true", help="print the table of the documentation")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the settings."""
    if options.markdown:
        print(settings.markdown())
        return 0
    rows, unknown = gather(), settings.unknown()
    if options.json:
        print(json.dumps({"settings": rows, "unknown": unknown}, indent=2))
    else:
        cells = [[row["name"], _shown(row), row["from"], row["effect"]] for row in rows]
        terminal.table(["variable", "value", "from", "effect"], cells, sys.stdout)
        for text in [*(row["error"] for row in rows if row["error"]), *unknown.values()]:
            print(text)
    return 1 if any(row["error"] for row in rows) else 0


def gather() -> list[dict[str, Any]]:
    """Return the settings for users, for JSON."""
    wrong = settings.wrong()
    return [
        {
            "name": one.name,
            "value": one.text() or None,
            "from": "environment" if one.given else "default",
            "default": one.default or one.unset,
            "expected": one.expected,
            "effect": _plain(one.effect),
            "error": wrong.get(one.name),
        }
        for one in settings.ALL
        if one.documented
    ]


def _shown(row: dict[str, Any]) -> str:
    """Return a value as the table shows it: what holds without one stands in brackets."""
    return str(row["value"] or f"({row['default']})")


def _plain(text: str) -> str:
    """Return a text of the documentation without links and quotes of code."""
    return _LINK.sub(r"\1", text).replace("`", "")
