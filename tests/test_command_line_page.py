"""docs/command-line.md has the commands of today, each with an example that the command's parser reads."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest

from clgraft.plugins.command_line.main import build_parser
from tests.folders import ROOT

PAGE = ROOT / "docs" / "command-line.md"
SECTION = re.compile(r"^### `clgraft (\w+)`\n(.*?)(?=^### |^<!-- end -->)", re.M | re.S)
SECTIONS = dict(SECTION.findall(PAGE.read_text(encoding="utf-8")))


def test_the_page_agrees_with_the_parsers():
    # a process of its own: other tests register plugins
    command = [sys.executable, "docs/commands.py", "--check"]
    assert subprocess.run(command, cwd=ROOT).returncode == 0, "run python docs/commands.py"


@pytest.mark.parametrize("name", SECTIONS)
def test_every_command_has_its_arguments_and_examples(name: str, capsys):
    with pytest.raises(SystemExit):
        build_parser().parse_args([name, "--help"])
    shown = capsys.readouterr().out
    options = set(re.findall(r"^ +(?:-\w, )?(--[\w-]+)", shown, re.M)) - {"--help"}
    assert {option for option in options if option not in SECTIONS[name]} == set()
    examples = [line for line in SECTIONS[name].splitlines() if re.match(r" {4}.*\bclgraft ", line)]
    assert len(examples) >= 2, "its usage and an example"
    for line in examples[1:]:
        assert line.strip() in re.sub(r"\s+$", "", shown, flags=re.M), "--help has it, too"
        command = re.search(r"\bclgraft (.*)", line)
        assert command
        build_parser().parse_args(shlex.split(command[1].split(" > ")[0]))
