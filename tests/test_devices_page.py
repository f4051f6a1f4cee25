"""docs/devices.md is what `docs/devices.py` makes of the files that `clgraft report` has written."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from clgraft.plugins.command_line.report.device_report import DeviceReport
from tests.folders import ROOT

FILES = sorted((ROOT / "docs" / "devices").glob("*.json"))


def load() -> Any:
    """Return the program, which stands outside of the package."""
    spec = importlib.util.spec_from_file_location("docs_devices", ROOT / "docs" / "devices.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


program = load()


def test_the_page_agrees_with_the_files():
    text = program.PAGE.read_text(encoding="utf-8")
    assert program.MARK.search(text)
    assert text == program.filled(text, program.FOLDER), "run python docs/devices.py"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_was_written_by_the_command(path: Path):
    report = DeviceReport.read(path)
    assert report.to_json() == path.read_text(encoding="utf-8")
    assert report.bench.command.startswith("clgraft report")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", report.bench.date)
    assert report.check.rows and report.bench.rows and report.bench.peak_flops
    assert not re.search(r"/(home|root|tmp|work)/", path.read_text(encoding="utf-8"))
