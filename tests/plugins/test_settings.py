"""`clgraft settings`, and commands with wrong settings."""

from __future__ import annotations

import json

import pytest

from clgraft.core import settings
from clgraft.plugins.command_line.main import main

POOL = "pool forward max n1 c2 ih4 iw4 kh2 kw2"
NET = """layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 } } }
layer { name: "y" type: "ReLU" bottom: "x" top: "y" }"""


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for setting in settings.ALL:
        if setting.name not in ("CLGRAFT_DEVICE", "CLGRAFT_CACHE"):
            monkeypatch.delenv(setting.name, raising=False)


def test_values_and_where_they_come_from(monkeypatch, capfd):
    monkeypatch.setenv("CLGRAFT_TUNE", "off")
    assert main(["settings", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    rows = {row["name"]: row for row in found["settings"]}
    assert list(rows) == [setting.name for setting in settings.ALL if setting.documented] and not found["unknown"]
    assert rows["CLGRAFT_TUNE"] == {
        "name": "CLGRAFT_TUNE",
        "value": "off",
        "from": "environment",
        "default": "cached",
        "expected": "one of ('off', 'cached', 'full')",
        "effect": "use of measured choices, see tuning",
        "error": None,
    }
    assert rows["CLGRAFT_CACHE_LIMIT"]["value"] == "512M" and rows["CLGRAFT_CACHE_LIMIT"]["from"] == "default"
    assert rows["CLGRAFT_VERBOSE_FILE"]["value"] is None and rows["CLGRAFT_VERBOSE_FILE"]["default"] == "stderr"
    assert all(row["value"] or row["default"] for row in rows.values())
    assert main(["settings"]) == 0
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert lines[0] == ["variable", "value", "from", "effect"] and len(lines) == len(rows) + 1
    assert ["CLGRAFT_TUNE", "off", "environment"] in [words[:3] for words in lines]
    assert ["CLGRAFT_VERBOSE_FILE", "(stderr)", "default"] in [words[:3] for words in lines]


def test_what_is_wrong_or_unknown_is_listed(monkeypatch, capfd):
    monkeypatch.setenv("CLGRAFT_VERBOSE", "plam")
    monkeypatch.setenv("CLGRAFT_TUN", "off")
    assert main(["settings"]) == 1
    last = capfd.readouterr().out.splitlines()[-2:]
    assert last[0].startswith("[verbose] got CLGRAFT_VERBOSE='plam', expected words of") and last[0].endswith("plan")
    assert last[1].startswith("got CLGRAFT_TUN, which is no setting") and "CLGRAFT_TUNE" in last[1]
    assert main(["settings", "--json"]) == 1
    found = json.loads(capfd.readouterr().out)
    assert [row["name"] for row in found["settings"] if row["error"]] == ["CLGRAFT_VERBOSE"]
    assert list(found["unknown"]) == ["CLGRAFT_TUN"]


def test_the_documentations_table(capfd):
    assert main(["settings", "--markdown"]) == 0
    assert capfd.readouterr().out == settings.markdown() + "\n"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CLGRAFT_VERBOSE", "foo"),
        ("CLGRAFT_BUILD_PROCESSES", "foo"),
        ("CLGRAFT_BUILD_PROCESSES", "-1"),
        ("CLGRAFT_COPY_THREADS", "foo"),
        ("CLGRAFT_UPDATE_THREADS", "foo"),
        ("CLGRAFT_CACHE_LIMIT", "foo"),
        ("CLGRAFT_PRECISION", "foo"),
    ],
)
@pytest.mark.parametrize("command", [["devices"], ["cache"], ["tune", "lrn forward n1 c3 s4 size5 beta0.75"]])
def test_every_command_refuses_a_wrong_setting(name, value, command, monkeypatch, capfd):
    monkeypatch.setenv(name, value)
    assert main(command) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("clgraft: [") and f"got {name}={value!r}, expected " in err


@pytest.mark.parametrize(
    "command",
    [
        *(["check"], ["bench", POOL, "--peers", "numpy"], ["bench", POOL, "--threads", "1"], ["tune", POOL]),
        *(["tune", "--import", "rows.txt"], ["profile", POOL], ["warm", POOL], ["report"], ["run", "net.prototxt"]),
    ],
    ids=" ".join,
)
def test_every_command_that_computes_refuses_a_wrong_device(command, monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(NET)
    monkeypatch.setenv("CLGRAFT_DEVICE", "abacus")
    assert main(command) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("clgraft: [device] got 'abacus', expected 'cpu', 'gpu', part of a name")


def test_devices_are_listed_even_if_a_wrong_one_is_chosen(monkeypatch, capfd):
    monkeypatch.setenv("CLGRAFT_DEVICE", "abacus")
    assert main(["devices"]) == 2
    assert "CLGRAFT_DEVICE is 'abacus', which fits none of them" in capfd.readouterr().out
    monkeypatch.delenv("CLGRAFT_DEVICE")
    assert main(["devices"]) == 0
