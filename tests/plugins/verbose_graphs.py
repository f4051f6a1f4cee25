"""From a program with graphs to its problems: what `CLGRAFT_VERBOSE` prints, read by `clgraft tune` and `bench`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from clgraft.plugins.command_line import events, problem_text
from clgraft.plugins.command_line.main import main


def expect_problems(program: str, kinds: set[str], folder: Path) -> list[str]:
    """Run a program with either word; its lines, in `plan.txt`, name problems of these kinds, which are returned."""
    found = {}
    for word in ("plan", "run"):
        file = folder / f"{word}.txt"
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            env={**os.environ, "CLGRAFT_VERBOSE": word},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        file.write_text(done.stderr)
        lines = list(events.read(done.stderr.splitlines()))
        found[word] = problem_text.read(str(file))
        assert any(line.kind == word and line.implementation == "graph" for line in lines)
        assert {line.kind for line in lines} == {"plan", word}
    assert found["plan"] == found["run"]
    assert kinds <= {text.split()[0] for text in found["plan"]}, found["plan"]
    return found["plan"]


def expect_commands(found: list[str], folder: Path, capfd) -> None:
    """Expect that `tune` and `bench` take the lines of a program with these problems."""
    capfd.readouterr()
    lines_file = str(folder / "plan.txt")
    assert main(["tune", lines_file, "--seconds", "0.01", "--budget", "1", "--json"]) in (0, 3)
    tuned = [row["problem"] for row in json.loads(capfd.readouterr().out)["problems"]]
    assert set(tuned) <= set(found) and tuned
    figures = folder / "figures.json"
    assert (
        main(["bench", lines_file, "--peers", "numpy", "--only", "pool", "--seconds", "0.01", "--json", str(figures)])
        == 0
    )
    assert "pool forward" in figures.read_text()
