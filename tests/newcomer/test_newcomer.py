"""What a newcomer types, right and wrong, prints what the transcripts say: see `transcripts.py`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from clgraft.plugins.command_line.main import build_parser
from tests.newcomer import transcripts

BLOCKS = {f"{path.stem}-{i}": block for path in transcripts.files() for i, block in enumerate(transcripts.read(path))}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return transcripts.folder(tmp_path_factory.mktemp("newcomer"))


@pytest.mark.parametrize("name", BLOCKS)
def test_a_command_prints_what_its_transcript_says(name: str, place: Path):
    block = BLOCKS[name]
    if block.lacking:
        pytest.skip(block.lacking)
    assert transcripts.run(block, place) == block.output, f"{block.command}: run python -m tests.newcomer --write"


def test_every_command_has_a_transcript():
    named = set(re.findall(r"\bclgraft (\w+)", "\n".join(block.command for block in BLOCKS.values())))
    (choices,) = (each.choices for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction))
    assert set(choices) - named == set()


def test_errors_are_no_tracebacks():
    assert [block.command for block in BLOCKS.values() if "Traceback" in block.output] == []


@pytest.mark.parametrize("path", transcripts.files(), ids=lambda path: path.stem)
def test_a_transcript_is_read_as_it_is_written(path: Path):
    assert transcripts.text(transcripts.read(path)) == path.read_text(encoding="utf-8")
