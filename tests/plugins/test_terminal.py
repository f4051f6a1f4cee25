"""Progress and tables: drawn on a terminal, plain lines in a pipe."""

from __future__ import annotations

import io
import os
import pty
import re
import shutil
import subprocess
import sys

import pytest

from clgraft.plugins.command_line import terminal
from clgraft.plugins.command_line.main import main

PROGRAM = """
import sys, time
from clgraft.plugins.command_line import terminal
with terminal.Progress(sys.stdout, 4) as progress:
    for i in range(4):
        progress.show(f"case {i}", i)
        time.sleep(0.15)
        progress.print(f"[bold]row {i}[/bold]")
terminal.table(["name", "size"], [["[red]a", "1"], ["b", "22"]], sys.stdout, ["left", "right"])
"""


class Terminal(io.StringIO):
    """A terminal that keeps what is written."""

    def isatty(self) -> bool:
        return True


def run(on_terminal: bool) -> str:
    """Run the program on a pseudo-terminal or in a pipe; return its output."""
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-c", PROGRAM]
    if not on_terminal:
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        assert done.stderr == ""
        return done.stdout
    leader, follower = pty.openpty()
    child = subprocess.Popen(command, stdout=follower, stderr=subprocess.PIPE, env=environment)
    os.close(follower)
    parts = []
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the other end was closed
            break
        if not part:
            break
        parts.append(part)
    os.close(leader)
    assert child.wait() == 0, child.stderr.read().decode()
    child.stderr.close()
    return b"".join(parts).decode()


def test_a_pipe_gets_plain_lines():
    rows = [f"[bold]row {i}[/bold]" for i in range(4)]
    assert run(False).splitlines() == [*rows, "name    size", "[red]a     1", "b         22"]


def test_a_terminal_gets_a_bar_and_a_drawn_table():
    text = run(True)
    assert "\x1b[" in text and "case 2" in text and "2/4" in text and "left" in text
    for i in range(4):
        assert f"[bold]row {i}[/bold]" in text  # shown as it is
    assert "[red]a" in text and "│" in text


def test_counts_and_sizes():
    assert [terminal.plural(n, "problem") for n in (0, 1, 2)] == ["0 problems", "1 problem", "2 problems"]
    assert [terminal.nbytes(n) for n in (5, 2048, 3 << 20, 5 << 30)] == ["5 bytes", "2 KiB", "3 MiB", "5.0 GiB"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell, capfd):
    assert main(["completion", shell]) == 0
    script = capfd.readouterr().out
    assert "clgraft" in script and "profile" in script and ("-l passes" if shell == "fish" else "--passes") in script
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=script, text=True, check=False).returncode == 0


def test_completion_in_fish_knows_commands_options_and_files(capfd):
    assert main(["completion", "fish"]) == 0
    lines = capfd.readouterr().out.splitlines()
    of_swap = [line for line in lines if line.startswith("complete -c clgraft") and "_using swap" in line]
    assert any("-l types" in line for line in of_swap)
    assert any("-s o " in line and "__fish_complete_path" in line for line in of_swap)
    assert all(any(f" -a {name} " in line for line in lines) for name in ("swap", "tune"))


@pytest.mark.skipif(not shutil.which("fish"), reason="needs fish")
def test_fish_completes_what_its_script_says(tmp_path, capfd):
    assert main(["completion", "fish"]) == 0
    (tmp_path / "clgraft.fish").write_text(capfd.readouterr().out)
    (tmp_path / "net.prototxt").touch()

    def completed(line: str) -> list[str]:
        environment = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
        command = ["fish", "-c", f"source clgraft.fish; complete -C '{line}'"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
        return [each.split("\t")[0] for each in done.stdout.splitlines()]

    assert {"swap", "settings"} <= set(completed("clgraft s")) and "tune" not in completed("clgraft s")
    assert "--types" in completed("clgraft swap --ty") and "net.prototxt" in completed("clgraft swap -o n")
    assert {"bash", "zsh", "fish"} <= set(completed("clgraft completion "))


def test_a_shtab_without_a_shell_is_named(monkeypatch, capfd):
    import shtab

    monkeypatch.setattr(shtab, "SUPPORTED_SHELLS", ["bash", "zsh"])
    assert main(["completion", "fish"]) == 1
    assert "[completion] got shtab" in capfd.readouterr().err


def test_pocls_cache_is_cleared_where_it_is_our_own(tmp_path, monkeypatch, capfd):
    import json

    monkeypatch.setenv("CLGRAFT_CACHE", str(tmp_path))
    for name in ("pocl", "others"):
        place = tmp_path / name / "AB" / "CDEF"
        place.mkdir(parents=True)
        (place / "program.bc").write_bytes(bytes(2048))
        (place / "last_accessed").touch()
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "others"))
    assert main(["cache", "--clear"]) == 0
    text = capfd.readouterr().out
    assert f"PoCL's {tmp_path}/others: 1 program, 2 KiB" in text and "it is left as it is" in text
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "pocl"))
    assert main(["cache", "--clear", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["removed"]["pocl"] == {"programs": 1, "bytes": 2048}
    assert found["pocl"] == {"folder": str(tmp_path / "pocl"), "own": True, "programs": 0, "bytes": 0}
    assert list((tmp_path / "others").rglob("program.bc")) and not list((tmp_path / "pocl").rglob("program.bc"))


def test_cache_is_shown_and_cleared(tmp_path, monkeypatch, capfd):
    from clgraft import core

    monkeypatch.setenv("CLGRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CLGRAFT_CACHE_LIMIT", "3M")
    monkeypatch.setenv("POCL_KERNEL_CACHE", "0")  # PoCL would keep the program itself
    context = core.Context.on(None)
    context.plan(core.parse("pool max n1 c1 ih4 iw4 kh4 kw4"))
    device = f"{context.device.platform} / {context.device.name}"
    assert main(["cache"]) == 0
    text = capfd.readouterr().out
    count = int(re.search(r"(\d+) programs?,", text)[1])  # a device's probes may be there, too
    assert str(tmp_path / "cache") in text and count >= 1 and "(limit 3 MiB)" in text and device in text
    assert main(["cache", "--json", "--clear"]) == 0
    import json

    found = json.loads(capfd.readouterr().out)
    assert found["removed"]["programs"] == count and found["programs"] == 0 and found["devices"] == []
    assert not list((tmp_path / "cache" / "programs").iterdir())
    monkeypatch.setenv("CLGRAFT_CACHE", "off")
    assert main(["cache", "--clear"]) == 0
    assert "there is no cache" in capfd.readouterr().out
