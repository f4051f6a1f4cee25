"""Environment variables: one table, which the documentation repeats, and errors that name what is allowed."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from clgraft.core import ArgumentError, settings
from tests.folders import ROOT

PACKAGES = ("core", "mxnet_ops", "caffe_layers", "plugins", "clgraft")
SETTINGS = "core/settings.py"
# files that read variables without `core.settings`, and why
APART = {
    "plugins/caffe/embedded/sitecustomize.py": "finds out where clgraft can be imported from, before it can be",
}


def rows() -> dict[str, tuple[str, str]]:
    """Return the rows of the documentation's table: value and effect by name."""
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    table = text.split("## Environment variables")[1].split("\n\n")[1]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {row[0].strip("`"): (row[1], row[2]) for row in cells if row[0].startswith("`CLGRAFT_")}


def test_the_documentation_has_the_table():
    documented = [setting for setting in settings.ALL if setting.documented]
    assert list(rows()) == [setting.name for setting in documented]
    for setting in documented:
        value, _ = rows()[setting.name]
        if setting.default:
            assert f"`{setting.default}` (default)" in value, setting.name
        words = re.findall(r"`([^`]+)`", value)
        if not any(word in setting.expected for word in ("a name", "names", "types", "blobs")):  # those vary
            for word in words:
                setting.parse(word)


def test_whatever_is_read_is_in_the_table():
    """C reads some, and the others are read by `core.settings` alone."""
    found = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*"):
            if path.suffix not in (".py", ".c", ".cpp", ".h") or str(path.relative_to(ROOT)) == SETTINGS:
                continue
            text = path.read_text(encoding="utf-8")
            read = re.findall(r"""(?:getenv\(|environ\.get\(|environ\[)\s*"(CLGRAFT_[A-Z_]+)""", text)
            found.update(read)
            if path.suffix == ".py" and str(path.relative_to(ROOT)) not in APART:
                assert not read and "environ.get(VARIABLE" not in text, path
            if str(path.relative_to(ROOT)) in APART:
                assert read, f"{path} needs no exception"
    assert found <= {setting.name for setting in settings.ALL}
    assert {setting.name for setting in settings.READ_BY_C} <= found


@pytest.mark.parametrize("setting", settings.ALL, ids=lambda setting: setting.name)
def test_defaults_are_values(setting, monkeypatch):
    monkeypatch.delenv(setting.name, raising=False)
    unset = setting.value()
    monkeypatch.setenv(setting.name, "  ")
    assert setting.value() == unset == setting.parse(setting.default)


@pytest.mark.parametrize(
    ("setting", "text", "value"),
    [
        (settings.TUNE, " Full ", "full"),
        (settings.PRECISION, "TF32", "tf32"),
        (settings.CACHE_LIMIT, "2 MiB", 2 << 20),
        (settings.CACHE_LIMIT, "OFF", None),
        (settings.BUILD_PROCESSES, "12", 12),
        (settings.BUILD_PROCESSES, "", None),
        (settings.VERBOSE, "plan,run,start", ("plan", "run", "start")),
        (settings.COPY_THREADS, "16", 16),
        (settings.CACHE, "/some where", "/some where"),
    ],
)
def test_what_values_mean(setting, text, value, monkeypatch):
    monkeypatch.setenv(setting.name, text)
    assert setting.value() == value


@pytest.mark.parametrize(
    ("setting", "text", "expected"),
    [
        (settings.TUNE, "fast", r"one of \('off', 'cached', 'full'\)"),
        (settings.PRECISION, "half", "'float32' or 'tf32'"),
        (settings.WINOGRAD, "3", r"one of \('on', 'off', '2', '4'\)"),
        (settings.CACHE_LIMIT, "-1", "bytes such as 512M, or off"),
        (settings.BUILD_PROCESSES, "1.5", "a number of processes up to 9999"),
        (settings.BUILD_PROCESSES, "10000", "a number of processes up to 9999"),
        (settings.VERBOSE, "plans", "words of plan, run and start between commas"),
        (settings.COPY_THREADS, "17", "a number from 1 to 16"),
        (settings.UPDATE_THREADS, "all", "a number from 1 to 64"),
    ],
)
def test_wrong_values_name_what_is_allowed(setting, text, expected, monkeypatch):
    monkeypatch.setenv(setting.name, text)
    with pytest.raises(ArgumentError, match=rf"^\[\w+\] got {setting.name}='{re.escape(text)}', expected {expected}$"):
        setting.value()


@pytest.mark.parametrize("setting", settings.READ_BY_C, ids=lambda setting: setting.name)
def test_what_c_reads_is_checked_when_a_device_is_opened(setting):
    done = subprocess.run(
        [sys.executable, "-c", "from clgraft import core; core.context()"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, setting.name: "-3"},
    )
    assert done.returncode and f"got {setting.name}='-3', expected {setting.expected}" in done.stderr
